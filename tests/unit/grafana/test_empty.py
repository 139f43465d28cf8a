"""Every entry in the list of queries that may be empty exists, and occurs once."""

from collections import Counter

from grafana import empty
from grafana.queries import queries
from tests.for_each import for_each
from tests.rules import RECORDS
from tests.scenarios import cases

LISTED = [place for places in empty.EMPTY.values() for place in places]


PLACES = {f"{query.dashboard}: {query.place}" for query in queries()} | {
    f"recording {name}" for name in RECORDS
}
PANELS = {place.rpartition(" ")[0] for place in PLACES if ": panel " in place}


@for_each(LISTED)
def test_listed_queries_exist(place):
    assert place in PLACES | PANELS


def test_each_is_listed_once():
    assert {place: times for place, times in Counter(LISTED).items() if times > 1} == {}


@cases(
    [
        ("host: panel Clock B", empty.NO_GPU),
        ("self: panel Probes F", empty.WELL),
        ("self: panel Probes A", None),
        ("fleet: panel Services: last upgrade A", None),
        ("alert InferCanaryProbeDown", empty.NO_ALERT),
        ("recording service_canary:infercanary_cpu_fallback:holds", empty.NO_ALERT),
        ("recording instance_job:up:max", None),
    ],
)
def test_why(place, why):
    assert empty.why(place) == why
