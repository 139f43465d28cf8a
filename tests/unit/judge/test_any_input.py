"""The judge gives a result for any valid records, without an exception and without NaN."""

import math
import random

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infercanary.contract.bottleneck import OFF_CPU
from infercanary.contract.measures import DEVICE_MEMORY, ENERGY, HOST_MEMORY, throughput_of
from infercanary.contract.vocabulary import MODEL, SETTINGS, TAGS, of_canary
from infercanary.judge.drift import detect
from infercanary.judge.measures import Measures
from infercanary.judge.model import Start
from infercanary.judge.policy import FILES
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import STATES
from infercanary.judge.verdict import Judge
from infercanary.pages.sentence import SENTENCE_BYTES, measure_words, progress, sentence
from tests.factories import judge, start
from tests.scenarios import cases

EPOCH, UPGRADE = 1e6, 10_000.0
MEASURES = (HOST_MEMORY, DEVICE_MEMORY, ENERGY, throughput_of(8, 1))
KINDS = {"equal": 0.0, "calm": 0.01, "host": 0.01, "wild": 3.0, "ticks": 0.1, "two values": 0.0}
"""SD of latencies: none, 1 %, a pace of the host that all feel, a factor of 20, a coarse clock, two values."""
OPTIONS = {
    # CPU wait as a fraction of the latency; a probe may report more than the latency
    "waited": (None, 0.0, 0.2, 0.9, 1.5),
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
    "sometimes": (0.0, 0.0, 0.5),  # fraction of the runs without these values
    "failing": (0.0, 0.0, 0.3),
    "set_back": (0.0, 0.0, 7200.0),  # seconds by which the clock is set back during the runs
    "every": (2.0, 10.0, 10.0, 300.0),  # seconds between runs
}
ENVIRONMENT = {
    of_canary(MODEL, "c"): ("", "", "m", "n"),
    of_canary(SETTINGS, "c"): ("", "", "s", "t"),
    "torch_device": ("", "cpu", "cuda:0", "cpu, cuda:0"),
    "torch_intra_op_threads": ("", "1", "4"),
    "cpu_model": ("", "Xeon", "EPYC"),
    "cpu_quota": ("", "1", "0.5"),
}
GENERATIONS = ENVIRONMENT | {
    "host": ("", "", "a", "b"),
    "outputs": ({}, {}, {"c": (1.0, 2.0)}, {"c": (1.0, 2.5)}, {"c": (1.0,)}),
    "cold_start": ({}, *({"c": {"load": x}} for x in (0.0, 2.0, 9.0))),
    "memory_kills": ((), (EPOCH + 9000.0, EPOCH + 12_000.0)),
    "ended": (False, False, True),
}


seeds, kinds = st.integers(0, 1000), st.sampled_from([*KINDS])
odd = st.integers(0, 3).map(lambda n: n == 3)


def drawn(draw, options):
    """Draw values for some options and the first value for the others, so that records are often alike."""
    found = {name: values[0] for name, values in options.items()}
    for name in draw(st.lists(st.sampled_from(sorted(options)), unique=True)):
        found[name] = draw(st.sampled_from(options[name]))
    return found


