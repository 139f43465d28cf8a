"""The journal: lines that survive a crash, within their bytes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from infercanary.contract.journal import environment_id
from infercanary.contract.report import Run
from infercanary.probe.journal import Journal, last_runs, read

ENVIRONMENT = {"torch": "2.13.0", "python": "3.11"}


def run(sequence: int) -> Run:
    return Run(sequence, "resnet18", 100.0, 100.5, "ok", (0.01, 0.011), {"compute": 0.01}, ("stalled",))


def test_a_run_is_one_line_with_its_environment_and_tags(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "boot-1")
    journal.append([run(1), run(2)], ENVIRONMENT)
    journal.append([run(3)], ENVIRONMENT)
    journal.append([run(4)], {**ENVIRONMENT, "torch": "2.14.0"})
    journal.append([], ENVIRONMENT)
    assert journal.close(5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    one, two = environment_id(ENVIRONMENT), environment_id({**ENVIRONMENT, "torch": "2.14.0"})
    assert [(line["environment"], line.get("run", {}).get("sequence")) for line in lines] == [
        (one, None), (one, 1), (one, 2), (one, 3), (two, None), (two, 4),
    ]  # fmt: skip
    assert lines[0]["components"] == ENVIRONMENT
    assert lines[1]["run"]["tags"] == ["stalled"]
    assert [entry.run for entry in read(path) if entry.run] == [run(1), run(2), run(3), run(4)]


def test_reference_outputs_are_written_once_they_are_known(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "boot-1", max_bytes=20_000)
    for sequence in range(200):
        journal.append([run(sequence)], ENVIRONMENT, {"resnet18": (1.0, 2.0)} if sequence > 3 else {})
    assert journal.close(5)
    said = [(i, entry.outputs) for i, entry in enumerate(read(path)) if entry.components is not None]
    assert said[-1][1] == {"resnet18": (1.0, 2.0)}, "each file says it, since the one before may be gone"
    for file in tmp_path.iterdir():
        assert "outputs" in file.read_text()
    lines = path.with_name("journal.1").read_text().splitlines()
    assert sum('"outputs"' in line for line in lines) == 1


def test_it_is_rotated_and_each_file_names_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "boot-1", max_bytes=20_000)
    for sequence in range(500):
        journal.append([run(sequence)], ENVIRONMENT)
    assert journal.close(5)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 21_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal", "journal.1"]
    entries = [*read(path)]
    kept = [entry.run.sequence for entry in entries if entry.run]
    assert kept == list(range(kept[0], 500)) and len(kept) > 30
    for file in tmp_path.iterdir():
        assert "components" in json.loads(file.read_text().splitlines()[0])


def test_what_a_crash_left_is_found_and_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    script = textwrap.dedent(
        f"""
        import os
        from pathlib import Path
        from infercanary.probe.journal import Journal
        from infercanary.contract.report import Run
        journal = Journal(Path({str(path)!r}), "boot-1")
        for sequence in range(1, 6):
            journal.append([Run(sequence, "a", 0.0, 0.0, "ok", (0.01,))], {{}})
        os.kill(os.getpid(), 9)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert killed.returncode == -9
    with path.open("ab") as file:
        file.write(b'{"boot_id": "boot-1", "run": {"sequ')
    found = last_runs(path, 3)
    assert [(r.boot_id, r.sequence) for r in found] == [("boot-1", 3), ("boot-1", 4), ("boot-1", 5)]

    second = Journal(path, "boot-2")
    second.append([run(1)], ENVIRONMENT)
    assert second.close(5)
    # Killed again before anybody asked: what the first left is not lost either.
    assert [(r.boot_id, r.sequence) for r in last_runs(path, 3)] == [
        ("boot-1", 4),
        ("boot-1", 5),
        ("boot-2", 1),
    ]
    assert [entry.run.sequence for entry in read(path) if entry.run] == [1, 2, 3, 4, 5, 1]


def test_nothing_to_find(tmp_path: Path) -> None:
    assert last_runs(tmp_path / "journal", 10) == []
    (tmp_path / "journal").write_bytes(b"\x00\xffgarbage\n\n[]\n3\n")
    assert last_runs(tmp_path / "journal", 10) == []


def test_a_full_disk_is_said_once_counted_and_recovered_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder, path = tmp_path / "folder", tmp_path / "folder" / "full"
    folder.symlink_to("/dev")
    journal = Journal(path, "boot-1")
    for _ in range(3):
        journal.append([run(1)], ENVIRONMENT)
    assert journal.lost == 3
    folder.unlink()
    folder.mkdir()
    journal.append([run(4)], ENVIRONMENT)
    assert journal.lost == 3
    assert journal.close(5)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "No space left on device" in messages[0] and "works again" in messages[1]
    assert [entry.run.sequence for entry in read(path) if entry.run] == [4]


def test_a_link_in_a_folder_that_others_write_to_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept\n")
    path = tmp_path / "journal"
    path.symlink_to(victim)
    journal = Journal(path, "boot-1")
    journal.append([run(1)], ENVIRONMENT)
    assert journal.close(5)
    assert victim.read_text() == "kept\n" and journal.lost == 1
    assert "symbolic links" in caplog.text
