"""The dashboards: current generated files, existing metrics and labels, and the rules of Grafana's linter.

The rules are in https://github.com/grafana/dashboard-linter/blob/main/docs/index.md; grafana/README.md and
the tests describe the rules that the tests check in another form.
"""

import json
import re
from collections import Counter
from itertools import product

import pytest
import yaml

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")


from grafana import generate
from grafana.dashboards import colours, names
from grafana.queries import dashboards, panels, queries
from infercanary.contract.vocabulary import CAUSES, TAGS
from tests.for_each import for_each
from tests.programs import ROOT
from tests.rules import DECLARED, RECORDS

BOARDS = dashboards()
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
QUERIES = queries()

every_board = for_each(BOARDS.values(), lambda board: str(board["uid"]))
every_panel = for_each(PANELS, lambda at: f"{at[0]}: {at[1]['title']}")
every_query = for_each(QUERIES, lambda query: f"{query.dashboard}: {query.place}")

EXPORTERS_OWN = re.compile(
    "infercanary_(build|event_loop|discover|config|judge_seconds|store|stored_|unjudged_|runs_left_out)|process_|scrape_|up$"
)
"""Metrics of a whole exporter, without labels of a service or container."""
PROMETHEUS_OWN = re.compile("(up|ALERTS|ALERTS_FOR_STATE)$|process_|prometheus_|scrape_")


# Generated files --------------------------------------------------------------------------------------------------


@for_each(generate.files().items(), lambda file: str(file[0].relative_to(ROOT)))
def test_generated_files_are_current(file):
    path, text = file
    assert path.read_text() == text, "this file is stale: run `make dashboards`"


def test_nothing_else_is_there():
    assert {*generate.JSON.iterdir()} == {path for path in generate.files() if path.parent == generate.JSON}


# Metrics ---------------------------------------------------------------------------------------------------------


def labels_of(metric):
    names = {*DECLARED[metric].labels, "instance", "job"}
    names |= {"le"} if metric.endswith("_bucket") else set()
    return names if EXPORTERS_OWN.match(metric) else names | {"namespace", "pod", "service", "container"}


FLEETS_OWN = {"ALERTS", "ALERTS_FOR_STATE", "infercanary_upgrade_info", "infercanary_cuda_missing"}

_GROUPING = "by|on|ignoring|without|group_left|group_right"
_BLANKED = re.compile(rf'(?<=[(, ])"[^"]*"(?=[,)])|\b(?:{_GROUPING}) \([^)]*\)|\[[^]]*\]')
"""Strings outside of matchers, grouped labels, and windows."""
_SELECTOR = re.compile(
    rf"(?<![\w$])(?<!@ )(?!(?:{_GROUPING}|and|or|unless|bool|offset)\b)(?P<name>[a-zA-Z_:][\w:]*)(?![\w:]|\s*\()"
    r'\s*(?:\{(?P<matchers>(?:"[^"]*"|[^}"])*)\})?'
)


def selectors(expression):
    bare = _BLANKED.sub(lambda text: " " * len(text[0]), expression)
    for found in _SELECTOR.finditer(bare):
        matchers = expression[found.start() : found.end()].partition("{")[2]
        yield (
            found["name"],
            dict(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers)),
            bare[: found.start()],
        )


@every_query
def test_metrics_exist_with_their_labels(query):
    found = _read(query)
    assert found
    for name, matchers, _ in found:
        if PROMETHEUS_OWN.match(name) or name in RECORDS:
            continue
        assert name in DECLARED, f"{name} is neither declared nor recorded"
        assert matchers.keys() <= labels_of(name), f"{name} has no such label"


def _read(query):
    """Return the selectors of a query; for a variable, the selector of the metric with the variable's values."""
    found = [*selectors(query.raw.removeprefix("label_values("))]
    return found[:1] if query.raw.startswith("label_values") else found


def test_the_board_of_the_fleet_reads_what_is_recorded():
    """A Mimir or Thanos for several clusters has only recorded series."""
    read = {name for query in QUERIES if query.dashboard == "fleet" for name, *_ in _read(query)}
    assert read - RECORDS.keys() == FLEETS_OWN
    assert len(read) > 10


# The linter's rules ------------------------------------------------------------------------------------------------


