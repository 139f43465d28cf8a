"""Prometheus' alert rules as Grafana's own, for those who page by Grafana: sent on to the stack's Alertmanager.

As Grafana itself converts them: a query, then 1 for any value that it gives, since Prometheus fires for a series that
is there, also where its value is 0; and no series is no alert. Off by default, since both would page twice: what is
mounted by default only takes away what was there, if they were on.

A text of Grafana cannot ask Prometheus. So what the annotations read is an instant query of the rule: L has the links
as labels, S the judge's sentence, I the images of its upgrade, T is when to begin to look. Grafana gives an alert the
values of all queries whose labels contain the alert's own, and only of those (pkg/services/ngalert/eval/eval.go,
"matching labels"): each of them is the alert's own expression with something added. Without data there are no values,
and an annotation is expanded all the same; so each stands within ``with $values.A``, and then says nothing instead of
failing.
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
PROVISIONING = HERE / "provisioning/alerting"

FOLDER = "InferCanary alerts"
"""With the severity: an alert may have two, and a title may be there once in a folder."""
CONTACT = "InferCanary's Alertmanager"
_RECEIVER = "infercanary-alertmanager"
_ALERTMANAGER = "http://alertmanager:9093"
_RESEND = "1m"
"""Alertmanager takes an alert that is not sent again within its ``resolve_timeout``, 5 minutes, for resolved. It
notifies of it once however often it is sent."""
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
    rf'\{{\{{ with query "{_LINKS}\{{(?P<name>\w+)!=\\"\\"\}}" \}}\}}\{{\{{ \. \| first \| label "(?P=name)" \}}\}}'
)
"""How an annotation of Prometheus begins a link."""
_SENTENCE = re.compile(
    r'\{\{-? ?with printf "topk\(1, timestamp\((?P<metric>infercanary_(?:measure_)?verdict_info)'
    r'\{(?P<by>\w+=%q(?:,\w+=%q)*)\}\)(?P<found> and on \([\w, ]+\) [\w:]+)?(?:\{cause[^}]+\})?\)" '
    r"(?:\$labels\.\w+ )+\| query -?\}\}\s*"
    r'\{\{ \. \| first \| label "sentence" \}\}'
)
"""How it reads the judge's sentence."""
_IMAGES = re.compile(
    r'\{\{- with printf "topk\(1, timestamp\((?P<metric>infercanary_upgrade_info)'
    r'\{(?P<by>\w+=%q(?:,\w+=%q)*)(?P<which>[^}]*)\}\)(?P<found> and on \([\w, ]+\) [\w:]+)(?:\{cause[^}]+\})?\)" '
    r"(?:\$labels\.\w+ )+\| query \}\}"
    r'(?P<text>[^{]*)\{\{ \. \| first \| label "baseline_image" \}\}'
    r'(?P<arrow>[^{]*)\{\{ \. \| first \| label "candidate_image" \}\}'
    r'\{\{ with \. \| first \| label "candidate_containers" \}\}'
)
"""And the images of its upgrade."""
_SINCE = re.compile(
    r'\{\{ with printf "1000 \* \(max\((?P<metric>\w+)\{(?P<by>\w+=%q(?:,\w+=%q)*)\}\) - (?P<before>\d+)\)" '
    r'(?:\$labels\.\w+ )+\| query \}\}&from=\{\{ \. \| first \| value \| printf "%\.0f" \}\}'
)
"""And when to begin to look, in a link: milliseconds, as Grafana counts them."""

Rule = Mapping[str, Any]


def files() -> dict[Path, str]:
    """Path → what is to be in it: the rules, and how they are taken away.

    Returns:
        Path of a file for Grafana's provisioning → its whole text.
    """
    groups = [*_groups(_source())]
    uids = [{"orgId": _ORGANISATION, "uid": rule["uid"]} for group in groups for rule in group["rules"]]
    return {
        PROVISIONING / "on/rules.yml": _ON + _yaml({"apiVersion": 1, "groups": groups, **_to_alertmanager()}),
        PROVISIONING / "off/rules.yml": _OFF
        + _yaml(
            {
                "apiVersion": 1,
                "deleteRules": uids,
                "resetPolicies": [_ORGANISATION],
                "deleteContactPoints": [{"orgId": _ORGANISATION, "uid": _RECEIVER}],
            }
        ),
    }


def _to_alertmanager() -> Rule:
    """Everything to the stack's Alertmanager, which groups, inhibits and notifies as it does for Prometheus."""
    receiver = {
        "uid": _RECEIVER,
        "type": "prometheus-alertmanager",
        "settings": {"url": _ALERTMANAGER},
        "disableResolveMessage": False,
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


def _source() -> list[Rule]:
    """The groups of all rule files."""
    return [
        group
        for path in sorted(RULES.glob("*.y*ml"))
        for group in (yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) or {}).get("groups") or ()
    ]


def _groups(source: Sequence[Rule]) -> Iterator[Rule]:
    names = Counter(rule["alert"] for group in source for rule in group["rules"] if "alert" in rule)
    for group in source:
        by_severity: dict[str, list[Rule]] = {}
        for rule in group["rules"]:
            if "alert" in rule:
                labels = {**(group.get("labels") or {}), **(rule.get("labels") or {})}
                made = _rule({**rule, "labels": labels}, names[rule["alert"]] > 1)
                by_severity.setdefault(labels["severity"], []).append(made)
        for severity, rules in by_severity.items():
            yield {
                "orgId": _ORGANISATION,
                "name": group["name"],
                "folder": f"{FOLDER} ({severity})",
                "interval": group.get("interval", "1m"),
                "rules": rules,
            }