def made(
    service, container, boot, at, image, runs, level, kind,
    chosen, facts, seed,
):  # fmt: skip
    rng = np.random.default_rng([seed, round(at)])
    times = at + chosen["every"] * np.arange(runs)
    steps = np.random.default_rng(seed).normal(0, 0.3 * (kind == "host"), 512)
    seconds = level * np.exp(
        steps[(times // 40).astype(int) % steps.size] + rng.normal(0, 1, runs) * KINDS[kind]
    )
    if kind == "ticks":
        seconds = np.maximum(1, np.round(seconds / level)) * level
    if kind == "two values":
        seconds = np.where(rng.random(runs) < 0.5, level, 1.3 * level)
    times = (times - chosen["set_back"] * (np.arange(runs) > runs // 2)).tolist()
    bare, failed = rng.random((2, runs)) < [[chosen["sometimes"]], [chosen["failing"]]]

    def fields(i, median):
        if failed[i]:
            return {"outcome": "timed_out", "median": None}
        if bare[i]:
            return {"runs": chosen["merged"]}
        return {
            **{name: chosen[name] for name in ("inside", "received", "sm_clock", "tags")},
            **{name: (x := chosen[name]) and x * median for name in ("waited", "crowded")},
            "controls": {name: 1e-3 * math.exp(rng.normal(0, 0.01)) for name in chosen["controls"]},
            "phases": dict.fromkeys(chosen["phases"], median / 3),
            "off_cpu": dict.fromkeys(chosen["off_cpu"], median / 9),
            "measures": dict.fromkeys(chosen["measures"], 1000000000.0 * median),
            "runs": chosen["merged"],
        }

    one = start(
        container, image.strip("?"), at, seconds.tolist(), control=0, service=service,
        boot_id=f"{container}-{boot}", environment={name: x for name in ENVIRONMENT if (x := facts[name])},
        **{name: facts[name] for name in ("host", "memory_kills", "outputs", "cold_start")},
        ended_at=at + 900.0 if facts["ended"] else 0.0,
    ).reporting(image=image)  # fmt: skip
    return Start.of(
        one.generation,
        [
            msgspec.structs.replace(s, started_at=time, **fields(i, s.median or 0.0))
            for i, (s, time) in enumerate(zip(one.samples, times, strict=True))
        ],
    )


@st.composite
def starts(
    draw,
    seed,
    kind,
    service="s",
    containers=4,
    images="AB",
    most=30,
):
    """Draw the starts of a service in order of time; starts of one container do not overlap."""
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
            found.append(
                made(
                    service,
                    f"{service}-{number}",
                    order,
                    at,
                    image,
                    runs,
                    level * draw(st.sampled_from([1.0, 1.0, 0.5, 1.1, 40.0])),
                    kind,
                    chosen,
                    facts,
                    seed,
                )
            )
            at += runs * chosen["every"] + draw(st.sampled_from([-60.0, 0.0, 1.0, 700.0, UPGRADE]))
    return sorted(found, key=lambda start: start.generation.started_at)


@st.composite
def siblings(draw, seed, kind):
    """Draw siblings on the host. Some run all the time, and some end before or during the new image's runs."""
    found = []
    for name in "xyz"[: draw(st.integers(0, 3))]:
        found += draw(starts(seed, draw(kinds), name, 1, "o"))
        if draw(st.booleans()):
            chosen = drawn(draw, OPTIONS) | {"failing": 0.0}
            runs = draw(st.integers(1, 1500))
            facts = {option: values[0] for option, values in GENERATIONS.items()}
            found.append(made(name, f"{name}-long", 0, EPOCH, "o", runs, 0.02, kind, chosen, facts, seed))
    return sorted(found, key=lambda start: start.generation.started_at)


def floats(value, place=""):
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, (dict, list, tuple)):
        for name, each in value.items() if isinstance(value, dict) else ((place, each) for each in value):
            yield from floats(each, name)


def is_sound(result):
    """Check that numbers are finite (except the upper end of an interval), and that each shift is in its interval."""
    assert all(math.isfinite(x) or (x > 0 and place == "high") for place, x in floats(result)), result
    if getattr(result, "low", None) is not None:
        assert -1 <= result.low <= result.shift <= result.high


thorough = settings(
    max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@thorough
@given(st.data(), seeds, kinds)
def test_a_verdict(data, seed, kind):
    own, others = data.draw(starts(seed, kind)), data.draw(siblings(seed, kind))
    found = judge(own, others)
    assert found.state in STATES
    assert 0 < len(sentence(found).encode()) <= SENTENCE_BYTES
    assert progress(found) is not None
    assert (found.looks.last == 0) == (found.shift is None)
    is_sound(found)
    assert set(Judge().trials(own)) <= {start.boot for start in own}


@cases(range(5, 9))
def test_a_verdict_on_the_first_runs_beside_siblings_that_feel_the_same_host(runs):
    rng = random.Random(1)
    host = [rng.lognormvariate(0, 0.3) for _ in range(512)]

    def felt(time):
        return 0.02 * host[int(time / 40) % 512]

    own = [start("a", "old", 100.0 * i, felt, 40) for i in range(6)]
    beside = [start("x", "o", 0.0, felt, 500, service=name) for name in "xy"]
    is_sound(judge([*own, start("a", "new", 700.0, felt, runs)], beside))


@thorough
@given(st.data(), seeds, kinds)
def test_verdicts_on_measures(data, seed, kind):
    own, others = data.draw(starts(seed, kind)), data.draw(siblings(seed, kind))
    before, after = ([s for s in own if s.generation.image_id in image] for image in ("A", "B"))
    for verdicts in (Measures().judge(own, others), Measures(FILES).compare(before, after)):
        for name, found in verdicts.items():
            assert found.state in STATES
            assert measure_words(name, found)
            is_sound(found)


@thorough
@given(st.data(), seeds, kinds)
def test_a_drift(data, seed, kind):
    own = data.draw(starts(seed, kind, containers=1, images="A", most=60))
    is_sound(detect(own, data.draw(siblings(seed, kind)), "c", restarts_of(own)))
