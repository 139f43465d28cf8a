"""Converts Prometheus' alert rules to Grafana's own rules, for users who send alerts from Grafana.

Grafana then sends the alerts to the stack's Alertmanager. A converted rule has the same form as in Grafana's own
converter: a query, then an expression that is 1 for any value. The reason is that Prometheus fires for every series
that exists, even if its value is 0, and does not fire without a series. The rules are off by default, because
Prometheus and Grafana together would page twice. The file that is mounted by default removes the rules, if they were
on before.

Annotations in Grafana cannot query Prometheus. So each query in an annotation becomes a query of the rule, and the
annotation reads the value or the labels of that query. Grafana gives an alert only the values of queries whose labels
contain the alert's own labels (pkg/services/ngalert/eval/eval.go, "matching labels"). So each such query is joined to
the alert's own expression. Without data, there are no values, but Grafana still expands the annotations. So each
annotation is inside ``with $values.A``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grafana.dashboards.variables import UID

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus/rules"
PROVISIONING = HERE / "provisioning/alerting"

FOLDER = "InferCanary alerts"
"""First part of the folders' names. Each severity has a folder, because an alert may have two severities, and titles in
a folder must be unique.
"""
CONTACT = "InferCanary's Alertmanager"
_RECEIVER = "infercanary-alertmanager"
_RESEND = "1m"
"""Interval at which Grafana sends an alert again. Alertmanager treats an alert as resolved if it is not sent again
within ``resolve_timeout`` (5 minutes). Sending again causes no new notification.
"""
_ORGANISATION = 1
_EXPRESSIONS = {"type": "__expr__", "uid": "__expr__"}
_ON = """\
# Made by `make dashboards` from prometheus/rules: change those, not this file.
# Mounted with GRAFANA_ALERTS=on: see grafana/README.md.
"""
_OFF = """\
# Made by `make dashboards` from prometheus/rules: change those, not this file.
# Mounted by default, because Prometheus and Alertmanager page. Removes the rules of GRAFANA_ALERTS=on.
"""
_ASKS = re.compile(
    r'\{\{(-?) with (?:query|printf) "((?:[^"\\]|\\.)*)"(?: \$labels\.\w+)*(?: \| query)?( -?)\}\}'
)
"""Query of Prometheus in an annotation. Groups: the trim marks, and the query, in which each ``%q`` is the value of a
label.
"""

Rule = Mapping[str, Any]


def files() -> dict[Path, str]:
    """Return Grafana's provisioning files by path: one that adds the rules, and one that removes them."""
    source = [yaml.load(path.read_bytes(), yaml.CSafeLoader) for path in sorted(RULES.glob("*.yml"))]
    groups = [*_groups([group for rules in source for group in rules["groups"]])]
    uids = [{"orgId": _ORGANISATION, "uid": rule["uid"]} for group in groups for rule in group["rules"]]
    contacts = [{"orgId": _ORGANISATION, "uid": _RECEIVER}]
    off = {"deleteRules": uids, "resetPolicies": [_ORGANISATION], "deleteContactPoints": contacts}
    return {
        PROVISIONING / "on/rules.yml": _ON + _yaml({"apiVersion": 1, "groups": groups, **_to_alertmanager()}),
        PROVISIONING / "off/rules.yml": _OFF + _yaml({"apiVersion": 1, **off}),
    }


def _to_alertmanager() -> Rule:
    """Return settings that send all alerts to the stack's Alertmanager.

    Alertmanager groups, inhibits and notifies as for Prometheus.
    """
    receiver = {
        "uid": _RECEIVER,
        "type": "prometheus-alertmanager",
        "settings": {"url": "http://alertmanager:9093"},
    }
    policy = {
        "orgId": _ORGANISATION,
        "receiver": CONTACT,
        "group_by": ["..."],
        "group_wait": "1s",
        "group_interval": _RESEND,
        "repeat_interval": _RESEND,
    }
    return {
        "contactPoints": [{"orgId": _ORGANISATION, "name": CONTACT, "receivers": [receiver]}],
        "policies": [policy],
    }


def _groups(source: Sequence[Rule]) -> Iterator[Rule]:
    alerts = [(group, rule) for group in source for rule in group["rules"] if "alert" in rule]
    names = Counter(rule["alert"] for _, rule in alerts)
    by_place: dict[tuple[str, str], list[Rule]] = {}
    for group, rule in alerts:
        made = _rule(rule, names[rule["alert"]] > 1)
        by_place.setdefault((group["name"], rule["labels"]["severity"]), []).append(made)
    for (name, severity), rules in by_place.items():
        yield {
            "orgId": _ORGANISATION,
            "name": name,
            "folder": f"{FOLDER} ({severity})",
            "interval": "1m",
            "rules": rules,
        }


