import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import OUTPUT_TOLERANCE, relative_error
from infercanary.probe.output import fingerprint
from tests.scenarios import typed
from tests.targets import Scripted, opened

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


ERRORS = """
[3.0, 4.05] | [3.0, 4.0] | 0.01
[0.0]       | [0.0]      | 0.0
[1.0e-9]    | [0.0]      | 1.0
[1.0]       | [1.0, 2.0] | 1.0
[.nan]      | [1.0]      | 1.0
[1.0]       | [.inf]     | 1.0
[500.0]     | [1.0]      | 1.0
"""


@pytest.mark.parametrize(("found", "reference", "error"), typed(ERRORS))
def test_by_how_much(found, reference, error):
    assert relative_error(found, reference) == pytest.approx(error)


def test_rounding_of_another_library_is_tolerated_and_other_weights_are_not():
    reference = [math.sin(k) for k in range(1000)]
    rounded = [v * (1 + 4e-3 * (-1) ** k) for k, v in enumerate(reference)]
    other = [math.sin(k + 0.05) for k in range(1000)]
    assert relative_error(rounded, reference) < OUTPUT_TOLERANCE < relative_error(other, reference)


def test_the_fingerprint_is_short():
    assert (fingerprint([1 / 3]), fingerprint(())) == ((0.333333,), ())
    assert len(fingerprint(range(1000))) == 32
    assert fingerprint(range(64)) == (*range(0, 64, 2),)


@given(numbers, st.floats(1e-3, 1e3))
def test_an_output_equals_itself_and_units_do_not_matter(values, unit):
    assert relative_error(values, values) == 0.0
    other = [value * 1.05 + 0.01 for value in values]
    scaled = relative_error([v * unit for v in other], [v * unit for v in values])
    assert scaled == pytest.approx(relative_error(other, values), rel=1e-6, abs=1e-9)


def test_an_output_without_numbers_has_no_error_and_is_named_once(caplog):
    canary = opened(Scripted(output=()))
    assert {canary.round(5).output_error for _ in range(4)} == {None}
    assert canary.output == ()
    assert caplog.text.count("canary a: output not checked: the target reads no numbers from") == 1
    assert canary.close(5)
