"""One image on several hosts: differences that explain the spread, from real stores and journals."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from jsonschema import validate

from infercanary.compare.shares import shares_of
from infercanary.store.store import open_store
from tests import factories
from tests.scenarios import scenarios, typed

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schemas/hosts.v1.json").read_text())


@pytest.fixture
def answer(infercanary):
    def answer(*arguments):
        code, out, err = infercanary("report", "--hosts", "res*", *arguments, "--json")
        assert (code, err) == (0, ""), err
        rows = json.loads(out, parse_constant=pytest.fail)
        validate(rows, SCHEMA)
        return rows

    return answer


@pytest.fixture
def host(tmp_path):
    def host(name, level, image="web", at=0.0, tags=(), control=0.001, **environment):
        with closing(open_store(tmp_path / f"{name}.sqlite")) as store:
            for number in range(2):
                made = factories.start(
                    "web-1", image, 1.7e9 + at + 1e4 * number, level * (1 + 0.001 * number), 20, service="web",
                    canary="resnet18", environment={"torch": "2.7.0", **environment}, tags=tags, control=control,
                    noise=0.001,
                ).reporting(image=f"{image}:1")  # fmt: skip
                store.take(made.generation, made.samples)
        return f"{name}.sqlite"

    return host


# For each host milliseconds, CPU quota and kernel | components that differ, the best fit first | explaining
# components
FLEETS = """
[18]                              | "4"      | a        | []                    | []
[18, 63]                          | "42"     | ab       | [[cpu_quota, kernel]] | []
[18, 19, 63]                      | "442"    | abb      | [[cpu_quota], [kernel]] | []
# Quota and kernel vary together, and are named together.
[18, 19, 18, 19, 63, 61, 62, 64]  | "44442222" | aaaabbbb | [[cpu_quota, kernel]] | [[cpu_quota, kernel]]
# The kernel is different on each host.
[18, 19, 18, 19, 63, 61, 62, 64]  | "44442222" | abcdefgh | [[cpu_quota], [kernel]] | [[cpu_quota]]
# Any property of one slow host may be the cause.
[18, 19, 18, 19, 18, 19, 18, 64]  | "44444442" | aaaaaaab | [[cpu_quota, kernel]] | []
# The quota does not fit.
[18, 63, 18, 63, 64, 18, 18, 62]  | "44442222" | aaaaaaaa | [[cpu_quota]] | []
# The spread is below the smallest effect.
[180, 180.1, 180.2, 180.3, 182, 182.1, 182.2, 182.3] | "44442222" | aaaaaaaa | [[cpu_quota]] | []
"""


@pytest.mark.parametrize(("fleet", "quotas", "kernels", "differences", "explaining"), typed(FLEETS))
def test_a_difference_explains_the_spread_of_enough_hosts(
    answer, host, fleet, quotas, kernels, differences, explaining
):
    files = [
        host(f"host-{i}", ms / 1000, cpu_quota=quota, kernel=kernel)
        for i, (ms, quota, kernel) in enumerate(zip(fleet, quotas, kernels, strict=True))
    ]
    (found,) = answer(*files)
    times = [row["latency_median_seconds"] for row in found["hosts"]]
    assert times == sorted(times)
    assert times == pytest.approx([ms / 1000 for ms in sorted(fleet)], rel=0.01)
    assert [[*each["components"]] for each in found["differences"]] == differences
    for each in found["differences"]:
        is_tested = sum(len(group) > 1 for group in each["hosts"]) > 1 and times[-1] > 1.03 * times[0]
        assert (each["chance"] is not None) is is_tested
    claims = [each for each in found["differences"] if each["share"] is not None]
    assert [[*each["components"]] for each in claims] == explaining
    for each in claims:
        assert 0.5 < each["low"] <= each["share"] <= each["high"] <= 1
        assert each["share"] > 0.95
        assert [len(group) for group in each["hosts"]] == [4, 4]
        assert each["components"]["cpu_quota"] == ["4", "2"]


def test_what_is_compared(answer, host):
    """The command compares the image that most hosts run, and on each host the starts with the newest environment."""
    one, two = host("one", 0.02, kernel="a", at=-1e6), host("two", 0.04, kernel="b")
    host("one", 0.03, kernel="b", tags=("cpu_wait_outside",))
    host("two", 0.01, image="newer", kernel="b", at=1e6)
    three = host("three", 0.06, kernel="c", control=0.003)
    (found,) = answer(one, two, three)
    assert [(row["host"], row["starts"]) for row in found["hosts"]] == [("one", 2), ("two", 2), ("three", 2)]
    assert [row["latency_above_fastest_ratio"] for row in found["hosts"]] == pytest.approx(
        [0, 0.33, 1], abs=0.02
    )
    assert found["conditions"]["one"] == [
        "cpu_wait_outside in 100 % of runs", "2 starts with an earlier environment left out",
    ]  # fmt: skip
    assert found["conditions"]["two"] == ["controls flat"]
    assert found["conditions"]["three"][0].startswith("controls cpu_spin +")
    assert [[*each["components"]] for each in found["differences"]] == [["kernel"]]
    assert found["differences"][0]["hosts"] == [["one", "two"], ["three"]]


def test_journals_of_two_hosts(answer, journal, infercanary, tmp_path):
    """A journal lacks the image, so the libraries of the image count as differences as well."""
    journal("here", [0.018, 0.0181], more={"cpu_quota": "4"})
    journal("there", [0.063], torch="2.13.0", more={"cpu_quota": "1"})
    (found,) = answer("laptop=here", "there")
    assert [(row["host"], row["image"]) for row in found["hosts"]] == [("laptop", ""), ("there", "")]
    assert found["differences"][0]["components"] == {"torch": ["2.7.0", "2.13.0"], "cpu_quota": ["4", "1"]}
    code, out, _ = infercanary("report", "--hosts", "*", "laptop=here", "there", "--html", "hosts.html")
    assert (code, out.partition(":")[0]) == (0, "resnet18")
    assert "CPU quota 4 | 1" in (tmp_path / "hosts.html").read_text()


MISTAKES = """
none one.sqlite                     | one.sqlite: no start of canary `none`, service `*`, has 8 steady runs
* one.sqlite --format csv           | --hosts *: remove --canary, --price, --runs, --format csv
* one.sqlite --price 2              | --hosts *: remove
* one.sqlite --canary resnet18      | --hosts *: remove
* old --service web                 | --hosts *: remove
"""


@pytest.mark.parametrize(("arguments", "line"), scenarios(MISTAKES))
def test_a_mistake_is_one_line(infercanary, host, journal, arguments, line):
    host("one", 0.02)
    journal("old", [0.02])
    code, out, err = infercanary("report", "--hosts", *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"infercanary: {line}")


def numbered(values):
    return [[*dict.fromkeys(values)].index(value) for value in values]


# Hosts | latency of each host without a cause among the features
UNRELATED = """
8 | two levels
12 | heavy tails
"""


@pytest.mark.parametrize(("hosts", "kind"), scenarios(UNRELATED))
def test_features_that_do_not_matter_explain_nothing(hosts, kind):
    rng, hosts = np.random.default_rng(1), int(hosts)
    claims = 0
    for _ in range(60):
        levels = rng.integers(2, size=hosts) + rng.normal(0, 0.02, hosts)
        if kind == "heavy tails":
            levels = rng.standard_t(2, hosts)
        features = [numbered(rng.integers(3, size=hosts).tolist()) for _ in range(6)]
        claims += any(each.share is not None for each in shares_of(levels.tolist(), features))
    assert claims <= 7  # With 5 % false names, more than 7 of 60 have a probability of 1 %.


def test_an_overlapping_feature_is_not_named():
    rng = np.random.default_rng(2)
    cause = [0] * 6 + [1] * 6
    levels = [x + y for x, y in zip(cause, rng.normal(0, 0.05, 12), strict=True)]
    overlapping = [*cause[:5], 1, *cause[6:]]
    real, other = shares_of(levels, [cause, overlapping])
    assert real.share is not None
    assert other.share is None
    noisy = [*(0.02 * i for i in range(5)), 0.5, *(1 - 0.02 * i for i in range(6))]
    assert [each.share for each in shares_of(noisy, [cause, overlapping])] == [None, None]