@every_board
def test_the_data_source_is_a_variable(board):
    """Linter rules: template-datasource-rule, panel-datasource-rule."""
    first, *others = board["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    annotations, targets = board["annotations"]["list"], [t for p in panels(board) for t in p["targets"]]
    asking = [*panels(board), *targets, *annotations, *(annotation["target"] for annotation in annotations)]
    asking += [variable for variable in others if variable["type"] == "query"]
    assert {(item["datasource"]["type"], item["datasource"]["uid"]) for item in asking} == {
        ("prometheus", "${datasource}")
    }
    source = yaml.safe_load((ROOT / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert first["current"]["value"] == source["datasources"][0]["uid"]


@every_query
def test_queries_select_the_chosen_values(query):
    """Linter rules target-job-rule and target-instance-rule, for a target with many containers: select service
    or exporter.
    """
    for name, matchers, before in selectors(query.raw.removeprefix("label_values(")):
        if query.raw.startswith("label_values") or name.startswith("infercanary:"):
            continue
        joined = re.search(r"group_left\s*$", re.sub(r"\([^()]*\)\s*$", "", before.rstrip()))
        by_join = name == "infercanary_probe_start_timestamp_seconds"
        wanted = {"instance"} if EXPORTERS_OWN.match(name) else {"service", "instance"}
        assert wanted & matchers.keys() or joined or by_join, f"{name} has no selection"


@every_board
def test_variables(board):
    """Linter rules template-label-promql-rule and template-on-time-change-reload-rule; also, variables narrow
    later ones.
    """
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    text = json.dumps([board["panels"], board["annotations"], board["templating"]])
    known = list(variables)
    for place, (name, variable) in enumerate(variables.items()):
        assert variable["label"] and variable["description"], name
        assert re.search(rf"\$(\{{{name}\}}|{name}\b)", text), f"{name} is not used"
        if variable["type"] == "query":
            assert re.fullmatch(r"label_values\(.*, \w+\)", variable["query"])
            assert variable["refresh"] == 2, "the variable refreshes when the time range changes"
            used = set(re.findall(r"\$(\w+)", variable["query"]))
            assert used <= set(known[:place]), f"{name} uses a later variable"
            every = ".*" if name in ("namespace", "pod") else ".+"  # series from Docker lack both labels
            assert not variable["multi"] or (variable["includeAll"] and variable["allValue"] == every)
    if {"service", "container", "canary"} <= variables.keys():
        assert all("$service" in variables[name]["query"] for name in ("container", "canary"))
    names = set(re.findall(r"\$\{?([a-z]\w*)", text)) - {"datasource"}
    assert names <= variables.keys(), "a variable does not exist"


@every_panel
def test_a_panel_says_what_it_is(at):
    """Linter rules panel-title-description-rule, panel-units-rule, panel-no-targets-rule; a description says
    what to do.
    """
    _, panel = at
    assert panel["title"]
    reading, _, act = panel["description"].partition("\n\n**What to do:** ")
    assert reading.endswith(".") and act.endswith("."), "a description consists of sentences"
    defaults = panel["fieldConfig"]["defaults"]
    if panel["type"] not in OF_TEXT:
        assert defaults["unit"] in UNITS
    assert defaults["noValue"]
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references))


OF_TEXT = ("table", "xychart")
"""Panels that show names beside numbers."""
# The units used, of
# https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats/categories.ts.
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "hertz", "watt", "celsius", "ops", "flops"}
UNITS |= {"dateTimeAsIso", "dateTimeFromNow", "runs/min", "/min"}


@every_query
def test_counters_and_windows(query):
    """Linter rules: target-rate-interval-rule, target-counter-agg-rule."""
    for function, window in re.findall(
        r"\b(i?rate|increase|changes|i?delta|deriv)\([^[]*\[([^]]*)\]", query.raw
    ):
        allowed = {"$__rate_interval"} if query.over_time else {"$__rate_interval", "$__range", "5m", "1h"}
        assert window in allowed, f"{function} over {window}"
    for name, _, before in selectors(query.raw):
        if query.over_time and re.search(r"_(total|bucket|sum|count)$", name):
            assert re.search(r"(rate|increase)\($", before), f"use the rate of the counter {name}"


@every_board
def test_the_dashboard_itself(board):
    """Linter rule uneditable-rule; also time zone, refresh, shared crosshair, and links that keep the selection."""
    assert board["editable"] is False
    assert board["timezone"] == "browser"
    assert board["refresh"] == ("5m" if board["uid"] == "infercanary-self" else "1m")
    assert board["graphTooltip"] == 1
    assert board["time"]["to"] == "now"
    assert board["description"].endswith(".")
    assert board["schemaVersion"] >= 40
    assert not board.get("id"), "an id belongs to one Grafana only"
    [link] = board["links"]
    assert link["includeVars"]
    assert link["keepTime"]
    assert link["asDropdown"]
    assert link["tags"] == board["tags"] == ["infercanary"]


def test_addresses_stay():
    """Alerts, runbooks and bookmarks use these addresses; test_alerting.py checks the links of alerts."""
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        name: f"infercanary-{name}" for name in ("fleet", "service", "host", "self")
    }


