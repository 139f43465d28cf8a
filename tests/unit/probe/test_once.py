"""What ``infercanary probe --once`` and ``--profile`` show of reports and profiles that were made by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from infercanary.contract.profile import NO_CUPTI, Profile, ProfileRow
from infercanary.contract.report import SCHEMA_VERSION, Family, Metric, Report, Run, decode, encode
from infercanary.contract.vocabulary import CANARY_STATES, TAGS
from infercanary.probe import canary_metrics, controls
from infercanary.probe.once import last_runs, profile_document, report_documents
from infercanary.probe.samplers.nvml.slow import INFO as GPU_INFO
from infercanary.probe.samplers.threads import GRANTED
from infercanary.probe.targets import matmul
from infercanary.probe.targets.openai import BETWEEN_TOKENS, FIRST_TOKEN
from infercanary.probe.targets.wire.timing_headers import SERVER
from infercanary.render.text import render_texts

AT = 1785160991.0


def run(canary: str, latencies: tuple[float, ...] = (), outcome: Any = "ok", **more: Any) -> Run:
    return Run(1, canary, AT, AT, outcome, latencies, **more)


def canary(
    name: str, state: str, *latency: float, cold: tuple[float, float, float] | None = None
) -> list[Family]:
    """Median and IQR; load, first run and warm-up."""
    families = [canary_metrics.STATE.family({(name, each): each == state for each in CANARY_STATES})]
    gauges = canary_metrics.MEDIAN, canary_metrics.IQR
    families += [metric.family({(name,): value}) for metric, value in zip(gauges, latency, strict=False)]
    steps = zip(("load", "first_run", "warm_up"), cold or (), strict=False)
    return [*families, canary_metrics.COLD_START.family({(name, step): seconds for step, seconds in steps})]


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
        SCHEMA_VERSION,
        "boot",
        AT,
        "boot.1",
        0,
        tuple(merged.values()),
        dict(environment),
        tuple(runs),
        outputs={"frozen clock": (), "resnet18": (1.0,)},
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
        canary_metrics.BOTTLENECK.family(
            {
                ("resnet18", limit): x
                for limit, x in {"compute": 0.93, "io": 0.002, "scheduling": 0.068}.items()
            }
        ),
        measured("cpu", cpu_spin=0.0003124, memory_copy=0.001231, thread_wake=161e-6),
        GRANTED.family(2),
        canary_metrics.CUDA_MISSING.family({("resnet18", "no_device"): 0}),
    ],
    [
        run(
            "resnet18",
            (0.02091, *(0.0214,) * 11),
            phases={"compute": 0.0214},
            measures={
                "throughput": 46.7289,
                "host_memory": 412e6,
                "device_memory": 3.5e9,
                "device_use": 0.934,
                "newer": 1.0,
            },
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
        *canary("frozen clock", "steady", 0.0, 0.0),
        measured("cpu", memory_copy=0.001),
        GRANTED.family(1.5),
        canary_metrics.CUDA_MISSING.family({("wheel", "cpu_only_build"): 1, ("closed", "no_device"): 1}),
    ],
    [
        run("raises", (0.5,), boot_id="an earlier one's"),
        run("raises", outcome="raised", detail="ValueError: \x1b[31mred\x1b[0m " + "and long " * 12, tags=("failing",)),
        run("nan", (0.0012,), outcome="not_finite", detail="the output holds NaN or infinity", phases={
            "a phase whose name is longer than a column": 0.0002, "com\x07pute": 0.0013}),
        run("wheel", (11.25, *(12.5,) * 4), tags=("warming", "cgroup_throttled", "of_a_later_version")),
        run("frozen clock", (0.0,), phases={"compute": 0.0}),
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
        GPU_INFO.family({("0", "NVIDIA H100 80GB HBM3", "GPU-1", "00:1", "550.54.15", "12.4", "96.0"): 1}),
        GRANTED.family(16),
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


def shown(made: Report) -> str:
    return render_texts(report_documents(made), width=200)


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        (
            HEALTHY,
            """
            InferCanary: one run, 2026-07-27 14:03:11 UTC
            canary resnet18: steady
            latency median 21.4 ms, min 20.91 ms, IQR 420 µs, 12 repeats
            phases compute 21.4 ms
            cold start load 1.824 s, first run 143.2 ms, warm up 402.1 ms
            bottleneck compute 93 %, io 0.2 %, scheduling 6.8 %
            throughput 46.7 samples/s
            host memory 412 MB
            use of the device 93.4 %
            controls
            memory_copy cpu 1.231 ms
            torch 2.13.0+cpu
            CUDA none (CPU-only build)
            mode eager
            intra-op threads 2
            granted CPUs 2
            warnings: none
            """,
        ),
        (
            ALL_WRONG,
            """
            raised ValueError: ?[31mred?[0m and long
            tag failing: it failed
            not finite the output holds NaN
            com?pute 1.3 ms
            output not checked: no numbers were read from it
            no run it was not open in time
            tag cgroup_throttled: the CPU quota held it back; raise the quota
            tag of_a_later_version: unknown
            wheel it was to run on CUDA, but its engine is a CPU-only build; install one with CUDA
            (of torch, or onnxruntime-gpu). It ran on the CPU instead (cpu_fallback)\\n
            closed it was to run on CUDA, but its engine sees no device
            """,
        ),
        (
            CUDA,
            """
            phases h2d 12 µs, compute 310 µs, d2h 8 µs, launch 345 µs, queue 61 µs
            tag gpu_clock_limited (sw_thermal): the GPU's clock was held down
            gpu_fma cuda 210 µs
            cuDNN 91002
            GPU 0 NVIDIA H100 80GB HBM3
            """,
        ),
    ],
    ids=["healthy", "all wrong", "cuda"],
)
def test_what_a_report_shows(made: Report, lines: str) -> None:
    text = "\n".join(" ".join(line.split()) for line in shown(made).split("\n"))
    assert [line for line in lines.strip().split("\n") if line.strip().replace("\\n", "\n") not in text] == []


def test_every_tag_and_every_state_has_its_words() -> None:
    text = shown(report(canary("c", "failing", 1.0), [run("c", (1.0,), tags=tuple(TAGS))]))
    assert "unknown to this version" not in text
    assert text.count("  tag ") == len(TAGS)
    for reason in canary_metrics.CUDA_MISSING_REASONS:
        text = shown(report([canary_metrics.CUDA_MISSING.family({("c", reason): 1})], []))
        assert re.search(r"c +it was to run on CUDA, but its engine [^;]+; ", text)


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    assert "granted CPUs  unknown" in shown(report([], []))
    assert re.search(
        r"canary c: steady\n\n  no run +it was not run\n", shown(report(canary("c", "steady"), []))
    )


def test_numbers_of_targets_and_operators() -> None:
    families = canary("product", "steady", 0.0127, 0.0001)
    families += [
        matmul.FLOPS.family(
            {("product", "float32"): 168.9e9, ("product", "bfloat16"): 31e9, ("other", "x"): 1}
        ),
        matmul.UNUSED.family({("product",): 1.0}),
        SERVER.family({("product", "compute_infer"): 5e-6}),
        FIRST_TOKEN.family({("product", "salted"): 0.04, ("product", "plain"): 0.003}),
        BETWEEN_TOKENS.family({("product",): 0.002}),
    ]
    made = run("product", (0.0127,), profile=PROFILE, measures={"throughput@8x1": 900.0, "output": 12.0})
    text = shown(report(families, [made]))
    for line in (
        r"product +float32 169 GFLOP/s, bfloat16 31 GFLOP/s\n",
        r"server +compute infer 5 µs",
        r"first token +salted 40 ms, plain 3 ms",
        r"between tokens +2 ms",
        r"operators +aten::conv2d 60 %, aten::relu 20 %, outside operators 10 %\n",
        r"throughput at batch 8 +900 samples/s",
        r"output +12 tokens",
        r"product +.*Tensor Cores are not in use; install a torch built for this GPU",
    ):
        assert re.search(line, text), line


PROFILE = Profile(
    AT, "torch", NO_CUPTI, (0.01, 0.01, 0.011), (0.001,) * 3, (0.001,) * 3,
    (
        ProfileRow("aten::conv2d", "aten::mkldnn_convolution", "cpu", "1x3x7x7 float", 3, (0.006,) * 3),
        ProfileRow("aten::relu", "aten::relu", "cpu", "", 1, (0.002,) * 3),
    ),
)  # fmt: skip


def test_a_profile_is_a_table() -> None:
    documents = [profile_document("c", PROFILE), profile_document("d", "its target has no profiler")]
    lines = [line.split() for line in render_texts(documents, width=120).splitlines()]
    assert "3 repeats profiled by torch" in " ".join(lines[0]) and "median 10 ms" in " ".join(lines[0])
    assert [
        "aten::conv2d",
        *["aten::mkldnn_convolution", "cpu", "3", "6", "ms", "60", "%", "1x3x7x7", "float"],
    ] in lines
    assert ["aten::relu", "cpu", "1", "2", "ms", "20", "%"] in lines
    assert ["other", "operators", "1", "ms", "10", "%"] in lines
    assert ["outside", "operators", "1", "ms", "10", "%"] in lines
    assert any("CUPTI" in line and line[0] == "note" for line in lines)
    assert lines[-1] == ["canary", "d:", "no", "profile:", "its", "target", "has", "no", "profiler"]


def test_runs_of_an_earlier_probe_are_not_this_one() -> None:
    assert last_runs(ALL_WRONG)["raises"].outcome == "raised"
    assert last_runs(report([], [run("c", (1.0,), boot_id="earlier")])) == {}
