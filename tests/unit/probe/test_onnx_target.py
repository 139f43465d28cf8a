"""The ONNX Runtime target, with a real ONNX Runtime and tiny models."""

import gc
import json
import math
import os
import weakref
from pathlib import Path

import pytest
from fresh import printed

from infercanary.command.settings import UsageError
from infercanary.probe.targets.engines import onnx_profile
from infercanary.probe.targets.onnx import OnnxTarget

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
np = pytest.importorskip("numpy")

from onnx import TensorProto as Type  # noqa: E402 - after the skips
from onnx import helper  # noqa: E402

from tests.onnx_models import linear, save  # noqa: E402
from tests.scenarios import mistakes, refused  # noqa: E402

ONE = [{"shape": [2, 4]}]


@pytest.fixture(autouse=True)
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return linear()


def opened(model="model.onnx", inputs=ONE, **options):
    target = OnnxTarget(model, inputs, **options)
    target.open()
    return target


def values_of(target):
    return target.values(target.clock.measure(target.run)[1])


def test_a_model_computes_what_numpy_does():
    target = opened(seed=3)
    timing, result = target.clock.measure(target.run)
    assert target.device == "cpu"
    assert timing.phases.keys() == {"compute"}
    assert 0 < timing.phases["compute"] <= timing.wall
    values = target.values(result)
    expected = target._arrays["x"] @ np.arange(12.0).reshape(4, 3)
    assert values == pytest.approx(expected.ravel().tolist(), rel=1e-5)
    assert values_of(target) == values_of(opened(inputs={"x": ONE[0]}, seed=3)) == values
    assert values_of(opened(seed=4)) != values
    path = save("log.onnx", "Log", (Type.FLOAT, [64]), (Type.FLOAT, [64]))
    assert not all(map(math.isfinite, values_of(opened(path, []))))


@pytest.mark.parametrize("model_format", ["onnx", "ort"])
@pytest.mark.parametrize(
    ("declared", "given", "shape"),
    [(None, [2, 4], (2, 4)), (None, [], ()), ([], None, ()), (["N"], [3], (3,))],
)
def test_a_shape_is_given_where_the_model_declares_none(declared, given, shape, model_format):
    path = save("rank.onnx", "Relu", (Type.FLOAT, declared), (Type.FLOAT, declared))
    if model_format == "ort":
        options = ort.SessionOptions()
        options.optimized_model_filepath = path = "rank.ort"
        options.add_session_config_entry("session.save_model_format", "ORT")
        ort.InferenceSession("rank.onnx", options, providers=["CPUExecutionProvider"])
    target = opened(path, [] if given is None else [{"shape": given}])
    assert target._arrays["x"].shape == shape
    assert len(values_of(target)) == math.prod(shape)


def test_inputs_and_outputs_of_other_kinds():
    """Texts and sequences have no numbers, so the target reads the bfloat16 tensor."""
    casts = [
        helper.make_node("Cast", ["x"], [y], to=to) for y, to in (("y", Type.BFLOAT16), ("s", Type.STRING))
    ]
    nodes = [*casts, helper.make_node("SequenceConstruct", ["x"], ["q"])]
    path = Path(save("many.onnx", "Identity", (Type.INT64, [64]), (Type.BFLOAT16, [64]), *nodes))
    made = onnx.load(path)
    del made.graph.node[0]
    made.graph.output.append(helper.make_tensor_value_info("s", Type.STRING, [64]))
    made.graph.output.append(helper.make_tensor_sequence_value_info("q", Type.INT64, [64]))
    path.write_bytes(made.SerializeToString())
    target = opened(str(path), {"x": {"high": 1000}})
    values, given = values_of(target), target._arrays["x"].tolist()
    assert values == pytest.approx(given, rel=2**-8)
    assert max(given) > 500
    assert values != given