@every_board
def test_links_lead_somewhere(board):
    for uid, rest in re.findall(r'"/d/([\w-]+)\?((?:[^"\\]|\\.)*)"', json.dumps(board)):
        [there] = [other for other in BOARDS.values() if other["uid"] == uid]
        names = {variable["name"] for variable in there["templating"]["list"]}
        carried = set(re.findall(r"(?:var-(?=\w+=)|\$\{)(\w+)(?==|:queryparam)", rest)) - {"datasource"}
        assert carried <= names
        if uid == "infercanary-service":
            # A link to a service covers any number of hosts. Alerts and inventory have no canary.
            assert carried - {"canary"} == {"namespace", "service"}
            # The row's namespace, because the selection on the board may include all namespaces.
            assert re.search(r"var-namespace=\$\{__(data\.fields|field\.labels)\.namespace\}", rest)
        if uid == "infercanary-host":
            assert carried >= {"namespace", "service"}
        assert "${__url_time_range}" in rest or "&from=${__data.fields[" in rest
        assert "${datasource:queryparam}" in rest


@every_board
def test_places(board):
    """Ids are unique. Panels lie within 24 columns, do not overlap, and are as high as their neighbours."""
    items = [item for panel in board["panels"] for item in (panel, *(panel.get("panels") or ()))]
    assert len(items) == len({item["id"] for item in items})
    heights = {}
    cells = Counter()
    for at in (item["gridPos"] for item in items):
        x, y, w, h = (at[key] for key in "xywh")
        assert x + w <= 24
        assert heights.setdefault(y, h) == h
        cells.update(product(range(x, x + w), range(y, y + h)))
    assert {*cells.values()} == {1}, "panels overlap"


@every_board
def test_upgrades_are_marked(board):
    marks = {annotation["name"]: annotation for annotation in board["annotations"]["list"]}
    assert [*marks] == (["Upgrades"] if board["uid"] != "infercanary-self" else [])
    for mark in marks.values():
        assert "infercanary_upgrade_timestamp_seconds" in mark["target"]["expr"]
        assert mark["enable"]
        assert mark["useValueForTime"]


@every_board
def test_everybody_can_distinguish_the_colours(board):
    text = json.dumps(board)
    palette = {
        getattr(colours, name)
        for name in ["BLUE", "SKY", "GREEN", "YELLOW", "ORANGE", "VERMILLION", "PURPLE", "GREY", "OLIVE"]
    }
    assert set(re.findall(r"#[0-9A-Fa-f]{6}", text)) <= palette | {*colours.CELLS.values()}
    assert not re.search(r'"(?:fixedColor|color|iconColor)": "[a-z-]+"', text), (
        "a colour outside of the palette"
    )


# Faults found in a real Grafana -----------------------------------------------------------------------------------


def _look(name):
    found = [item for pattern, item in names.looks() if re.search(pattern.strip("/"), name)]
    assert [item[0].id_val for item in found] == ["color", "custom.lineStyle"], (
        f"{name} must have one colour and one line style"
    )
    return tuple(json.dumps(item[0].value, sort_keys=True) for item in found)


def test_a_name_of_any_kind_has_one_look():
    """Colour and line style depend only on the name, and differ between neighbouring names."""
    numbered = [f"infercanary-classify-{n} exporter" for n in range(1, 9)]
    assert len({hue for hue, _ in map(_look, numbered)}) == 8
    on_hosts = [f"search-{n} node-{host}" for n in (1, 2) for host in (1, 2, 3)]
    assert len({*map(_look, on_hosts)}) == len(on_hosts)
    # A container's line style does not depend on its GPU and host. Capitals and other alphabets do not count.
    assert _look("search-1 node-1")[1] == _look("search-1 node-2")[1] == _look("search-1 node-1 GPU 0")[1]
    assert _look("Ämter/Ω 日本") == _look("mter/")


def test_no_two_tags_look_alike():
    assert len({*map(_look, TAGS)}) == len(TAGS)


def test_each_verdict_and_cause_says_what_to_do():
    verdict, *_ = panels(BOARDS["service"])
    [known] = [
        mapping
        for override in verdict["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byName", "options": "Cause: what to do"}
        for item in override["properties"]
        if item["id"] == "mappings"
        for mapping in item["value"]
    ]
    wanted = {*colours.VERDICTS, "answers", "device"}
    wanted |= {f"{verdict}{cause}" for verdict in ("regressed", "improved") for cause in CAUSES}
    assert known["options"].keys() == wanted


def test_the_rule_counts_verdicts_as_the_boards_do():
    groups = yaml.safe_load((ROOT / "prometheus/rules/recording.yml").read_text())["groups"]
    name = "instance_service_canary:infercanary_verdict:number"
    [rule] = [rule for group in groups for rule in group["rules"] if rule["record"] == name]
    numbers = {verdict: int(n) for verdict, n in re.findall(r'verdict="(\w+)"\} \* (\d)', rule["expr"])}
    assert numbers == {verdict: i for i, verdict in enumerate(colours.VERDICTS, 1)}
