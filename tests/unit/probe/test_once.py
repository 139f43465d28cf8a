"""Output of ``infercanary probe --once`` and ``--profile`` for prepared reports and profiles."""

import re

import msgspec
import pytest
import yaml

from infercanary.contract.profile import NO_CUPTI, Profile, ProfileRow
from infercanary.contract.report import SCHEMA_VERSION, Metric, Report, Run, decode, encode
from infercanary.contract.vocabulary import TAGS
from infercanary.probe import canary_metrics
from infercanary.probe.once import profile_document, report_documents
from infercanary.render.text import render_texts

AT = 1785160991.0


def report(text):
    """Parse a report: metrics without prefix, labels joined by ``/`` before a value. A run has its first
    latency, the other latencies, and their number. The function encodes and decodes the report, as on its way
    to the command.
    """
    known = yaml.safe_load(text)
    families = [
        Metric(f"infercanary_{name}", "gauge", "", ("",) * 9).family(
            {tuple(filter(None, labels.split("/"))): value for labels, value in points.items()}
        )
        for name, points in known.get("metrics", {}).items()
    ]
    runs = []
    for fields in known.get("runs", []):
        first, others, count = fields.pop("latencies", (0.0, 0.0, 0))
        latencies = (first, *(others,) * (count - 1))[:count]
        runs.append(Run(1, fields.pop("canary"), AT, AT, fields.pop("outcome", "ok"), latencies, **fields))
    outputs = {"frozen clock": (), "resnet18": (1.0,)}
    environment = {name: str(value) for name, value in known.get("environment", {}).items()}
    made = Report(
        SCHEMA_VERSION, "boot", AT, "boot.1", 0, tuple(families), environment, tuple(runs), outputs=outputs
    )
    return decode(encode(made))


HEALTHY = """
metrics:
  canary_state: {resnet18/steady: 1, resnet18/failing: 0}
  run_median_seconds: {resnet18: 0.02143}
  run_iqr_seconds: {resnet18: 0.00042}
  cold_start_seconds: {resnet18/load: 1.824, resnet18/first_run: 0.1432, resnet18/warm_up: 0.4021}
  bottleneck_ratio: {resnet18/compute: 0.93, resnet18/io: 0.002, resnet18/scheduling: 0.068}
  control_seconds: {cpu/cpu_spin: 0.0003124, cpu/memory_copy: 0.001231, cpu/thread_wake: 0.000161}
  process_granted_cpus: {"": 2}
  cuda_missing: {resnet18/no_device: 0}
runs:
- canary: resnet18
  latencies: [0.02091, 0.0214, 12]
  phases: {compute: 0.0214}
  measures: {throughput: 46.7289, host_memory: 412.0e+6, device_memory: 3.5e+9, device_use: 0.934, newer: 1.0}
environment: {architecture: x86_64, cpu_model: Intel(R) Xeon(R) Processor, infercanary: 0.1.0, kernel: 6.1.0-37-amd64,
  os: Debian GNU/Linux 12 (bookworm), python: 3.11.7, torch: 2.13.0+cpu, torch_cuda: none (CPU-only build),
  torch_device: cpu, torch_intra_op_threads: 2, torch_mode: eager}
"""

ALL_WRONG = """
metrics:
  canary_state: {raises/failing: 1, nan/failing: 1, never-open/failing: 1, wheel/warming: 1, closed/failing: 1,
    frozen clock/steady: 1}
  run_median_seconds: {nan: 0.0012, wheel: 12.5, frozen clock: 0.0}
  run_iqr_seconds: {wheel: 2.5, frozen clock: 0.0}
  cold_start_seconds: {raises/load: 0.0002, nan/first_run: 0.001, wheel/load: 61.2, wheel/first_run: 15}
  control_seconds: {cpu/memory_copy: 0.001}
  process_granted_cpus: {"": 1.5}
  cuda_missing: {wheel/cpu_only_build: 1, closed/no_device: 1}
runs:
- {canary: raises, latencies: [0.5, 0.5, 1], boot_id: an earlier one's}
- {canary: raises, outcome: raised, tags: [failing],
  detail: "ValueError: \\e[31mred\\e[0m and long and long and long and long and long and long"}
- {canary: nan, latencies: [0.0012, 0.0, 1], outcome: not_finite, detail: the output contains NaN or infinity,
  phases: {a phase whose name is longer than a column: 0.0002, "com\\apute": 0.0013}}
- {canary: wheel, latencies: [11.25, 12.5, 5], tags: [warming, cgroup_throttled, of_a_later_version]}
- {canary: frozen clock, latencies: [0.0, 0.0, 1], phases: {compute: 0.0}}
- {canary: closed, outcome: raised, detail: "cannot be opened: device: `cuda` was asked for"}
environment: {env_LD_PRELOAD: /very/long//very/long//very/long//very/long//very/long/, torch_intra_op_threads: 64}
"""

