"""Replicas on several hosts: each host's siblings count for what ran on it, and hardware is compared by class."""

from __future__ import annotations

import msgspec
import numpy as np

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.sentence import sentence
from infercanary.judge.shift import CHANGED
from infercanary.judge.verdict import Judge

judge = Judge().verdict

T = 1_790_000_000.0
XEON, EPYC = {"cpu_model": "Xeon"}, {"cpu_model": "EPYC"}


def start(
    name: str,
    image: str,
    host: str,
    environment: dict[str, str],
    *,
    level: float = 0.02,
    at: float = T,
    runs: int = 40,
    service: str = "search",
    seed: int = 0,
    slower: np.ndarray | None = None,
) -> Start:
    rng = np.random.default_rng(seed + sum(map(ord, name + image)))
    generation = Generation(
        service=service, container=name, boot_id=name + image, started_at=at, image_id=image, host=host,
        environment=environment,
    )  # fmt: skip
    seconds = level * np.exp(rng.normal(0, 0.003, runs) + (0.0 if slower is None else slower[:runs]))
    return Start(generation, [Sample(i, "c", at + 10 * i, "ok", float(x)) for i, x in enumerate(seconds)])


def rollout(*new: tuple[dict[str, str], float]) -> list[Start]:
    """Three pods each on two classes, of which the second is twice as fast; then ``new`` ones on other hosts."""
    old = [start(f"old-{n}", "one", f"h-{n}", XEON, level=0.02) for n in range(3)]
    old += [start(f"old-{n}", "one", f"h-{n}", EPYC, level=0.01) for n in range(3, 6)]
    later = [
        start(f"new-{n}", "two", f"g-{n}", environment, level=level, at=T + 1000)
        for n, (environment, level) in enumerate(new)
    ]
    return old + later


def test_new_pods_on_a_known_class_have_a_verdict_on_hosts_that_never_ran_it() -> None:
    judgement = judge(rollout(*[(EPYC, 0.015)] * 3), [], "c")
    assert judgement.state == "regressed" and abs((judgement.shift or 0.0) - 0.5) < 0.02
    assert (judgement.hosts, judgement.hardware) == (6, ("EPYC",))
    assert "; on 6 hosts (EPYC)" in sentence(judgement)
    in_place = judge([s for s in rollout() if s.generation.environment == EPYC] + [
        start(f"old-{n}", "two", f"h-{n}", EPYC, level=0.015, at=T + 1000) for n in range(3, 6)
    ], [], "c")  # fmt: skip
    assert in_place.state == "regressed" and in_place.look == judgement.look


def test_a_faster_class_is_no_improvement_and_a_slower_one_no_regression() -> None:
    for new in ([(EPYC, 0.01)] * 2, [(XEON, 0.02)] * 2, [(EPYC, 0.01), (XEON, 0.02)]):
        both = judge(rollout(*new), [], "c")
        assert both.state not in CHANGED and abs(both.shift or 1.0) < 0.01
    assert "on 8 hosts (EPYC, Xeon), within each class" in sentence(both)


def test_a_class_that_the_old_image_never_ran_on_is_left_out() -> None:
    other = {"cpu_model": "Graviton"}
    unknown = judge(rollout(*[(other, 0.005)] * 3), [], "c")
    assert unknown.state == "no_baseline" and sentence(unknown).endswith("too few runs on Graviton")
    with_known = judge(rollout((other, 0.005), (XEON, 0.03), (XEON, 0.03)), [], "c")
    assert with_known.state == "regressed" and abs((with_known.shift or 0.0) - 0.5) < 0.02
    assert with_known.hardware == ("Xeon",)


def test_an_image_that_fell_back_to_the_cpu_is_compared_with_what_ran_on_a_gpu() -> None:
    gpu = {**XEON, "torch_cuda_device": "L4", "torch_device": "cuda:0"}
    old = [start(f"old-{n}", "one", f"h-{n}", gpu) for n in range(2)]
    new = [
        start(f"new-{n}", "two", f"g-{n}", {**XEON, "torch_device": "cpu"}, level=0.5, at=T + 1000)
        for n in range(2)
    ]
    assert judge([*old, *new], [], "c").state == "regressed"
    a100 = [
        start(f"new-{n}", "two", f"g-{n}", {**gpu, "torch_cuda_device": "A100"}, at=T + 1000)
        for n in range(2)
    ]
    assert judge([*old, *a100], [], "c").state == "no_baseline"


def test_one_host_is_not_split_by_what_it_is_made_of() -> None:
    starts = [
        Start(msgspec.structs.replace(s.generation, host="", container="a"), s.samples)
        for s in rollout((EPYC, 0.01))
    ]
    judgement = judge(starts, [], "c")
    assert judgement.state not in ("no_baseline", "settling") and judgement.hosts == 0
