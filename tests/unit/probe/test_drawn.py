"""What is drawn for a model's inputs: the same numbers for ever, in whatever pieces, and without memory of its own."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from infercanary.probe.targets.engines import torch_model
from infercanary.probe.targets.engines.tensors import STORAGE, Input, TensorSpec, drawn
from infercanary.probe.targets.wire import tensors as wire

np = pytest.importorskip("numpy")

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (15,), (16,), (17,), (3, 5, 7), (4, 0, 2), (31, 33), (65_536,), (65_537,), (65_551,),
    (65_552,), (3, 257, 1031),
)  # fmt: skip
DRAWS = tuple((shape, high, seed) for shape in SHAPES for high, seed in ((2, 0), (100, 7), (1, 2**61)))
SMALL = (*(draw for draw in DRAWS if math.prod(draw[0]) < 2_000), ((17_000,), 100, 7))


def of_numpy(dtype: str) -> str:
    """A digest of all draws; of the numbers in half the precision, since a platform may round them otherwise."""
    digest = hashlib.sha256()
    for i, (shape, high, seed) in enumerate(DRAWS):
        array = drawn(Input("inputs[0]", "x", shape, dtype, high), seed, i)
        assert array.shape == shape and array.dtype == STORAGE[dtype]
        digest.update((array.astype(np.float32) if dtype == "float64" else array).tobytes())
    return digest.hexdigest()[:16]


def of_torch(dtype: str) -> str:
    torch = pytest.importorskip("torch")
    digest = hashlib.sha256()
    for i, (shape, high, seed) in enumerate(DRAWS):
        tensor = torch_model.drawn(torch, TensorSpec(shape, dtype, high), i, seed)
        assert tensor.shape == shape and tensor.dtype == getattr(torch, dtype)
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def of_wire(dtype: str, encoding: Any) -> str:
    digest = hashlib.sha256()
    for shape, high, seed in SMALL:
        tensor = wire.drawn("x", dtype, shape, wire.KserveInput(high=high), seed, "inputs[0]")
        digest.update(encoding(tensor))
    return digest.hexdigest()[:16]


# Written before inputs were drawn in pieces, with numpy 2.4.6 and torch 2.13.0.
GOLDEN_NUMPY: dict[str, str] = {
    "float32": "84a06e5b100798ea", "float64": "84a06e5b100798ea", "float16": "1486551c69b917c4",
    "bfloat16": "f5ee585f6b52b723", "bool": "22459e0c3b0898fe", "int8": "a74a5555a2e8087e",
    "int16": "28c50007db569d46", "int32": "f6c84ba68a29f15b", "int64": "7d230c0da30ec28a",
    "uint8": "a74a5555a2e8087e", "uint16": "28c50007db569d46", "uint32": "f6c84ba68a29f15b",
    "uint64": "7d230c0da30ec28a",
}  # fmt: skip
GOLDEN_TORCH: dict[str, str] = {
    "bool": "e03dc3025a67c2ab", "int8": "335b0df16f3face2", "int16": "28d44a9a535ccc25",
    "int32": "5b87cc89e8a8e166", "int64": "95674ded343265b9", "uint8": "335b0df16f3face2",
    "uint16": "28d44a9a535ccc25", "uint32": "5b87cc89e8a8e166", "uint64": "95674ded343265b9",
}  # fmt: skip
GOLDEN_WIRE: dict[str, tuple[str, str]] = {
    "BOOL": ("d71e1f93495cd347", "4e0dcbe8011a8139"), "UINT8": ("66cc4fb173b5b406", "c607b6e0d31680b9"),
    "UINT16": ("26020222cdd7f9a4", "c607b6e0d31680b9"), "UINT32": ("d246537c9b36da17", "c607b6e0d31680b9"),
    "UINT64": ("293210f48d509534", "c607b6e0d31680b9"), "INT8": ("66cc4fb173b5b406", "c607b6e0d31680b9"),
    "INT16": ("26020222cdd7f9a4", "c607b6e0d31680b9"), "INT32": ("d246537c9b36da17", "c607b6e0d31680b9"),
    "INT64": ("293210f48d509534", "c607b6e0d31680b9"), "FP16": ("07c9dd0756c76215", "59342f3799785e43"),
    "FP32": ("2ffff1a44c2454e5", "59342f3799785e43"), "FP64": ("3984167bf18b40f7", "59342f3799785e43"),
    "BF16": ("e3aac10946e2c619", ""),
}  # fmt: skip


@pytest.mark.parametrize("dtype", STORAGE)
def test_numpys_numbers_are_those_of_the_first_release(dtype: str) -> None:
    assert of_numpy(dtype) == GOLDEN_NUMPY[dtype]


@pytest.mark.parametrize("dtype", GOLDEN_TORCH)
def test_torchs_integers_are_those_of_the_first_release(dtype: str) -> None:
    assert of_torch(dtype) == GOLDEN_TORCH[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_torchs_normal_numbers_are_those_of_one_draw(dtype: str) -> None:
    """Their last digits are the CPU's: what they are compared with is drawn here, as it was before pieces."""
    torch = pytest.importorskip("torch")
    for i, (shape, high, seed) in enumerate(DRAWS):
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed + i))
        piecewise = torch_model.drawn(torch, TensorSpec(shape, dtype, high), i, seed)
        assert piecewise.dtype == getattr(torch, dtype)
        assert torch.equal(piecewise, whole.to(piecewise.dtype)), (shape, seed)


