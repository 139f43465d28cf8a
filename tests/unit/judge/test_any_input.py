"""Any legal records have a result: no exception, and no number that is none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infercanary.contract.bottleneck import OFF_CPU
from infercanary.contract.measures import DEVICE_MEMORY, ENERGY, HOST_MEMORY, throughput_of
from infercanary.contract.vocabulary import MODEL, SETTINGS, TAGS, of_canary
from infercanary.judge.drift import detect
from infercanary.judge.measures import Measures
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import FILES
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import STATES
from infercanary.judge.verdict import Judge
from infercanary.pages.sentence import SENTENCE_BYTES, measure_words, progress, sentence

CANARY = "c"
EPOCH, UPGRADE = 1e6, 10_000.0
MEASURES = (HOST_MEMORY, DEVICE_MEMORY, ENERGY, throughput_of(8, 1))
KINDS = ("equal", "calm", "host", "wild", "ticks", "two values")
"""Noise of the latencies: of one value, 1 %, a host whose pace all feel, a factor of 20, a coarse clock, two modes."""
OPTIONS = {
    "waited": (None, 0.0, 0.2, 0.9, 1.5),  # share of the latency; a wait may be read as more than that
    "crowded": (None, 0.0, 0.2),
    "inside": (None, 0.0, 1.5),
    "received": (None, 0.0, 90.0),
    "sm_clock": (None, 0.0, 1.98e9),
    "controls": ((), ("cpu_spin",), ("cpu_spin", "memory_copy"), ("gpu_fma",)),
    "phases": ((), ("compute",), ("compute", "launch"), ("compute", "queue", "network")),
    "off_cpu": ((), OFF_CPU),
    "measures": ((), MEASURES),
    "tags": ((), *((name,) for name in TAGS)),
    "merged": (1, 12),
    "sometimes": (0.0, 0.0, 0.5),  # share of the runs that have none of these
    "failing": (0.0, 0.0, 0.3),
    "set_back": (0.0, 0.0, 7200.0),  # by which the clock is set back on the way
    "every": (2.0, 10.0, 10.0, 300.0),  # seconds from run to run
}
GENERATIONS: dict[str, tuple[Any, ...]] = {
    "host": ("", "", "a", "b"),
    "model": ("", "", "m", "n"),
    "settings": ("", "", "s", "t"),
    "device": ("", "cpu", "cuda:0", "cpu, cuda:0"),
    "threads": ("", "1", "4"),
    "cpu_model": ("", "Xeon", "EPYC"),
    "cpu_quota": ("", "1", "0.5"),
    "output": ((), (), (1.0, 2.0), (1.0, 2.5), (1.0,)),
    "load": (None, 0.0, 2.0, 9.0),
    "memory_kills": ((), (EPOCH + 9000.0, EPOCH + 12_000.0)),
    "ended": (False, False, True),
}


seeds, kinds = st.integers(0, 1000), st.sampled_from(KINDS)
odd = st.integers(0, 3).map(lambda n: n == 3)


def drawn(draw: st.DrawFn, options: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The first value of each option, but for some of them: so that records are often alike."""
    found = {name: values[0] for name, values in options.items()}
    for name in draw(st.lists(st.sampled_from(sorted(options)), unique=True)):
        found[name] = draw(st.sampled_from(options[name]))
    return found


