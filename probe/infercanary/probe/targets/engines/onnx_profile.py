"""Profiles repeats with ONNX Runtime's own profiler, which reports nodes by operator type and provider.

The profiler is on for the whole life of a session, and slows all its runs. So a second session of the same file, with
the same options, is profiled and then closed.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from infercanary.contract.profile import Profile, normalised
from infercanary.probe.targets.engines.onnx_providers import short_name
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes, shapes_text
from infercanary.probe.targets.failures import Unprofiled

_WARM_UPS = 3  # warm-up runs: the session is new, and its arena grows in the first run
_FOLDERS = (None, "/dev/shm")  # the default folder; a folder that stays writable with a read-only root  # noqa: S108
_SHARED_MEMORY_BYTES = 32 << 20


_PRODUCTS = {"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv"}
# Operators that make one pass over the inputs and the outputs.
_NAMES = """Reshape Flatten Squeeze Unsqueeze Identity Shape Constant Add Sub Mul Div Pow Sqrt Exp Log Erf Tanh Sigmoid
    Relu LeakyRelu Clip Gelu FastGelu BiasGelu QuickGelu HardSwish HardSigmoid Elu Abs Neg Reciprocal Sin Cos Where Cast
    Not And Or Equal Less Greater Max Min Sum Softmax LogSoftmax LayerNormalization SkipLayerNormalization
    SimplifiedLayerNormalization BatchNormalization InstanceNormalization ReduceMean ReduceSum ReduceMax
    GlobalAveragePool AveragePool MaxPool Concat Split Transpose Expand Pad Tile ReorderInput ReorderOutput"""
_EACH = frozenset(_NAMES.split())


class _Arguments(msgspec.Struct):
    op_name: str = ""
    provider: str = ""
    input_type_shape: tuple[dict[str, list[int]], ...] = ()
    output_type_shape: tuple[dict[str, list[int]], ...] = ()
    activation_size: str = "0"
    parameter_size: str = "0"
    output_size: str = "0"


class _Event(msgspec.Struct):
    """One event of the profile. Times are in microseconds."""

    name: str = ""
    cat: str = ""
    ts: int = 0
    dur: int = 0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


def profile_repeats(
    load: Callable[[str], Any],
    make_work: Callable[[Any], Callable[[], float]],
    repeats: int,
    trace: Path | None,
) -> Profile:
    """Profile repeats of a separate session, after uncounted warm-up runs.

    Args:
        load: Function that makes the session; its argument is the prefix of the profile's path.
        make_work: Function that takes that session, and returns a function that makes one inference and returns its
            wall seconds.
        repeats: At least 1.
        trace: File for the trace, which Perfetto can open.

    Raises:
        Unprofiled: No folder is writable, or the profile cannot be read.
    """
    folder = _make_folder()
    try:
        session = load(str(folder / "profile"))
        try:
            work = make_work(session)
            taken_at = time.time()
            walls = [work() for _ in range(_WARM_UPS + repeats)]
        finally:
            file = session.end_profiling()
        if trace is not None:
            shutil.copyfile(file, trace)
        return read_events(Path(file).read_bytes(), walls, _WARM_UPS, taken_at)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_events(body: bytes, walls: Sequence[float], warm_ups: int, taken_at: float) -> Profile:
    """Make the profile from a file that ONNX Runtime wrote.

    Args:
        body: Content of the file.
        walls: Wall seconds of each run in the file.
        warm_ups: Number of first runs to leave out.
        taken_at: Unix time.

    Raises:
        Unprofiled: The file has another format, or contains other runs.
    """
    try:
        events = msgspec.json.decode(body, type=list[_Event])
    except msgspec.DecodeError as error:
        raise Unprofiled(f"ONNX Runtime's profile cannot be read: {error}") from None
    runs = sorted((e for e in events if e.name == "model_run"), key=lambda e: e.ts)
    if len(runs) != len(walls):
        raise Unprofiled(f"ONNX Runtime's profile has {len(runs)} runs instead of {len(walls)}")
    nodes = [e for e in events if e.cat == "Node" and e.name.endswith("_kernel_time")]
    times = OperatorTimes(len(walls) - warm_ups)
    for repeat, run in enumerate(runs, -warm_ups):
        for node in nodes if repeat >= 0 else ():
            if run.ts <= node.ts <= run.ts + run.dur:
                # remove the numbers that providers give to their subgraphs
                kind = normalised(node.args.op_name) or "unknown"
                tensors = [tensor for shape in node.args.input_type_shape for tensor in shape.items()]
                shapes = shapes_text([shape for _, shape in tensors], [dtype for dtype, _ in tensors])
                operator = Operator(kind, short_name(node.args.provider) or "unknown", shapes)
                times.add(repeat, operator, kind, node.dur / 1e6)
                times.add_work(operator, *_work(node.args), 1.0)
    return times.profile(walls[warm_ups:], "onnxruntime", taken_at)


def _work(node: _Arguments) -> tuple[float, float]:
    """Return the floating-point operations and bytes of one call; NaN if unknown, as for quantized operators."""
    size = float(node.activation_size) + float(node.parameter_size) + float(node.output_size)
    if node.op_name in _EACH:
        return 0.0, size
    if node.op_name not in _PRODUCTS:
        return math.nan, math.nan
    inputs, outputs = (
        [shape for tensor in tensors for shape in tensor.values()]
        for tensors in (node.input_type_shape, node.output_type_shape)
    )
    is_packed = len(inputs) == 1  # constant weights of a matrix product have no shape
    if not outputs or not inputs or (is_packed and "Conv" in node.op_name):
        return math.nan, math.nan  # for example, this version of ONNX Runtime reports no shapes of outputs
    left, output = inputs[0], outputs[0]
    if is_packed:
        size += float(node.activation_size) * math.prod(output[-1:]) / max(1, math.prod(left[:-1]))
    each = inputs[1][1:] if "Conv" in node.op_name else left[-1:]
    return 2.0 * math.prod(output) * math.prod(each), size


def _make_folder() -> Path:
    for parent in _FOLDERS:
        with suppress(OSError):
            if parent is None or shutil.disk_usage(parent).free >= _SHARED_MEMORY_BYTES:
                return Path(tempfile.mkdtemp(prefix="infercanary-", dir=parent))
    raise Unprofiled("no writable folder for ONNX Runtime's profile; mount a tmpfs at /tmp")
