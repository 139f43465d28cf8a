"""Prometheus' alert rules as Grafana's own, for those who page by Grafana and run no Alertmanager.

As Grafana itself converts them: a query, then 1 for any value that it gives, since Prometheus fires for a series that
is there, also where its value is 0; and no series is no alert. Off by default, since both would page twice: what is
mounted by default only removes the rules again, if they were on.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grafana.dashboards.variables import UID

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus/rules"
_SETTINGS = HERE.parent / "exporter/exporter.yaml"
PROVISIONING = HERE / "provisioning/alerting"

FOLDER = "InferCanary alerts"
_ORGANISATION = 1
_ON = """\
# Made by `make dashboards` from prometheus/rules: change those, not this file.
# Mounted with GRAFANA_ALERTS=on: see grafana/README.md.
"""
_OFF = """\
# Made by `make dashboards` from prometheus/rules: change those, not this file.
# Mounted by default: Prometheus and Alertmanager page. Takes away what GRAFANA_ALERTS=on had brought.
"""

_LINKS = "infercanary:links:info"
_LINK = re.compile(
    rf'\{{\{{ with query "{_LINKS}\{{\w+!=\\"\\"\}}" \}}\}}'
    r'\{\{ \. \| first \| label "(\w+)" \}\}(.*?)\{\{ end \}\}'
)

_SENTENCE = re.compile(
    r'\{\{ with printf "topk\(1, timestamp\((?P<metric>infercanary_(?:measure_)?verdict_info)'
    r'\{(?P<by>\w+=%q(?:,\w+=%q)*)\}\)\)" (?:\$labels\.\w+ )+\| query -\}\}\s*'
    r'\{\{ \. \| first \| label "sentence" \}\}'
)
"""How Prometheus' annotations read the judge's sentence: by a query."""
_OF_S = "{{ with $values.S }}{{ .Labels.sentence }}"
"""How Grafana's do: by the rule's own query S."""

Rule = Mapping[str, Any]


def files() -> dict[Path, str]:
    """Path → what is to be in it: the rules, and how they are taken away.

    Returns:
        Path of a file for Grafana's provisioning → its whole text.
    """
    groups = [*_groups(_source())]
    uids = [{"orgId": _ORGANISATION, "uid": rule["uid"]} for group in groups for rule in group["rules"]]
    return {
        PROVISIONING / "on/rules.yml": _ON + _yaml({"apiVersion": 1, "groups": groups}),
        PROVISIONING / "off/rules.yml": _OFF + _yaml({"apiVersion": 1, "deleteRules": uids}),
    }


def _source() -> list[Rule]:
    """The groups of all rule files."""
    return [
        group
        for path in sorted(RULES.glob("*.y*ml"))
        for group in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("groups") or ()
    ]


def _groups(source: Sequence[Rule]) -> Iterator[Rule]:
    names = Counter(rule["alert"] for group in source for rule in group["rules"] if "alert" in rule)
    links = _links()
    for group in source:
        labels = group.get("labels") or {}
        rules = [
            _rule(
                {**rule, "labels": {**labels, **(rule.get("labels") or {})}}, names[rule["alert"]] > 1, links
            )
            for rule in group["rules"]
            if "alert" in rule
        ]
        if rules:
            yield {
                "orgId": _ORGANISATION,
                "name": group["name"],
                "folder": FOLDER,
                "interval": group.get("interval", "1m"),
                "rules": rules,
            }


def _links() -> Mapping[str, str]:
    """Where Grafana and the runbooks of the Compose stack are: Grafana cannot ask for what the exporter exports."""
    settings = yaml.safe_load(_SETTINGS.read_text(encoding="utf-8"))
    links: Mapping[str, str] = settings["links"]
    return links


def _rule(rule: Rule, shared: bool, links: Mapping[str, str]) -> Rule:
    """``shared``: another rule has the name too, with another severity; Grafana needs one title for each."""
    name, labels = rule["alert"], rule["labels"]
    for key, text in labels.items():
        if "$" in str(text):
            raise ValueError(f"{name}: Grafana reads the $ of label {key} as a variable of its environment")
    severity = labels["severity"] if shared else ""
    texts = rule.get("annotations") or {}
    annotations = _annotations(texts, name, links)
    said = next((found for text in texts.values() if (found := _SENTENCE.search(text))), None)
    made: dict[str, Any] = {
        "uid": uid(name, severity),
        "title": f"{name} ({severity})" if severity else name,
        "condition": "C",
        "data": [*_data(rule["expr"], said)],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule.get("for", "0s"),
        "missing_series_evals_to_resolve": 1,
        "annotations": annotations,
        "labels": labels,
    }
    if "keep_firing_for" in rule:
        made["keepFiringFor"] = rule["keep_firing_for"]
    return made


def uid(name: str, severity: str = "") -> str:
    """Grafana's name for a rule: it must not change, and has 40 letters at most.

    Args:
        name: The alert's.
        severity: Empty where the alert has one only.

    Returns:
        Small letters, digits and hyphens.
    """
    words = re.sub(r"(?<!^)(?=[A-Z])", "-", name.removeprefix("InferCanary")).lower()
    made = "-".join(filter(None, ("infercanary", words, severity)))
    return made if len(made) <= 40 else f"{made[:31]}-{zlib.crc32(made.encode()):08x}"


def _annotations(texts: Mapping[str, str], name: str, links: Mapping[str, str]) -> dict[str, str]:
    made = {key: template(text, name, links) for key, text in texts.items()}
    for key, text in made.items():
        # Grafana cannot ask Prometheus within a text; the numbers that Prometheus' text has are on the dashboard.
        if re.search(r"\bquery\b", "".join(re.findall(r"\{\{.*?\}\}", text))):
            made[key] = f"{made['summary']}. The numbers are on the dashboard: {made['dashboard_url']}"
    return made


def template(text: str, name: str, links: Mapping[str, str]) -> str:
    """An annotation as Grafana expands it: its `$value` is a list of all values, the query's own is in `$values`.

    Args:
        text: As in Prometheus' rule.
        name: The alert's, for the message.
        links: Name in a link of ours → what it leads to in Grafana.

    Raises:
        ValueError: The text has ``${``.
    """
    if "${" in text:
        raise ValueError(f"{name}: Grafana reads ${{ in an annotation as a variable of its environment")
    text = _SENTENCE.sub(_OF_S, _LINK.sub(lambda found: links[found[1]] + found[2], text))
    return re.sub(r"(?<=[\s{(|])\$value\b", "$values.A.Value", text).strip()


def _data(expression: str, said: re.Match[str] | None) -> Iterator[Rule]:
    """``said``: how an annotation reads the judge's sentence, if one does."""
    yield _query("A", expression.strip())
    yield _expression("B", type="math", expression="is_number($A) || is_nan($A) || is_inf($A)")
    above = {"evaluator": {"type": "gt", "params": [0]}}
    yield _expression("C", type="threshold", expression="B", conditions=[above])
    if said is not None:
        yield _query(
            "S", sentence_of(expression.strip(), said["metric"], re.findall(r"\w+(?==)", said["by"]))
        )


def sentence_of(
    expression: str,
    metric: str = "infercanary_verdict_info",
    labels: Sequence[str] = ("instance", "service", "canary"),
) -> str:
    """The alert's own series with the judge's sentence as one more label.

    Grafana gives an alert the values of all queries whose labels contain the alert's own
    (https://github.com/grafana/grafana/blob/main/pkg/services/ngalert/eval/eval.go, "matching labels"), and only of
    those: without `cause`, say, the sentence would not be found.

    Args:
        expression: The alert's, as PromQL.
        metric: Which has the sentence.
        labels: That the alert's series and the metric's have in common.
    """
    by = ", ".join(labels)
    newest = f"topk by ({by}) (1, timestamp({metric})) ^ 0"
    return f"(\n{expression}\n) * on ({by}) group_left (sentence) {newest}"


def _query(reference: str, expression: str) -> Rule:
    model = {"datasource": {"type": "prometheus", "uid": UID}, "expr": expression, "instant": True}
    return _node(reference, UID, model)


def _expression(reference: str, **model: Any) -> Rule:
    return _node(reference, "__expr__", {"datasource": {"type": "__expr__", "uid": "__expr__"}, **model})


def _node(reference: str, datasource: str, model: Rule) -> Rule:
    return {
        "refId": reference,
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": datasource,
        "model": {"refId": reference, **model},
    }


def _yaml(content: Rule) -> str:
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines as they were written."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
