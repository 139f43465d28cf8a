"""Decorator for a test of many places: the test checks every place, and its failure lists all faulty places."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


Check = Callable[[T], None]


def for_each(things, name=str):
    """Make one test of a check of one thing.

    Args:
        things: What is checked; at least one.
        name: Names a thing in the failure.

    Returns:
        A decorator of the check, which takes one thing and asserts; any exception is a violation of the rule.
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
