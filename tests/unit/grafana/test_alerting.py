"""Grafana's own alert rules equal those of Prometheus, and are off by default."""

import re

import pytest

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")

from grafana import alerting
from tests.programs import ROOT
from tests.rules import ALERTS, load
from tests.scenarios import cases

PROVISIONING = ROOT / "grafana/provisioning"


ON = load(PROVISIONING / "alerting/on/rules.yml")
OFF = load(PROVISIONING / "alerting/off/rules.yml")
MADE = [rule for group in ON["groups"] for rule in group["rules"]]


def test_they_are_prometheus_rules():
    assert len(MADE) == len(ALERTS) > 0
    made_of = {(made["title"], made["labels"]["severity"]): made for made in MADE}
    for rule in ALERTS:
        made = made_of[rule["alert"], rule["labels"]["severity"]]
        # Grafana uses the title as the label alertname, which Alertmanager reads
        assert made["title"] == rule["alert"]
        assert made["data"][0]["model"]["expr"] == rule["expr"].strip()
        assert made["for"] == rule.get("for", "0s")
        assert rule.get("labels", {}).items() <= made["labels"].items()
        assert made["annotations"].keys() == rule.get("annotations", {}).keys()


def test_a_series_that_is_there_fires_and_one_that_is_not_does_not():
    for rule in MADE:
        query, present, threshold, *_ = rule["data"]
        assert (query["refId"], present["refId"], threshold["refId"]) == ("A", "B", rule["condition"])
        assert query["model"]["instant"]
        assert present["model"]["expression"] == "is_number($A) || is_nan($A) || is_inf($A)"
        assert threshold["model"]["expression"] == "B"
        assert rule["noDataState"] == "OK"
        assert rule["missing_series_evals_to_resolve"] == 1


def test_names_are_grafanas():
    uids = [rule["uid"] for rule in MADE]
    assert len(uids) == len(set(uids))
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", uid) for uid in uids)
    places = [(group["folder"], rule["title"]) for group in ON["groups"] for rule in group["rules"]]
    assert len(places) == len(set(places))  # a title must be unique in its folder
    assert len({(group["folder"], group["name"]) for group in ON["groups"]}) == len(ON["groups"])


def test_off_takes_away_what_on_brings():
    assert [rule["uid"] for rule in OFF["deleteRules"]] == [rule["uid"] for rule in MADE]
    assert OFF.keys() == {"apiVersion", "deleteRules", "resetPolicies", "deleteContactPoints"}
    [policy] = ON["policies"]
    assert OFF["resetPolicies"] == [policy["orgId"]]
    receivers = [receiver for point in ON["contactPoints"] for receiver in point["receivers"]]
    assert [gone["uid"] for gone in OFF["deleteContactPoints"]] == [receiver["uid"] for receiver in receivers]
    assert (
        "./grafana/provisioning/alerting/${GRAFANA_ALERTS:-off}:/etc/grafana/provisioning/alerting:ro"
        in (load(ROOT / "docker-compose.yml")["services"]["grafana"]["volumes"])
    )


def test_a_finding_is_sent_to_the_stacks_alertmanager_and_by_grafana_alone():
    [point] = ON["contactPoints"]
    [receiver] = point["receivers"]
    [policy] = ON["policies"]
    services = load(ROOT / "docker-compose.yml")["services"]
    host, port = receiver["settings"]["url"].removeprefix("http://").split(":")
    assert receiver["type"] == "prometheus-alertmanager"
    assert host in services
    assert port == "9093"
    assert set(services[host]["networks"]) & set(services["grafana"]["networks"])
    assert not receiver.get("disableResolveMessage")
    assert policy["receiver"] == point["name"]
    # Alertmanager resolves an alert that does not return within five minutes, and would send a new
    # notification later.
    assert policy["repeat_interval"] == policy["group_interval"] == "1m"
    assert "resolve_timeout" not in (ROOT / "prometheus/alertmanager.yml").read_text()

    mount = "./prometheus/alertmanagers/${GRAFANA_ALERTS:-off}:/etc/prometheus/alertmanagers:ro"
    assert mount in services["prometheus"]["volumes"]
    [sends_to] = load(ROOT / "prometheus/prometheus.yml")["alerting"]["alertmanagers"]
    assert sends_to == {"file_sd_configs": [{"files": ["alertmanagers/*.yml"]}]}
    there = {path.parent.name: load(path) for path in (ROOT / "prometheus/alertmanagers").glob("*/*.yml")}
    assert there == {"on": [], "off": [{"targets": [f"{host}:{port}"]}]}


def test_texts_are_templates_that_grafana_expands():
    for rule in MADE:
        queries = {node["refId"] for node in rule["data"]}
        for key, text in rule["annotations"].items():
            code = "".join(re.findall(r"\{\{.*?\}\}", text, flags=re.DOTALL))
            assert not re.search(r"\bquery\b", code), f"{rule['title']}: {key} asks Prometheus"
            assert not re.search(r"\$value\b", code), f"{rule['title']}: {key}"
            assert set(re.findall(r"\$values\.(\w)", code)) <= queries, f"{rule['title']}: {key}"
        link = rule["annotations"]["dashboard_url"]
        assert re.search(r"\{\{ with \$values\.\w \}\}\{\{ \.Labels\.grafana \}\}/d/infercanary-", link)
        link = rule["annotations"]["runbook_url"]
        assert re.search(r"\{\{ with \$values\.\w \}\}\{\{ \.Labels\.runbooks \}\}#infercanary", link)