def _rule(rule: Rule, shared: bool) -> Rule:
    """``shared``: another rule has the name too, with another severity."""
    name, labels = rule["alert"], rule["labels"]
    for key, text in labels.items():
        if "$" in str(text):
            raise ValueError(f"{name}: Grafana reads the $ of label {key} as a variable of its environment")
    texts = rule.get("annotations") or {}
    made: dict[str, Any] = {
        "uid": uid(name, labels["severity"] if shared else ""),
        "title": name,  # which Grafana makes the label alertname: Alertmanager inhibits by it
        "condition": "C",
        "data": [*_data(rule["expr"].strip(), texts)],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule.get("for", "0s"),
        "missing_series_evals_to_resolve": 1,
        "annotations": _annotations(texts, name),
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


def _annotations(texts: Mapping[str, str], name: str) -> dict[str, str]:
    made = {key: template(text, name) for key, text in texts.items()}
    for key, text in made.items():
        # The numbers that Prometheus' text has are on the dashboard.
        if re.search(r"\bquery\b", "".join(re.findall(r"\{\{.*?\}\}", text, re.DOTALL))):
            said = (
                "{{ with $values.S }} {{ .Labels.sentence }}.{{ end }}"
                if _SENTENCE.search(texts[key])
                else ""
            )
            made[key] = f"{made['summary']}.{said} The numbers are on the dashboard."
    return {key: f"{{{{ with $values.A }}}}{text}{{{{ end }}}}" for key, text in made.items()}


def template(text: str, name: str) -> str:
    """An annotation as Grafana expands it: its `$value` is a list of all values, the query's own is in `$values`.

    Args:
        text: As in Prometheus' rule.
        name: The alert's, for the message.

    Raises:
        ValueError: The text has ``${``.
    """
    if "${" in text:
        raise ValueError(f"{name}: Grafana reads ${{ in an annotation as a variable of its environment")
    text = _LINK.sub(r"{{ with $values.L }}{{ .Labels.\g<name> }}", text)
    text = _SENTENCE.sub("{{ with $values.S }}{{ .Labels.sentence }}", text)
    text = _IMAGES.sub(
        r"{{- with $values.I }}\g<text>{{ .Labels.baseline_image }}\g<arrow>{{ .Labels.candidate_image }}"
        "{{ with .Labels.candidate_containers }}",
        text,
    )
    text = _SINCE.sub('{{ with $values.T }}&from={{ printf "%.0f" .Value }}', text)
    return re.sub(r"(?<=[\s{(|])\$value\b", "$values.A.Value", text).strip()


def _data(expression: str, texts: Mapping[str, str]) -> Iterator[Rule]:
    """The query, what decides, and what the annotations read."""
    yield _query("A", expression)
    yield _expression("B", type="math", expression="is_number($A) || is_nan($A) || is_inf($A)")
    above = {"evaluator": {"type": "gt", "params": [0]}}
    yield _expression("C", type="threshold", expression="B", conditions=[above])
    every = "\n".join(texts.values())
    if _LINK.search(every):
        yield _query("L", linked(expression))
    if found := _SENTENCE.search(every):
        yield _query("S", labelled(expression, found, "sentence"))
    if found := _IMAGES.search(every):
        yield _query(
            "I", labelled(expression, found, "baseline_image, candidate_image, candidate_containers")
        )
    if times := {found[0]: found for found in _SINCE.finditer(every)}:
        yield _query("T", since(expression, [*times.values()]))


def linked(expression: str) -> str:
    """The alert's own series with the links as labels: those that `links` in exporter.yaml names.

    Args:
        expression: The alert's, as PromQL.
    """
    links = f"topk(1, timestamp({_LINKS})) ^ 0"
    return f"(\n{expression}\n) * on () group_left (grafana, runbooks) {links}"


def labelled(expression: str, found: re.Match[str], labels: str) -> str:
    """The alert's own series with labels of the judge's: its sentence, or the images that it is about.

    Args:
        expression: The alert's, as PromQL.
        found: How an annotation reads them.
        labels: Their names.
    """
    by, parts = ", ".join(_labels(found)), found.groupdict()
    which = (parts.get("which") or "").replace("\\", "").lstrip(",")
    metric = f"{parts['metric']}{{{which}}}" if which else parts["metric"]
    newest = f"topk by ({by}) (1, timestamp({metric}){parts['found'] or ''}) ^ 0"
    return f"(\n{expression}\n) * on ({by}) group_left ({labels}) {newest}"


def since(expression: str, times: Sequence[re.Match[str]]) -> str:
    """The alert's own series with the time at which to begin to look, in milliseconds.

    Args:
        expression: The alert's, as PromQL.
        times: How its annotations read it; of several, the one counts that has most labels in common with the alert.
    """

    def of(found: re.Match[str]) -> str:
        by = ", ".join(_labels(found))
        at = f"1000 * (max by ({by}) ({found['metric']}) - {found['before']})"
        return f"(\n{expression}\n) * 0 + on ({by}) group_left () {at}"

    return "\n  or\n".join(map(of, sorted(times, key=lambda found: -len(_labels(found)))))


def _labels(found: re.Match[str]) -> Sequence[str]:
    return re.findall(r"\w+(?==)", found["by"])


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
