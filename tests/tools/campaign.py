"""Runs the tests that take too long for CI (mark ``campaign``) one by one, and keeps a table of their results.

``make campaign`` skips tests that passed at this commit according to the table, so it resumes where it stopped: commit
first. ``make campaign ARGS="-k kills"`` runs a part.

``make causes`` runs the tests named ``…is_named[CAUSE-is-NAME-TRIAL]``: a cause is made, and the verdict must name it.
The results are kept in a table by cause. ``make causes ARGS=--once`` runs one trial of each cause without a table, as
CI does.

``--stale`` runs nothing. It lists the tests whose packages changed since their row was recorded: whoever changed the
packages runs these tests, and commits the table.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import functools
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "benchmarks/results/campaign.md"
# Two hours instead of 20 minutes, because the longest test takes an hour after its baseline.
HANGS_SECONDS = 2 * 3600
HEAD = """# Campaign

Tests that take longer than CI may: repeats and long runs of what CI does once. `make campaign` runs them one by one and
writes this table; what passed at the present commit is not run again, so it goes on where it was stopped.

| test | result | commit | seconds | day |
|---|---|---|---:|---|
"""


CAUSES = ROOT / "benchmarks/results/causes.md"
CAUSES_HEAD = """# Causes

Each cause is made with real processes, as often as `of` says, and the judge must name it. `make causes` runs the trials
one by one and writes this table; what was right at the present commit is not run again, so it goes on where it stopped.
`not made` counts trials in which a machine could not make the cause, as a plain measurement without the product showed.

