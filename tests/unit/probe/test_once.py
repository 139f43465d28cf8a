"""The report of ``infercanary probe --once``: the whole text, for reports that were made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from infercanary.contract.report import SCHEMA_VERSION, Family, Metric, Report, Run, decode, encode
from infercanary.contract.vocabulary import CANARY_STATES, TAGS
from infercanary.probe import controls, failing, record
from infercanary.probe.duty import DUTY_CAP, INTERVAL
from infercanary.probe.once import last_runs, render
from infercanary.probe.samplers.nvml.faults import STATE as NVML_STATE
from infercanary.probe.samplers.nvml.faults import STATES as NVML_STATES
from infercanary.probe.samplers.nvml.slow import INFO as GPU_INFO
from infercanary.probe.samplers.threads import GRANTED, OVERSUBSCRIPTION
from infercanary.probe.sampling import SUCCESS
from infercanary.probe.targets import matmul

AT = 1785160991.0


def run(canary: str, latencies: tuple[float, ...] = (), outcome: Any = "ok", **more: Any) -> Run:
    return Run(1, canary, AT, AT, outcome, latencies, **more)


def canary(
    name: str, state: str, *latency: float, cold: tuple[float, float, float] | None = None
) -> list[Family]:
    """Median and IQR; load, first run and warm-up."""
    families = [record.STATE.family({(name, each): each == state for each in CANARY_STATES})]
    gauges = record.MEDIAN, record.IQR
    families += [metric.family({(name,): value}) for metric, value in zip(gauges, latency, strict=False)]
    steps = zip(("load", "first_run", "warm_up"), cold or (), strict=False)
    return [*families, record.COLD_START.family({(name, step): seconds for step, seconds in steps})]


def measured(device: str, **seconds: float) -> Family:
    return controls.SECONDS.family({(device, name): value for name, value in seconds.items()})


def report(families: list[Family], runs: list[Run], environment: Mapping[str, str] = {}) -> Report:
    """One family of each name, as a probe's; through JSON, as the command gets it."""
    merged: dict[str, Family] = {}
    for family in families:
        points = (*merged[family.name].points, *family.points) if family.name in merged else family.points
        merged[family.name] = Metric(family.name, family.kind, family.help, family.labels).family(
            {point.labels: point.value for point in points}
        )
    made = Report(
        SCHEMA_VERSION, "boot", AT, "boot.1", 0, tuple(merged.values()), dict(environment), tuple(runs)
    )
    return decode(encode(made))


HEALTHY = report(
    [
        *canary(
            "resnet18",
            "steady",
            0.02143,
            0.00042,
            cold=(1.824, 0.1432, 0.4021),
        ),
        record.BOTTLENECK.family(
            {
                ("resnet18", limit): x
                for limit, x in {"compute": 0.93, "io": 0.002, "scheduling": 0.068}.items()
            }
        ),
        measured("cpu", cpu_spin=0.0003124, memory_copy=0.001231, thread_wake=161e-6),
        SUCCESS.family({("threads",): 1, ("cgroup",): 1, ("nvml",): 1}),
        NVML_STATE.family({(each,): each == "no_driver" for each in NVML_STATES}),
        GRANTED.family(2),
        OVERSUBSCRIPTION.family(1),
        INTERVAL.family(10),
        DUTY_CAP.family(0.01),
        failing.CUDA_MISSING.family({("resnet18", "no_device"): 0}),
    ],
    [
        run(
            "resnet18",
            (0.02091, *(0.0214,) * 11),
            phases={"compute": 0.0214},
            measures={"throughput": 46.7289, "host_memory": 412e6, "device_memory": 3.5e9, "newer": 1.0},
        )
    ],
    {
        "architecture": "x86_64",
        "cpu_model": "Intel(R) Xeon(R) Processor",
        "infercanary": "0.1.0",
        "kernel": "6.1.0-37-amd64",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "torch_cuda": "none (CPU-only build)",
        "torch_device": "cpu",
        "torch_intra_op_threads": "2",
        "torch_mode": "eager",
    },
)

