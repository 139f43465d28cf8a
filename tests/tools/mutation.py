"""Mutation testing: changes one place in a package's code, and checks that a test of the package fails.

``make mutation`` tries a random sample of all mutants of `judge/`, with a fixed seed, and records the score
in benchmarks/results/mutation.md; ``ARGS="--package store"`` selects another package. build/mutation stores
the results until the package or its tests change. A larger ``--sample``, or a run after an interruption,
tries only the missing mutants.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/mutation"
TREE = BUILD / "tree"
PACKAGES = ("judge", "store", "client")
TABLE = ROOT / "benchmarks/results/mutation.md"
HEAD = """# Mutation testing

A mutant is a package with one change: a sign, a number, a condition, a statement. It is killed where one of the
package's tests in `tests/unit` fails. `make mutation` draws a sample by a seed and writes this table; a survivor is
either a missing test or a change that makes no difference.

"""
# Python never evaluates `X | None` in a signature, so no test can notice a change of it.
LEFT_OUT = ("core/ReplaceBinaryOperator_BitOr_",)
COPIED = ("probe/", "exporter/", "tests/", "pyproject.toml", "prometheus/", "benchmarks/", "docs/")
SECONDS = 240  # Limit for the tests of one mutant; without a mutation, they take a quarter of it.


def copy(package, sources, tests):
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    files = [name for name in listed.splitlines() if (ROOT / name).is_file()]
    digest = hashlib.sha256()
    for name in sorted(files):
        if name.startswith((sources, tests, "tests/golden", "tests/tools")):
            digest.update(name.encode() + (ROOT / name).read_bytes())
    shutil.rmtree(TREE, ignore_errors=True)
    for name in files:
        if name.startswith(COPIED):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, TREE / name)
    return BUILD / f"{package}-{digest.hexdigest()[:16]}.sqlite"


def mutants(database, seed):
    """Return the mutants that a test could notice, in a random order by the seed."""
    found = [item for item in database.work_items if not item.mutations[0].operator_name.startswith(LEFT_OUT)]
    # Each session has new ids for the same mutations.
    found.sort(key=lambda item: str(item.mutations[0]))
    random.Random(seed).shuffle(found)
    return found


def section(tried, possible, sampled):
    """Return the page's section on a package, in Markdown.

    Args:
        tried: Module and place of each tried mutant, and True if a test failed.
        possible: Number of mutants by module, and of ``all``.
        sampled: Description of the sample.
    """
    lines = [
        f"Sampled: {sampled}.",
        "",
        "| module | mutants | tried | killed | score |",
        "|---|---:|---:|---:|---:|",
    ]
    killed = []
    for name in sorted(possible, key=lambda name: (name == "all", name)):
        killed = [is_killed for module, _, is_killed in tried if name in (module, "all")]
        share = f"{100 * sum(killed) / len(killed):.0f} %" if killed else "–"
        lines.append(f"| {name} | {possible[name]} | {len(killed)} | {sum(killed)} | {share} |")
    if killed:  # the row of all modules
        low, high = binomtest(sum(killed), len(killed)).proportion_ci(method="wilson")
        lines += ["", f"95 % interval of the score of all (Wilson): {100 * low:.0f} to {100 * high:.0f} %."]
    survivors = sorted(f"- `{place}`" for _, place, is_killed in tried if not is_killed)
    return "\n".join([*lines, "", "Survivors:", "", *survivors, ""])


def page(text, package, section):
    parts = dict(part.split("\n\n", 1) for part in text.split("\n## ")[1:]) | {package: section}
    return HEAD + "\n".join(f"## {name}\n\n{part.strip()}\n" for name, part in sorted(parts.items()))


def main():
    """Try the mutants of the sample that have no result yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sample", type=int, default=100, help="how many mutants (default: %(default)s); 0: all"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", default="judge", choices=PACKAGES)
    arguments = parser.parse_args()
    package = arguments.package
    sources, tests = f"exporter/infercanary/{package}", f"tests/unit/{package}"
    session = copy(package, sources, tests)
    os.chdir(TREE)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(TREE / "probe"), str(TREE / "exporter")))
    # A mutant may have the time and size of its original, so cached bytecode would look valid.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = f"{sys.executable} -m pytest -q -x -n 0 {tests}"
    subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
    modules = [path for path in sorted(Path(sources).rglob("*.py")) if path.name != "__init__.py"]
    tried = []
    with use_db(str(session), WorkDB.Mode.create) as database:
        if not database.num_work_items:
            init(modules, database, {})
        every = mutants(database, arguments.seed)
        chosen = every[: arguments.sample or None]
        results = dict(database.results)
        for number, item in enumerate(chosen, 1):
            mutation, result = item.mutations[0], results.get(item.job_id)
            operator = mutation.operator_name.removeprefix("core/")
            place = f"{mutation.module_path.name}:{mutation.start_pos[0]} {operator}"
            if result is None:
                result = mutate_and_test(item.mutations, command, SECONDS)
                database.set_result(item.job_id, result)
                print(f"{number}/{len(chosen)} {place}: {result.test_outcome}", flush=True)
            if result.test_outcome is not None:
                tried.append((mutation.module_path.stem, place, result.is_killed))
    possible = Counter(name for item in every for name in (item.mutations[0].module_path.stem, "all"))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    sampled = f"{len(chosen)} of {len(every)} mutants, seed {arguments.seed}, at commit {commit}"
    TABLE.write_text(page(TABLE.read_text(), package, section(tried, possible, sampled)))
    print(f"{package}: {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
