"""The matrix product: with a real torch on the CPU, and on a stand-in of a GPU whose speeds are given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.targets import Need, NoCuda, make
from infercanary.probe.targets import matmul as module
from infercanary.probe.targets.engines import torch_profile
from infercanary.probe.targets.matmul import (
    FLOPS,
    UNUSED,
    MatmulTarget,
    has_native_bfloat16,
    has_tensor_cores,
)
from infercanary.probe.targets.target import Reading
from infercanary.probe.timing import inferences

torch = pytest.importorskip("torch")


def found(readings: Sequence[Reading]) -> dict[tuple[str, ...], float]:
    return {(metric.name, *labels): value for metric, value, labels in readings}


def opened(target: Any) -> Any:
    target.open()
    return target


# On the CPU ------------------------------------------------------------------------------------------------------


def test_a_run_on_the_cpu() -> None:
    target = make("matmul", {"size": 64})
    canary = Canary("product", target, Tally(), 20.0, 60.0)
    canary.open(60.0)
    environment, ran = canary.environment, canary.round(5)
    assert ran is not None
    assert {name for timing in ran.timings for name in timing.phases} == {"compute"}
    rates = found(ran.readings)
    measured = environment["matmul_precisions"].split()
    assert measured[0] == environment["matmul_precision"] == "float32"
    assert rates.keys() == {(FLOPS.name, name) for name in measured}
    assert all(rate > 0 for rate in rates.values())
    assert environment["matmul_size"] == "64" and environment["torch"] == torch.__version__
    assert canary.close(5.0)


def test_what_it_multiplies() -> None:
    target = opened(MatmulTarget(size=32, seed=3))
    result = target.clock.measure(target.run)[1]
    a, b, _ = target._operands["float32"]
    assert torch.allclose(result, a.double().mm(b.double()).float(), atol=1e-4)
    assert target.values(result) == pytest.approx(result.reshape(-1).tolist())
    assert opened(MatmulTarget(size=32, seed=3)).values(result) == target.values(result)
    assert not torch.equal(opened(MatmulTarget(size=32, seed=4))._operands["float32"][0], a)
    result[31, 31] = math.inf
    assert math.isnan(target.values(result)[-1])
    target.close()
    assert target._operands == {}


def test_the_places_are_at_most_1024() -> None:
    target = opened(MatmulTarget(size=100))
    assert 900 < len(target.values(target.clock.measure(target.run)[1])) <= 1024


@pytest.mark.skipif(not has_native_bfloat16(torch), reason="this CPU has no bfloat16 of its own")
def test_bfloat16_where_the_cpu_has_it() -> None:
    target = opened(MatmulTarget(size=64, precision="bfloat16"))
    assert target.precisions == ("float32", "bfloat16")
    assert target.clock.measure(target.run)[1].dtype == torch.bfloat16


def test_what_is_only_emulated_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core")  # it forbids what the CPU may have
    assert opened(MatmulTarget(size=64)).precisions == ("float32",)
    with pytest.raises(
        UsageError, match=r"`bfloat16` is not one that torch .* on cpu here; there is float32"
    ):
        MatmulTarget(size=64, precision="bfloat16").open()


@pytest.mark.parametrize(
    ("text", "variables", "native"),
    [
        ("flags\t\t: fpu sse2 avx512_bf16 amx_bf16\n", {}, True),
        ("flags\t\t: fpu sse2 avx512_bf16 amx_bf16\n", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True),
        ("flags\t\t: fpu sse2 avx512_bf16 amx_bf16\n", {"DNNL_MAX_CPU_ISA": "AVX2"}, False),
        ("flags\t\t: fpu avx2 avx512f\n", {}, False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {}, True),
        ("processor\t: 0\n", {}, False),
        (None, {}, False),
    ],
)
def test_where_bfloat16_is_native(
    tmp_path: Path, text: str | None, variables: dict[str, str], native: bool
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert has_native_bfloat16(torch, variables, tmp_path / "cpuinfo") == native


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({"size": 8}, "size: `8` is not a whole number from 16 to 32768"),
        ({"size": True}, "size: `True` is not"),
        ({"device": "gpu"}, "device: `gpu` is none of cpu, cuda, cuda:N"),
        ({"precision": "fp16"}, "precision: `fp16` is none of float32, tf32, bfloat16, float16"),
        ({"seed": -1}, "seed: `-1` is not a whole number from 0 on"),
        ({"dtype": "float32"}, "options: unknown key `dtype`; known keys: size, device, precision, seed"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, Any], mistake: str) -> None:
    with pytest.raises(UsageError, match=mistake):
        make("matmul", options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_why() -> None:
    target = MatmulTarget(device="cuda")
    advice, reason = (
        ("install a CUDA build of torch, or set `device: cpu`", "cpu_only_build")
        if torch.version.cuda is None
        else ("check the driver, and that the container was started with the GPU", "no_device")
    )
    with pytest.raises(NoCuda, match=advice):
        target.open()
    assert target.cuda_missing == reason


# On a GPU that is not there --------------------------------------------------------------------------------------


class FakeDevice(str):
    """What torch takes for the CPU, and the target for a GPU."""

    type = "cuda"
    index: Any = None


class FakeGpu:
    """A torch whose products take ``seconds`` on a device's clock of its own, by dtype and the switch for TF32."""

    def __init__(self, seconds: dict[str, float], capability: tuple[int, int], name: str) -> None:
        self.seconds, self.now, self.products = seconds, 0.0, list[str]()
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(fp32_precision="none")),
            cpu=torch.backends.cpu, cudnn=torch.backends.cudnn, mkldnn=torch.backends.mkldnn,
        )  # fmt: skip
        self.version = SimpleNamespace(cuda="12.8", git_version="0")
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None: ...

            def record(self, stream: Any) -> None:
                self.at = gpu.now

            def synchronize(self) -> None: ...

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at) * 1e3

        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_capability=lambda _: capability,
            get_device_name=lambda _: name,
            is_bf16_supported=lambda including_emulation: capability >= (8, 0),
            device=lambda _: nullcontext(),
            stream=lambda _: nullcontext(),
            Stream=lambda device, priority: "stream",
            default_stream=lambda _: SimpleNamespace(query=lambda: True),
            Event=Event,
            mem_get_info=lambda _: (1 << 30, 4 << 30),
            memory_reserved=lambda _: 1 << 30,
            set_per_process_memory_fraction=lambda fraction, _: self.fractions.append(fraction),
        )
        self.fractions: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, _: str) -> FakeDevice:
        return FakeDevice("cpu")

    def mm(self, a: Any, b: Any, out: Any) -> None:
        precision = str(a.dtype).removeprefix("torch.")
        if precision == "float32" and self.backends.cuda.matmul.fp32_precision == "tf32":
            precision = "tf32"
        self.products.append(precision)
        self.now += self.seconds[precision]