ALL_WRONG = report(
    [
        *canary("raises", "failing", cold=(0.0002, 0.001, 0.016)),
        *canary("nan", "failing", 0.0012, cold=(0.0002, 0.001, 0.016)),
        *canary("never-open", "failing"),
        *canary("wheel", "warming", 12.5, 2.5, cold=(61.2, 15, 20.3)),
        *canary("closed", "failing"),
        measured("cpu", memory_copy=0.001),
        SUCCESS.family({("threads",): 1, ("cgroup",): 0, ("nvml",): 0}),
        NVML_STATE.family({(each,): each == "lost" for each in NVML_STATES}),
        GRANTED.family(1.5),
        OVERSUBSCRIPTION.family(64 / 1.5),
        INTERVAL.family(6875.4),
        DUTY_CAP.family(0.01),
        failing.CUDA_MISSING.family({("wheel", "cpu_only_build"): 1, ("closed", "no_device"): 1}),
    ],
    [
        run("raises", (0.5,), boot_id="an earlier one's"),
        run("raises", outcome="raised", detail="ValueError: \x1b[31mred\x1b[0m " + "and long " * 12, tags=("failing",)),
        run("nan", (0.0012,), outcome="not_finite", detail="the output holds NaN or infinity", phases={
            "a phase whose name is longer than a column": 0.0002, "com\x07pute": 0.0013}),
        run("wheel", (11.25, *(12.5,) * 4), tags=("warming", "cgroup_throttled", "of_a_later_version")),
        run("closed", outcome="raised", detail="cannot be opened: device: `cuda` was asked for"),
    ],
    {"env_LD_PRELOAD": "/very/long/" * 9, "torch_intra_op_threads": "64"},
)  # fmt: skip

CUDA = report(
    [
        *canary("bert", "steady", 430e-6, 3.2e-6, cold=(4.2, 1.31, 0.052)),
        *canary("tiny", "steady", 9.1e-6, 0.05e-6, cold=(0.1, 0.2, 0.03)),
        measured("cpu", cpu_spin=0.0003124),
        measured("cuda", gpu_fma=0.00021, gpu_copy=0.00012, gpu_launch=2.2e-6),
        SUCCESS.family({("threads",): 1, ("nvml",): 1}),
        NVML_STATE.family({(each,): each == "ok" for each in NVML_STATES}),
        GPU_INFO.family({("0", "NVIDIA H100 80GB HBM3", "GPU-1", "00:1", "550.54.15", "12.4", "96.0"): 1}),
        GRANTED.family(16),
        OVERSUBSCRIPTION.family(0.5),
        INTERVAL.family(10),
        DUTY_CAP.family(0.01),
    ],
    [
        run(
            "bert",
            (421e-6, *(430e-6,) * 49),
            phases={"h2d": 12e-6, "compute": 310e-6, "d2h": 8e-6, "launch": 345e-6, "queue": 61e-6},
            tags=("gpu_clock_limited",),
            clock_reason="sw_thermal",
        ),
        run("tiny", (9.0e-6, *(9.1e-6,) * 49), phases={"compute": 8.1e-6, "launch": 4e-6, "queue": 0.2e-6}),
    ],
    {
        "torch": "2.9.1+cu128",
        "torch_cuda": "12.8",
        "torch_cudnn": "91002",
        "torch_cuda_capability": "9.0",
        "torch_cuda_device": "NVIDIA H100 80GB HBM3",
        "torch_device": "cuda",
        "torch_intra_op_threads": "8",
        "torch_mode": "eager, graph",
    },
)


HEALTHY_TEXT = """\
InferCanary 0.1.0: one run, 2026-07-27 14:03:11 UTC

canary resnet18: steady
  latency      median 21.43 ms  min 20.91 ms  IQR 420.0 µs  12 repeats
  cold start   load 1.824 s  first run 143.2 ms  warm-up 402.1 ms
  phases       compute  21.40 ms   99.9 %  #####################################
  bottleneck   compute 93 %  scheduling 7 %
  throughput   46.73 samples/s
  memory       host 393 MiB  device 3.26 GiB

controls on cpu: the same work in every image
  cpu_spin     312.4 µs
  memory_copy  1.231 ms
  thread_wake  161.0 µs

environment
  torch        2.13.0+cpu
  CUDA         none (CPU-only build)
  device       cpu, eager
  threads      2, on 2 granted CPUs
  CPU          Intel(R) Xeon(R) Processor
  others       architecture x86_64; infercanary 0.1.0; kernel 6.1.0-37-amd64;
               os Debian GNU/Linux 12 (bookworm); python 3.11.7

samplers
  working      threads, cgroup
  nvml         no_driver: no NVIDIA driver here

warnings: none
"""

