"""Exporters that share a database give the same verdicts, to the last digit, as a single exporter with a file."""

import random
from contextlib import closing

import msgspec
from slow_network import Proxy

from infercanary.exporter.judging import ownership, worker
from infercanary.exporter.judging.ownership import PRIORS
from infercanary.exporter.judging.restart_prior import LEARN_SECONDS, RestartPrior
from infercanary.judge.model import ServiceKey
from infercanary.judge.restarts import learned
from infercanary.judge.shift import Restarts
from infercanary.store.postgres import PostgresDatabase
from infercanary.store.store import open_store
from tests.integration.fleet.parts import HOSTS, REPLICAS, SERVICES, fleet, in_time, judge, submit
from tests.integration.fleet.world import location
from tests.unit.exporter.factories import value


def results(findings):
    return {name: (each.result, each.sentence, each.drifts, each.measures) for name, each in findings.items()}


def alone(judges, parts):
    judging = judge(judges, None)
    for part in in_time(parts):
        submit(judging, part)
    judging.turn()
    return judging.findings


def test_verdicts_are_those_of_one_judge_on_a_file(postgres, judges):
    parts, url = fleet(), postgres.database()
    expected = alone(judges, parts)
    states = {key.name: found["c"].result.state for key, found in expected.items()}
    assert states["much-slower"] == states["slower"] == "regressed"
    assert states["alone"] == "no_baseline"
    # An exporter drops a finding of an older version: all missing fields have defaults, so the finding would
    # be decoded as if complete.
    older = {"judgement": {"state": "regressed", "upgraded_at": 1.0, "shift": 9.0}, "sentence": "regressed"}
    with closing(open_store(url)) as store:
        store.fleet.hold({*expected})
        for service in expected:
            store.fleet.put_finding(service, "c", 0.0, msgspec.msgpack.encode(older), b"")
        store.fleet.give_back({*expected})

    exporters = {host: judge(judges, url, host) for host in HOSTS}
    rng = random.Random(5)
    late = [part for part in parts if rng.random() < 0.1]
    for step, part in enumerate([*in_time([p for p in parts if p not in late]), *late]):
        submit(exporters[part.host], part)
        if step % 60 == 59:
            for exporter in rng.sample([*exporters.values()], 5):
                exporter.turn()
        if step == 240:  # Kill this exporter, so that it does not give back its leases.
            dead = exporters[HOSTS[0]]
            dead.turn()  # store what this exporter polled; another test covers reports that were not stored
            exporters[HOSTS[0]] = judge(judges, url, HOSTS[0])
            postgres.sql("UPDATE lease SET expires = 0", url)
    for exporter in exporters.values():
        exporter.turn()
    for _ in range(2):  # the first exporter reads findings that the last exporter stored
        for exporter in exporters.values():
            exporter.turn()
    held = [service for exporter in exporters.values() for service in exporter.ownership.held]
    assert len(held) == len({*held}) == len(SERVICES) + 1  # each service, and the priors, have one judge

    # A new judge reports the findings of the others, which equal those of a single judge with a file.
    postgres.sql("UPDATE lease SET expires = 0", url)
    fresh = judge(judges, url, "host-5")
    fresh.turn()
    for service, found in expected.items():
        assert results(fresh.findings[service]) == results(found), service


def test_a_partition_costs_nothing_and_ends_with_one_judge(postgres, judges, tmp_path, monkeypatch):
    monkeypatch.setattr(PostgresDatabase.__init__, "__defaults__", (3.0,))  # time limit of a call, in seconds
    url = f"{postgres.database()}&lease_seconds=600"  # longer than any judgement
    proxy = judges.enter_context(closing(Proxy(postgres.port)))
    at = location(postgres, url, tmp_path, 600).replace(f":{postgres.port}/", f":{proxy.port}/")
    behind = judge(judges, f"{at}&connect_timeout=2", HOSTS[0])
    other = judge(judges, url, HOSTS[1])
    parts = [part for part in in_time(fleet()) if part.start.service == "slower"]
    key = ServiceKey("", "slower")
    half = len(parts) // 2
    for part in parts[:half]:
        submit(behind, part)
    behind.turn()
    assert behind.ownership.publishes(key)
    other.turn()
    assert not other.ownership.publishes(key)
    proxy.hold_back(True)
    postgres.sql("UPDATE lease SET expires = 0", url)  # meanwhile the lease ends by the database's clock
    for part in parts[half:]:
        submit(behind, part)
    behind.turn()
    assert value(behind, "store_up") == 0.0
    # without the store, an exporter cannot know whether another exporter took over
    assert behind.ownership.publishes(key)
    other.turn()
    assert other.ownership.publishes(key)
    proxy.hold_back(False)
    behind.turn()
    assert not behind.ownership.publishes(key)
    for _ in range(2):
        behind.turn()
        other.turn()
    assert results(other.findings[key]) == results(alone(judges, parts)[key])
    assert postgres.sql("SELECT sum(taken) FROM series", url) == str(sum(len(part.runs) for part in parts))