| cause made | named | right | of | not made |
|---|---|---:|---:|---:|
"""
_PROBE, _EXPORTER = "probe/infercanary/probe", "exporter/infercanary/exporter"
_STORE, _JUDGE = "exporter/infercanary/store", "exporter/infercanary/judge"
# Topic of a test, by the beginning of its path: the first match counts.
PACKAGES = {
    "tests/host/": (_PROBE, "deploy/systemd"),
    "tests/fuzz/": (_EXPORTER, _STORE, "exporter/infercanary/client"),
    "tests/integration/ab/": ("exporter/infercanary/ab", _PROBE),
    "tests/integration/compare/": ("exporter/infercanary/compare", _PROBE),
    "tests/integration/probe/": (_PROBE, _JUDGE),
    "tests/kubernetes/": (_EXPORTER, "deploy"),
    "tests/stack/alone/test_ab": ("exporter/infercanary/ab", _PROBE),
    "tests/stack/alone/test_causes": (_PROBE, _JUDGE),
    "tests/stack/alone/test_hostile": (_EXPORTER,),
    "tests/stack/alone/test_memory": (_PROBE,),
    "tests/stack/alone/test_worst": (_EXPORTER, _STORE),
    "tests/stack/": (_PROBE, _EXPORTER, _JUDGE, _STORE, "docker-compose.yml"),
    "tests/": (_EXPORTER, _STORE, _JUDGE),
}
_TRIAL = re.compile(r"\[(\w+)-is-(\w+)-\d+\]$")


class Row(NamedTuple):
    test: str
    result: str
    commit: str
    seconds: str
    day: str

    def __str__(self):
        return f"| {' | '.join(self)} |\n"


def read(text):
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("| tests/")]
    return {row[0]: Row(*row) for row in rows}


def write(rows):
    TABLE.write_text(HEAD + "".join(str(row) for _, row in sorted(rows.items())))


def by_cause(rows):
    found = {}
    for test, row in sorted(rows.items()):
        if trial := _TRIAL.search(test):
            found.setdefault((trial[1], trial[2]), []).append(row.result)
    lines = (
        f"| {made.replace('_', ' ')} | {named} | {results.count('passed')} | "
        f"{len(results) - results.count('skipped')} | {results.count('skipped')} |\n"
        for (made, named), results in found.items()
    )
    return CAUSES_HEAD + "".join(lines)


def collected(options):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "campaign", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 5):
        raise SystemExit(done.stdout + done.stderr)
    return [line for line in done.stdout.splitlines() if "::" in line]


def commit():
    """Return the last commit that changed more than the tables, with `+changes` if other files have changed since."""
    but_the_table = ("--", ".", *(f":!{table.relative_to(ROOT)}" for table in (TABLE, CAUSES)))
    log = ["git", "log", "-1", "--format=%h", "--abbrev=10", *but_the_table]
    short = subprocess.check_output(log, cwd=ROOT, text=True).strip()
    changed = subprocess.check_output(["git", "status", "--porcelain", *but_the_table], cwd=ROOT, text=True)
    return f"{short}+changes" if changed else short


@functools.cache
def has_changed(folders, since):
    """Return True if code in any of the folders changed since a commit, or if this repository lacks the commit.

    A change of words is no change: a comment, a docstring, or a text of four words or more.
    """
    command = ["git", "diff", "--name-only", "--no-renames", since, "HEAD", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return listed.returncode != 0 or any(
        code(name, since) != code(name, "HEAD") for name in listed.stdout.splitlines()
    )


@functools.cache
def code(name, at):
    """Return a file at a commit, for Python without its words, or an empty text if the commit lacks the file."""
    show = ["git", "show", f"{at}:{name}"]
    text = subprocess.run(show, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    if not name.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 2:
            node.value = ""
    return ast.dump(tree)


def stale(rows):
    """Return a command for each file whose tests never ran, or whose packages have changed since."""
    found = Counter()
    for test, row in sorted(rows.items()):
        file = test.partition("::")[0]
        folders = next(folders for begin, folders in PACKAGES.items() if file.startswith(begin))
        changed = has_changed(folders, row.commit.partition("+")[0])
        found[file, f"rows are of before a change in {', '.join(folders)}"] += changed
    known = {file for file, _ in found}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        if file not in known and (marks := path.read_text().count("pytest.mark.campaign")):
            found[file, "marks of tests that never ran"] = marks
    return [
        f'make campaign ARGS="-k {Path(file).stem}": {count} {why}'
        for (file, why), count in found.items()
        if count
    ]


def run(test):
    """Run one test and return ``passed``, ``failed``, ``skipped`` (not possible on this machine) or ``xfailed``."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "campaign", "--numprocesses=0", test]
    command += ["-o", f"faulthandler_timeout={HANGS_SECONDS}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        last = ""
        for last in process.stdout:
            print(last, end="", flush=True)
    if process.returncode:
        return "failed"
    return next((result for result in ("passed", "xfailed") if f"1 {result}" in last), "skipped")


def once(tests):
    """Run one trial of each cause. After a wrong verdict, two more trials must succeed: a machine is not always
    quiet.

    Args:
        tests: pytest ids; the trials of a cause are in order.

    Returns:
        1 if a verdict named the wrong cause, otherwise 0.
    """
    trials = {}
    for test in tests:
        if trial := _TRIAL.search(test):
            trials.setdefault(trial[1], []).append(test)
    missed = []
    for cause, (first, *more) in trials.items():
        if run(first) == "failed" and "failed" in [run(test) for test in more[:2]]:
            missed.append(cause)
    print(f"not named: {', '.join(missed)}" if missed else f"{len(trials)} causes: none was missed")
    return int(bool(missed))


def main():
    """Run the tests that have not passed at this commit; return 1 if a test failed, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only tests with this in their name, as pytest reads it")
    parser.add_argument("--causes", action="store_true", help="only trials of causes, and their table")
    parser.add_argument("--once", action="store_true", help="of causes, one trial of each, and no table")
    parser.add_argument(
        "--stale", action="store_true", help="only name what was run before its package changed"
    )
    arguments = parser.parse_args()
    rows = read(TABLE.read_text()) if TABLE.exists() else {}
    if arguments.stale:
        print(*stale(rows), sep="\n")
        return 0
    if arguments.causes:
        arguments.k = f"is_named and ({arguments.k})" if arguments.k else "is_named"
    now = commit()
    tests = collected(["-k", arguments.k] if arguments.k else [])
    if arguments.causes and arguments.once:
        return once(tests)
    if not arguments.k:
        rows = {test: row for test, row in rows.items() if test in tests}  # drop rows of removed tests
    failed = 0
    for number, test in enumerate(tests, 1):
        row = rows.get(test)
        if row and (row.result, row.commit) == ("passed", now) and "+" not in now:
            print(f"{number}/{len(tests)} {test}: passed before at {now}")
            continue
        print(f"{number}/{len(tests)} {test}", flush=True)
        begin = time.monotonic()
        result = run(test)
        failed += result == "failed"
        took = f"{time.monotonic() - begin:.0f}"
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        rows[test] = Row(test, result, now, took, day)
        write(rows)
        CAUSES.write_text(by_cause(rows))
    if arguments.causes:
        print(by_cause(rows))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
