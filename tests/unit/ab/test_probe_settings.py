"""Settings of an experiment's probe."""

import yaml

from infercanary.ab.probe_settings import load_settings, settings_text
from tests.scenarios import cases, typed


def test_settings_of_an_experiment(tmp_path):
    path = tmp_path / "probe.yaml"
    path.write_text(
        "canaries: {c: {target: torch, options: {seed: 3}}}\njournal: /var/log/runs\nlisten: unix:///run/p.sock\n"
        "interval_seconds: 60\ntimeout_seconds: 7\n"
    )
    assert yaml.safe_load(settings_text(load_settings(str(path)), 9798)) == {
        "canaries": {"c": {"target": "torch", "options": {"seed": 3}}},
        "journal": None,
        "listen": 9798,
        "interval_seconds": 60,
        "timeout_seconds": 7,
    }


SWEEPS = """
{sweep: {}} | {every_seconds: 20.0}
{sweep: {seconds: 2}} | {seconds: 2, every_seconds: 4.0}
{sweep: {seconds: 0.2, every_seconds: 3600}} | {seconds: 0.2, every_seconds: 1.0}
# The probe reports wrong settings.
{sweep: 3} | 3
{sweep: {seconds: a}} | {seconds: a}
{} | ~
"""


@cases(typed(SWEEPS))
def test_a_sweep_comes_soon(canary, sweep):
    made = yaml.safe_load(settings_text({"canaries": {"c": canary, "d": None}}, 1))["canaries"]
    assert made["c"].get("sweep") == sweep
    assert made["d"] is None
