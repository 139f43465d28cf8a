"""The matrix multiplication with a real torch on the CPU, and with a stand-in for a GPU of given speeds."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Need, NoCuda, make
from infercanary.probe.targets import matmul as module
from infercanary.probe.targets.engines import torch_model, torch_profile
from infercanary.probe.targets.matmul import (
    FLOPS,
    UNUSED,
    MatmulTarget,
    has_native_bfloat16,
    has_tensor_cores,
)
from infercanary.probe.timing import inferences
from tests.scenarios import mistakes, refused, typed

torch = pytest.importorskip("torch")


def readings(target):
    return {(metric.name, *labels): value for metric, value, labels in target.readings()}


def opened(**options):
    target = MatmulTarget(**{"size": 64, **options})
    target.open()
    return target


# On the CPU ------------------------------------------------------------------------------------------------------


def test_a_run_on_the_cpu():
    target = make("matmul", {"size": 64})
    target.open()
    timing, _ = target.clock.measure(target.run)
    target.calibrate()
    assert timing.phases.keys() == {"compute"}
    environment = target.environment()
    measured = environment["matmul_precisions"].split()
    assert measured[0] == environment["matmul_precision"] == "float32"
    rates = readings(target)
    assert rates.keys() == {(FLOPS.name, name) for name in measured}
    assert min(rates.values()) > 0
    assert environment["matmul_size"] == "64"
    assert environment["torch"] == torch.__version__


def test_the_product_is_correct_and_seeded():
    target = opened(size=32, seed=3)
    result = target.clock.measure(target.run)[1]
    a, b, _ = target._operands["float32"]
    assert torch.allclose(result, a.double().mm(b.double()).float(), atol=1e-4)
    assert target.values(result) == pytest.approx(result.reshape(-1).tolist())
    assert [torch.equal(opened(size=32, seed=seed)._operands["float32"][0], a) for seed in (3, 4)] == [
        True,
        False,
    ]
    result[31, 31] = math.inf
    assert math.isnan(target.values(result)[-1])
    target.close()
    assert target._operands == {}


def test_bfloat16_where_the_cpu_has_it_and_else_it_is_left_out(monkeypatch):
    if has_native_bfloat16(torch):
        target = opened(precision="bfloat16")
        assert target.precisions == ("float32", "bfloat16")
        assert target.clock.measure(target.run)[1].dtype == torch.bfloat16
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core")  # disables features that the CPU may support
    assert opened().precisions == ("float32",)
    with pytest.raises(UsageError, match=r"`bfloat16` is not native for torch .* on cpu; there is float32"):
        opened(precision="bfloat16")


FEATURES = r"""
"flags\t\t: fpu sse2 avx512_bf16 amx_bf16"           | {}                                     | true
"flags\t\t: fpu sse2 avx512_bf16 amx_bf16"           | {ONEDNN_MAX_CPU_ISA: AVX512_CORE_BF16} | true
"flags\t\t: fpu sse2 avx512_bf16 amx_bf16"           | {DNNL_MAX_CPU_ISA: AVX2}               | false
"flags\t\t: fpu avx2 avx512f"                        | {}                                     | false
"processor\t: 0\nFeatures\t: fp asimd bf16"          | {}                                     | true
"Features\t: fp asimd evtstrm aes sve2 svebf16 bf16" | {}                                     | true
"Features\t: fp asimd evtstrm aes sve2 svebf16"      | {}                                     | false
"processor\t: 0"                                     | {}                                     | false
~                                                    | {}                                     | false
"""


@pytest.mark.parametrize(("text", "variables", "native"), typed(FEATURES))
def test_where_bfloat16_is_native(tmp_path, monkeypatch, text, variables, native):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(module, "_CPUS", tmp_path / "cpuinfo")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_native_bfloat16(torch) == native


MISTAKES = """
size: 8 | size: expected a whole number >= 16
device: gpu | device: `gpu` is none of cpu, cuda, cuda:N
precision: fp16 | precision: `fp16` is none of bfloat16, float16, float32, tf32
seed: -1 | seed: expected a whole number >= 0
dtype: float32 | options: unknown key `dtype` | size, device, precision, seed
"""


@pytest.mark.parametrize(("options", "words"), mistakes(MISTAKES))
def test_a_mistake_is_one_line(options, words):
    with refused(words):
        make("matmul", options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_why():
    target = MatmulTarget(device="cuda")
    with pytest.raises(NoCuda, match="or set `device: cpu`"):
        target.open()
    assert target.cuda_missing == ("cpu_only_build" if torch.version.cuda is None else "no_device")


# On a simulated GPU ----------------------------------------------------------------------------------------------


class FakeDevice(str):
    """A device that torch takes for the CPU, and the target for a GPU."""

    type = "cuda"
    index: Any = None


class FakeGpu:
    """A torch whose matrix products take ``seconds`` of a simulated device clock, by dtype and TF32 switch."""

    now = 0.0

    def __init__(self, seconds, capability=(8, 0), name="A100"):
        self.seconds, self.products, self.fractions = seconds, list[str](), list[float]()
        self.switch = SimpleNamespace(fp32_precision="none")
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=self.switch),
            cpu=torch.backends.cpu, cudnn=torch.backends.cudnn, mkldnn=torch.backends.mkldnn,
        )  # fmt: skip
        self.version = SimpleNamespace(cuda="12.8", git_version="0")
        gpu = self

        class Event:
            def __init__(self, enable_timing): ...

            def record(self, stream):
                self.at = gpu.now

            def synchronize(self): ...

            def elapsed_time(self, other):
                return float(other.at - self.at) * 1e3

        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_capability=lambda _: capability,
            get_device_name=lambda _: name,
            is_bf16_supported=lambda including_emulation: capability >= (8, 0),
            device=nullcontext,
            stream=nullcontext,
            Stream=lambda device, priority: "stream",
            Event=Event,
            mem_get_info=lambda _: (1 << 30, 4 << 30),
            memory_reserved=lambda _: 1 << 30,
            set_per_process_memory_fraction=lambda fraction, _: self.fractions.append(fraction),
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, _):
        return FakeDevice("cpu")

    def mm(self, a, b, out):
        precision = str(a.dtype).removeprefix("torch.")
        if precision == "float32" and self.switch.fp32_precision == "tf32":
            precision = "tf32"
        self.products.append(precision)
        self.now += self.seconds[precision]


A100 = {"float32": 7e-3, "tf32": 0.9e-3, "bfloat16": 0.5e-3}
FLOP = 2.0 * 64**3


@pytest.fixture
def on(monkeypatch):
    def open_on(gpu, **options):
        monkeypatch.setattr(torch_profile, "imported", lambda *_: gpu)
        target = opened(**{"device": "cuda", "own_process": True, **options})
        target.calibrate()
        return target

    return open_on


# Capability | name | seconds of its products | TF32 switch | True in a server's process | precisions (the
# last one is measured) | share of unused Tensor Cores
GPUS = """
[8, 0] | A100      | {float32: 7.0e-3, tf32: 0.9e-3, bfloat16: 0.5e-3}   | none | false | float32 tf32 bfloat16 | 0.0
[8, 0] | A100      | {float32: 7.0e-3, bfloat16: 0.5e-3}                 | none | true  | float32 bfloat16      | 0.0
[8, 0] | A100      | {tf32: 0.9e-3, bfloat16: 0.5e-3}                    | tf32 | true  | tf32 bfloat16         | ~
[7, 5] | Tesla T4  | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | 0.0
[7, 5] | GTX 1650  | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | ~
[6, 1] | GTX 1080  | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | ~
[6, 0] | P100      | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | ~
[7, 0] | V100      | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | 0.0
[7, 5] | RTX 8000  | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | 0.0
[7, 5] | T400      | {float32: 4.0e-3, float16: 1.0e-3}                  | none | false | float32 float16       | ~
[9, 0] | H100      | {float32: 7.0e-3, tf32: 0.9e-3, bfloat16: 0.5e-3}   | none | false | float32 tf32 bfloat16 | 0.0
"""


@pytest.mark.parametrize(
    ("capability", "name", "seconds", "switch", "is_guest", "precisions", "unused"), typed(GPUS)
)
def test_the_precisions_of_a_gpu(
    on, monkeypatch, capability, name, seconds, switch,
    is_guest, precisions, unused
):  # fmt: skip
    """In a server's process, the target never changes the TF32 switch; elsewhere, it restores the switch."""
    gpu = FakeGpu(seconds, (*capability,), name)
    gpu.switch.fp32_precision = switch
    target = on(gpu, own_process=not is_guest)
    assert target.precisions == (*precisions.split(),)
    assert target.precision == precisions.split()[-1]
    expected = {(FLOPS.name, name): FLOP / took for name, took in seconds.items()}
    assert readings(target) == pytest.approx(
        expected | ({} if unused is None else {(UNUSED.name,): unused}), rel=1e-3
    )
    assert gpu.switch.fp32_precision == switch
    assert {*gpu.products} == {*seconds}
    timing, _ = target.clock.measure(target.run)
    assert timing.phases.keys() == {"compute", "launch", "queue"}


