"""ONNX Runtime and TensorRT on a real GPU."""

import statistics

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe.targets.onnx import OnnxTarget
from infercanary.probe.targets.tensorrt import TensorRtTarget
from tests.scenarios import cases

np = pytest.importorskip("numpy")


WIDTH = 4096


def product(path, width=WIDTH):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    weights = np.random.RandomState(1).standard_normal((width, width)).astype(np.float32) / width**0.5
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "product", sides[:1], sides[1:],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return str(path)


def opened_onnx(path, rows, provider="cuda", **options):
    ort = pytest.importorskip("onnxruntime")
    if provider == "cuda" and "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip(f"onnxruntime {ort.__version__} is built without CUDA: install onnxruntime-gpu")
    width = options.pop("width", WIDTH)
    target = OnnxTarget(path, [{"shape": [rows, width]}], providers=[provider], **options)
    target.open()
    return target


def engine(path, width=1024):
    """Write a TensorRT engine of a matrix multiplication for 1 to 4096 rows, optimized for 64 rows."""
    trt = pytest.importorskip("tensorrt")
    weights = np.random.RandomState(1).standard_normal((width, width)).astype(np.float32) / width**0.5
    builder = trt.Builder(trt.Logger(trt.Logger.WARNING))
    explicit = getattr(
        trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None
    )  # TensorRT 10 and later need no flag: batches are always explicit
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    x = network.add_input("x", trt.float32, (-1, width))
    matrix = network.add_constant((width, width), weights).get_output(0)
    none = trt.MatrixOperation.NONE
    y = network.add_matrix_multiply(x, none, matrix, none).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, width), (64, width), (4096, width))
    config.add_optimization_profile(profile)
    path.write_bytes(bytes(builder.build_serialized_network(network, config)))
    return str(path)


def repeats(target, number=40):
    """Return the timings of the later repeats, because the first repeats are cold."""
    return [target.clock.measure(target.run)[0] for _ in range(number)][number // 4 :]


def check(timings):
    for timing in timings:
        assert set(timing.phases) == {"h2d", "compute", "d2h", "launch", "queue"}
        assert all(seconds >= 0 for seconds in timing.phases.values())
        assert sum(timing.phases[name] for name in ("h2d", "compute", "d2h")) <= timing.wall
    for phase in ("h2d", "compute", "d2h"):
        assert statistics.median(t.phases[phase] for t in timings) > 1e-6


def test_onnx_on_cuda_has_phases_and_the_cpus_output(tmp_path):
    path = product(tmp_path / "product.onnx")
    on_gpu = opened_onnx(path, 256)
    check(repeats(on_gpu))
    assert on_gpu.environment()["onnx_provider"] == "CUDAExecutionProvider"
    values = on_gpu.values(None)
    on_gpu.close()
    on_cpu = opened_onnx(path, 256, "cpu")
    on_cpu.clock.measure(on_cpu.run)
    # TF32 has a mantissa of 10 bits.
    assert values == pytest.approx(on_cpu.values(None), abs=2e-2)
    on_cpu.close()


def test_onnx_compute_is_the_work_on_the_device(tmp_path):
    """Sixteen times as many rows take about sixteen times as long, so the events measure the stream of the work."""
    path = product(tmp_path / "product.onnx")
    seconds = {}
    for rows in (2048, 32768):
        target = opened_onnx(path, rows)
        timings = repeats(target)
        seconds[rows] = statistics.median(t.phases["compute"] for t in timings)
        launch = statistics.median(t.phases["launch"] for t in timings)
        assert launch < seconds[rows] or rows == 2048  # the run returns before the device has finished
        target.close()
    assert seconds[32768] / seconds[2048] == pytest.approx(16, rel=0.4)


def test_short_onnx_work_is_batched_to_100_us(tmp_path):
    target = opened_onnx(product(tmp_path / "small.onnx", 64), 1, width=64)
    repeats(target, 8)
    target.calibrate()
    batch = getattr(target.clock, "batch", 1)
    assert batch > 1
    assert statistics.median(t.phases["compute"] for t in repeats(target)) * batch > 50e-6
    target.close()


@cases([64, 512])
def test_a_tensorrt_engine_computes_what_numpy_does(rows, tmp_path):
    path = engine(tmp_path / "product.engine")
    target = TensorRtTarget(path, [{"shape": [rows, 1024]}] if rows != 64 else ())
    target.open()
    check(repeats(target))
    (x,), (y,) = target._inputs, target._outputs
    weights = np.random.RandomState(1).standard_normal((1024, 1024)).astype(np.float32) / 32
    assert y.numbers().shape == (rows, 1024)  # without a shape: optimum of the profile
    assert np.abs(y.numbers() - x.numbers() @ weights).max() < 2e-2
    trt = pytest.importorskip("tensorrt")
    environment = target.environment()
    assert environment["tensorrt"] == trt.__version__
    assert environment["tensorrt_built_by"].startswith(".".join(trt.__version__.split(".")[:3]))
    target.close()


def test_tensorrt_compute_is_the_work_on_the_device(tmp_path):
    path = engine(tmp_path / "product.engine", 4096)
    seconds = {}
    for rows in (256, 4096):
        target = TensorRtTarget(path, [{"shape": [rows, 4096]}])
        target.open()
        seconds[rows] = statistics.median(t.phases["compute"] for t in repeats(target))
        target.close()
    assert seconds[4096] > 3 * seconds[256]


def test_a_shape_outside_of_the_profile_is_one_line(tmp_path):
    path = engine(tmp_path / "product.engine")
    with pytest.raises(UsageError, match=r"refuses \[5000, 1024\] .*; choose one in the engine's profile"):
        TensorRtTarget(path, [{"shape": [5000, 1024]}]).open()