CUDA = """
metrics:
  canary_state: {bert/steady: 1}
  control_seconds: {cpu/cpu_spin: 0.0003124, cuda/gpu_fma: 0.00021, cuda/gpu_launch: 0.0000022}
  gpu_info: {"0/NVIDIA H100 80GB HBM3/GPU-1/00:1/550.54.15/12.4/96.0": 1}
  process_granted_cpus: {"": 16}
runs:
- {canary: bert, latencies: [0.000421, 0.00043, 50], tags: [gpu_clock_limited], clock_reason: sw_thermal,
  phases: {h2d: 0.000012, compute: 0.00031, d2h: 0.000008, launch: 0.000345, queue: 0.000061}}
environment: {torch: 2.9.1+cu128, torch_cudnn: 91002, torch_device: cuda}
"""


PRODUCT = """
metrics:
  canary_state: {product/steady: 1}
  matmul_flops_per_second: {product/float32: 168.9e+9, product/bfloat16: 31.0e+9, other/x: 1}
  matmul_tensorcores_unused: {product: 1.0}
  server_seconds: {product/compute_infer: 0.000005}
  first_token_seconds: {product/salted: 0.04, product/plain: 0.003}
  between_tokens_seconds: {product: 0.002}
runs:
- {canary: product, latencies: [0.0127, 0.0, 1], measures: {throughput@8x1: 900.0, output: 12.0}}
"""


def shown(text):
    return render_texts(report_documents(report(text)), width=200)


def test_every_tag_every_state_and_what_is_unknown_has_its_words():
    text = shown(
        f"{{metrics: {{canary_state: {{c/failing: 1}}}}, runs: [{{canary: c, tags: [{', '.join(TAGS)}]}}]}}"
    )
    assert "unknown to this version" not in text
    assert text.count("  tag ") == len(TAGS)
    assert "granted CPUs  unknown" in text
    text = shown("metrics: {canary_state: {c/steady: 1}}\nruns: [{canary: c, boot_id: earlier}]")
    assert re.search(r"canary c: steady\n\n  no run +the canary was not open in time", text)
    for reason in canary_metrics.CUDA_MISSING_REASONS:
        text = shown(f"metrics: {{cuda_missing: {{c/{reason}: 1}}}}")
        assert re.search(r"c +the canary should run on CUDA, but the engine [^;]+; ", text)


def test_a_profile_is_a_table_and_its_operators_are_in_the_report():
    made = report("metrics: {canary_state: {c/steady: 1}}\nruns: [{canary: c}]")
    made = msgspec.structs.replace(made, runs=(msgspec.structs.replace(made.runs[0], profile=PROFILE),))
    text = render_texts(report_documents(made), width=200)
    assert re.search(r"operators +aten::conv2d 60 %, aten::relu 20 %, outside operators 10 %\n", text)
    documents = [profile_document("c", PROFILE), profile_document("d", "this target has no profiler")]
    lines = [" ".join(line.split()) for line in render_texts(documents, width=120).splitlines()]
    assert "3 repeats profiled by torch" in lines[0]
    assert "median 10 ms" in lines[0]
    for line in (
        "aten::conv2d aten::mkldnn_convolution cpu 3 6 ms 60 % 1x3x7x7 float", "aten::relu cpu 1 2 ms 20 %",
        "other operators 1 ms 10 %", "outside operators 1 ms 10 %",
        "canary d: no profile: this target has no profiler",
    ):  # fmt: skip
        assert line in lines
    assert any("CUPTI" in line and line.startswith("note") for line in lines)


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
            tag failing: the run failed
            not finite the output contains NaN
            com?pute 1.3 ms
            output not checked: the target reads no numbers from
            no run the canary was not open in time
            tag cgroup_throttled: the CPU quota throttled the run; raise the quota
            tag of_a_later_version: unknown
            wheel the canary should run on CUDA, but the engine is a CPU-only build; install torch with
            CUDA, or onnxruntime-gpu. The canary ran on the CPU instead (cpu_fallback)\\n
            closed the canary should run on CUDA, but the engine sees no device
            """,
        ),
        (
            CUDA,
            """
            phases h2d 12 µs, compute 310 µs, d2h 8 µs, launch 345 µs, queue 61 µs
            tag gpu_clock_limited (sw_thermal): the driver limited the GPU's clock
            gpu_fma cuda 210 µs
            cuDNN 91002
            GPU 0 NVIDIA H100 80GB HBM3
            """,
        ),
        (
            PRODUCT,
            """
            product float32 169 GFLOP/s, bfloat16 31 GFLOP/s\\n
            server compute infer 5 µs
            first token salted 40 ms, plain 3 ms
            between tokens 2 ms
            throughput at batch 8 900 samples/s
            output 12 tokens
            Tensor Cores are not in use; install a torch built for this GPU
            """,
        ),
    ],
    ids=["healthy", "all wrong", "cuda", "product"],
)
def test_the_text_of_a_report(made, lines):
    text = "\n".join(" ".join(line.split()) for line in shown(made).split("\n"))
    assert [line for line in lines.strip().split("\n") if line.strip().replace("\\n", "\n") not in text] == []


PROFILE = Profile(
    AT, "torch", NO_CUPTI, (0.01, 0.01, 0.011), (0.001,) * 3, (0.001,) * 3,
    (
        ProfileRow("aten::conv2d", "aten::mkldnn_convolution", "cpu", "1x3x7x7 float", 3, (0.006,) * 3),
        ProfileRow("aten::relu", "aten::relu", "cpu", "", 1, (0.002,) * 3),
    ),
)  # fmt: skip
