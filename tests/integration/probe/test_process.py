"""``infercanary probe`` as a separate process: alone, beside a server, and its end."""

import signal

from probe_process import ProbeProcess, scripted


def test_canaries_that_hang_raise_or_exit_cost_neither_the_others_nor_the_end(tmp_path):
    """Only wrong settings end the process. The process survives a fault that may pass, such as a server that is
    still down.
    """
    canaries = {
        "loads": scripted(open="hang"),
        "hangs": scripted(run="hang"),
        "exits": scripted(open="exit"),
        "interrupts": scripted(values="interrupt"),
        "good": scripted(close="hang"),
    }
    text = ", ".join(f"{name}: {canary}" for name, canary in canaries.items())
    with ProbeProcess(tmp_path, f"{{{text}}}", "open_timeout_seconds: 2") as probe:
        seen = probe.until(
            lambda s: (
                s.runs("good", "ok") >= 2
                and s.state("hangs") == s.state("loads") == "failing"
                and s.runs("interrupts", "raised") >= 2
            )
        )
        assert {seen.state(name) for name in canaries if name != "good"} == {"failing"}
        assert seen.state("good") in ("warming", "steady")
        assert probe.end(signal.SIGINT) == 0
    assert "canary hangs: not open after 2 s (open_timeout_seconds)" in probe.output()


def test_a_mistake_found_when_opening_ends_it(tmp_path):
    with ProbeProcess(tmp_path, f"{{good: {scripted()}, bad: {scripted(open='usage')}}}") as probe:
        assert probe.process.wait(60) == 2
    assert probe.output() == f"infercanary: {probe.config}: canaries.bad: open: fix this\n"
