"""An exporter over simulated days: its resources do not grow."""

import subprocess
import sys

import msgspec
import pytest
import soak
from soak import HOUR, NAMES, Hour

from infercanary.store.retention import BLOCK, Retention
from tests.scenarios import cases

FULL_HOURS = 24
"""Until this hour memory grows: first day of an image, buffers, histories, and their caches."""


def most_rows(images):
    """Return the maximum number of rows of a canary in one container, if each image has the maximum number of
    openings.
    """
    keep = Retention()
    of_image = keep.opening * keep.opening_starts + keep.raw + keep.slack + keep.first // BLOCK
    return images * of_image + keep.blocks + keep.hours + keep.failed


@pytest.mark.campaign
@cases([1, 7])
def test_memory_is_flat_and_files_are_within_their_bound(days, tmp_path):
    days += 1  # count the first day as well
    command = [sys.executable, soak.__file__, str(tmp_path / "store.db"), str(24 * HOUR * days)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=2 * 3600 * days)
    hours = [msgspec.json.decode(line, type=Hour) for line in done.stdout.splitlines()]
    assert len(hours) == 24 * days
    print(*hours[:: 6 * days - 1], sep="\n")
    later = hours[FULL_HOURS - 1 :]
    assert max(hour.resident for hour in later) <= 1.02 * max(hour.resident for hour in hours[:FULL_HOURS])
    assert max(hour.objects for hour in later) <= 1.02 * later[0].objects
    assert max(hour.rows for hour in hours) <= most_rows(2) * len(NAMES)
    assert max(hour.store for hour in hours) <= 14e6 * len(NAMES)  # limit in store/retention.py
    assert max(hour.log for hour in hours) <= 17e6  # limit in store/sqlite.py
    assert max(hour.tasks for hour in later) == min(hour.tasks for hour in later)
    # Only runs from the last seconds before a restart may be lost.
    made = 24 * HOUR * days // soak.RUN_SECONDS * len(NAMES)
    assert made - 100 * days <= hours[-1].stored <= made
    assert hours[-1].verdicts["upgraded"] == "regressed"
    assert not {hour.verdicts["steady"] for hour in hours} & {"regressed", "improved"}
