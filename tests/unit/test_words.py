"""Words and names: what is banned from code, docs and messages; modules and classes have names of their own."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("probe/infercanary", "exporter/infercanary")

BANNED = (
    r"told|at_once|calmed|steadied|speaking|heed(?:s|ed|ing)?|liveliest|mend(?:s|ed|ing)?|vouch(?:es|ed)?|hence"
    r"|no restart lies|nobody can know"
)
"""Of an earlier vocabulary. Write reported, known, given; immediate; adjusted; live; follow; most active; fix; confirm;
so; nothing was restarted; there is not enough evidence."""
WORD = re.compile(rf"(?<![a-z])(?:{BANNED})(?![a-z])", re.IGNORECASE)

ALLOWED: dict[str, str] = {
    "benchmarks/results/": BANNED,  # printed by earlier versions, word for word
    "tests/unit/test_words.py": BANNED,
}
"""Path, or the beginning of one → the banned words that it may have, as a pattern."""


def tracked() -> list[Path]:
    """The files that git knows."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git does not know this folder")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def banned_words(path: str, text: str) -> Iterator[str]:
    """Each banned word in a file that is not allowed there, with its line."""
    allowed = "|".join(words for start, words in ALLOWED.items() if path.startswith(start))
    for number, line in enumerate(text.splitlines(), 1):
        for found in WORD.finditer(line):
            if not (allowed and re.fullmatch(allowed, found[0], re.IGNORECASE)):
                yield f"{path}:{number}: {found[0]}: {line.strip()[:100]}"


def test_no_banned_word() -> None:
    found: list[str] = []
    for path in tracked():
        name = str(path.relative_to(ROOT))
        found += banned_words(name, name)
        try:
            found += banned_words(name, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a picture, or compressed
    assert not found, "\n".join([f"{len(found)} banned words:", *found])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It was told.", 1),
        ("def test_a_mistake_is_told_once() -> None:", 1),
        ("Mended: `at_once`, heeds", 3),
        ("Docker vouches: no restart lies between, hence nobody can know", 4),
        ("We recommend to amend it; an indeed unheeded toldo", 0),
    ],
)
def test_what_a_banned_word_is(text: str, words: int) -> None:
    assert len([*banned_words("x.py", text)]) == words


EVERY_GPU = re.compile(
    r"--gpus[ =,\"']*(?:all\b|\d)|^[ -]*count: *(?:all|\d+)$|NVIDIA_VISIBLE_DEVICES[ =:\"']*all\b"
)
"""All GPUs of a host, or some that Docker chooses. A canary measures one device: the container names it."""


def test_gpus_are_named() -> None:
    """In pages, messages and files of containers; that `ab` refuses the rest is tested with its options."""
    refused = "tests/unit/ab/test_conditions.py", "tests/unit/test_words.py", "benchmarks/results/"
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if not (name := str(path.relative_to(ROOT))).startswith(refused)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if EVERY_GPU.search(line)
    ]
    assert not found, "\n".join(["name the GPU, as in --gpus device=0:", *found])


@pytest.mark.parametrize("text", ["--gpus all", "--gpus=all", '"--gpus", "all"', "--gpus 1", "count: all"])
def test_what_names_no_gpu(text: str) -> None:
    assert EVERY_GPU.search(text)
    assert not EVERY_GPU.search("--gpus device=0,1")


def modules() -> Iterator[Path]:
    for tree in TREES:
        yield from sorted((ROOT / tree).rglob("*.py"))


def test_no_module_is_named_like_its_package() -> None:
    assert not [str(path.relative_to(ROOT)) for path in modules() if path.stem == path.parent.name]


def test_no_two_public_classes_share_a_name() -> None:
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}
