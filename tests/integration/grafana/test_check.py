"""The check of the dashboards: each rule finds its fault in a small panel, and no fault in a correct panel.

The tests use both supported versions of Grafana's library.
"""

import os

import pytest

from grafana.check import node
from tests.for_each import for_each
from tests.programs import ended

pytestmark = pytest.mark.takes(15)

START = 1_768_474_800
STEP = 30
EMPTY = "Nothing here"
PALETTE = {"mode": "palette-classic"}


@pytest.fixture(scope="module", autouse=True)
def installed():
    if why := node.missing():
        assert not os.environ.get("CI"), why
        pytest.skip(why)


def vector(*series):
    result = [{"metric": labels, "value": [START, str(value)]} for labels, value in series]
    return {"resultType": "vector", "result": result}


def matrix(*series):
    result = [
        {"metric": labels, "values": [[START + i * STEP, str(value)] for i, value in enumerate(values)]}
        for labels, values in series
    ]
    return {"resultType": "matrix", "result": result}


def panel(
    kind,
    *answers,
    legend="{{name}}",
    table=False,
    expr="up",
    w=12,
    h=8,
    defaults=None,
    overrides=(),
    options=None,
    transformations=(),
):
    form = "table" if table else "time_series"
    targets = [
        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend, "format": form}
        for i in range(len(answers))
    ]
    return {
        "panel": {
            "type": kind,
            "title": kind,
            "gridPos": {"w": w, "h": h},
            "targets": targets,
            "transformations": transformations,
            "options": options or {},
            "fieldConfig": {"defaults": {"noValue": EMPTY, **(defaults or {})}, "overrides": overrides},
        },
        "answers": [
            {"refId": target["refId"], "step": STEP, "data": answer}
            for target, answer in zip(targets, answers, strict=True)
        ],
        "range": {"from": START * 1000, "to": (START + 3600) * 1000},
    }


def table(*answers, unit="", **others):
    names = {"Value": "Latency", "Value #A": "Latency", "Value #B": "Shift"}
    organize = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
    transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    of_numbers = override({"unit": unit} if unit else {})
    return panel(
        "table", *answers, table=True, transformations=transformations, overrides=[of_numbers], **others
    )


def lines(*values, **others):
    answer = matrix(*(({"name": f"search-{i}"}, each) for i, each in enumerate(values, 1)))
    return panel("timeseries", answer, defaults={"color": PALETTE, **others.pop("defaults", {})}, **others)


def override(properties, name=""):
    """Return an override of properties for a series, or for all columns of numbers."""
    matcher = {"id": "byName", "options": name} if name else {"id": "byType", "options": "number"}
    return {
        "matcher": matcher,
        "properties": [{"id": id_, "value": value} for id_, value in properties.items()],
    }


def fixed(hue):
    return {"color": {"mode": "fixed", "fixedColor": hue}}


ONE = {"name": "search"}
NAMED = {"textMode": "value_and_name"}
DASHED = {"custom.lineStyle": {"fill": "dash", "dash": [6, 6]}}
SHADES = {"color": {"mode": "shades", "fixedColor": "#0072B2"}}
TWO_TABLES = (vector((ONE, 0.2)), vector(({"name": "chat"}, 0.1)))
WRAPPED = {"custom": {"cellOptions": {"wrapText": True}}}
DECIMALS = {"unit": "percentunit", "decimals": 1}
BUCKET_COUNTS = tuple(({"name": "a", "le": le}, [1.0] * 3) for le in ("0.1", "0.2"))
SEVERAL = vector(*(({"name": name}, 0.2) for name in "abcdefghijkl"))


def cells(hue, how):
    painted = override({"custom.cellOptions": {"type": how}, **fixed(hue)})
    return panel("table", vector((ONE, 0.2)), table=True, overrides=[painted])


