"""The documentation: current generated parts, conventions of metrics, and valid links."""

import inspect
import re
import runpy
from collections import Counter
from pathlib import Path

import infercanary.probe
from infercanary.client.accept import accept, base_name
from infercanary.contract.kinds import KINDS
from infercanary.contract.report import Metric, Report
from infercanary.exporter.app import METRICS as EXPORTERS_METRICS
from infercanary.probe import Probe, samplers, tags, targets
from infercanary.probe.settings import Settings
from tests.for_each import for_each
from tests.programs import ROOT

GENERATOR = runpy.run_path(str(ROOT / "docs/generate.py"))
METRICS = GENERATOR["declared"]()
VALUES = GENERATOR["VALUES"]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)

BASE_UNITS = {"seconds", "bytes", "hertz", "ratio", "celsius", "watts", "joules", "cores"}
OTHER_UNITS = """
    ms us ns milliseconds microseconds nanoseconds minutes hours days percent kb mb gb kib mib gib kilobytes megabytes
    gigabytes bits khz mhz ghz kelvin fahrenheit milliwatts kilowatts millijoules millicores
"""


# The page of metrics ---------------------------------------------------------------------------------------------


@for_each(GENERATOR["files"]().items(), lambda file: str(file[0].relative_to(ROOT)))
def test_pages_that_are_generated_are_current(file):
    path, text = file
    assert path.read_text() == text, "this file is stale: run `make docs`"


def test_each_cause_has_a_metric_an_alert_and_a_test_that_are_there():
    """A row without an alert names another place: a tag, an existing panel, the sentence or the status page."""
    declared = {metric.name for metric in METRICS}
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "prometheus/rules/alerts.yml").read_text()))
    boards = [path.read_text() for path in (ROOT / "grafana/dashboards/json").glob("*.json")]
    panels = {
        title for board in boards for title in re.findall(r'"title": "(.+?)(?: in this time range)?"', board)
    }
    lines = (ROOT / "docs/causes.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|") and "tests/" in line]
    assert len(rows) >= 25
    for cause, shown, alert, test in rows:
        metrics = set(re.findall(r"`(infercanary_\w+)", shown))
        assert metrics and metrics <= declared, cause
        named = set(re.findall(r"`(InferCanary\w+)`", alert))
        assert named <= alerts and (named or re.search("tag|panel|sentence|status page", alert)), cause
        assert set(re.findall(r"panel \*(.+?)\*", alert)) <= panels, cause
        path, _, name = test.partition("::")
        assert not name or f"def {name}(" in (ROOT / path).read_text(), cause
        assert (ROOT / path).is_file(), cause


def test_every_metric_is_found():
    of_the_probe = {metric.name.removesuffix("_total") for metric in METRICS} & KINDS.keys()
    assert of_the_probe == KINDS.keys()
    sources = [p.read_text() for room in ("probe", "exporter") for p in (ROOT / room).rglob("*.py")]
    declared = [name for source in sources for name in re.findall(r'\bMetric\(\s*"(\w+)"', source)]
    assert sorted(declared) == [metric.name for metric in METRICS], (
        "a metric is not a global name of its module"
    )


# Numbers of the policy -------------------------------------------------------------------------------------------


# Conventions (https://prometheus.io/docs/practices/naming/) -------------------------------------------------------


def test_an_exporter_takes_every_metric_of_the_probe():
    """The exporter refuses some names and labels, such as `container`, which it sets itself."""
    declared = GENERATOR["declared"]([infercanary.probe])
    families = tuple(metric.family({}) for metric in declared)
    report = Report(1, "boot", 0.0, "", 0, families, {}, ())
    accepted, rejected = accept(report, {base_name(metric.name, metric.kind) for metric in EXPORTERS_METRICS})
    refused = [family.name for family in families if family not in accepted.families]
    assert (refused, rejected) == ([], {})
    container = Metric("infercanary_gc_x", "gauge", "Help.", ("container",)).family({})
    assert accept(Report(1, "boot", 0.0, "", 0, (container,), {}, ()), ())[1] == {"unsound": 1}


@for_each(METRICS, lambda metric: metric.name)
def test_conventions(metric):
    assert re.fullmatch(r"infercanary_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    words = metric.name.removesuffix("_total").split("_")
    assert not set(words) & set(OTHER_UNITS.split()), "the name needs a base unit"
    unit = BASE_UNITS & set(words)
    assert not unit or unit == {words[-1]} or words[-2:] == ["per", "second"], (
        "the unit must be the end of the name, before _total"
    )
    assert metric.kind != "histogram" or words[-1] == "seconds", "buckets are in seconds"
    assert metric.kind == "gauge" or not metric.name.endswith("_info")
    assert len(set(metric.labels)) == len(metric.labels)
    for text in (metric.help, metric.reading):
        assert text == " ".join(text.split())
        assert text.endswith("."), "a help text consists of sentences"
        assert text.count("`") % 2 == 0
    assert metric.reading != metric.help


def test_metrics_named_in_texts_and_rules_exist():
    """A renamed metric must not stay in the text of another metric, or in a rule that never fires."""
    names = {metric.name for metric in METRICS}
    names |= {
        f"{m.name}_{end}" for m in METRICS if m.kind == "histogram" for end in ("bucket", "sum", "count")
    }
    assert set(re.findall(r'"(infercanary_\w+)"', Path(tags.__file__).read_text())) <= names
    for metric in METRICS:
        assert set(re.findall(r"\binfercanary_\w+", metric.help + metric.reading)) <= names, metric.name
        for query in re.findall(r"`([^`]*)`", metric.reading):
            assert all(query.count(pair[0]) == query.count(pair[1]) for pair in ("()", "[]", "{}")), query


# Links ------------------------------------------------------------------------------------------------------------


def _prose(page):
    """Return a page without code, because brackets in code are no links."""
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if not re.match(r"[a-z]+:", link):
            yield link


def _anchors(page):
    """Return the anchors as on GitHub: lower case, no signs, hyphens for spaces, and numbers for duplicates."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    seen = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


@for_each(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link}: no such file"
        assert target.resolve().is_relative_to(ROOT), f"{link}: outside of the repository"
        if anchor:
            assert anchor in _anchors(target), f"{link}: no such heading"


# Kinds of pages -----------------------------------------------------------------------------------------------------


def test_each_keyword_of_a_probe_is_on_its_page():
    page = (ROOT / "docs/probe.md").read_text()
    parameters = inspect.signature(Probe).parameters.values()
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] + list(Settings.__struct_fields__)
    assert [name for name in keywords if not re.search(rf"^{name}: |`{name}`", page, re.MULTILINE)] == []


def test_each_target_sampler_and_discovery_has_its_line():
    page = (ROOT / "docs/probe.md").read_text()
    assert _rows(page, "`target:`") == set(targets.names()), "docs/probe.md needs a row for each target"
    assert _rows(page, "sampler") == set(samplers.registered()), "docs/probe.md needs a row for each sampler"
    settings = (ROOT / "docs/exporter.md").read_text()
    for key in ("discovery", "probes"):
        assert re.search(rf"^{key}:", settings, re.MULTILINE), f"`{key}:` is not in docs/exporter.md"


def _rows(page, first):
    return set(re.findall(r"^\| \[?`(\w+)`", page.split(f"\n| {first} |")[1].split("\n\n")[0], re.MULTILINE))


def test_the_index_has_every_page():
    index = ROOT / "docs/README.md"
    listed = {(index.parent / link).resolve() for link in _links(index)}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"} - {index}
    assert pages <= listed, "docs/README.md needs a line for each page"
