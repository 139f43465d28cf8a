"""``infercanary probe --once`` as a command in a separate process."""

import re
import signal
import socket
import time
from itertools import pairwise

import pytest
from probe_process import PROBE, ProbeProcess, run_probe, scripted
from watching import until


def test_it_needs_neither_the_port_nor_the_journal_of_the_probe_beside_it(tmp_path):
    journal = tmp_path / "journal.jsonl"
    run = '{"sequence":1,"canary":"gone","scheduled_at":1,"started_at":1,"outcome":"ok"}'
    before = f'{{"boot_id":"b","environment":"e","run":{run}}}\n'
    journal.write_text(before)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = f"listen: 127.0.0.1:{taken.getsockname()[1]}\njournal: {journal}"
        code, out, said = run_probe(tmp_path, f"{{c: {scripted()}}}", "--once", settings=settings)
    assert code == 0, said
    assert "canary c: steady" in out
    assert "gone" not in out
    assert {path.name for path in tmp_path.iterdir()} == {"journal.jsonl", "probe.yaml"}
    assert journal.read_text() == before


# Behaviour of each canary, its state, and a text in its block
CANARIES = {
    "good": ({}, "steady", r"latency      median [1-9][\d.]* m?s"),  # the canary sleeps for at least 1 ms
    "raises": ({"values": "raise"}, "failing", "raised       ValueError: values broken on purpose"),
    "hangs": ({"values": "hang"}, "failing", r"timed out    .* 1 s \(timeout_seconds\)"),
    "never": ({"open": "hang"}, "failing", "no run       "),
}


def test_a_canary_that_fails_is_shown_beside_those_that_do_not(tmp_path):
    text = ", ".join(f"{name}: {scripted(**script)}" for name, (script, _, _) in CANARIES.items())
    settings = "timeout_seconds: 1\nopen_timeout_seconds: 2"
    code, out, said = run_probe(tmp_path, f"{{{text}}}", "--once", settings=settings)
    assert code == 3, said
    blocks = {head: facts for head, facts in pairwise(out.split("\n\n")) if head.startswith("canary ")}
    for name, (_, state, fact) in CANARIES.items():
        assert re.search(f"^  {fact}", blocks[f"canary {name}: {state}"], re.MULTILINE), out
    assert "  output  " not in blocks["canary good: steady"]


def test_a_mistake_is_one_line_after_what_the_others_did(tmp_path):
    canaries = f"{{bad: {scripted(open='usage')}, good: {scripted()}}}"
    code, out, said = run_probe(tmp_path, canaries, "--once", "--log-level", "error")
    assert code == 2
    assert "canary bad: failing\n\n  raised       cannot be opened: open: fix this\n" in out
    assert "canary good: steady\n" in out
    assert said == f"infercanary: {tmp_path}/probe.yaml: canaries.bad: open: fix this\n"


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("number", "method", "text", "seconds"),
    [
        pytest.param(signal.SIGINT, "open", "loading", 0.3, id="opening"),
        pytest.param(signal.SIGTERM, "close", "running", 0.3, id="sampling"),
        pytest.param(signal.SIGINT, "values", "running", 3.0, id="running"),
    ],
)
def test_a_signal_ends_it_promptly_and_it_prints_no_report(tmp_path, number, method, text, seconds):
    """A printed report would suggest that every canary had run."""
    command = [*PROBE, "--once"]
    with ProbeProcess(tmp_path, f"{{c: {scripted(**{method: 'hang'})}}}", command=command) as probe:
        until(lambda: text in probe.output(), "the output does not show the step")
        time.sleep(seconds)
        # A run that hangs has a deadline of 30 s, but `docker stop` kills after 10 s.
        assert probe.end(number, seconds=9) == 128 + number
    assert "InferCanary: one run" not in probe.output()