def test_a_repeat_takes_100_us(on):
    target = on(FakeGpu({name: seconds / 50 for name, seconds in A100.items()}))
    assert inferences(target.clock) in (10, 11)  # the clock adds the times of the products
    assert readings(target)[FLOPS.name, "float32"] == pytest.approx(FLOP / 140e-6, rel=1e-3)


def test_tensor_cores_that_are_not_used_by_the_median_of_the_last_measurements(on):
    gpu = FakeGpu({**A100, "bfloat16": 6.5e-3})
    target = on(gpu)
    found = [readings(target)[UNUSED.name,]]
    for seconds in (A100, {**A100, "float32": 0.4e-3}):
        gpu.seconds = seconds
        found += [readings(target)[UNUSED.name,] for _ in range(3)]
    assert found == [1, 1, 1, 0, 0, 0, 1], "one slow product changes nothing"


@pytest.fixture
def switch():
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    yield switch
    switch.fp32_precision = before


@pytest.mark.parametrize("precision", ["none", "tf32", "ieee"])
def test_torchs_own_switch_is_as_before(switch, precision):
    """torch has two interfaces for this switch. The older one raises if code has set the newer one to tf32."""
    switch.fp32_precision = precision
    for is_on in (True, False):
        with module._tf32(torch, is_on):
            assert module._uses_tf32(torch) is is_on
        assert switch.fp32_precision == precision
    named = torch_model.environment(torch, torch.device("cpu"), "eager")
    assert named["torch_float32_matmul_precision"] == ("tf32" if precision == "tf32" else "highest")


def test_amds_gpus_have_no_tensor_cores():
    gpu = FakeGpu({}, (9, 0), "MI300X")
    gpu.version.cuda = None
    assert not has_tensor_cores(gpu, None)


def test_on_a_gpu_it_asks_for_both_kinds_of_memory_and_binds_torchs_allocator(monkeypatch):
    gpu, asked = FakeGpu(A100), list[Need]()
    monkeypatch.setattr(torch_profile, "imported", lambda *_: gpu)
    target = MatmulTarget(size=64, device="cuda", own_process=True)
    target.ask_for_memory = asked.extend
    for left in (1 << 30, None, 64 << 30):
        target.device_memory_left = lambda left=left: left  # type: ignore[misc]
        target.open()
    expected = [("host", 2 * 64 * 64 * 4), ("device", 3 * 64 * 64 * (4 + 2))]
    assert [(need.where, need.size) for need in asked] == expected * 3
    assert gpu.fractions == [0.5, 1.0], "the fraction is 1 GiB in use plus 1 GiB, of 4 GiB"