ALL_WRONG_TEXT = """\
InferCanary: one run, 2026-07-27 14:03:11 UTC

canary raises: failing
  raised       ValueError: ?[31mred?[0m and long and long and long and long and
               long and long and long and long and long and long and long and
               long
  cold start   load 200.0 µs  first run 1.000 ms  warm-up 16.00 ms
  tag          failing: it failed, or the device had no room for it, as said
               above; fix that before anything else

canary nan: failing
  not finite   the output holds NaN or infinity
  latency      median 1.200 ms  min 1.200 ms  1 repeat
  cold start   load 200.0 µs  first run 1.000 ms  warm-up 16.00 ms
  phases       a phase whose name is lo  200.0 µs   16.7 %  ###
               com?pute                  1.300 ms  108.3 %  ####################

canary never-open: failing
  no run       it was not open in time (open_timeout_seconds)

canary wheel: warming
  latency      median 12.50 s  min 11.25 s  IQR 2.500 s  5 repeats
  cold start   load 61.20 s  first run 15.00 s  warm-up 20.30 s
  tag          warming: not steady yet, and may become faster still; run it
               again before comparing
  tag          cgroup_throttled: the CPU quota held it back; raise the quota
               (--cpus), or use fewer threads
  tag          of_a_later_version: unknown to this version

canary closed: failing
  raised       cannot be opened: device: `cuda` was asked for

controls on cpu: the same work in every image
  memory_copy  1.000 ms

environment
  threads      64, on 1.5 granted CPUs
  CPU          unknown
  others       env_LD_PRELOAD /very/long//very/long//very/long//very/long//very/
               long//very/long//very/long//very/long//very/long/

samplers
  working      threads
  no values    cgroup: the log says why
  no values    nvml: lost: a GPU fell off the bus or needs a reset; see the
               kernel's log (NVRM: Xid)

warnings
  - canary wheel was to run on CUDA, but its engine is a CPU-only build; install
    one with CUDA (of torch, or onnxruntime-gpu). It ran on the CPU instead
    (cpu_fallback)
  - canary closed was to run on CUDA, but its engine sees no device; check the
    driver, and that the container was started with the GPU (docker run --gpus
    device=0)
  - canary nan: its output holds NaN or infinity, and its latency is that of a
    broken model; check weights, dtype and inputs
  - oversubscribed: 64 computing threads on 1.5 granted CPUs, 42.67 for each:
    they wait for one another; lower OMP_NUM_THREADS (ONNX Runtime:
    intra_op_threads), or grant more CPUs
  - the duty cap of 1 % allows a run every 6880 s, not every 10 s as configured;
    accept the longer interval, or use smaller inputs
"""

CUDA_TEXT = """\
InferCanary: one run, 2026-07-27 14:03:11 UTC

canary bert: steady
  latency      median 430.0 µs  min 421.0 µs  IQR 3.200 µs  50 repeats
  cold start   load 4.200 s  first run 1.310 s  warm-up 52.00 ms
  phases       queue    61.00 µs   14.2 %  #####
               h2d      12.00 µs    2.8 %  #
               compute  310.0 µs   72.1 %  ###########################
               d2h      8.000 µs    1.9 %  #
               (rest)   39.00 µs    9.1 %  ###
  launch       345.0 µs of the host's time, 80.2 % of the wall time, to enqueue
               the work; it overlaps the phases and is no part of their sum;
               longer than compute: the host sets the pace
  tag          gpu_clock_limited (sw_thermal): the GPU's clock was held down;
               look at the reason: power, heat or a clock lock

canary tiny: steady
  latency      median 9.100 µs  min 9.000 µs  IQR 0.050 µs  50 repeats
  cold start   load 100.0 ms  first run 200.0 ms  warm-up 30.00 ms
  phases       queue    0.200 µs    2.2 %  #
               compute  8.100 µs   89.0 %  #################################
               (rest)   0.800 µs    8.8 %  ###
  launch       4.000 µs of the host's time, 44 % of the wall time, to enqueue
               the work; it overlaps the phases and is no part of their sum

controls on cpu: the same work in every image
  cpu_spin  312.4 µs

controls on cuda: the same work in every image
  gpu_fma     210.0 µs
  gpu_copy    120.0 µs
  gpu_launch  2.200 µs

environment
  torch        2.9.1+cu128
  CUDA         12.8
  cuDNN        91002
  device       cuda, NVIDIA H100 80GB HBM3, eager, graph
  GPU 0        NVIDIA H100 80GB HBM3, driver 550.54.15 (CUDA 12.4 at most)
  threads      8, on 16 granted CPUs
  CPU          unknown
  others       torch_cuda_capability 9.0

samplers
  working      threads, nvml

warnings: none
"""


