"""The ONNX Runtime target, with a real ONNX Runtime and tiny models."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe import HostClock
from infercanary.probe.targets.onnx import OnnxTarget

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
np = pytest.importorskip("numpy")

from onnx import TensorProto as Type  # noqa: E402 - after the skips
from onnx import helper  # noqa: E402

OPSET, IR = 17, 8  # that every ONNX Runtime from 1.17 on has
ONE = [{"shape": [2, 4]}]


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *, opset: int = OPSET, ir: int = IR
) -> str:
    """A model of that file."""
    given, made = ([helper.make_tensor_value_info(*each) for each in side] for side in (inputs, outputs))
    weights = helper.make_tensor("w", Type.FLOAT, [4, 3], np.arange(12.0))
    graph = helper.make_graph(nodes, "tiny", given, made, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="the test")
    model.ir_version = ir
    path.write_bytes(model.SerializeToString())
    return str(path)


def linear(path: Path, **more: Any) -> str:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return save(path, [node], [("x", Type.FLOAT, ["N", 4])], [("y", Type.FLOAT, ["N", 3])], **more)


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    linear(tmp_path / "model.onnx")
    return "model.onnx"


def opened(*arguments: Any, **options: Any) -> Any:
    target = OnnxTarget(*arguments, **options)
    target.open()
    return target


def measured(target: Any) -> tuple[Any, list[float]]:
    timing, result = target.clock.measure(target.run)
    return timing, target.values(result)


def test_a_model_computes_what_numpy_does(model: str) -> None:
    target = opened(model, ONE, seed=3)
    timing, values = measured(target)
    assert isinstance(target.clock, HostClock) and target.device == "cpu"
    assert 0 < timing.phases["compute"] <= timing.wall
    assert set(timing.phases) == {"compute"}, "on a CPU there is no copy to time, and none is invented"
    expected = target._arrays["x"] @ np.arange(12.0).reshape(4, 3)
    assert values == pytest.approx(expected.ravel().tolist(), rel=1e-5)
    assert measured(target)[1] == values
    assert measured(opened(model, {"x": ONE[0]}, seed=3))[1] == values
    assert measured(opened(model, ONE, seed=4))[1] != values
    target.close()


def test_several_inputs_of_several_dtypes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=Type.FLOAT),
        helper.make_node("Where", ["m", "f", "x"], ["y"]),
    ]
    inputs = [("i", Type.INT64, [64]), ("m", Type.BOOL, [64]), ("x", Type.FLOAT, [64])]
    path = save(tmp_path / "where.onnx", nodes, inputs, [("y", Type.FLOAT, [64])])
    target = opened(path, {"i": {"high": 1000}})
    arrays = target._arrays
    assert measured(target)[1] == np.where(arrays["m"], arrays["i"], arrays["x"]).tolist()
    assert arrays["i"].max() > 500 and not arrays["m"].all()


@pytest.mark.parametrize("model_format", ["onnx", "ort"])
@pytest.mark.parametrize(
    ("declared", "given", "shape"),
    [(None, [2, 4], (2, 4)), (None, [], ()), ([], None, ()), ([], [], ()), (["N"], [3], (3,))],
)
def test_a_shape_is_given_where_the_model_declares_none(
    tmp_path: Path,
    declared: list[Any] | None,
    given: list[int] | None,
    shape: tuple[int, ...],
    model_format: str,
) -> None:
    sides = [(name, Type.FLOAT, declared) for name in "xy"]
    path = save(tmp_path / "rank.onnx", [helper.make_node("Relu", ["x"], ["y"])], sides[:1], sides[1:])
    if model_format == "ort":
        options = ort.SessionOptions()
        options.optimized_model_filepath = path = str(tmp_path / "rank.ort")
        options.add_session_config_entry("session.save_model_format", "ORT")
        ort.InferenceSession(str(tmp_path / "rank.onnx"), options, providers=["CPUExecutionProvider"])
    target = opened(path, inputs=[] if given is None else [{"shape": given}])
    assert target._arrays["x"].shape == shape
    assert len(measured(target)[1]) == math.prod(shape)


def test_outputs_that_are_not_plain_numbers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=Type.BFLOAT16),
        helper.make_node("Cast", ["x"], ["s"], to=Type.STRING),
        helper.make_node("SequenceConstruct", ["x"], ["q"]),
    ]
    path = tmp_path / "many.onnx"
    save(
        path, nodes, [("x", Type.FLOAT, [4])], [("b", Type.BFLOAT16, [4]), ("s", Type.STRING, [4])]
    )  # fmt: skip
    made = onnx.load(path)
    made.graph.output.append(helper.make_tensor_sequence_value_info("q", Type.FLOAT, [4]))
    path.write_bytes(made.SerializeToString())
    target = opened(str(path))
    values = measured(target)[1]
    assert values == pytest.approx(target._arrays["x"].tolist(), rel=2**-8), (
        "the bfloat16 one's, and no other"
    )
    assert values != target._arrays["x"].tolist()


def test_an_output_that_is_not_finite_is_seen(tmp_path: Path) -> None:
    path = save(
        tmp_path / "log.onnx", [helper.make_node("Log", ["x"], ["y"])], [("x", Type.FLOAT, [64])],
        [("y", Type.FLOAT, [64])],
    )  # fmt: skip
    assert not all(map(math.isfinite, measured(opened(path))[1]))


def test_environment(model: str) -> None:
    options = {
        "intra_op_threads": 3, "inter_op_threads": 2, "execution_mode": "parallel", "graph_optimization": "basic",
        "session_config": {"session.intra_op.allow_spinning": False},
    }  # fmt: skip
    found = opened(model, ONE, **options).environment()
    assert found["onnxruntime"] == ort.__version__
    assert found["onnx_provider"] == "CPUExecutionProvider" and found["onnx_device"] == "cpu"
    assert found["onnx_available_providers"].split(", ") == ort.get_available_providers()
    assert found["onnx_build_cuda"] == "none (CPU-only build)"
    assert "Release" in found["onnx_build"]
    assert (found["onnx_intra_op_threads"], found["onnx_inter_op_threads"]) == ("3", "2")
    assert (found["onnx_execution_mode"], found["onnx_graph_optimization"]) == ("parallel", "basic")
    assert found["onnx_session_config"] == "session.intra_op.allow_spinning=0"
    assert found["onnx_producer"] == "the test"
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):  # from 1.24 on
        assert found["onnx_nodes"] == "CPUExecutionProvider 1"
    assert found["onnx_model"] == "model.onnx"
    assert all(value.isprintable() and 0 < len(value) <= 200 for value in found.values())
    usual = opened(model, ONE).environment()
    assert usual["onnx_inter_op_threads"] == "1", "none of them is used in sequence"
    linear(Path("other.onnx"), ir=7)
    identities = [opened(path, ONE).identity() for path in (model, model, "other.onnx")]
    assert identities[0] == identities[1] != identities[2]


def test_the_options_reach_the_session(model: str) -> None:
    target = opened(
        model,
        ONE,
        intra_op_threads=3,
        execution_mode="parallel",
        inter_op_threads=2,
        graph_optimization="disabled",
    )
    options = target.session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_the_threads_that_are_reported_are_those_that_there_are(model: str) -> None:
    """The default is counted from the host's cores; here are the threads that ONNX Runtime really starts."""
    script = """
import os
from infercanary.probe.targets.onnx import OnnxTarget
kept = [OnnxTarget("model.onnx", [{"shape": [2, 4]}], intra_op_threads=n) for n in (1, 0, 5)]
for target in kept:
    before = len(os.listdir("/proc/self/task"))
    target.open()
    print(len(os.listdir("/proc/self/task")) - before, target.environment().get("onnx_intra_op_threads", 0))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    (_, one), *others = ([int(word) for word in line.split()] for line in done.stdout.splitlines())
    assert one == 1, "it computes with the thread that calls; the first session may start others for itself"
    for started, reported in others:
        assert started == reported - 1
    assert others[1][1] == 5


def test_close_lets_go_of_the_session(model: str) -> None:
    target = opened(model, ONE)
    session = weakref.ref(target.session)
    _, values = measured(target)
    target.close()
    gc.collect()
    assert session() is None
    target.open()  # and it can be opened again
    assert measured(target)[1] == values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 5}, "model: name an .onnx file"),
        ({"model": ""}, "model: name an .onnx file"),
        ({"inputs": "x"}, "inputs: a list is needed"),
        (
            {"providers": []},
            r"providers: a list is needed, such as \[cuda\]; short names: cpu, cuda, tensorrt",
        ),
        ({"providers": 3}, "providers: a list is needed"),
        (
            {"providers": ["gpu"]},
            "providers: no provider `gpu`; there are cpu, cuda, tensorrt, or ONNX Runtime's name",
        ),
        ({"providers": [None]}, "providers: no provider `None`"),
        ({"providers": ["cuda", "CUDAExecutionProvider"]}, "has one twice; keep one"),
        (
            {"provider_options": {"cuda": {}}},
            "provider_options: `cuda` is not among the providers; name it there too",
        ),
        ({"provider_options": {"x": {}}}, "provider_options: no provider `x`"),
        ({"provider_options": {"cpu": 3}}, "provider_options.cpu: expected a mapping"),
        (
            {"provider_options": {"cpu": {"a": [1]}}},
            "provider_options.cpu: a: expected",
        ),
        (
            {"providers": ["cuda"], "provider_options": {"cuda": {"device_id": "all"}}},
            "provider_options: device_id: `all` is not the number of a GPU",
        ),
        (
            {
                "providers": ["tensorrt", "cuda"],
                "provider_options": {"cuda": {"device_id": 1}, "tensorrt": {"device_id": 0}},
            },
            "provider_options: `device_id` differs between the providers; give one GPU",
        ),
        (
            {"intra_op_threads": "2"},
            "intra_op_threads: `2` is not a whole number from 0 to 4096",
        ),
        ({"intra_op_threads": True}, "intra_op_threads: `True` is not a whole number"),
        ({"inter_op_threads": -1}, "inter_op_threads: `-1` is not a whole number"),
        ({"execution_mode": "fast"}, "execution_mode: `fast` is none of sequential, parallel"),
        ({"graph_optimization": ["all"]}, "is none of all, extended, basic, disabled"),
        ({"session_config": [1]}, "session_config: expected a mapping"),
        ({"seed": 1.5}, "seed: `1.5` is not a whole number from 0 on"),
    ],
)
def test_a_wrong_argument_is_refused_immediately(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        OnnxTarget(**({"model": "model.onnx", "inputs": ONE} | options))
    assert "\n" not in str(caught.value)


def test_where_it_was_asked_to_run() -> None:
    assert OnnxTarget("m.onnx").device == "cpu"
    assert OnnxTarget("m.onnx", providers=["OpenVINOExecutionProvider"]).device == "cpu"
    options = {"tensorrt": {"device_id": 1, "trt_fp16_enable": True}}
    target = OnnxTarget("m.onnx", providers=["tensorrt", "cuda"], provider_options=options)
    assert target.device == "cuda:1", "the same GPU for both"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "missing.onnx"}, "model: no file `missing.onnx`; check the path"),
        (
            {"model": "opset.onnx"},
            f"is newer than ONNX Runtime {ort.__version__}: opset 99, and it reads ",
        ),
        ({"model": "ir.onnx"}, f"is newer than ONNX Runtime {ort.__version__}: IR version 99, and it reads "),
        (
            {"model": "junk.onnx"},
            "model: `junk.onnx` cannot be loaded by ONNX Runtime .*Protobuf parsing failed",
        ),
        ({"model": "empty.onnx"}, "model: `empty.onnx` cannot be loaded by ONNX Runtime"),
        ({"model": "unknown.onnx"}, "model: `unknown.onnx` cannot be loaded by ONNX Runtime .*NoSuchOp"),
        (
            {"model": "text.onnx"},
            r"inputs: the model's input `x` is a tensor\(string\), which cannot be drawn",
        ),
        (
            {"inputs": []},
            r"inputs\[0\].shape: the model's input `x` is \[N, 4\]; say which shape, such as \[1, 4\]",
        ),
        ({"inputs": [{"shape": [1, 5]}]}, r"inputs\[0\].shape: \[1, 5\] does not fit"),
        (
            {"inputs": [{"shape": [1, 4], "dtype": "float16"}]},
            "the model's input `x` is float32, not float16",
        ),
        ({"inputs": {"z": {"shape": [1, 4]}}}, "inputs: the model has no input `z`; its inputs: x"),
        (
            {"session_config": {"session.intra_op_thread_affinities": "junk"}, "intra_op_threads": 2},
            "model: `model.onnx` cannot be loaded .*Processor id must consist of only digits: junk.*the options of the",
        ),
    ],
)
def test_a_mistake_that_shows_when_opened(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    linear(tmp_path / "opset.onnx", opset=99)
    linear(tmp_path / "ir.onnx", ir=99)
    (tmp_path / "junk.onnx").write_bytes(b"not a model" * 40)
    (tmp_path / "empty.onnx").touch()
    one = [("x", Type.FLOAT, [1])], [("y", Type.FLOAT, [1])]
    save(tmp_path / "unknown.onnx", [helper.make_node("NoSuchOp", ["x"], ["y"])], *one)
    text = [("x", Type.STRING, [1])], [("y", Type.STRING, [1])]
    save(tmp_path / "text.onnx", [helper.make_node("Identity", ["x"], ["y"])], *text)
    target = OnnxTarget(**({"model": "model.onnx", "inputs": ONE} | options))
    with pytest.raises(UsageError, match=message) as caught:
        target.open()
    assert "\n" not in str(caught.value)
    assert "/onnxruntime_src/" not in str(caught.value)
    assert len(str(caught.value)) < 400


needs_cpu_build = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime is built with CUDA"
)


@needs_cpu_build
@pytest.mark.parametrize(("provider", "full"), [("cuda", "CUDA"), ("tensorrt", "Tensorrt")])
def test_a_build_for_the_cpu_only(model: str, provider: str, full: str) -> None:
    target = OnnxTarget(model, ONE, providers=[provider])
    with pytest.raises(UsageError) as caught:
        target.open()
    assert target.cuda_missing == "cpu_only_build"
    assert str(caught.value) == (
        f"providers: `{provider}` was asked for, but onnxruntime {ort.__version__} is a build without "
        f"{full}ExecutionProvider (it has {', '.join(ort.get_available_providers())}); install onnxruntime-gpu in its "
        "place, or set `providers: [cpu]`"
    )


@needs_cpu_build
def test_by_leave_it_runs_on_the_cpu_and_says_so(model: str) -> None:
    target = opened(model, ONE, providers=["cuda"], cpu_fallback=True)
    timing, values = measured(target)
    assert set(timing.phases) == {"compute"}
    assert values == measured(opened(model, ONE))[1]
    assert target.cuda_missing == "cpu_only_build"
    assert target.environment()["onnx_provider"] == "CPUExecutionProvider"
    assert target.environment()["onnx_device"] == "cpu"


@needs_cpu_build
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_onnx_runtime_silently_leaves_out(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does where libraries of a provider are missing: the session is there, and runs on the CPU."""
    monkeypatch.setattr(
        ort, "get_available_providers", lambda: ["QNNExecutionProvider", "CPUExecutionProvider"]
    )
    target = OnnxTarget(model, ONE, providers=["QNNExecutionProvider"])
    with pytest.raises(
        UsageError, match="ONNX Runtime cannot start QNNExecutionProvider: the log above says why"
    ):
        target.open()
    assert target.cuda_missing == ""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc here")
