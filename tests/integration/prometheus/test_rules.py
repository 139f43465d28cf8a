"""promtool accepts the rules and their tests, and each rule fires in a test and stays silent in a test.

All names in rules exist, and each alert contains the information that a person needs at night.
"""

import re
from typing import NamedTuple

import pytest

from tests.for_each import for_each
from tests.programs import ROOT
from tests.rules import ALERTS, DECLARED, GROUPS, RECORDS, RULE_FILES, RULES, load

pytestmark = pytest.mark.takes(40)

PROMETHEUS = ROOT / "prometheus"
TEST_FILES = sorted((PROMETHEUS / "tests").glob("*.yml"))
RUNBOOKS = (ROOT / "docs/runbooks.md").read_text()

THRESHOLD = "infercanary:threshold:"
SEVERITIES = {"critical", "warning"}
MOST_ALERTS = 20  # a new alert must replace an alert that nobody acts on
MOST_RECORDS = 60
LAYERS = {"image", "host", "canary", "stack"}
# Labels that Prometheus and the exporter add to every series.
COMMON = {"instance", "job", "service", "namespace", "pod", "container", "le"}

SCENARIOS = [test for path in TEST_FILES for test in load(path)["tests"]]
CASES = [case for test in SCENARIOS for case in test.get("alert_rule_test", ())]
QUERIES = [case for test in SCENARIOS for case in test.get("promql_expr_test", ())]


def name_of(alert):
    return f"{alert['alert']}-{alert['labels']['severity']}"


each_alert = for_each(ALERTS, name_of)


# Prometheus' own tools -------------------------------------------------------------------------------------------


def test_the_config_is_accepted(tool):
    tool("promtool", "check", "config", "--lint=all", "--lint-fatal", str(PROMETHEUS / "prometheus.yml"))


def test_the_rules_are_accepted(tool):
    tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULE_FILES))


@pytest.mark.parametrize("file", TEST_FILES, ids=lambda path: path.stem)
def test_the_rules_do_what_their_tests_say(tool, file):
    """Each file of rules is a separate test, so that two workers share the minute of CPU time."""
    tool("promtool", "test", "rules", str(file))


# Each rule has tests ----------------------------------------------------------------------------------------------


def test_every_alert_fires_with_its_texts_and_ends_with_its_trouble():
    scenario = load(PROMETHEUS / "tests/alerts.yml")["tests"][0]
    before, afterwards = scenario["promql_expr_test"]
    assert before["exp_samples"] == afterwards["exp_samples"] == []
    assert before["expr"] == afterwards["expr"]
    assert 'alertstate="firing"' in before["expr"]
    fired = {
        (case["alertname"], expected["exp_labels"]["severity"])
        for case in scenario["alert_rule_test"]
        for expected in case["exp_alerts"]
    }
    assert fired == {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}


def test_there_are_few():
    assert len({alert["alert"] for alert in ALERTS}) <= MOST_ALERTS
    assert len(RECORDS) <= MOST_RECORDS


def test_every_metric_of_an_alert_is_there_when_all_must_be_silent():
    """In the test of restart, scrape gap and counter reset, an alert without its metric would be silent in any case."""
    first = load(PROMETHEUS / "tests/silence.yml")["tests"][0]
    there = {series_of(text).metric for text in inputs(first)}
    needed = {name for alert in ALERTS for name in read_by(alert)}
    # These metrics exist only after a finding, so without them their alerts are silent.
    findings = {"shift_cause", "drift_timestamp_seconds", "drift_host_ratio"}
    findings |= {"store_set_aside_timestamp_seconds"}
    assert needed - there == {f"infercanary_{name}" for name in findings}


VALUES = [name for name in RECORDS if not name.startswith(THRESHOLD)]


@for_each(VALUES)
def test_a_recording_rule_has_a_test_with_a_value(record):
    assert any(case["exp_samples"] and record in records_in(case["expr"]) for case in QUERIES)


# Used names exist ------------------------------------------------------------------------------------------------


class Series(NamedTuple):
    metric: str
    matchers: list[tuple[str, str, str]]


