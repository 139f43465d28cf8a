"""Every input of the corpus is handled without a fault; ``make fuzz`` searches for new faults."""

import pytest

from fuzz import TARGETS, fuzz, seeds


@pytest.mark.parametrize("name", [*TARGETS])
def test_the_corpus(name):
    found = seeds(name)
    assert found  # each target needs seeds
    for data in found:
        TARGETS[name](data)


@pytest.mark.campaign
@pytest.mark.parametrize("name", [*TARGETS])
def test_five_minutes(name):
    tried, error = fuzz(name, 300)
    print(f"{name}: {tried:,} inputs")
    assert error is None