@pytest.mark.parametrize(
    ("made", "text"),
    [(HEALTHY, HEALTHY_TEXT), (ALL_WRONG, ALL_WRONG_TEXT), (CUDA, CUDA_TEXT)],
    ids=["healthy", "all wrong", "cuda"],
)
def test_the_whole_text(made: Report, text: str) -> None:
    assert render(made, interval_seconds=10) == text


@pytest.mark.parametrize("width", [80, 101, 120])
@pytest.mark.parametrize("made", [HEALTHY, ALL_WRONG, CUDA], ids=["healthy", "all wrong", "cuda"])
def test_no_line_is_wider_than_the_terminal_or_ends_in_spaces(made: Report, width: int) -> None:
    lines = render(made, 10, width).split("\n")
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []


def test_bars_are_shares_of_the_wall_time() -> None:
    phases = {"queue": 0.25, "compute": 0.5, "d2h": 0.25}
    made = report(canary("c", "steady", 1.0), [run("c", (1.0,), phases=phases)])
    bars = [line.count("#") for line in render(made, 10).splitlines() if "%  #" in line]
    assert bars == pytest.approx([sum(bars) / 4, sum(bars) / 2, sum(bars) / 4], abs=1)
    assert "(rest)" not in render(made, 10)


def test_every_tag_and_every_state_has_its_words() -> None:
    text = render(report(canary("c", "failing", 1.0), [run("c", (1.0,), tags=tuple(TAGS))]), 10)
    assert "unknown to this version" not in text
    assert text.count("  tag ") == len(TAGS)
    for state in NVML_STATES[1:]:
        failed = [
            SUCCESS.family({("nvml",): 0}),
            NVML_STATE.family({(each,): each == state for each in NVML_STATES}),
        ]
        assert f"no values    nvml: {state}: " in render(report(failed, []), 10)
    for reason in failing.CUDA_MISSING_REASONS:
        text = render(report([failing.CUDA_MISSING.family({("c", reason): 1})], []), 10)
        assert "canary c was to run on CUDA, but its engine" in text


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    text = render(report([], []), 10)
    assert text.endswith("environment\n               unknown\n\nwarnings: none\n")
    text = render(report([], [], {"torch_intra_op_threads": "4"}), 10)
    assert "threads      4, on an unknown number of granted CPUs" in text
    assert "  - unknown whether threads are oversubscribed" in text
    states = record.STATE.family({("c", each): 0 for each in CANARY_STATES})
    assert "canary c: unknown\n  no run       it was not run\n" in render(report([states], []), 10)


def test_a_longer_interval_names_the_cap_that_the_configured_one_needs() -> None:
    made = report([INTERVAL.family(28.35), DUTY_CAP.family(0.01)], [])
    assert "every 28.4 s, not every 10 s as configured; set duty_cap to 0.029," in render(made, 10).replace(
        "\n    ", " "
    )
    assert "warnings: none" in render(made, 28.35)


def test_a_matrix_product_in_each_precision() -> None:
    families = canary("product", "steady", 0.0127, 0.0001)
    families.append(
        matmul.FLOPS.family(
            {("product", "float32"): 168.9e9, ("product", "bfloat16"): 31.2e9, ("other", "x"): 1}
        )
    )
    families.append(matmul.UNUSED.family({("product",): 1.0}))
    text = render(report(families, [run("product", (0.0127,))]), 10)
    assert "  product      float32 168.9 GFLOP/s  bfloat16 31.20 GFLOP/s\n" in text
    assert "Tensor Cores are not in use; install a torch built for this GPU" in " ".join(text.split())


def test_runs_of_an_earlier_probe_are_not_this_one() -> None:
    assert last_runs(ALL_WRONG)["raises"].outcome == "raised"
    assert last_runs(report([], [run("c", (1.0,), boot_id="earlier")])) == {}
