"""Journals: counted runs, their starts, and leftovers of a crash."""

import gzip
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from infercanary.command.settings import UsageError
from infercanary.compare import content
from infercanary.compare import journal as journals
from infercanary.compare.read import read
from infercanary.compare.recording import Attempts
from tests.scenarios import cases, typed


def lines(path):
    return Path(path).read_text().splitlines()


def test_a_start_is_a_boot_and_a_point_the_median_of_a_run(journal):
    recording = read([journal("a", [0.02, 0.03], count=5)])
    series = recording.canaries["resnet18"]
    assert [points.size for points in series.points] == [5, 5]
    assert [start.generation.boot_id for start in series.starts] == ["a-0", "a-1"]
    assert series.starts[0].generation.environment == {"torch": "2.7.0", "python": "3.11"}
    assert series.points[0][0] == json.loads(lines(recording.places[0])[1])["run"]["latencies"][1]
    assert series.points[1].mean() == pytest.approx(0.03, rel=0.02)
    assert (recording.journal, recording.notes, series.left_out) == (True, [], {})


def test_the_older_file_is_read_first_unless_it_was_named(journal):
    path = journal("a", [0.02], count=60, max_bytes=20_000)
    older = path + ".1"
    recording = read([path])
    whole = [sample.sequence for sample in recording.canaries["resnet18"].starts[0].samples]
    assert whole == list(range(whole[0], 60))
    assert len(whole) == len(lines(path)) + len(lines(older)) - 2
    assert recording.notes == [f"{older}: also read, as the older part of {path}"]
    alone = read([path], apart=[path, older])
    assert alone.canaries["resnet18"].runs == len(lines(path)) - 1
    assert not alone.notes
    Path(older).write_text("1\n2\n")
    recording = read([path])
    assert recording.canaries["resnet18"].runs == len(lines(path)) - 1
    assert not recording.notes


def test_a_run_that_is_there_twice_counts_once(journal, tmp_path):
    path = journal("a", [0.02], count=10)
    assert read([path, str(shutil.copy(path, tmp_path / "twice"))]).canaries["resnet18"].runs == 10


def test_environments_and_boots_are_picked_by_the_beginning_of_their_ids(journal):
    path = journal("a", [0.02, 0.02], count=3)
    journal("a", [0.03], count=4, torch="2.13.0", boot="new")
    new = next(id_ for id_, known in read([path]).components.items() if known["torch"] == "2.13.0")
    assert [points.size for points in read([path], ids=[new[:6]]).canaries["resnet18"].points] == [4]
    assert [points.size for points in read([path], ids=["a-1", "new"]).canaries["resnet18"].points] == [4, 3]
    with pytest.raises(
        UsageError, match=f"without a run of zz; its environments and boots are: .*a-0.*{new}, new-0$"
    ):
        read([path], ids=["zz"])


def test_twice_as_many_canaries_take_twice_as_many_steps(write):
    """A journal may have a thousand canaries, each in hundreds of boots."""

    def steps(canaries):
        line = '{"boot_id":"b%d","environment":"e","run":{"sequence":%d,"canary":"c%d","scheduled_at":1,"started_at":1,'
        end = '"outcome":"ok","latencies":[0.01]}}'
        path = write("many", [line % (n, n, n) + end for n in range(canaries)])
        count = 0

        def traced(frame, event, _):
            nonlocal count
            count += event == "line"
            return traced if frame.f_code is journals._series.__code__ else None

        before = sys.gettrace()
        sys.settrace(traced)
        try:
            assert len(read([path]).canaries) == canaries
        finally:
            sys.settrace(before)
        return count

    assert 0 < steps(200) <= 2 * steps(100)


# Fields of three runs | number that count | number of failures (~: none began) | reason of the others
OUTCOMES = """
{tags: [warming, stalled]}                                   | 0 | 0 | {warming: 3}
{tags: [stalled, gc]}                                        | 3 | 0 | {}
{outcome: timed_out, latencies: []}                          | 0 | 3 | {timed out: 3}
{outcome: not_finite}                                        | 0 | 3 | {not finite: 3}
{outcome: raised, latencies: [], tags: [warming]}            | 0 | 3 | {raised: 3}
{outcome: busy, latencies: [], tags: [busy]}                 | 0 | ~ | {busy: 3}
{latencies: []}                                              | 0 | 3 | {without latencies: 3}
"""