def test_any_exporter_answers_about_a_service_of_other_hosts(postgres, judges, monkeypatch):
    url = postgres.database()
    own, elsewhere = judge(judges, url, HOSTS[0]), judge(judges, url, HOSTS[1])
    elsewhere.watched = frozenset()  # the exporter's host has no container of the service
    key = ServiceKey("", "slower")
    for part in in_time(fleet()):
        if part.start.service == key.name:
            submit(own, part)
    own.turn()
    elsewhere.turn()
    assert elsewhere.findings == {}
    assert not elsewhere.ownership.running(key)
    elsewhere.ownership.ask(key)
    monkeypatch.setattr(worker, "_THIN_SECONDS", -1.0)
    for _ in range(3):  # each of these turns also deletes data that is not needed
        elsewhere.turn()
    assert results(elsewhere.findings[key]) == results(own.findings[key])
    assert elsewhere.findings[key]["c"].sides == own.findings[key]["c"].sides
    running = elsewhere.ownership.running(key)
    assert [(start.container, start.image_id) for start in running] == [
        (f"slower-{n}", "sha256:2") for n in range(REPLICAS)
    ]
    assert own.ownership.publishes(key)
    assert not elsewhere.ownership.publishes(key)
    # The exporter does not know the running starts while the store fails, or while no exporter has the lease.
    # Old findings must neither promote nor abort a later rollout.
    now = ownership._clock()
    with monkeypatch.context() as later:
        later.setattr(ownership, "_clock", lambda: now + 100)
        assert not elsewhere.ownership.running(key)
    assert elsewhere.ownership.running(key)
    postgres.sql("UPDATE lease SET expires = 0", url)
    elsewhere.turn()
    assert elsewhere.findings[key]
    assert not elsewhere.ownership.running(key)


def test_names_that_no_service_has_are_not_followed(postgres, judges):
    """Anyone may ask about any name. Such questions must not delay the answer to a rollout, and must not cost a
    query each.
    """
    url = postgres.database()
    own, elsewhere = judge(judges, url, HOSTS[0]), judge(judges, url, HOSTS[1])
    own.watched, elsewhere.watched = frozenset({ServiceKey("", "slower")}), frozenset()
    own.turn()

    def flood():
        for number in range(10_000):
            elsewhere.ownership.ask(ServiceKey("", f"no-such-{number}"))

    flood()
    elsewhere.ownership.ask(ServiceKey("", "slower"))
    elsewhere.turn()
    assert elsewhere.ownership._asked == {}
    flood()
    elsewhere.ownership.ask(ServiceKey("", "slower"))
    assert {*elsewhere.ownership._asked} == {ServiceKey("", "slower")}


def test_separate_exporters_learn_one_prior(postgres, judges):
    url = postgres.database()
    stores = [judges.enter_context(closing(open_store(url))) for _ in range(3)]
    learns = [RestartPrior() for _ in stores]
    lessons = {ServiceKey("", f"s{number}"): Restarts(0.016 + 0.001 * number, 5.0) for number in range(10)}
    for number, (service, lesson) in enumerate(lessons.items()):
        fleet = stores[number % 2].fleet
        fleet.hold({service})
        fleet.put_finding(service, "c", 0.0, b"", msgspec.json.encode(lesson))
        fleet.put_finding(service, "teaches-nothing", 0.0, b"", b"")
    stores[2].fleet.hold({PRIORS})
    for now in (0.0, LEARN_SECONDS):
        learns[2].learn(stores[2], now, {})
    found = learned([*lessons.values()])
    for learning, store in zip(learns, stores, strict=True):
        learning.read_again()
        prior = learning.at(store, None)
        assert (prior.number, prior.sd) == (1, found.sd)