RULES = {
    "notANumber": (
        table(vector((ONE, 1.7e12)), defaults={"unit": "dateTimeAsIso"}),
        table(vector((ONE, 1.7e12)), unit="dateTimeAsIso"),
    ),
    "unreadableNumber": (
        panel("stat", vector((ONE, 0.0)), defaults={"unit": "percentunit", "decimals": 4}),
        panel("stat", vector((ONE, 0.0)), defaults={"unit": "percentunit", "decimals": 1}),
    ),
    "badName": (panel("table", vector((ONE, 0.2)), table=True), table(vector((ONE, 0.2)))),
    "bareId": (
        panel("timeseries", matrix(({"name": "70a90c3407ae"}, [1.0]))),
        panel("timeseries", matrix(({"name": "old 1.4.0 70a90c3407ae"}, [1.0]))),
    ),
    "cutText": (
        table(vector(({"name": "registry.example.com/infercanary-example:1.5.0"}, 0.2)), w=8),
        table(vector(({"name": "example:1.5.0"}, 0.2)), w=12),
    ),
    "tooWide": (
        table(vector(({str(n): "x" for n in range(9)}, 0.2))),
        table(vector(({str(n): "x" for n in range(3)}, 0.2))),
    ),
    "emptyColumn": (table(vector(({"name": "a", "gpu": ""}, 0.2))), table(vector(({"name": "a", "gpu": "0"}, 0.2)))),
    "noValueBesideValues": (table(*TWO_TABLES), table(*TWO_TABLES, defaults={"noValue": ""})),
    "sentenceInLarge": (
        panel("stat", vector(), defaults={"noValue": "No GPU in these containers"}),
        panel("stat", vector(), defaults={"noValue": "none"}),
    ),
    "nameless": (
        panel("stat", vector((ONE, 0.34)), options={"textMode": "auto"}),
        panel("stat", vector((ONE, 0.34)), options=NAMED),
    ),
    "alike": (
        lines([1.0, 1.1], [1.2, 1.3], defaults=SHADES),
        lines([1.0, 1.1], [1.2, 1.3], defaults=SHADES, overrides=[override(DASHED, "search-2")]),
    ),
    "faint": (
        lines([1.0], overrides=[override(fixed("#FFEE52"), "search-1")]),
        lines([1.0], overrides=[override(fixed("#E69F00"), "search-1")]),
    ),
    "sameName": (
        panel("timeseries", matrix(({"name": "a", "x": "1"}, [1.0]), ({"name": "a", "x": "2"}, [1.0]))),
        panel("timeseries", matrix(({"name": "a"}, [1.0]), ({"name": "b"}, [1.0])), defaults={"color": PALETTE}),
    ),
    "sameRow": (
        table(vector(({"name": "a", "x": "1"}, 0.2), ({"name": "a", "x": "1"}, 0.2))),
        table(vector(({"name": "a", "x": "1"}, 0.2), ({"name": "a", "x": "2"}, 0.2))),
    ),
    "unitOnText": (
        table(vector((ONE, 0.2)), defaults={"unit": "s"}),
        table(vector((ONE, 0.2)), unit="s"),
    ),
    "farAxis": (
        lines([0.0, 0.0], defaults={"unit": "percentunit"}),
        lines([0.0, 0.0], defaults={"unit": "percentunit", "custom": {"axisSoftMax": 0.05}}),
    ),
    "longLegend": (lines(*[[float(n)] for n in range(60)]), lines([1.0], [2.0])),
    "brokenWord": (
        table(vector(({"name": "70a90c3407ae" * 6}, 0.2)), defaults=WRAPPED),
        table(vector(({"name": "70a90c3407ae"}, 0.2)), defaults=WRAPPED),
    ),
    "hiddenRows": (table(SEVERAL), table(SEVERAL, h=14)),
    "wordOnCell": (cells("#E69F00", "color-background"), cells("#0072B2", "color-background")),
    "noOrder": (table(SEVERAL, h=14), table(SEVERAL, h=14, options={"sortBy": [{"displayName": "name"}]})),
    "mixedDecimals": (
        table(vector((ONE, 0.37), ({"name": "chat"}, 0.008)), unit="percentunit"),
        table(vector((ONE, 0.37), ({"name": "chat"}, 0.008)), defaults=DECIMALS),
    ),
    "symlogAxis": (
        lines([0.0], defaults={"custom": {"scaleDistribution": {"type": "symlog", "log": 10}}}),
        lines([1.0], defaults={"custom": {"scaleDistribution": {"type": "log", "log": 10}}}),
    ),
    "unequalBuckets": (
        panel("timeseries", matrix(*BUCKET_COUNTS, ({"name": "a", "le": "0.4"}, [1.0]))),
        panel("timeseries", matrix(*BUCKET_COUNTS)),
    ),
    "otherUnit": (
        panel("stat", vector((ONE, 2.0)), expr="count by (name) (infercanary_up)", defaults={"unit": "s"}),
        panel("stat", vector((ONE, 2.0)), expr="count by (name) (infercanary_up)"),
    ),
    "rangeInLines": (
        lines([1.0], expr="x / avg_over_time(x[$__range])"),
        lines([1.0], expr="x / avg_over_time(x[$__interval])"),
    ),
    "missingField": (panel("state-timeline", matrix()), panel("state-timeline", matrix((ONE, [1.0])))),
    "severalTables": (
        panel("table", vector((ONE, 0.2)), vector((ONE, 0.1)), table=True),
        table(vector((ONE, 0.2)), vector((ONE, 0.1))),
    ),
    "error": (panel("piechart", vector((ONE, 1.0))), panel("stat", vector((ONE, 1.0)), options=NAMED)),
}  # fmt: skip
"""Rule → a faulty panel and a correct panel."""


@pytest.fixture(scope="module", params=node.VERSIONS)
def found(request):
    """Return the contents of the faulty and of the correct panel, by rule."""
    shown = node.shown([each for pair in RULES.values() for each in pair], request.param)
    return dict(zip(RULES, zip(shown[::2], shown[1::2], strict=True), strict=True))


def test_each_rule_finds_its_fault_and_nothing_where_there_is_none(
    found,
):
    @for_each(RULES, str)
    def check(rule):
        wrong, right = ({fault["rule"]: fault["line"] for fault in each["faults"]} for each in found[rule])
        assert rule in wrong, wrong
        assert rule not in right, right[rule]

    check()


def test_frames_and_axes_are_those_of_grafanas_own_packages():
    assert "\n# pass 162\n" in ended("node", "--test", cwd=node.HERE).stdout