def samples(at: float, runs: int, level: float, kind: str, chosen: dict[str, Any], seed: int) -> list[Sample]:
    rng = np.random.default_rng([seed, round(at)])
    times = at + chosen["every"] * np.arange(runs)
    steps = np.random.default_rng(seed).normal(0, 0.3, 512)
    felt = steps[(times // 40).astype(int) % steps.size] if kind == "host" else np.zeros(runs)
    sd = {"equal": 0.0, "ticks": 0.1, "two values": 0.0, "wild": 3.0}.get(kind, 0.01)
    seconds = level * np.exp(felt + rng.normal(0, 1, runs) * sd)
    if kind == "ticks":
        seconds = np.maximum(1, np.round(seconds / level)) * level
    if kind == "two values":
        seconds = np.where(rng.random(runs) < 0.5, level, 1.3 * level)
    times = times - chosen["set_back"] * (np.arange(runs) > runs // 2)
    found = []
    for i, (time, median) in enumerate(zip(times.tolist(), seconds.tolist(), strict=True)):
        bare = rng.random() < chosen["sometimes"]
        own: dict[str, Any] = {
            "waited": None if chosen["waited"] is None else chosen["waited"] * median,
            "crowded": None if chosen["crowded"] is None else chosen["crowded"] * median,
            **{name: chosen[name] for name in ("inside", "received", "sm_clock", "tags")},
            "controls": {name: 1e-3 * math.exp(rng.normal(0, 0.01)) for name in chosen["controls"]},
            "phases": dict.fromkeys(chosen["phases"], median / 3),
            "off_cpu": dict.fromkeys(chosen["off_cpu"], median / 9),
            "measures": dict.fromkeys(chosen["measures"], 1000000000.0 * median),
        }
        if rng.random() < chosen["failing"]:
            found.append(Sample(i, CANARY, time, "timed_out", None))
        else:
            found.append(
                Sample(i, CANARY, time, "ok", median, runs=chosen["merged"], **({} if bare else own))
            )
    return found


@st.composite
def starts(
    draw: st.DrawFn,
    seed: int,
    kind: str,
    service: str = "s",
    containers: int = 4,
    images: str = "AB",
    most: int = 30,
) -> list[Start]:
    """Starts of a service in order of time: of a container one after the other."""
    found = []
    level = draw(st.sampled_from([0.02, 0.02, 1e-9, 1e5]))
    usual = drawn(draw, OPTIONS)
    about = drawn(draw, GENERATIONS)
    is_rollout = draw(st.booleans())
    for number in range(draw(st.integers(0, containers))):
        at = EPOCH + draw(st.sampled_from([0.0, 1.0, 300.0, UPGRADE]))
        count = draw(st.integers(0, 3))
        for order in range(count):
            chosen = drawn(draw, OPTIONS) if draw(odd) else usual
            facts = drawn(draw, GENERATIONS) if draw(odd) else about
            runs = draw(st.integers(0, most))
            image = draw(st.sampled_from(images)) if not is_rollout else images[-(order == count - 1)]
            factor = draw(st.sampled_from([1.0, 1.0, 0.5, 1.1, 40.0]))
            g = generation(service, f"{service}-{number}", f"{order}", at, image, facts)
            each = samples(at, runs, level * factor, kind, chosen, seed)
            found.append(Start.of(g, each))
            at += runs * chosen["every"] + draw(st.sampled_from([-60.0, 0.0, 1.0, 700.0, UPGRADE]))
    return sorted(found, key=lambda start: start.generation.started_at)


def generation(
    service: str, container: str, boot: str, at: float, image: str, facts: dict[str, Any]
) -> Generation:
    environment = {
        of_canary(MODEL, CANARY): facts["model"],
        of_canary(SETTINGS, CANARY): facts["settings"],
        "torch_device": facts["device"],
        "torch_intra_op_threads": facts["threads"],
        **{name: facts[name] for name in ("cpu_model", "cpu_quota")},
    }
    return Generation(
        service=service, container=container, boot_id=f"{container}-{boot}", started_at=at, host=facts["host"],
        image_id=image.strip("?"), image=image, environment={name: x for name, x in environment.items() if x},
        outputs={CANARY: facts["output"]} if facts["output"] else {},
        cold_start={} if facts["load"] is None else {CANARY: {"load": facts["load"]}},
        memory_kills=facts["memory_kills"], ended_at=at + 900.0 if facts["ended"] else 0.0,
    )  # fmt: skip


@st.composite
def siblings(draw: st.DrawFn, seed: int, kind: str) -> list[Start]:
    """Other services on the host; some run all the time, and some end before the upgrade or within it."""
    found = []
    for name in "xyz"[: draw(st.integers(0, 3))]:
        found += draw(starts(seed, draw(kinds), name, 1, "o"))
        if draw(st.booleans()):
            chosen = drawn(draw, OPTIONS) | {"failing": 0.0}
            runs = draw(st.integers(1, 1500))
            facts = {option: values[0] for option, values in GENERATIONS.items()}
            g = generation(name, f"{name}-long", "0", EPOCH, "o", facts)
            found.append(Start.of(g, samples(EPOCH, runs, 0.02, kind, chosen, seed)))
    return sorted(found, key=lambda start: start.generation.started_at)


def floats(value: object, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from floats(each, f"{place}.{name}")
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from floats(each, place)
    elif isinstance(value, msgspec.Struct):
        yield from floats(msgspec.structs.asdict(value), place)


def is_sound(result: Any) -> None:
    """Each number is finite but for the upper end of an interval, and each shift lies within its own."""
    wrong = [
        (place, x) for place, x in floats(result) if not (math.isfinite(x) or (x > 0 and place == ".high"))
    ]
    assert not wrong
    if getattr(result, "low", None) is not None:
        assert -1 <= result.low <= result.shift <= result.high


thorough = settings(
    max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@thorough
@given(st.data(), seeds, kinds)
def test_a_verdict(data: st.DataObject, seed: int, kind: str) -> None:
    own, others = data.draw(starts(seed, kind)), data.draw(siblings(seed, kind))
    found = Judge().verdict(own, others, CANARY)
    assert found.state in STATES and 0 < len(sentence(found).encode()) <= SENTENCE_BYTES
    assert progress(found) is not None
    assert (found.looks.last == 0) == (found.shift is None)
    is_sound(found)
    assert set(Judge().trials(own)) <= {start.boot for start in own}


@pytest.mark.parametrize("runs", range(5, 9))
def test_a_verdict_on_the_first_runs_beside_siblings_that_feel_the_same_host(runs: int) -> None:
    """What siblings felt can be taken off the old image's starts, but not off so few runs."""
    chosen, facts = ({name: values[0] for name, values in of.items()} for of in (OPTIONS, GENERATIONS))

    def made(service: str, at: float, count: int, image: str) -> Start:
        g = generation(service, service, f"{at:g}", at, image, facts)
        return Start.of(g, samples(at, count, 0.02, "host", chosen, 1))

    own = [made("s", EPOCH + 100 * i, 40, "A") for i in range(6)]
    own.append(made("s", EPOCH + 700, runs, "B"))
    is_sound(Judge().verdict(own, [made(name, EPOCH, 500, "o") for name in "xy"], CANARY))


@thorough
@given(st.data(), seeds, kinds)
def test_verdicts_on_measures(data: st.DataObject, seed: int, kind: str) -> None:
    own, others = data.draw(starts(seed, kind)), data.draw(siblings(seed, kind))
    before, after = ([s for s in own if s.generation.image_id in image] for image in ("A", "B"))
    for verdicts in (Measures().judge(own, others), Measures(FILES).compare(before, after)):
        for name, found in verdicts.items():
            assert found.state in STATES and measure_words(name, found)
            is_sound(found)


@thorough
@given(st.data(), seeds, kinds)
def test_a_drift(data: st.DataObject, seed: int, kind: str) -> None:
    own = data.draw(starts(seed, kind, containers=1, images="A", most=60))
    found = detect(own, data.draw(siblings(seed, kind)), CANARY, restarts_of(own))
    is_sound(found)