def test_torchs_normal_numbers_hardly_change() -> None:
    torch = pytest.importorskip("torch")
    for shape, ends, total in (
        ((5,), [-0.601393, -1.01221, -1.227686, 0.919828], -2.2237),
        ((16,), [-0.817334, -0.555569, -1.450351, -0.249587], -4.7933),
        ((65_537,), [-0.817334, -0.555569, -0.420303, -0.820536], 16.7262),
        ((3, 257, 1031), [-0.817334, -0.555569, -1.197605, -0.546951], 927.119),
    ):
        numbers = torch_model.drawn(torch, TensorSpec(shape), 3, 7).view(-1).double()
        assert [*numbers[:2].tolist(), *numbers[-2:].tolist()] == pytest.approx(ends, abs=2e-6)
        assert float(numbers.sum()) == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize("dtype", GOLDEN_WIRE)
def test_what_servers_are_sent_is_as_in_the_first_release(dtype: str) -> None:
    def flat(tensor: wire.Tensor) -> bytes:
        return repr(json.loads(b"[%b]" % b"".join(wire.encoded(tensor, False)))).encode()

    binary, text = GOLDEN_WIRE[dtype]
    assert of_wire(dtype, lambda tensor: b"".join(wire.encoded(tensor, True))) == binary
    if dtype != "BF16":  # it has no form in JSON
        assert (
            of_wire(
                dtype,
                lambda tensor: repr(json.loads(b"[%b]" % b"".join(wire.encoded(tensor, False)))).encode(),
            )
            == text
        )


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
def test_an_input_takes_its_own_size_while_it_is_drawn(engine: str) -> None:
    """The most memory of a process (VmHWM) while each input of 8 MiB is drawn, less what it had before."""
    pytest.importorskip(engine)
    # Without it glibc takes a freed input for a measure of what to keep, and the next may lie beside it: mallopt(3).
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, engine],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert all(peak < 8 + 3 for peak in peaks.values()), peaks


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_requests_body_is_as_it_was_made_of_one_document(is_binary: bool) -> None:
    heads: list[dict[str, Any]] = []
    inputs, blobs = [], b""
    for dtype, shape, parameters in (("FP32", (3, 6000), {}), ("BOOL", (7,), {"a": 1}), ("INT8", (0,), {})):
        tensor = wire.drawn(f"ä {dtype}", dtype, shape, wire.KserveInput(), 0, "")
        tensor = tensor._replace(values=list(tensor.values))  # drawn while they are read, once
        inputs.append((tensor, parameters))
        heads.append({"name": tensor.name, "shape": shape, "datatype": dtype})
        if is_binary:
            blob = b"".join(wire.encoded(tensor, True))
            parameters = {**parameters, "binary_data_size": len(blob)}
            blobs += blob
        else:
            heads[-1]["data"] = list(tensor.values)
        heads[-1] |= {"parameters": parameters} if parameters else {}
    whole = {"inputs": heads} | ({"parameters": {"binary_data_output": True}} if is_binary else {})
    document = json.dumps(whole, separators=(",", ":")).encode()
    body, length = wire.request_body(inputs, is_binary)
    assert body == document + blobs and length == len(document)


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_requests_body_takes_little_more_than_its_size_while_it_is_made(is_binary: bool) -> None:
    tensor = wire.drawn("x", "FP32", (1 << 17,), wire.KserveInput(), 0, "")
    tracemalloc.start()
    try:
        body, _ = wire.request_body([(tensor, {})], is_binary)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * len(body) + (3 << 19)  # a bytearray grows by an eighth
