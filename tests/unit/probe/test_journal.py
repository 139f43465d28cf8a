"""The journal: complete lines after a crash, and the size limit."""

import json
import logging

import pytest

from infercanary.contract.journal import environment_id
from infercanary.contract.report import Run
from infercanary.probe.journal import Journal, last_runs, read

ENVIRONMENT = {"torch": "2.13.0", "python": "3.11"}


def run(sequence):
    return Run(sequence, "resnet18", 100.0, 100.5, "ok", (0.01, 0.011), {"compute": 0.01}, ("stalled",))


def sequences(path):
    return [entry.run.sequence for entry in read(path) if entry.run]


def test_a_run_is_one_line_with_its_environment_and_tags(tmp_path):
    path, newer = tmp_path / "journal", {**ENVIRONMENT, "torch": "2.14.0"}
    journal = Journal(path, "boot-1")
    for runs, environment in (([1, 2], ENVIRONMENT), ([3], ENVIRONMENT), ([4], newer), ([], ENVIRONMENT)):
        journal.append([run(sequence) for sequence in runs], environment)
    journal.append([run(5)], newer, {"resnet18": (1.0, 2.0)})
    assert journal.close(5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    one, two = environment_id(ENVIRONMENT), environment_id(newer)
    assert [(line["environment"], line.get("run", {}).get("sequence")) for line in lines] == [
        (one, None), (one, 1), (one, 2), (one, 3), (two, None), (two, 4), (two, None), (two, 5),
    ]  # fmt: skip
    assert lines[0]["components"] == ENVIRONMENT
    assert lines[1]["run"]["tags"] == ["stalled"]
    assert [entry.run for entry in read(path) if entry.run] == [run(sequence) for sequence in range(1, 6)]


def test_it_is_rotated_and_each_file_says_environment_and_outputs_once(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path, "boot-1", max_bytes=20_000)
    for sequence in range(500):
        journal.append([run(sequence)], ENVIRONMENT, {"resnet18": (1.0, 2.0)} if sequence > 3 else {})
    assert journal.close(5)
    files, kept = sorted(tmp_path.iterdir()), sequences(path)
    assert sum(file.stat().st_size for file in files) <= 21_000
    assert [file.name for file in files] == ["journal", "journal.1"]
    assert kept == list(range(kept[0], 500))
    assert len(kept) > 30
    for file in files:  # a user may delete the earlier file
        assert (
            file.read_text().count('"components"')
            == file.read_text().count('"outputs":{"resnet18":[1.0,2.0]}')
            == 1
        )


def test_runs_before_a_crash_are_found_except_a_torn_line(tmp_path):
    path = tmp_path / "journal"
    assert last_runs(path, 10) == []
    path.write_bytes(b"\x00\xffgarbage\n\n[]\n3\n")
    assert last_runs(path, 10) == []
    for boot, count in (("boot-1", 5), ("boot-2", 1)):  # killed again before a client reads the runs
        journal = Journal(path, boot)
        journal.append([run(sequence) for sequence in range(1, count)], ENVIRONMENT)
        with path.open("ab") as file:
            file.write(b'{"boot_id": "boot-1", "run": {"sequ')
        journal.append([run(count)], ENVIRONMENT)
        assert journal.close(5)
    found = [(run.boot_id, run.sequence) for run in last_runs(path, 3)]
    assert found == [("boot-1", 4), ("boot-1", 5), ("boot-2", 1)]
    assert sequences(path) == [1, 2, 3, 4, 5, 1]


@pytest.mark.parametrize("is_full", [True, False])
def test_a_write_error_is_logged_once_counted_and_recovered_from(tmp_path, caplog, is_full):
    """Two errors: a full disk, and a symbolic link in a folder that others may write to, which must not be followed."""
    caplog.set_level(logging.INFO)
    folder, path, victim = tmp_path / "folder", tmp_path / "folder/full", tmp_path / "victim"
    victim.write_text("kept\n")
    if is_full:
        folder.symlink_to("/dev")
    else:
        folder.mkdir()
        path.symlink_to(victim)
    journal = Journal(path, "boot-1")
    for _ in range(3):
        journal.append([run(1)], ENVIRONMENT)
    assert journal.lost == 3
    assert victim.read_text() == "kept\n"
    (folder if is_full else path).unlink()
    folder.mkdir(exist_ok=True)
    journal.append([run(4)], ENVIRONMENT)
    assert journal.lost == 3
    assert journal.close(5)
    assert sequences(path) == [4]
    why, well = (record.getMessage() for record in caplog.records)
    assert ("No space left on device" if is_full else "symbolic links") in why
    assert "works again" in well