def _rule(rule: Rule, shared: bool) -> Rule:
    """Return a rule for Grafana. ``shared`` is True if another rule has the same name and another severity."""
    name, labels, expression = rule["alert"], rule["labels"], rule["expr"].strip()
    for text in (*labels.values(), *rule["annotations"].values()):
        if "${" in text:
            raise ValueError(f"{name}: Grafana expands ${{ from its environment; reword: {text}")
    references: dict[str, str] = {}
    texts = {key: template(text, references) for key, text in rule["annotations"].items()}
    asked = "\n".join(rule["annotations"].values())
    above = {"evaluator": {"type": "gt", "params": [0]}}
    return {
        "uid": uid(f"{name}-{labels['severity']}" if shared else name),
        "title": name,  # Grafana copies the title to the label alertname, which Alertmanager's inhibition uses
        "condition": "C",
        "data": [
            _query("A", expression),
            _node("B", _EXPRESSIONS, type="math", expression="is_number($A) || is_nan($A) || is_inf($A)"),
            _node("C", _EXPRESSIONS, type="threshold", expression="B", conditions=[above]),
            *(_query(letter, joined(expression, query, asked)) for query, letter in references.items()),
        ],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule.get("for", "0s"),
        "keepFiringFor": rule.get("keep_firing_for", "0s"),
        "missing_series_evals_to_resolve": 1,
        "annotations": texts,
        "labels": labels,
    }


def uid(name: str) -> str:
    """Return Grafana's id of a rule: it must never change, and has at most 40 characters.

    Args:
        name: Name of the alert; if the alert has two severities, followed by a hyphen and the severity.

    Returns:
        Lower-case letters, digits and hyphens.
    """
    words = re.sub(r"(?<!^)(?=[A-Z])", "-", name.removeprefix("InferCanary"))
    return f"infercanary-{words.lower()}"


def template(text: str, references: dict[str, str]) -> str:
    """Return an annotation for Grafana: results of its queries, and the alert's own value, are read from `$values`.

    Args:
        text: Annotation as in Prometheus' rule.
        references: Letters of the queries in the rule, by query; new queries are added.
    """

    def read(found: re.Match[str]) -> str:
        letter = references.setdefault(found[2], chr(ord("D") + len(references)))
        return f"{{{{{found[1]} with $values.{letter}{found[3]}}}}}"

    text = _ASKS.sub(read, text)
    text = re.sub(r'\. \| first \| label "(\w+)"', r".Labels.\1", text).replace(". | first | value", ".Value")
    text = re.sub(r"(?<=[\s{(|])\$value\b", "$values.A.Value", text).strip()
    return f"{{{{ with $values.A }}}}{text}{{{{ end }}}}"


def joined(expression: str, query: str, texts: str) -> str:
    """Return the alert's own series, each joined with the labels or the value of a query in its annotations.

    Args:
        expression: PromQL of the alert.
        query: Query as in an annotation: `topk(1, …)` for labels, or a value aggregated by `max(…)`.
        texts: The annotations, which name the labels to read.
    """
    by = ", ".join(re.findall(r"(\w+)=%q", query))
    query = re.sub(r",?\w+=%q", "", query).replace("{,", "{").replace("{}", "").replace('\\"', '"')
    query = re.sub(r"\b(topk|max)\(", rf"\1 by ({by}) (", query, count=1)
    if not query.startswith("topk"):
        return f"(\n{expression}\n) * 0 + on ({by}) group_left () {query}"
    labels = ", ".join(sorted({*re.findall(r'\. \| first \| label "(\w+)"', texts)}))
    return f"(\n{expression}\n) * on ({by}) group_left ({labels}) {query} ^ 0"


def _query(reference: str, expression: str) -> Rule:
    return _node(reference, {"type": "prometheus", "uid": UID}, expr=expression, instant=True)


def _node(reference: str, source: Rule, **model: Any) -> Rule:
    return {
        "refId": reference,
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": source["uid"],
        "model": {"refId": reference, "datasource": source, **model},
    }


def _yaml(content: Rule) -> str:
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):
    """YAML writer that keeps the lines of multi-line expressions."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
