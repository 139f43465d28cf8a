from itertools import accumulate
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from infercanary.contract.report import LADDER, LATENCY, Family, HistogramValue, Point
from infercanary.exporter.expose import Exposition, write

A, B = ("resnet", "resnet-1"), ("resnet", "resnet-2")
TEMPERATURE = Family("infercanary_temperature_celsius", "gauge", "How hot.", ("gpu",), (Point(("0",), 61.5),))


def identity(key):
    return {"service": key[0], "container": key[1]}


def joined(exposition, *, in_openmetrics=False):
    return b"".join(exposition.families(in_openmetrics=in_openmetrics)).decode()


KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily,
}  # fmt: skip


def theirs(key, families):
    metrics = []
    for family in families:
        names = ["service", "container", *family.labels]
        metric = KINDS[family.kind](family.name, family.help, labels=names)
        for labels, value in map(msgspec.structs.astuple, family.points):
            if isinstance(value, HistogramValue):
                bounds = [*map(floatToGoString, LADDER), "+Inf"]
                buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
                metric.add_metric([*key, *labels], buckets, value.sum)
            else:
                metric.add_metric([*key, *labels], value)
        metrics += [metric] if family.points else []
    return metrics


class Given(Collector):
    def __init__(self, metrics):
        self.metrics = metrics

    def collect(self):
        return self.metrics


printable = st.text(
    st.characters(categories=["L", "N", "P", "S", "Zs"], max_codepoint=0x2FFF), max_size=12
).filter(str.isprintable)
finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.lists(st.integers(0, 2**40), min_size=len(LADDER) + 1, max_size=len(LADDER) + 1).map(tuple)


VALUES: dict[Any, Any] = {
    "counter": finite.map(abs),
    "gauge": finite,
    "histogram": st.builds(HistogramValue, counts, finite.map(abs)),
}


@st.composite
def some_families(draw: st.DrawFn) -> list[Family]:
    made = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*VALUES]), max_size=4))):
        labels = ("canary", "percent")[: draw(st.integers(0, 2))]
        values = draw(st.lists(st.tuples(*[printable] * len(labels)), unique=True, max_size=3))
        points = tuple(Point(each, draw(VALUES[kind])) for each in values)
        name = f"infercanary_f{number}" + ("_total" if kind == "counter" else "")
        made.append(Family(name, kind, draw(printable.filter(bool)), labels, points))
    return made


# characters with a meaning in Python's formats or in the exposition
name = st.one_of(printable, st.text(st.sampled_from('%s\\"\n{},=')))


@given(before=some_families(), now=some_families(), key=st.tuples(name, name), other=st.tuples(name, name))
def test_the_same_bytes_as_prometheus_client_writes(before, now, key, other):
    """The exporter reuses unchanged parts, so the test draws earlier families of this and another container."""
    exposition = Exposition()
    held = [write(family, identity(other)) for family in now]
    exposition.replace(key, [write(family, identity(key)) for family in before])
    exposition.replace(key, [write(family, identity(key)) for family in now])
    assert len(held) == len(now)
    registry = Given(theirs(key, now))
    assert joined(exposition).encode() == generate_latest(registry)
    assert joined(exposition, in_openmetrics=True) + "# EOF\n" == generate_openmetrics(registry).decode()


def test_containers_with_the_same_labels_share_what_is_written_once():
    """Containers share the layout, but not values and identity. Otherwise each of a thousand containers would
    keep 42 KB.
    """

    def written(canary, count, key):
        counts = (count,) * (len(LADDER) + 1)
        return write(LATENCY.family({(canary,): HistogramValue(counts, 0.25)}), identity(key))

    first, second = written("resnet18", 1, A), written("resnet18", 2, B)
    assert second.layout is first.layout
    assert second.text != first.text
    assert written("other", 1, A).layout is not first.layout


def as_kind(kind, name="infercanary_disputed"):
    return write(Family(name, kind, "Disputed.", (), (Point((), 1.0),)), identity(A))


def test_a_name_has_the_kind_of_its_first_container():
    exposition = Exposition()
    gauge, counter = (as_kind(*each) for each in (("gauge",), ("counter", "infercanary_disputed_total")))
    exposition.replace(A, [gauge])
    assert exposition.replace(B, [counter, write(TEMPERATURE, identity(B))]) == 1
    for parse, text in (
        (parse_text, joined(exposition)),
        (parse_openmetrics, joined(exposition, in_openmetrics=True) + "# EOF\n"),
    ):
        names = {sample.name for family in parse(text) for sample in family.samples}
        assert names == {"infercanary_disputed", TEMPERATURE.name}
    exposition.replace(B, [])
    assert exposition.replace(A, [counter]) == 0  # a single container may change the type
    assert joined(exposition).count("# TYPE") == 1


def own(number, names, value=1.0):
    """Return a container, and its families of one series that no other container has."""
    key = ("hostile", f"c{number}")
    families = (Family(f"infercanary_own_{n:04}", "gauge", "Own.", (), (Point((), value),)) for n in names)
    return key, [write(family, identity(key)) for family in families]


def test_families_are_sent_in_parts_of_a_bounded_size_as_they_are_when_they_are_asked_for():
    """Regression: thousands of small parts blocked the event loop for seconds."""
    exposition = Exposition()
    points = tuple(Point((f"{n:03}" + "x" * 250,), 1.0) for n in range(150))
    wide = Family("infercanary_wide", "gauge", "Wide.", ("label",), points)
    for number in range(20):
        key, families = own(number, range(250 * number, 250 * number + 250))
        exposition.replace(key, [*families, write(wide, identity(key))])
    parts = [*exposition.families(in_openmetrics=True)]
    assert 5 < len(parts) < 40
    assert max(map(len, parts)) <= 257 << 10
    exposition.replace(*own(7, range(1_750, 1_760)))
    exposition.replace(("hostile", "c8"), [])
    text = joined(exposition)
    shown = [int(line[16:20]) for line in text.splitlines() if line.startswith("infercanary_own")]
    assert shown == [n for n in range(5_000) if n not in range(1_760, 2_250)]
    assert text.count("infercanary_wide{") == 18 * 150
    reader = exposition.families(in_openmetrics=False)
    begin = next(reader)
    for number in range(20):
        exposition.replace(("hostile", f"c{number}"), [])
    assert len(begin) > 200 << 10 > len(b"".join(reader))


def test_the_header_is_of_the_container_that_reported_last():
    exposition, new = Exposition(), msgspec.structs.replace(TEMPERATURE, help="How warm.")
    for key, family in ((A, TEMPERATURE), (B, new), (A, TEMPERATURE)):
        exposition.replace(key, [write(family, identity(key))])
        assert family.help in joined(exposition)


def test_the_cost_of_a_container_does_not_depend_on_others():
    """Instead of time, the test counts the names that the exporter looks up."""
    looked_at = []

    class Counted(dict[Any, Any]):
        def __getitem__(self, name):
            looked_at.append(name)
            return super().__getitem__(name)

        def __iter__(self):
            looked_at.extend(self.keys())
            return super().__iter__()

    exposition = Exposition()
    exposition._families = Counted()
    for number in range(20):
        exposition.replace(*own(number, range(100 * number, 100 * number + 100)))
    looked_at.clear()
    exposition.replace(*own(1, range(100, 103), 2.0))
    exposition.replace(("hostile", "c2"), [])
    assert len(looked_at) <= 300