A100 = {"float32": 7e-3, "tf32": 0.9e-3, "bfloat16": 0.5e-3}
FLOP = 2.0 * 64**3


def on(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, **options: Any) -> MatmulTarget:
    monkeypatch.setattr(torch_profile, "imported", lambda *_: gpu)
    options = {"own_process": True, **options}
    target = opened(MatmulTarget(size=64, device="cuda", **options))
    assert isinstance(target, MatmulTarget)
    target.calibrate()
    return target


def run(target: MatmulTarget) -> dict[tuple[str, ...], float]:
    return found([*target.readings()])


def test_all_precisions_of_an_ampere_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(A100, (8, 0), "NVIDIA A100")
    target = on(gpu, monkeypatch)
    assert target.precisions == ("float32", "tf32", "bfloat16") and target.precision == "bfloat16"
    rates = run(target)
    assert {key[1]: rate for key, rate in rates.items() if key[0] == FLOPS.name} == pytest.approx(
        {name: FLOP / seconds for name, seconds in A100.items()}, rel=1e-3
    )
    assert rates[(UNUSED.name,)] == 0
    assert gpu.backends.cuda.matmul.fp32_precision == "none", "the switch is as it was"
    timing, _ = target.clock.measure(target.run)
    assert timing.phases.keys() == {"compute", "launch", "queue"}


