"""The rules of Prometheus and the metrics that docs/metrics.md declares, for tests that compare both."""

import re
from functools import cache
from typing import NamedTuple

import yaml

from tests.programs import ROOT

RULE_FILES = sorted((ROOT / "prometheus/rules").glob("*.yml"))


@cache
def load(path):
    return yaml.load(path.read_text(), yaml.CSafeLoader)


GROUPS = [group for path in RULE_FILES for group in load(path)["groups"]]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}


class Metric(NamedTuple):
    kind: str
    labels: dict[str, set[str]]
    """Label → its values, if docs/metrics.md lists all of them."""


def declared():
    text = (ROOT / "docs/metrics.md").read_text()
    found = {}
    for name, kind, rest in re.findall(r"^### `(\w+)`\n\n(\w+) · [^·\n]+(.*)$", text, flags=re.MULTILINE):
        labels = {
            label: set(re.findall(r"`([^`]+)`", values))
            for label, values in re.findall(r"· `(\w+)`(?: \(([^)]*)\))?", rest)
        }
        # A native histogram has no suffix.
        ends = ("", "_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + end: Metric(kind, labels) for end in ends}
    return found


DECLARED = declared()
