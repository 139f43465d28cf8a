"""Other work on the host comes and goes: which runs count."""

from infercanary.ab.neighbours import counted, is_quiet
from infercanary.judge.model import Sample
from tests import factories
from tests.scenarios import cases, typed


def start(tags):
    """Return a start with one run for each of ``tags``; contended runs take twice as long."""
    return factories.start(
        seconds=[0.04 if tag else 0.02 for tag in tags],
        control=0,
        tags=lambda i: (tags[i],) if tags[i] else (),
    )


def pairs(*counts, tag="cpu_wait_outside"):
    """Return pairs of starts of 12 runs; ``counts`` has the numbers of contended runs of A and B."""
    return [tuple(start([tag] * n + [""] * (12 - n)) for n in pair) for pair in counts]


# Contended runs of A and B in each pair | pairs that are kept | note
CONTENDED = """
[[0, 0], [0, 0], [0, 0]]                 | 3 | ""
[[4, 0], [0, 3], [2, 2], [0, 0]]         | 4 | "11 of 96 runs excluded: contended"
[[8, 0], [0, 8], [0, 0], [0, 0]]         | 2 | 48 of 96 runs  # in two pairs too few runs are quiet
# More threads than CPUs: runs of B wait for a CPU in every start.
[[1, 4], [0, 3], [1, 5], [0, 4], [0, 5]] | 5 | all runs count
[[12, 11], [12, 11], [12, 11], [12, 11]] | 4 | most runs were contended; all runs count
"""


@cases(typed(CONTENDED))
def test_runs_that_neighbours_slowed_at_random_are_excluded(counts, kept, note):
    given = pairs(*counts)
    found, notes = counted(given)
    assert len(found) == kept
    assert note in "".join(notes)
    assert bool(notes) == bool(note)
    if "all runs" in note or not note:
        assert list(found) == given
    else:
        assert all(run.median == 0.02 for pair in found for side in pair for run in side.samples)


def test_contention_by_the_image_itself_counts():
    """A busy loop in B uses the CPU during half of its runs; a neighbour sometimes uses it during runs of A and B."""
    crowded = start(["cpu_wait_outside"] * 2 + [""] + ["cpu_wait_inside"] * 6 + [""] * 3)
    found, notes = counted([(pairs((2, 0))[0][0], crowded)] * 4)
    assert notes[0].startswith("16 of 96 runs")
    assert all(any("cpu_wait_inside" in run.tags for run in pair[1].samples) for pair in found)
    assert is_quiet(Sample(0, "c", 0.0, "ok", 0.02, tags=("stalled", "cpu_wait_inside")))
    throttled = pairs((0, 6), (0, 6), (0, 6), tag="cgroup_throttled")
    assert counted(throttled) == (throttled, ())
