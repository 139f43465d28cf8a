"""A real stack on two cores: a slow image, taken back beside a busy neighbour, and rolled out again when it was quiet.

Recorded on 2026-11-27. The old replica went on at 43 to 46 ms, the new one at 104 to 110 ms. What the neighbour did to
the old replica before made the interval reach from -6.8 to +460 %, and the alert resolved.
"""

from __future__ import annotations

import pytest
import recorded

from infercanary.judge.result import Result
from infercanary.judge.verdict import Judge

judge = Judge().verdict


@pytest.fixture
def found() -> Result:
    starts = recorded.starts("second_rollout")
    return judge(starts["classify"], starts["moderate"], "resnet18")


def test_its_size_is_known(found: Result) -> None:
    assert found.shift == pytest.approx(107 / 45.5 - 1, abs=0.2)
    assert found.upgraded_at is not None and found.newest_at is not None
    assert found.newest_at - found.upgraded_at == pytest.approx(1170, abs=5)
    assert found.changed == "image" and found.candidate_image.startswith("infercanary-example:slow")


def test_it_is_called(found: Result) -> None:
    assert found.state == "regressed" and found.low is not None and found.low > 0.25