def test_the_options_reach_the_session_and_are_components():
    target = opened(
        intra_op_threads=3, inter_op_threads=2, execution_mode="parallel", graph_optimization="basic",
        session_config={"session.intra_op.allow_spinning": False},
    )  # fmt: skip
    options = target.session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    found = target.environment()
    expected = f"""
        onnxruntime: {ort.__version__}
        onnx_provider: CPUExecutionProvider
        onnx_device: cpu
        onnx_model: model.onnx
        onnx_build_cuda: none (CPU-only build)
        onnx_execution_mode: parallel
        onnx_intra_op_threads: 3
        onnx_inter_op_threads: 2
        onnx_graph_optimization: basic
        onnx_session_config: session.intra_op.allow_spinning=0
    """
    assert {line.strip() for line in expected.strip().splitlines()} <= {
        ": ".join(pair) for pair in found.items()
    }
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):  # ONNX Runtime 1.24 and later
        assert found["onnx_nodes"] == "CPUExecutionProvider 1"
    assert all(value.isprintable() and 0 < len(value) <= 200 for value in found.values())
    assert opened().environment()["onnx_inter_op_threads"] == "1", (
        "sequential execution uses no inter-op threads"
    )
    linear("other.onnx", ir=7)
    one, same, other = (opened(path).identity() for path in ("model.onnx", "model.onnx", "other.onnx"))
    assert one == same != other


THREADS = """
import os
from infercanary.probe.targets.onnx import OnnxTarget
kept = [OnnxTarget("model.onnx", [{"shape": [2, 4]}], intra_op_threads=n) for n in (1, 0, 5)]
for target in kept:
    before = len(os.listdir("/proc/self/task"))
    target.open()
    print(len(os.listdir("/proc/self/task")) - before, target.environment().get("onnx_intra_op_threads", 0))
"""


def test_the_threads_that_are_reported_are_those_that_there_are():
    (_, one), *others = ([int(word) for word in line.split()] for line in printed(THREADS).splitlines())
    assert one == 1, "one thread means the calling thread; the first session may start its own threads"
    assert all(started == count - 1 for started, count in others)
    assert others[1][1] == 5