def test_opening_it_many_times_leaves_nothing_open(model: str) -> None:
    target = OnnxTarget(model, ONE)
    counts = []
    for _ in range(4):
        target.open()
        measured(target)
        target.close()
        counts.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    # Less where a thread of a test before ended meanwhile.
    assert all(last <= second for second, last in zip(counts[1], counts[-1], strict=True)), counts


# Sweeps ------------------------------------------------------------------------------------------------------------


def test_another_size_has_the_same_session_and_the_same_samples_again(model: str) -> None:
    target = opened(model, ONE, seed=3)
    assert target.samples == 2
    own = measured(target)[1]
    for batch in (1, 2, 5):
        other = target.copy_with_batch(batch)
        assert other.samples == batch
        assert measured(other)[1] == pytest.approx((own * 3)[: 3 * batch])
        assert other.session is target.session
        other.close()
    assert measured(target)[1] == own, "the target itself is as it was"


def test_a_size_that_the_model_fixes_raises(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    fixed = save(tmp_path / "fixed.onnx", [node], [("x", Type.FLOAT, [2, 4])], [("y", Type.FLOAT, [2, 3])])
    target = opened(fixed)
    other = target.copy_with_batch(4)
    with pytest.raises(Exception, match="dimensions"):
        measured(other)
    other.close()
    assert len(measured(target)[1]) == 6
