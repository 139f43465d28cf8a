"""Mutation testing: changes one place in a package's code, and checks that a test of the package fails.

``make mutation`` tries a sample of all mutants of `judge/`, drawn once by a seed, and records the score in
benchmarks/results/mutation.md; ``ARGS="--package store"`` selects another package. Results are kept in build/mutation
until the package or its tests change, so a larger ``--sample``, or a run after an interruption, tries only the rest.
``--module upgrade`` selects mutants of one module.
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
SECONDS = 240  # limit for the tests of one mutant; without a mutation they take a quarter of it


def sources(package):
    """Return the folder of a package."""
    return f"exporter/infercanary/{package}"


def tests(package):
    """Return the folder of a package's tests."""
    return f"tests/unit/{package}"


def copy(package):
    """Copy the tree to mutate, and return the session of results that belongs to these sources."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    files = [name for name in listed.splitlines() if (ROOT / name).is_file()]
    digest = hashlib.sha256()
    for name in sorted(files):
        if name.startswith((sources(package), tests(package), "tests/golden", "tests/tools")):
            digest.update(name.encode() + (ROOT / name).read_bytes())
    shutil.rmtree(TREE, ignore_errors=True)
    for name in files:
        if name.startswith(
            ("probe/", "exporter/", "tests/", "pyproject.toml", "prometheus/", "benchmarks/", "docs/")
        ):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, TREE / name)
    return BUILD / f"{package}-{digest.hexdigest()[:16]}.sqlite"


def mutants(database, module, seed):
    """Return the mutants that a test could notice, of one module if it is named, in an order drawn by the seed."""
    found = [
        item
        for item in database.work_items
        if not item.mutations[0].operator_name.startswith(LEFT_OUT)
        and module in ("", item.mutations[0].module_path.stem)
    ]
    # The ids are new in each session, but the mutations are the same.
    found.sort(key=lambda item: str(item.mutations[0]))
    random.Random(seed).shuffle(found)
    return found


def score(database, chosen):
    """Return the counts of tried (module) and killed (module + " killed") mutants, and the places of the survivors."""
    results = dict(database.results)
    counts: Counter[str] = Counter()
    survivors = []
    for item in chosen:
        result = results.get(item.job_id)
        if result is None or result.test_outcome is None:
            continue
        mutation = item.mutations[0]
        for name in (mutation.module_path.stem, "all"):
            counts[name] += 1
            counts[f"{name} killed"] += result.is_killed
        if not result.is_killed:
            line = mutation.start_pos[0]
            survivors.append(
                f"{mutation.module_path.name}:{line} {mutation.operator_name.removeprefix('core/')}"
            )
    return counts, sorted(survivors)


def section(counts, possible, survivors, sampled):
    """Return the page's section on a package, in Markdown."""
    lines = [
        f"Sampled: {sampled}.",
        "",
        "| module | mutants | tried | killed | score |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in sorted(possible, key=lambda name: (name == "all", name)):
        tried, killed = counts[name], counts[f"{name} killed"]
        share = f"{100 * killed / tried:.0f} %" if tried else "–"
        lines.append(f"| {name} | {possible[name]} | {tried} | {killed} | {share} |")
    if counts["all"]:
        low, high = binomtest(counts["all killed"], counts["all"]).proportion_ci(method="wilson")
        lines += ["", f"95 % interval of the score of all (Wilson): {100 * low:.0f} to {100 * high:.0f} %."]
    lines += ["", "Survivors:", "", *(f"- `{each}`" for each in survivors), ""]
    return "\n".join(lines)


def page(text, package, section):
    """Return the page with the section of a package replaced."""
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
    parser.add_argument("--module", default="", help="of the package; all, where none is named")
    arguments = parser.parse_args()
    package = arguments.package
    session = copy(package)
    os.chdir(TREE)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(TREE / "probe"), str(TREE / "exporter")))
    # a mutant may have the same time and size as its original, so cached bytecode would look valid
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = f"{sys.executable} -m pytest -q -x -n 0 {tests(package)}"
    subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
    modules = [path for path in sorted(Path(sources(package)).rglob("*.py")) if path.name != "__init__.py"]
    with use_db(str(session), WorkDB.Mode.create) as database:
        if not database.num_work_items:
            init(modules, database, {})
        every = mutants(database, arguments.module, arguments.seed)
        chosen = every[: arguments.sample or None]
        tried = {job for job, _ in database.results}
        for number, item in enumerate(chosen, 1):
            if item.job_id not in tried:
                result = mutate_and_test(item.mutations, command, SECONDS)
                database.set_result(item.job_id, result)
                mutation = item.mutations[0]
                place = f"{mutation.module_path.name}:{mutation.start_pos[0]} {mutation.operator_name}"
                print(f"{number}/{len(chosen)} {place}: {result.test_outcome}", flush=True)
        counts, survivors = score(database, chosen)
    possible = Counter(name for item in every for name in (item.mutations[0].module_path.stem, "all"))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    sampled = (
        f"{len(chosen)} of {len(every)} mutants of {arguments.module or 'all modules'}, seed {arguments.seed}, "
        f"at commit {commit}"
    )
    TABLE.write_text(page(TABLE.read_text(), package, section(counts, possible, survivors, sampled)))
    print(f"{package}: {counts['all killed']} of {counts['all']} mutants killed; {TABLE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
