"""CPU lists in the forms of the kernel and of people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.cpus import MAX_CPUS, numbers, parse_cpus
from tests.scenarios import cases


@cases(
    [
        ("", set()),
        ("0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("0-1,8,10-11", {0, 1, 8, 10, 11}),
        ("1,1,0-1", {0, 1}),
        ("8190-8191", {8190, 8191}),
    ],
)
def test_lists(text, cpus):
    assert numbers(parse_cpus(text)) == cpus
    assert parse_cpus(text).bit_count() == len(cpus)


@pytest.mark.parametrize(
    "text",
    [
        *("x", "-1", "1-", "1,", ",", "1 2", " 0", "3-1", "1-2-3", "²", "1\n2", "0\n"),
        *("0-4294967295", "8192", "0-8192", "9" * 4096),
    ],
)
def test_invalid_lists_and_impossible_cpus(text):
    with pytest.raises(ValueError, match="is neither a CPU nor a range of CPUs") as caught:
        parse_cpus(text)
    assert len(str(caught.value)) < 100


@given(st.sets(st.integers(0, MAX_CPUS - 1), max_size=200))
def test_a_written_list_is_read(cpus):
    assert numbers(parse_cpus(",".join(map(str, cpus)))) == cpus
