"""Decorator that makes one test of many items: the test checks every item, and its failure lists all faulty items."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


Check = Callable[[T], None]


def for_each(things, name=str):
    """Make one test of a check that takes one item.

    Args:
        things: Items to check; at least one.
        name: Returns an item's name for the failure.

    Returns:
        A decorator for the check, which asserts. Any exception is a fault of the item.
    """
    checked = [*things]

    def decorate(check):
        def test():
            assert checked, "the rule checks nothing"
            violations = []
            for thing in checked:
                try:
                    check(thing)
                except Exception as error:
                    violations.append(f"{name(thing)}: {type(error).__name__}: {error}")
            assert not violations, "\n".join([f"{len(violations)} of {len(checked)}:", *violations])

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
