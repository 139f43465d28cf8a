"""Queries use recorded rates of buckets; the checked Grafana versions are those of the stack and of the README."""

import json
import re

import yaml

from grafana.check import node
from grafana.queries import queries
from tests.for_each import for_each
from tests.programs import ROOT
from tests.rules import RECORDS

_BUCKETS = (re.match(r"sum by \((.+?)\) \(rate\((\w+_bucket)\[", rule["expr"]) for rule in RECORDS.values())
RECORDED = {match[2]: {*match[1].split(", ")} for match in _BUCKETS if match}
"""Buckets with recorded rates → labels of the recorded series."""


def recorded_buckets(query):
    """Return the raw buckets that a query reads although recorded rates have all needed labels."""
    by = {label for group in re.findall(r"by \((.*?)\)", query) for label in group.split(", ")}
    return [
        metric
        for metric, kept in RECORDED.items()
        for selector in re.findall(rf"{metric}(?:\{{(.*?)\}})?\[", query)
        if {*re.findall(r"(\w+)\s*[=!]", selector)} | by <= kept
    ]


@for_each(queries(), lambda query: f"{query.dashboard}: {query.place}")
def test_no_query_reads_raw_buckets_that_are_recorded(query):
    assert recorded_buckets(query.raw) == [], "take the recording rule's series"


def test_the_versions_that_are_checked_are_that_of_the_stack_and_those_that_the_readme_names():
    packages = json.loads((ROOT / "grafana/check/package.json").read_text())["dependencies"]
    versions = {name: packages[f"grafana-data-{name}"].rpartition("@")[2] for name in node.VERSIONS}
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert stack["services"]["grafana"]["image"] == f"grafana/grafana:{versions['compose']}"
    readme = (ROOT / "grafana/README.md").read_text()
    assert all(
        f"**{version}**" in readme or f"**Grafana {version}**" in readme for version in versions.values()
    )
