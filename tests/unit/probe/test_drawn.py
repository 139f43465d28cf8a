"""Random inputs of a model: always the same numbers, in pieces of any size, without additional memory."""

import hashlib
import json
import math
import tracemalloc

import pytest
from fresh import printed

from infercanary.probe.targets.engines import torch_model
from infercanary.probe.targets.engines.tensors import STORAGE, Input, TensorSpec, drawn
from infercanary.probe.targets.wire import tensors as wire

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

SHAPES = (
    (), (0,), (1,), (15,), (16,), (17,), (3, 5, 7), (4, 0, 2), (31, 33), (65_536,), (65_537,), (65_551,),
    (65_552,), (3, 257, 1031),
)  # fmt: skip
DRAWS = tuple((shape, high, seed) for shape in SHAPES for high, seed in ((2, 0), (100, 7), (1, 2**61)))
SMALL = (*(draw for draw in DRAWS if math.prod(draw[0]) < 2_000), ((17_000,), 100, 7))
# Recorded before inputs were drawn in pieces, with numpy 2.4.6 and torch 2.13.0: target, dtype, and digest of
# all draws. The digest of float64 covers half its precision, because rounding depends on the platform. A
# server's input is in binary form and in JSON, which BF16 does not have.
GOLDEN = """
numpy: float32 84a06e5b100798ea, float64 84a06e5b100798ea, float16 1486551c69b917c4, bfloat16 f5ee585f6b52b723
numpy: bool 22459e0c3b0898fe, int8 a74a5555a2e8087e, int16 28c50007db569d46, int32 f6c84ba68a29f15b
numpy: int64 7d230c0da30ec28a, uint8 a74a5555a2e8087e, uint16 28c50007db569d46, uint32 f6c84ba68a29f15b
numpy: uint64 7d230c0da30ec28a
torch: bool e03dc3025a67c2ab, int8 335b0df16f3face2, int16 28d44a9a535ccc25, int32 5b87cc89e8a8e166
torch: int64 95674ded343265b9, uint8 335b0df16f3face2, uint16 28d44a9a535ccc25, uint32 5b87cc89e8a8e166
torch: uint64 95674ded343265b9
binary: BOOL d71e1f93495cd347, UINT8 66cc4fb173b5b406, UINT16 26020222cdd7f9a4, UINT32 d246537c9b36da17
binary: UINT64 293210f48d509534, INT8 66cc4fb173b5b406, INT16 26020222cdd7f9a4, INT32 d246537c9b36da17
binary: INT64 293210f48d509534, FP16 07c9dd0756c76215, FP32 2ffff1a44c2454e5, FP64 3984167bf18b40f7
binary: BF16 e3aac10946e2c619
json: BOOL 4e0dcbe8011a8139, UINT8 c607b6e0d31680b9, UINT16 c607b6e0d31680b9, UINT32 c607b6e0d31680b9
json: UINT64 c607b6e0d31680b9, INT8 c607b6e0d31680b9, INT16 c607b6e0d31680b9, INT32 c607b6e0d31680b9
json: INT64 c607b6e0d31680b9, FP16 59342f3799785e43, FP32 59342f3799785e43, FP64 59342f3799785e43
"""
LINES = [line.split(": ") for line in GOLDEN.strip().splitlines()]
DIGESTS = [(target, *entry.split()) for target, entries in LINES for entry in entries.split(", ")]


def bytes_of(target, dtype, shape, high, seed, index):
    if target == "numpy":
        array = drawn(Input("inputs[0]", "x", shape, dtype, high), seed, index)
        assert array.shape == shape
        assert array.dtype == STORAGE[dtype]
        return bytes((array.astype(np.float32) if dtype == "float64" else array).tobytes())
    if target == "torch":
        tensor = torch_model.drawn(torch, TensorSpec(shape, dtype, high), index, seed)
        assert tensor.shape == shape
        assert tensor.dtype == getattr(torch, dtype)
        return bytes(tensor.numpy().tobytes())
    sent = wire.drawn("x", dtype, shape, wire.KserveInput(high=high), seed, "inputs[0]")
    body, length = wire.request_body([sent], target == "binary")
    return body[length:] if target == "binary" else repr(json.loads(body)["inputs"][0]["data"]).encode()