def test_a_link_sets_variables_that_its_board_has():
    boards = [load(path) for path in (ROOT / "grafana/dashboards/json").glob("*.json")]
    variables = {board["uid"]: {each["name"] for each in board["templating"]["list"]} for board in boards}
    for rule in ALERTS:
        link = rule["annotations"]["dashboard_url"]
        [board] = set(re.findall(r"/d/([\w-]+)", link))
        assert set(re.findall(r"[?&}]var-(\w+)=", link)) <= variables[board], rule["alert"]


def test_without_data_a_text_is_empty_and_nothing_fails():
    """Grafana expands texts even without data. A function of a missing value or label would log an error."""
    for rule in MADE:
        for key, text in rule["annotations"].items():
            assert text.startswith("{{ with $values.A }}") and text.endswith("{{ end }}"), (
                f"{rule['title']}: {key}"
            )
            depth = 0
            for word in re.findall(r"\{\{-?\s*(\w+)", text.removesuffix("{{ end }}")):
                depth += (word in ("with", "if", "range")) - (word == "end")
                assert depth > 0, f"{rule['title']}: a part of {key} is outside of the condition"


LABELS = '{{- with printf "topk(1, timestamp(a{x=%q,z=\\"1\\"}))" $labels.x | query -}}'
VALUE = '{{ with printf "60 * (max(b{x=%q,y=%q}) - 1)" $labels.x $labels.y | query }}'


@cases(
    [
        ("{{ $value }} of 18", "{{ $values.A.Value }} of 18"),
        ("{{ $value | humanizePercentage }}", "{{ $values.A.Value | humanizePercentage }}"),
        ('{{ printf "%.1f" $value }} {{ $labels.x }}', '{{ printf "%.1f" $values.A.Value }} {{ $labels.x }}'),
        (
            '{{ with query "topk(1, l{g!=\\"\\"})" }}{{ . | first | label "g" }}/d/x?a={{ $labels.a }}{{ end }}',
            "{{ with $values.D }}{{ .Labels.g }}/d/x?a={{ $labels.a }}{{ end }}",
        ),
        (
            LABELS + '{{ with . | first | label "s" }}{{ . }}{{ end }}{{ else }}None.{{ end }}',
            "{{- with $values.D -}}{{ with .Labels.s }}{{ . }}{{ end }}{{ else }}None.{{ end }}",
        ),
        (
            VALUE
            + '{{ . | first | value | printf "%.0f" }}{{ end }}'
            + LABELS
            + "{{ end }}"
            + VALUE
            + "{{ end }}",
            '{{ with $values.D }}{{ .Value | printf "%.0f" }}{{ end }}'
            "{{- with $values.E -}}{{ end }}{{ with $values.D }}{{ end }}",
        ),
    ],
)
def test_a_template(given, made):
    assert alerting.template(given, {}) == f"{{{{ with $values.A }}}}{made}{{{{ end }}}}"


def test_queries_of_texts_do_not_affect_the_alert():
    for rule in MADE:
        deciding, read = rule["data"][:3], rule["data"][3:]
        assert [node["refId"] for node in deciding] == ["A", "B", "C"]
        assert not any("verdict_info" in str(node) or re.search(r"\$[D-Z]", str(node)) for node in deciding)
        assert all(node["model"]["instant"] for node in read)
        used = set(re.findall(r"\$values\.([D-Z])", str(rule["annotations"])))
        assert {node["refId"] for node in read} == used, rule["title"]


@cases([{"labels": {"severity": "${x}"}}, {"annotations": {"summary": "costs ${x}"}}])
def test_text_that_grafana_would_expand_is_refused(given):
    rule = {"alert": "A", "expr": "up", "labels": {"severity": "warning"}, "annotations": {}}
    with pytest.raises(ValueError, match="expands \\$\\{"):
        alerting._rule({**rule, **given}, shared=False)


def test_provisioning_is_what_the_dashboards_ask_for():
    [source] = load(PROVISIONING / "datasources/prometheus.yml")["datasources"]
    assert source["editable"] is False
    [provider] = load(PROVISIONING / "dashboards/infercanary.yml")["providers"]
    assert provider["allowUiUpdates"] is False
    volumes = load(ROOT / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards/json:{provider['options']['path']}:ro" in volumes


def test_the_service_has_no_password_and_cannot_write_the_repository():
    """tests/stack/test_compose.py tests the user, the ports and the rules for all services."""
    service = load(ROOT / "docker-compose.yml")["services"]["grafana"]
    assert service["environment"]["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert not [key for key in service["environment"] if "PASSWORD" in key]
    assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("./"))
