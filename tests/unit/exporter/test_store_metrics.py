"""Metrics of a corrupt store."""

import time

from tests.unit.exporter.factories import Judged


def after_a_turn(path):
    judged = Judged(path)
    assert judged.value("store_set_aside_timestamp_seconds") is None
    judged.judging.turn()
    assert judged.value("store_up") == 1
    judged.close()
    return judged.value("store_set_aside_timestamp_seconds")


def test_a_corrupt_file_is_shown_until_it_is_removed(tmp_path):
    path = tmp_path / "judge.sqlite"
    path.write_text("not a database, but long enough to be looked at as one\n" * 100)
    for end in ("kept-by-somebody", "20200101T000000Z"):
        path.with_name(f"judge.sqlite.corrupt-{end}").touch()
    before = int(time.time())
    shown = after_a_turn(path)
    assert shown is not None
    assert before <= shown <= time.time()
    assert after_a_turn(path) == shown
    for file in tmp_path.glob("*.corrupt-*"):
        file.unlink()
    assert after_a_turn(path) is None
