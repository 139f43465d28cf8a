"""The judge learns priors from all services and stores them; each upgrade always has the same prior."""

from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.judging.restart_prior import LEARN_SECONDS, RestartPrior
from infercanary.judge.model import Sample, ServiceKey
from infercanary.judge.result import Result
from infercanary.judge.shift import Restarts
from infercanary.store.store import open_store
from tests.unit.exporter.factories import generation

HOUR = LEARN_SECONDS


def taught(sd, services=10):
    return {
        ServiceKey("", f"s{number}"): {"c": finding(sd * (0.8 + 0.04 * number))} for number in range(services)
    }


def finding(sd):
    return Finding(result=Result(state="no_baseline"), sentence="", taught=Restarts(sd, 5.0))


def test_an_upgrade_keeps_the_prior_of_its_time(tmp_path):
    store, learning = open_store(tmp_path / "judge.sqlite"), RestartPrior()
    numbers = []
    for now, lessons in (
        (10.0, taught(0.02)),
        (10.0 + HOUR, taught(0.02)),
        (20.0 + 2 * HOUR, taught(0.02)),  # no change
        (30.0 + 3 * HOUR, taught(0.006)),
    ):
        learning.learn(store, now, lessons)
        numbers.append(learning.at(store, None).number)
    assert numbers == [0, 1, 1, 2]
    store.close()
    again, store = RestartPrior(), open_store(tmp_path / "judge.sqlite")
    for at, number in ((0.0, 0), (HOUR, 0), (2 * HOUR, 1), (9 * HOUR, 2)):
        assert learning.at(store, at) == again.at(store, at)
        assert again.at(store, at).number == number
    assert again.at(store, None).sd < again.at(store, 2 * HOUR).sd / 2
    for now in (9 * HOUR, 11 * HOUR):
        again.learn(store, now, {})
    assert again.at(store, None).number == 2  # without findings, the judge learns no new prior
    store.close()


def test_too_few_services_leave_the_policys_own():
    store = open_store(None)
    learning = RestartPrior()
    two = {"c": finding(0.02), "other": finding(0.02)}
    untaught = Finding(result=Result(state="no_baseline"), sentence="")
    lessons = taught(0.02, services=7) | {ServiceKey("", "s0"): two, ServiceKey("", "s7"): {"c": untaught}}
    for hour in range(4):
        learning.learn(store, hour * HOUR, lessons)
    assert learning.at(store, None).number == 0  # canaries of one service count once
    store.close()


def test_the_store_keeps_it_whatever_services_are_dropped():
    store, learning = open_store(None), RestartPrior()
    store.save(ServiceKey("", ""), "", "restart_prior", 1.0, b"not JSON")
    assert RestartPrior().at(store, None).number == 0
    for now in (0.0, 2 * HOUR):
        learning.learn(store, now, taught(0.02))
    store.take(generation(), [Sample(0, "c", 0.0, "ok", 0.02)])
    for day in range(200):
        store.thin(86_400.0 * day)
    assert RestartPrior().at(store, None).number == 1
    store.close()