def test_a_repeat_takes_100_us(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu({name: seconds / 50 for name, seconds in A100.items()}, (8, 0), "NVIDIA A100")
    target = on(gpu, monkeypatch)
    assert inferences(target.clock) in (10, 11)  # the clock adds up what the products take
    assert run(target)[FLOPS.name, "float32"] == pytest.approx(FLOP / 140e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("capability", "name", "precisions", "unused"),
    [
        ((7, 5), "Tesla T4", ("float32", "float16"), 0.0),
        ((7, 5), "NVIDIA GeForce GTX 1650", ("float32", "float16"), None),
        ((6, 1), "NVIDIA GeForce GTX 1080", ("float32", "float16"), None),
    ],
)
def test_older_gpus_have_float16(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    name: str,
    precisions: tuple[str, ...],
    unused: float | None,
) -> None:
    target = on(FakeGpu({"float32": 4e-3, "float16": 1e-3}, capability, name), monkeypatch)
    assert (target.precisions, target.precision) == (precisions, "float16")
    assert run(target).get((UNUSED.name,)) == unused


def test_tensor_cores_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu({**A100, "bfloat16": 6.5e-3}, (8, 0), "NVIDIA A100")
    target = on(gpu, monkeypatch)
    assert run(target)[(UNUSED.name,)] == 1
    gpu.seconds = A100
    for _ in range(2):
        run(target)
    assert run(target)[(UNUSED.name,)] == 0, "the median of the last measurements"


def test_one_slow_product_of_another_precision_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(A100, (8, 0), "NVIDIA A100")
    target = on(gpu, monkeypatch)
    gpu.seconds = {**A100, "float32": 0.4e-3}
    assert run(target)[(UNUSED.name,)] == 0
    for _ in range(2):
        rates = run(target)
    assert rates[(UNUSED.name,)] == 1


@pytest.mark.parametrize(("switch", "single"), [("none", "float32"), ("tf32", "tf32")])
def test_in_a_server_the_switch_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, switch: str, single: str
) -> None:
    gpu = FakeGpu(A100, (8, 0), "NVIDIA A100")
    gpu.backends.cuda.matmul.fp32_precision = switch
    set_to: list[bool] = []

    @contextmanager
    def watched(_: Any, on: bool) -> Iterator[None]:
        set_to.append(on)
        yield

    monkeypatch.setattr(module, "_tf32", watched)
    target = on(gpu, monkeypatch, own_process=False)
    run(target)
    assert (target.precisions, set_to) == ((single, "bfloat16"), [])
    assert set(gpu.products) == {single, "bfloat16"}


@pytest.mark.parametrize("newer", [True, False])
def test_both_of_torchs_switches(newer: bool) -> None:
    switch = SimpleNamespace(fp32_precision="none") if newer else SimpleNamespace(allow_tf32=False)
    fake = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=switch)))
    name, on_value, off_value = ("fp32_precision", "tf32", "ieee") if newer else ("allow_tf32", True, False)
    before = getattr(switch, name)
    for on, value in ((True, on_value), (False, off_value)):
        with module._tf32(fake, on):
            assert getattr(switch, name) == value
        assert getattr(switch, name) == before


def test_torchs_own_switch_is_as_before() -> None:
    """Of torch's two interfaces the older one must go on working."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()
    with module._tf32(torch, True):
        assert module._uses_tf32(torch)
    assert not module._uses_tf32(torch)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()) == before


def test_who_has_tensor_cores() -> None:
    def has(capability: tuple[int, int], name: str) -> bool:
        return has_tensor_cores(FakeGpu({}, capability, name), None)

    assert (
        has((7, 0), "Tesla V100-SXM2-16GB") and has((9, 0), "NVIDIA H100") and has((7, 5), "Quadro RTX 8000")
    )
    assert not has((7, 5), "NVIDIA T400") and not has((6, 0), "Tesla P100")
    amd = SimpleNamespace(version=SimpleNamespace(cuda=None))
    assert not has_tensor_cores(amd, None)


# Memory ----------------------------------------------------------------------------------------------------------


def test_on_a_gpu_it_asks_for_both_kinds_of_memory_and_binds_torchs_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(A100, (8, 0), "NVIDIA A100")
    monkeypatch.setattr(torch_profile, "imported", lambda *_: gpu)
    target, asked = MatmulTarget(size=64, device="cuda", own_process=True), list[Need]()
    target.ask_for_memory = asked.extend
    target.device_memory_left = lambda: 1 << 30
    opened(target)
    assert [(need.where, need.size) for need in asked] == [
        ("host", 2 * 64 * 64 * 4), ("device", 3 * 64 * 64 * (4 + 2))
    ]  # fmt: skip
    assert gpu.fractions == [0.5], "1 GiB that it has, and 1 GiB more, of 4 GiB"
    target.device_memory_left = lambda: None
    opened(target)
    target.device_memory_left = lambda: 64 << 30
    opened(target)
    assert gpu.fractions == [0.5, 1.0]
