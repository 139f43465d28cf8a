"""The judge's smallest effect is the threshold of the alerts."""

import yaml

from infercanary.judge.policy import LIVE
from tests.programs import ROOT

RULES = ROOT / "prometheus/rules/thresholds.yml"


def test_thresholds_equal_the_smallest_effect():
    """A higher threshold would hide findings of the judge; a lower one would find nothing more."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    thresholds = {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}
    for name in ("shift_ratio", "drift_ratio"):
        assert thresholds[f"infercanary:threshold:{name}"] == f"vector({LIVE.decide.smallest_effect:g})"