def series_of(text):
    name, _, inner = text.partition("{")
    return Series(name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', inner))


_SELECTOR = re.compile(r'(?<![\w:])infercanary_\w+(?![\w:])(?:\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})?')


def selectors(expression):
    for text in _SELECTOR.findall(expression):
        yield series_of(text)


def metrics_in(expression):
    return {series.metric for series in selectors(expression)}


def records_in(expression):
    names = set(re.findall(r"[a-z]\w*(?::\w+){2,}", expression))
    return {name for name in names if not name.startswith(THRESHOLD)}


def read_by(rule):
    """Return the exporters' families that a rule reads, directly or by recorded series."""
    return metrics_in(rule["expr"]).union(*(read_by(RECORDS[name]) for name in records_in(rule["expr"])))


def inputs(test):
    return [each["series"] for each in test.get("input_series", ())]


def check(series):
    """Check that docs/metrics.md documents the metric, its labels and the label values."""
    assert series.metric in DECLARED, f"{series.metric} is not in docs/metrics.md"
    labels = DECLARED[series.metric].labels
    for label, operator, value in series.matchers:
        assert label in labels or label in COMMON, f"{series.metric} has no label {label}"
        known, named = labels.get(label), {*value.split("|")}
        is_refused = operator in ("!=", "!~")
        if known and (is_refused or re.fullmatch(r"[\w|]+", value)):
            assert named & known if is_refused else named <= known, f"{series.metric}: no {label} is {value}"


@for_each(RULES, lambda rule: rule.get("record") or name_of(rule))
def test_metrics_of_rules_exist(rule):
    for series in selectors(rule["expr"]):
        check(series)
    assert records_in(rule["expr"]) <= RECORDS.keys()
    assert set(re.findall(rf"{THRESHOLD}\w+", rule["expr"])) <= RECORDS.keys()
    for text in rule.get("annotations", {}).values():
        assert set(re.findall(r"(?<![\w:])infercanary_\w+(?![\w:])", text)) <= DECLARED.keys()
        queries = [q for q in re.findall(r'"([^"]*)"', text) if "infercanary" in q]
        assert {name for q in queries for name in records_in(q)} <= RECORDS.keys()


OF_OTHERS = ("up", "alertmanager_notifications_failed_total")  # metrics of Prometheus and Alertmanager


def test_series_in_tests_of_rules_exist():
    """With a misspelt series, a test that expects no alert would always pass."""
    for test in SCENARIOS:
        for text in inputs(test):
            series = series_of(text)
            if series.metric not in OF_OTHERS:
                check(series)


def test_counters_are_read_by_their_growth():
    for rule in RULES:
        for found in re.finditer(r"infercanary_\w+_total\b(?:\{[^}]*\})?(\[\w+\])?", rule["expr"]):
            assert found[1], f"{found[0]}: use the increase of a counter, not its value"


def test_runbooks_name_metrics_that_exist():
    histograms = {name.removesuffix("_count") for name, m in DECLARED.items() if m.kind == "histogram"}
    for query in re.findall(r"`([^`]*infercanary[^`]*)`", RUNBOOKS):
        if query.startswith("kubectl"):
            continue
        assert metrics_in(query) <= DECLARED.keys() | histograms, query
        assert records_in(query) <= RECORDS.keys(), query


# Cost ------------------------------------------------------------------------------------------------------------


def test_a_window_is_read_once():
    readers = {}
    for group in GROUPS:
        for rule in group["rules"]:
            name = rule.get("record") or name_of(rule)
            for metric, window in _WINDOW.findall(rule["expr"]):
                readers.setdefault((metric, window), set()).add(name)
                if metric.endswith("_bucket"):
                    assert group.get("interval") == "1m", name
    assert {read: names for read, names in readers.items() if len(names) > 1} == {}
    assert ("infercanary_runs_total", "30m") in readers


# Metric and window, with any matchers.
_WINDOW = re.compile(r"(?<![\w:])(infercanary_\w+)(?:\{[^}]*\})?\[(\w+)\]")


def test_tests_evaluate_records_before_what_reads_them():
    """promtool evaluates groups in any order if the test's file does not list them."""
    groups = {group["name"] for group in GROUPS}
    for path in TEST_FILES:
        assert set(load(path)["group_eval_order"]) == groups, path.name


# Thresholds -------------------------------------------------------------------------------------------------------


def test_every_threshold_is_used_and_counted():
    thresholds = {name for name in RECORDS if name.startswith(THRESHOLD)}
    used = {name for rule in RULES for name in re.findall(rf"{THRESHOLD}\w+", rule["expr"])}
    assert thresholds == used
    [missing] = [alert for alert in ALERTS if alert["alert"] == "InferCanaryMonitoringImpaired"]
    assert f"< {len(thresholds)}" in missing["expr"]
    assert f"of {len(thresholds)} thresholds" in missing["annotations"]["summary"]
    of_the_file = {
        rule["record"] for g in load(PROMETHEUS / "rules/thresholds.yml")["groups"] for rule in g["rules"]
    }
    assert of_the_file == thresholds


def literals(expression):
    """Return the numbers in an expression, without windows and strings."""
    rest = re.sub(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\boffset \w+', "", expression)
    return set(re.findall(r"(?<![\w:.])[\d.]*\d(?:e[+-]?\d+)?", rest))


@each_alert
def test_an_alert_has_no_number_of_its_own(alert):
    """An alert's expression may contain only 0, 1, and the number of thresholds."""
    own = literals(alert["expr"]) - {"0", "1"}
    assert not own or alert["alert"] == "InferCanaryMonitoringImpaired", f"move to thresholds.yml: {own}"


# Texts of an alert -----------------------------------------------------------------------------------------------


_LINK = '{{ with query "topk(1, infercanary:links:info{%s!=\\"\\"})" }}{{ . | first | label "%s" }}'
_ASKED = re.compile(r'(?:query|printf) "((?:[^"\\]|\\.)*infercanary(?:[^"\\]|\\.)*)"')


@each_alert
def test_an_alert_says_what_a_person_needs(alert):
    name, annotations = alert["alert"], alert["annotations"]
    assert re.fullmatch(r"InferCanary([A-Z][a-z]+)+", name)
    assert alert["labels"]["severity"] in SEVERITIES
    assert alert["labels"]["layer"] in LAYERS
    assert annotations.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert "query" not in annotations["summary"], "a summary uses the alert's own value"
    assert re.search(r"\bFirst\b", annotations["description"]), "the description must say what to do first"
    link = _LINK % ("runbooks", "runbooks")
    assert annotations["runbook_url"] == f"{link}#{name.lower()}{{{{ end }}}}"
    assert f"### {name}\n" in RUNBOOKS, "docs/runbooks.md has no heading for it"
    board = "self" if alert["labels"]["layer"] == "stack" else "service"
    link = _LINK % ("grafana", "grafana")
    assert annotations["dashboard_url"].startswith(f"{link}/d/infercanary-{board}?")
    assert "&to=now" in annotations["dashboard_url"]


@each_alert
def test_an_annotation_asks_for_labels_or_for_a_value(alert):
    """Queries use `topk(1, …)` or `max(…)`: only these two forms does grafana/alerting.py convert for Grafana."""
    for text in alert["annotations"].values():
        asked = _ASKED.findall(text)
        assert len(asked) == len(re.findall(r"\bquery\b", text))
        for query in asked:
            assert re.match(r"topk\(1, |(1000 \* \()?max\(", query), query


def test_trouble_of_a_host_names_the_service_that_feels_it():
    """Alertmanager inhibits by host and service, so the alert needs both labels. A verdict covers all hosts."""
    fired = [e["exp_labels"] for case in CASES for e in case["exp_alerts"]]
    of_hosts = [labels for labels in fired if labels["layer"] == "host"]
    assert of_hosts
    for labels in of_hosts:
        named = {"service"} if labels.get("since") == "upgrade" else {"instance", "service"}
        assert named <= labels.keys()


def test_a_table_says_which_page():
    """The page's table names each alert that pages, and says whether the alert always pages."""
    page = (ROOT / "docs/alerting.md").read_text()
    rows = re.findall(r"^\| (`InferCanary.+) \| (if .{10,}|always) \|$", page, flags=re.MULTILINE)
    named = [(name, when == "always") for names, when in rows for name in re.findall(r"\w+", names)]
    severities = {}
    for alert in ALERTS:
        severities.setdefault(alert["alert"], set()).add(alert["labels"]["severity"])
    assert sorted(named) == sorted(
        (name, levels == {"critical"}) for name, levels in severities.items() if "critical" in levels
    )


def test_no_runbook_is_left_over():
    assert set(re.findall(r"^### (.+)$", RUNBOOKS, re.MULTILINE)) == {alert["alert"] for alert in ALERTS}


def test_no_annotation_that_a_test_saw_failed_to_expand():
    for case in CASES:
        for expected in case["exp_alerts"]:
            for text in expected["exp_annotations"].values():
                assert "error expanding" not in text
                assert "%!" not in text
                assert "NaN" not in text.replace(": NaN", "")
