"""`--record`: journals and comparisons in a store, and `report` that shows them beside production's runs."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from infercanary.contract.journal import decode
from infercanary.judge.model import Generation, kept
from infercanary.store.benchmarks import read
from infercanary.store.store import open_store
from tests.scenarios import scenarios

DIGEST = "sha256:" + "b" * 64
IMAGE = ("--image", f"registry.example/search@{DIGEST}")


@pytest.fixture
def run(infercanary, journal):
    known = {"cpu_model": "EPYC", "model:resnet18": "file:1", "settings:resnet18": "s1"}
    journal("old.jsonl", [0.02] * 4, more=known)
    journal("new.jsonl", [0.0201] * 4, more=known)
    open_store("store.sqlite").close()
    return infercanary


def stored():
    with closing(open_store("store.sqlite")) as store:
        return read(store.session)


def rows(run, *arguments):
    code, out, err = run("report", "store.sqlite", *arguments, "--json")
    assert code == 0, err
    return {(row["host"], row["service"]): row for row in json.loads(out)}


def test_a_comparison_is_recorded_once_and_only_its_candidate_has_the_digest_and_the_verdict(run):
    for _ in range(2):
        code, out, err = run("compare", "old.jsonl", "new.jsonl", "--record", "store.sqlite", *IMAGE)
        assert (code, err) == (0, "infercanary: benchmarks recorded in store.sqlite: 2\n")
        assert "equivalent" in out
    new, old = sorted(stored(), key=lambda each: each.digests.any, reverse=True)
    assert (new.verdict, new.baseline, new.digests.manifest_digest) == ("equivalent", old.id, DIGEST)
    assert (old.verdict, old.shift, old.baseline) == ("", None, "")


def test_production_and_benchmarks_are_one_table_with_each_start_once(run):
    run("compare", "old.jsonl", "new.jsonl", "--record", "store.sqlite", *IMAGE)
    _, out, err = run("report", "ci=old.jsonl", "--record", "store.sqlite")
    assert out == ""
    assert "without a digest; repeat with --image REPOSITORY@sha256:…" in err
    assert err.count("\n") == 1
    found = rows(run, "--price", "2", "--price", "ci=4")
    assert found.keys() == {("ci", "report"), ("unknown host", "compare")}
    costs = [found[key]["cost_per_1000"] for key in sorted(found)]
    assert costs == pytest.approx([4 / 3600 * 20, 2 / 3600 * 20.1], rel=0.05)
    assert {(row["starts"], row["device"], row["settings"]) for row in found.values()} == {(4, "EPYC", "s1")}
    # The first two starts are in production, too.
    lines = [*map(decode, Path("old.jsonl").read_bytes().splitlines())]
    environment = next(line.components for line in lines if line.components)
    with closing(open_store("store.sqlite")) as store:
        for boot in ("old.jsonl-0", "old.jsonl-1"):
            start = Generation(
                service="search", container="a", boot_id=boot, started_at=1.7e9, environment=environment
            )
            store.take(start, [kept(line.run) for line in lines if line.run and line.boot_id == boot])
    found = rows(run)
    assert {key: row["starts"] for key, row in found.items()} == {
        ("store", "search"): 2,
        ("ci", "report"): 2,
        ("unknown host", "compare"): 4,
    }
    assert rows(run, "--service", "compare").keys() == {("unknown host", "compare")}


MISTAKES = scenarios("""
compare old.jsonl new.jsonl --record postgresql://127.0.0.1:1/x  | --record: postgresql://127.0.0.1:1/x: connection
compare old.jsonl new.jsonl --record newer.sqlite                | --record: newer.sqlite: a newer InferCanary wrote
compare old.jsonl new.jsonl --record old.jsonl                   | --record: old.jsonl: file is not a database
report old.jsonl --record store.sqlite --image search:1          | --image search:1: not a digest; give REPOSITORY@sha
compare one.txt one.txt --record store.sqlite                    | --record: nothing to record; give journals of probes
ab a:1 b:1 --record newer.sqlite                                 | --record: newer.sqlite: a newer InferCanary wrote
""")


@pytest.mark.parametrize(("arguments", "line"), MISTAKES)
def test_a_mistake_is_one_line_and_no_other_file_is_touched(run, write, arguments, line):
    write("one.txt", map(str, range(10, 40)))
    with closing(open_store("newer.sqlite")) as store, store.session.transaction() as connection:
        connection.exec_driver_sql("UPDATE infercanary_schema SET version_num = '7000'")
    before = Path("old.jsonl").read_bytes()
    code, out, err = run(*arguments.split())
    assert (code, err.count("\n")) == (2, 1), err
    assert ("compare" in arguments and "--image" not in arguments) == bool(out), "the answer is not lost"
    assert err.startswith(f"infercanary: {line}")
    assert Path("old.jsonl").read_bytes() == before