def test_close_lets_go_of_the_session_and_leaves_nothing_open():
    target = opened()
    session, values, counts = weakref.ref(target.session), values_of(target), []
    for _ in range(4):
        target.close()
        gc.collect()
        assert session() is None
        counts.append([len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")])
        target.open()
        session = weakref.ref(target.session)
        assert values_of(target) == values
    # Meanwhile, a thread of an earlier test may end, which lowers the number.
    assert all(last <= second for second, last in zip(counts[1], counts[-1], strict=True)), counts


def test_the_requested_device():
    assert OnnxTarget("m.onnx", providers=["OpenVINOExecutionProvider"]).device == "cpu"
    options = {"tensorrt": {"device_id": 1, "trt_fp16_enable": True}}
    target = OnnxTarget("m.onnx", providers=["tensorrt", "cuda"], provider_options=options)
    assert target.device == "cuda:1", "the same GPU for both"


MISTAKES = """
model: 5 | model: name an .onnx file
model: "" | model: name an .onnx file
inputs: x | inputs: expected a list or a mapping
providers: [] | providers: expected a list of length 1 or more
providers: 3 | providers: expected a list
providers: [gpu] | providers: no provider `gpu`
providers: [cuda, CUDAExecutionProvider] | names a provider twice
provider_options: {cuda: {}} | provider_options: `cuda` is not in `providers`
provider_options: {x: {}} | provider_options: no provider `x`
provider_options: {cpu: {a: [1]}} | provider_options.cpu: a: expected
{providers: cuda, provider_options: {cuda: {device_id: all}}} | `all` is not the number of a GPU
{providers: [tensorrt, cuda], provider_options: {cuda: {device_id: 1}, tensorrt: {device_id: 0}}} | `device_id` differs
intra_op_threads: "2" | intra_op_threads: expected a whole number, got text
inter_op_threads: -1 | inter_op_threads: expected a whole number >= 0
execution_mode: fast | execution_mode: `fast` is none of parallel, sequential
graph_optimization: [all] | graph_optimization: expected text, got a list
session_config: [1] | session_config: expected a mapping
seed: 1.5 | seed: expected a whole number, got a number
model: missing.onnx | model: no file `missing.onnx`
model: opset.onnx | is newer than ONNX Runtime VERSION: opset 99
model: ir.onnx | is newer than ONNX Runtime VERSION: IR version 99
model: junk.onnx | model: `junk.onnx` cannot be loaded | Protobuf parsing failed
model: empty.onnx | model: `empty.onnx` cannot be loaded
model: unknown.onnx | model: `unknown.onnx` cannot be loaded | NoSuchOp
model: text.onnx | inputs: the model's input `x` is a tensor(string)
inputs: [] | inputs[0].shape: the model's input `x` is [N, 4]
{session_config: {session.intra_op_thread_affinities: junk}, intra_op_threads: 2} | model: `model.onnx` cannot | : junk
"""


@pytest.mark.parametrize(("options", "words"), mistakes(MISTAKES.replace("VERSION", ort.__version__)))
def test_a_mistake_is_one_line(options, words):
    linear("opset.onnx", opset=99)
    linear("ir.onnx", ir=99)
    Path("junk.onnx").write_bytes(b"not a model" * 40)
    Path("empty.onnx").touch()
    save("unknown.onnx", "NoSuchOp", (Type.FLOAT, [1]), (Type.FLOAT, [1]))
    save("text.onnx", "Identity", (Type.STRING, [1]), (Type.STRING, [1]))
    with refused(words) as caught:
        opened(**options)
    text = str(caught.value)
    assert "/onnxruntime_src/" not in text
    assert len(text) < 400


needs_cpu_build = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime is built with CUDA"
)


@needs_cpu_build
@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_build_for_the_cpu_only_is_refused_or_by_leave_runs_on_the_cpu(provider):
    target = OnnxTarget("model.onnx", ONE, providers=[provider])
    with pytest.raises(UsageError, match=rf"^providers: `{provider}` .* install onnxruntime-gpu"):
        target.open()
    assert target.cuda_missing == "cpu_only_build"
    target = opened(providers=[provider], cpu_fallback=True)
    assert values_of(target) == values_of(opened())
    assert target.cuda_missing == "cpu_only_build"
    assert target.environment()["onnx_device"] == "cpu"


@needs_cpu_build
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_onnx_runtime_silently_leaves_out(monkeypatch):
    """If the libraries of a provider are missing, ONNX Runtime makes a CPU session without a warning."""
    providers = ["QNNExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    target = OnnxTarget("model.onnx", ONE, providers=providers[:1])
    with pytest.raises(UsageError, match="ONNX Runtime cannot start QNNExecutionProvider"):
        target.open()
    assert target.cuda_missing == ""


# Sweeps ------------------------------------------------------------------------------------------------------------


def test_another_size_has_the_same_session_and_the_same_samples_again():
    target = opened(seed=3)
    own = values_of(target)
    for batch in (1, 2, 5):
        other = target.copy_with_batch(batch)
        assert other.samples == batch
        assert target.samples == 2
        assert values_of(other) == pytest.approx((own * 3)[: 3 * batch])
        assert other.session is target.session
        other.close()
    assert values_of(target) == own, "the target itself is as it was"
    fixed = opened(linear("fixed.onnx", batch=2), [])
    with pytest.raises(Exception, match="dimensions"):
        values_of(fixed.copy_with_batch(4))
    assert len(values_of(fixed)) == 6


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "work"),
    [
        ("MatMul", [[8, 4], [4, 16]], [[8, 16]], (2.0 * 8 * 16 * 4, 640)),
        (
            "MatMul",
            [[2, 8, 4]],
            [[2, 8, 16]],
            (2.0 * 2 * 8 * 16 * 4, 640 + 640 * 16 / 16),
        ),  # constant weights
        ("Conv", [[2, 3, 9, 9], [8, 3, 3, 3]], [[2, 8, 7, 7]], (2.0 * 2 * 8 * 7 * 7 * 27, 640)),
        ("Conv", [[2, 3, 9, 9]], [[2, 8, 7, 7]], (0, 0)),
        ("MatMul", [[8, 4], [4, 16]], [], (0, 0)),  # ONNX Runtime without output shapes
        ("Relu", [[8, 4]], [], (0, 640)),
    ],
)
def test_work_of_an_operator(kind, inputs, outputs, work):
    arguments = {
        "op_name": kind, "provider": "CPUExecutionProvider", "activation_size": "640",
        "input_type_shape": [{"float": shape} for shape in inputs],
        "output_type_shape": [{"float": shape} for shape in outputs],
    }  # fmt: skip
    run = {"name": "model_run", "cat": "Session", "ts": 0, "dur": 100}
    node = {"name": "m_kernel_time", "cat": "Node", "ts": 10, "dur": 50, "args": arguments}
    [row] = onnx_profile.read_events(json.dumps([run, node]).encode(), [1e-4], 0, 1.0).rows
    assert (row.kind, row.seconds) == (kind, (5e-5,))
    assert (row.flops, row.bytes) == pytest.approx(work, rel=1e-3)