@pytest.mark.parametrize(("target", "dtype", "expected"), DIGESTS)
def test_the_numbers_are_those_of_the_first_release(target, dtype, expected):
    """A new image's canary is compared with the old image's, so both need the same input."""
    digest = hashlib.sha256()
    for i, (shape, high, seed) in enumerate(DRAWS if target in ("numpy", "torch") else SMALL):
        digest.update(bytes_of(target, dtype, shape, high, seed, i))
    assert digest.hexdigest()[:16] == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_torchs_normal_numbers_are_those_of_one_draw(dtype):
    """The last digits depend on the CPU, so the test draws its reference here in one piece."""
    for i, (shape, high, seed) in enumerate(DRAWS):
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed + i))
        piecewise = torch_model.drawn(torch, TensorSpec(shape, dtype, high), i, seed)
        assert piecewise.dtype == getattr(torch, dtype)
        assert torch.equal(piecewise, whole.to(piecewise.dtype)), (shape, seed)


@pytest.mark.parametrize(("size", "first"), [(5, -0.601393), (65_537, -0.817334)])
def test_torchs_normal_numbers_hardly_change(size, first):
    assert torch_model.drawn(torch, TensorSpec((size,)), 3, 7)[0] == pytest.approx(first, abs=2e-6)


PEAKS = """
import json, sys
import numpy as np
from infercanary.probe.targets.engines.tensors import Input, drawn, repeated
if "torch" in sys.argv:
    import torch
    from infercanary.probe.targets.engines import torch_model
    from infercanary.probe.targets.engines.tensors import TensorSpec

def make(dtype, shape):
    if "torch" in sys.argv:
        return torch_model.drawn(torch, TensorSpec(shape, dtype, 100), 0, 0)
    return drawn(Input("", "x", shape, dtype, 100), 0, 0)

def repeat(array, size):
    return torch_model.repeated(torch, array, size) if "torch" in sys.argv else repeated(array, size)

def memory_now():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts again: proc_pid_clear_refs(5)
    return mib("VmRSS")

def mib(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field + ":"))

found, sizes = {}, {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int64": 8, "bool": 1}
for dtype in sizes:
    repeat(make(dtype, (3, 70_000)), 4)
for dtype, itemsize in sizes.items():
    before = memory_now()
    held = make(dtype, (32, 1 << 13, 32 // itemsize))  # 8 MiB
    found[dtype] = mib("VmHWM") - before
    del held
source = make("float32", (65, 1 << 13))  # 2 MiB
for size in (66, 191):  # 6 MiB at most
    before = memory_now()
    held = repeat(source, size)
    found[f"repeated {size}"] = mib("VmHWM") - before
    del held
print(json.dumps(found))
"""


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_an_input_takes_its_own_size_while_it_is_drawn(engine):
    """The test measures the peak memory of a process (VmHWM) while it draws an input of 8 MiB."""
    # Otherwise glibc raises its mmap threshold after a freed input, and may keep the memory for the next
    # input: mallopt(3).
    peaks = json.loads(printed(PEAKS, engine, MALLOC_MMAP_THRESHOLD_="131072"))
    assert all(peak < 8 + 3 for peak in peaks.values()), peaks


IN_JSON = (
    '{"inputs":[{"name":"ä","shape":[2],"datatype":"INT8","data":[7,1],"parameters":{"a":1}},'
    '{"name":"b","shape":[0],"datatype":"FP32","data":[]}]}'
)
IN_BINARY = (
    '{"inputs":[{"name":"ä","shape":[2],"datatype":"INT8","parameters":{"a":1,"binary_data_size":2}},'
    '{"name":"b","shape":[0],"datatype":"FP32","parameters":{"binary_data_size":0}}],'
    '"parameters":{"binary_data_output":true}}'
)


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_requests_body_is_one_document_and_its_blobs(is_binary):
    given = wire.KserveInput(data=[7, 1], parameters={"a": 1}), wire.KserveInput()
    tensors = [
        wire.drawn("ä", "INT8", (2,), given[0], 0, ""),
        wire.drawn("b", "FP32", (0,), given[1], 0, ""),
    ]
    body, length = wire.request_body(tensors, is_binary)
    assert body[:length].decode() == (IN_BINARY if is_binary else IN_JSON)
    assert body[length:] == (b"\7\1" if is_binary else b"")


def test_a_binary_body_takes_little_more_than_its_size_while_it_is_made():
    tensor = wire.drawn("x", "FP32", (1 << 17,), wire.KserveInput(), 0, "")
    tracemalloc.start()
    try:
        body, _ = wire.request_body([tensor], True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * len(body) + (3 << 19)  # a bytearray reserves an eighth more when it grows
