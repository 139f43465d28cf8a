import pytest

from tests.for_each import for_each


def test_a_failure_names_every_place_that_breaks_the_rule():
    @for_each([1, 2, 3, 4], lambda number: f"number {number}")
    def odd(number):
        """It is odd."""
        assert number % 2 == 1, "it is even"

    with pytest.raises(
        AssertionError, match=r"(?s)^2 of 4:\nnumber 2: .*it is even.*\nnumber 4: "
    ) as failure:
        odd()
    assert "number 1" not in str(failure.value)
    assert "number 3" not in str(failure.value)
    assert (odd.__name__, odd.__doc__) == ("odd", "It is odd.")


def test_a_rule_without_places_fails():
    @for_each([])
    def anything(thing):
        pass

    with pytest.raises(AssertionError, match="checks nothing"):
        anything()
