"""Branch coverage by package, of all suites and of the processes that they start.

``run`` runs both suites under coverage and prints the table; ``table FILE`` prints it of a file of ``coverage json``,
``table OLD NEW`` with both beside each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "build/coverage"
RC = """[run]
branch = true
parallel = true
patch = subprocess
sigterm = true
data_file = {data}/data
source =
    {root}/probe/infercanary
    {root}/exporter/infercanary

[report]
skip_empty = true
"""


def package(path: str) -> str:
    """The package under infercanary that a source file is part of."""
    inside = path.rpartition("infercanary/")[2]
    return inside.partition("/")[0] if "/" in inside else "(top)"


def shares(report: Path) -> dict[str, tuple[int, int]]:
    """Package → branches taken, branches in all; of a file of ``coverage json``."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, file in json.loads(report.read_text())["files"].items():
        summary = file["summary"]
        for name in (package(path), "all"):
            counts[name][0] += summary["covered_branches"]
            counts[name][1] += summary["num_branches"]
    return {name: (taken, there) for name, (taken, there) in counts.items()}


def table(reports: list[Path]) -> str:
    """A Markdown table: a row for each package, a column for each report."""
    columns = [shares(report) for report in reports]
    lines = [
        "| package | " + " | ".join(["before", "after"][: len(reports)]) + " |",
        "|---|" + "---:|" * len(reports),
    ]
    for name in sorted(
        {name for column in columns for name in column}, key=lambda name: (name == "all", name)
    ):
        cells = []
        for column in columns:
            taken, there = column.get(name, (0, 0))
            cells.append(f"{100 * taken / there:.1f} % of {there}" if there else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run(options: list[str]) -> Path:
    """Both suites under coverage; the file of ``coverage json``."""
    DATA.mkdir(parents=True, exist_ok=True)
    for old in DATA.glob("data*"):
        old.unlink()
    rc = DATA / "rc"
    rc.write_text(RC.format(root=ROOT, data=DATA))
    coverage = [sys.executable, "-m", "coverage"]
    for suite, workers in (("not stack and not kubernetes", 4), ("stack", 2)):
        mark = f"{suite} and not campaign"
        pytest = ["-m", "pytest", "-q", "-m", mark, f"--numprocesses={workers}", *options]
        code = subprocess.run([*coverage, "run", f"--rcfile={rc}", *pytest], cwd=ROOT, check=False).returncode
        if code:
            print(f"tests of `{suite}` ended with exit code {code}", file=sys.stderr)
    report = DATA / "coverage.json"
    environment = {**os.environ, "COVERAGE_RCFILE": str(rc)}
    for command in (["combine", "--quiet"], ["json", "--quiet", "-o", str(report)]):
        subprocess.run([*coverage, *command], cwd=ROOT, env=environment, check=True)
    return report


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("pytest", nargs="*", help="options of pytest")
    commands.add_parser("table").add_argument("reports", nargs="+", type=Path, help="of `coverage json`")
    arguments = parser.parse_args()
    print(table(arguments.reports if arguments.command == "table" else [run(arguments.pytest)]))


if __name__ == "__main__":
    main()
