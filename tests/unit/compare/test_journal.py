"""Journals: which runs count, to which start each belongs, and what a crash may leave."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

import pytest

from infercanary.command.settings import UsageError
from infercanary.compare import content
from infercanary.compare import journal as journals
from infercanary.compare.read import pick, read
from infercanary.compare.recording import Attempts


def lines(path):
    return Path(path).read_text().splitlines()


def test_a_start_is_a_boot_and_a_point_the_median_of_a_run(journal):
    recording = read([journal("a", [0.02, 0.03], count=5)])
    series = recording.canaries["resnet18"]
    assert [points.size for points in series.points] == [5, 5]
    assert [start.generation.boot_id for start in series.starts] == ["a-0", "a-1"]
    assert series.starts[0].generation.environment == {"torch": "2.7.0", "python": "3.11"}
    first = json.loads(lines(recording.places[0])[1])["run"]
    assert series.points[0][0] == first["latencies"][1]
    assert series.points[1].mean() == pytest.approx(0.03, rel=0.02)
    assert (recording.journal, recording.notes, series.left_out) == (True, [], {})


def test_the_older_file_is_read_first_unless_it_was_named(journal):
    path = journal("a", [0.02], count=60, max_bytes=20_000)
    older = path + ".1"
    recording = read([path])
    whole = [sample.sequence for sample in recording.canaries["resnet18"].starts[0].samples]
    assert whole == list(range(whole[0], 60)) and len(whole) == len(lines(path)) + len(lines(older)) - 2
    assert recording.notes == [f"{older}: read too, as the older part of {path}"]
    alone = read([path], apart=[path, older])
    assert alone.canaries["resnet18"].runs == len(lines(path)) - 1 and not alone.notes
    Path(older).write_text("1\n2\n")
    recording = read([path])
    assert recording.canaries["resnet18"].runs == len(lines(path)) - 1 and not recording.notes


def test_a_run_that_is_there_twice_counts_once(journal, tmp_path):
    path = journal("a", [0.02], count=10)
    twice = tmp_path / "twice"
    twice.write_text(Path(path).read_text() * 2)
    assert read([str(twice)]).canaries["resnet18"].runs == 10
    assert read([path, str(twice)]).canaries["resnet18"].runs == 10


def test_a_canary_is_picked_by_its_name(journal, write):
    recording = read([journal("a", [0.02], count=3, canaries=("one", "two"))])
    assert list(pick(recording, "")) == ["one", "two"]
    assert list(pick(recording, "two")) == ["two"]
    with pytest.raises(UsageError, match=r"no canary `three`; there are: one, two$"):
        pick(recording, "three")
    with pytest.raises(UsageError, match="no canary `one`; there are: none, in numbers"):
        pick(read([write("n", [1, 2])]), "one")


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
    """A journal may have a thousand, each in hundreds of boots."""

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


def test_a_journal_of_small_parts_has_bounds(journal, write, monkeypatch):
    """Each part takes many times its size in memory: 64 MiB of them took 900 MiB."""
    whole = Path(journal("a", [0.02], count=3)).read_bytes()
    long = whole.replace(b'"latencies":[', b'"latencies":[' + b"1.5," * (1 << 18), 1)
    with pytest.raises(UsageError, match=r"long:2: a line of more than 1 MiB, which no probe writes"):
        read([write("long", long)])
    monkeypatch.setattr(journals, "_MAX_COMPONENTS", 100)
    many = b"".join(
        b'{"boot_id":"b","environment":"%d","components":{"a":"1","b":"2"}}\n' % n for n in range(60)
    )
    with pytest.raises(UsageError, match=r"many:51: more than 100 components of environments"):
        read([write("many", many + whole)])
    read([write("again", (many.split(b"\n")[0] + b"\n") * 60 + whole)])
    monkeypatch.setattr(journals, "_MAX_CANARIES", 2)
    others = [whole.replace(b'"canary":"', b'"canary":"%d' % n) for n in range(2)]
    assert len(read([write("two", b"".join(others))]).canaries) == 2
    with pytest.raises(UsageError, match=r"three:\d+: more than 2 canaries, each with its comparison"):
        read([write("three", b"".join(others) + whole)])
    monkeypatch.setattr(journals, "_MAX_STARTS", 2)
    boots = [re.sub(rb'"boot_id":"[^"]*"', b'"boot_id":"b%d"' % n, whole) for n in range(3)]
    read([write("two-starts", b"".join(boots[:2]))])
    with pytest.raises(UsageError, match=r"three-starts:\d+: more than 2 starts; give a part of the file"):
        read([write("three-starts", b"".join(boots))])
    monkeypatch.setattr(journals, "_MAX_LINES", 2)
    with pytest.raises(UsageError, match="more than 2 lines; give a part of the file"):
        read([write("runs", whole)])


@pytest.mark.parametrize(
    ("fields", "counts", "fails", "why"),
    [
        ({"tags": ("warming", "stalled")}, 0, 0, {"warming": 3}),
        ({"tags": ("stalled", "gc")}, 3, 0, {}),
        ({"outcome": "timed_out", "latencies": ()}, 0, 3, {"timed out": 3}),
        ({"outcome": "not_finite"}, 0, 3, {"not finite": 3}),
        ({"outcome": "raised", "latencies": (), "tags": ("warming",)}, 0, 3, {"raised": 3}),
        ({"outcome": "busy", "latencies": (), "tags": ("busy",)}, 0, None, {"busy": 3}),
        ({"latencies": ()}, 0, 3, {"without latencies": 3}),
    ],
)
def test_only_steady_runs_that_ended_well_count(journal, fields, counts, fails, why):
    """Those that failed are counted whatever they are tagged; a run that was skipped as busy never began."""
    path = journal("a", [0.02], count=2)
    journal("a", [0.02], count=3, boot="b", **fields)
    series = read([path]).canaries["resnet18"]
    assert series.runs == 2 + counts and series.left_out == why
    assert series.attempts == (Attempts(2, 0) if fails is None else Attempts(5, fails))


@pytest.mark.parametrize(
    ("change", "runs", "note"),
    [
        (lambda whole: whole[:-40], 9, ": 1 truncated line left out"),
        # Where the process was killed in a line, and where a disk kept the length of a write but not its bytes.
        (lambda whole: whole[:-40] + b"\n" + b"\0" * 100 + b"\n" + whole, 10, ": 2 truncated lines left out"),
        (lambda whole: whole.replace(b"resnet18", b"resnet1\xff", 1), 9, ": 1 truncated line left out"),
        (
            lambda whole: re.sub(rb'"started_at":[^,]*', b'"started_at":1e300', whole, count=1),
            9,
            ":2: a run that cannot be is left out (started_at is 1e+300",
        ),
        (
            lambda whole: re.sub(rb'"compute":[^,}]*', b'"compute":1e308', whole, count=2),
            8,
            "phases from 0.002 to 1e+308 s); 2 such runs in all",
        ),
        *(
            (
                lambda whole, wrong=wrong: re.sub(
                    rb'"latencies":\[[^,]*', b'"latencies":[' + wrong, whole, count=1
                ),
                9,
                note,
            )
            for wrong, note in (
                (b"-1.0", "(latencies from -1 to "),
                (b"0", "(a latency of 0 s); 1 such run in all"),
            )
        ),
        (lambda whole: b"\n" + whole.replace(b'{"boot_id":', b'{ "boot_id":'), 10, ""),
    ],
)
def test_lines_that_cannot_be_are_left_out_and_named(journal, change, runs, note):
    path = journal("a", [0.02], count=10)
    Path(path).write_bytes(change(Path(path).read_bytes()))
    recording = read([path])
    assert recording.canaries["resnet18"].runs == runs
    assert len(recording.notes) == bool(note) and note in "".join(recording.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (lambda whole, line=line: whole + line, ":5: not a line of a journal (")
            for line in (b"0.5\n", b'{"latency": 1}\n', b"hello\n", b"[1]\n")
        ),
        (
            lambda whole: whole.splitlines()[0] + b"\n",
            ": a journal without a run; wait for some, or name another",
        ),
        (lambda whole: b'{"boot_id":"x","envi', ": a journal without a run"),
        (lambda whole: gzip.compress(whole + b" " * content.MAX_UNPACKED, 1), "more than 64 MiB of text"),
    ],
)
def test_mistakes(journal, change, message):
    path = journal("a", [0.02], count=3)
    Path(path).write_bytes(change(Path(path).read_bytes()))
    with pytest.raises(UsageError, match=re.escape(path) + ".*" + re.escape(message)):
        read([path])


def test_formats_are_not_mixed(journal, write):
    path, other = journal("a", [0.02], count=3), write("n", [1, 2])
    for paths, options, message in (
        ([other, path], {}, f"{path}: a journal, but {other} holds numbers; give journals only, or"),
        (
            [path],
            {"column": "x"},
            "a journal, whose runs are judged by their latencies; leave --column",
        ),
        ([other], {"ids": ["x"]}, "holds numbers, without ids of boots or environments"),
    ):
        with pytest.raises(UsageError, match=message):
            read(paths, **options)