@cases(typed(OUTCOMES))
def test_only_steady_runs_that_ended_well_count(fields, counts, fails, why, journal):
    """Failed runs count as failures even with a tag. A run that was skipped as busy never began."""
    path = journal("a", [0.02], count=2)
    journal("a", [0.02], count=3, boot="b", **fields)
    series = read([path]).canaries["resnet18"]
    assert series.runs == 2 + counts
    assert series.left_out == why
    assert series.attempts == (Attempts(2, 0) if fails is None else Attempts(5, fails))


@cases([
        ("_MAX_COMPONENTS", 100, b'{"boot_id":"b","environment":"%d","components":{"a":"1","b":"2"}}\n', 60,
         r"f:51: more than 100 components of environments"),
        ("_MAX_CANARIES", 2, rb'"canary":"[^"]*"=>"canary":"%d"', 3, r"f:\d+: more than 2 canaries; give a part"),
        ("_MAX_STARTS", 2, rb'"boot_id":"[^"]*"=>"boot_id":"%d"', 3, r"f:\d+: more than 2 starts; give a part of the"),
        ("_MAX_LINES", 2, b"%d", 0, r"more than 2 lines; give a part of the file"),
        ("_MAX_LINES", 9, rb'"latencies":\[=>"latencies":[%%d' + b",1.5" * (1 << 18) + b",", 1,
         r"f:2: a line of more than 1 MiB, which no probe writes"),
    ],
    ids=range(5),
)  # fmt: skip
def test_a_journal_of_small_parts_has_bounds(
    bound, most, repeated, count, message, journal, write, monkeypatch
):
    """In memory, each part takes many times its size: 64 MiB of such parts took 900 MiB."""
    monkeypatch.setattr(journals, bound, most)
    whole = Path(journal("a", [0.02], count=3)).read_bytes()
    old, _, new = repeated.partition(b"=>")
    if new:
        parts = [re.sub(old, new.replace(b"%d", b"%d" % n), whole) for n in range(count)]
    else:
        parts = [*(old % n for n in range(count)), whole]
    with pytest.raises(UsageError, match=message):
        read([write("f", b"".join(parts))])


DAMAGES = r"""
(?s).{40}\\Z         |                                  | 9  | : 1 truncated line left out
(?s)(.*).{40}\\Z     | \\g<1>\n\x00\x00\x00\n\\g<1>     | 9  | : 3 truncated lines left out
resnet18             | resnet1\xff                      | 9  | : 1 truncated line left out
"started_at":[^,]*   | "started_at":1e300               | 9  | :2: an impossible run is left out (started_at is
"compute":[^,}]*     | "compute":1e308                  | 9  | phases from 0.002 to 1e+308 s); 1 impossible run in all
"latencies":.[^,]*   | "latencies":[-1.0                | 9  | (latencies from -1 to
"latencies":.[^,]*   | "latencies":[0                   | 9  | (a latency of 0 s); 1 impossible run in all
{"boot_id":          | \n{ "boot_id":                   | 10 |
"""


@cases(DAMAGES)
def test_lines_that_cannot_be_are_left_out_and_named(pattern, replacement, runs, note, journal):
    path = journal("a", [0.02], count=10)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(re.sub(pattern.encode("latin-1"), replacement.encode("latin-1"), whole, count=1))
    recording = read([path])
    assert recording.canaries["resnet18"].runs == int(runs)
    assert len(recording.notes) == bool(note)
    assert note in "".join(recording.notes)


@cases([
        *((9, line, ":5: not a line of a journal (") for line in (b"0.5\n", b'{"latency": 1}\n', b"hello\n", b"[1]\n")),
        (1, b"", ": a journal without a run; wait for runs, or choose another file"),
        (0, b'{"boot_id":"x","envi', ": a journal without a run"),
        (9, b" " * content.MAX_UNPACKED, "more than 64 MiB of text"),
    ],
    ids=range(7),
)  # fmt: skip
def test_mistakes(kept, added, message, journal):
    path = journal("a", [0.02], count=3)
    text = b"".join(Path(path).read_bytes().splitlines(keepends=True)[:kept]) + added
    Path(path).write_bytes(gzip.compress(text, 1) if len(added) > 99 else text)
    with pytest.raises(UsageError, match=re.escape(path) + ".*" + re.escape(message)):
        read([path])


def test_formats_are_not_mixed(journal, write):
    path, other = journal("a", [0.02], count=3), write("n", [1, 2])
    for paths, options, message in (
        ([other, path], {}, f"{path}: a journal, but {other} contains numbers; give only journals, or"),
        (
            [path],
            {"column": "x"},
            "a journal has no columns; remove --column",
        ),
        ([other], {"ids": ["x"]}, "numbers have no ids of boots or environments"),
    ):
        with pytest.raises(UsageError, match=message):
            read(paths, **options)
