"""Models of limits.py for ONNX Runtime: graphs with seeded sizes, and the same interventions.

ONNX Runtime has no setting for narrower vector instructions. So narrow_cpu.c hides them from ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_CHUNK = 1 << 15  # floats of 4 bytes: 128 KiB
_PRODUCTS = ("MatMul q k s", "Softmax s p", "MatMul p v c")


class Graph(NamedTuple):
    """A model, and its runs in one inference."""

    nodes: Sequence[str]
    """Operator, inputs and output: "MatMul a b c"."""
    shapes: dict[str, Sequence[int]]
    """Shapes of the inputs; of constants, if the name is in capitals."""
    runs: int = 1

    def save(self, path: Path) -> None:
        """Write the model. A first dimension of 1 is left open."""
        import numpy as np
        from onnx import TensorProto, helper, numpy_helper

        draw = np.random.default_rng(1).standard_normal
        nodes = [node.split() for node in self.nodes]
        pads: dict[str, Any] = {"Conv": {"pads": [1] * 4}}
        outputs = {node[-1] for node in nodes} - {name for node in nodes for name in node[1:-1]}
        graph = helper.make_graph(
            [helper.make_node(kind, names[:-1], names[-1:], **pads.get(kind, {})) for kind, *names in nodes],
            "limits",
            [
                helper.make_tensor_value_info(
                    name, TensorProto.FLOAT, ["n" if shape[0] == 1 else shape[0], *shape[1:]]
                )
                for name, shape in self.shapes.items()
                if name.islower()
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(outputs)],
            [
                numpy_helper.from_array(draw(shape).astype(np.float32), name)
                for name, shape in self.shapes.items()
                if name.isupper()
            ],
        )
        opset = helper.make_opsetid("", 17)
        path.write_bytes(helper.make_model(graph, ir_version=8, opset_imports=[opset]).SerializeToString())

    def options(self, path: Path) -> dict[str, Any]:
        """Return the options of the target ``onnx``, with one thread."""
        inputs = {name: {"shape": [*shape]} for name, shape in self.shapes.items() if name.islower()}
        return {"model": str(path), "inputs": inputs, "intra_op_threads": 1, "inter_op_threads": 1}


def gemm(rng: random.Random, change: str) -> Graph:
    size, number = rng.randrange(512, 1025, 128), 1
    if change == "fit":
        size, number = 128, (size // 128) ** 3
    return Graph(["MatMul a B c"], {"a": (size, size), "B": (size, size)}, number)


def convolution(rng: random.Random, change: str) -> Graph:
    channels, number = rng.choice((32, 64, 96)), rng.randrange(2, 7)
    samples, runs = (1, number) if change == "fit" else (number, 1)
    return Graph(["Conv a W c"], {"a": (samples, channels, 56, 56), "W": (channels, channels, 3, 3)}, runs)


def prefill(rng: random.Random, change: str) -> Graph:
    heads, length, number = 8, rng.randrange(768, 1537, 256), 1
    if change == "fit":
        heads, length, number = 1, 256, 8 * (length // 256) ** 2
    shape = (1, heads, length, 64)
    return Graph(_PRODUCTS, {"q": shape, "k": (1, heads, 64, length), "v": shape}, number)


def chain(rng: random.Random, change: str) -> Graph:
    chunks = rng.randrange(768, 1537)
    size, runs = (_CHUNK, chunks) if change == "fit" else (_CHUNK * chunks, 1)
    return Graph(["Mul a H s", "Add s H t", "Relu t c"], {"a": (size,), "H": (1,)}, runs)


def relu(rng: random.Random, change: str) -> Graph:
    chunks = rng.randrange(768, 1537)
    size, runs = (_CHUNK, chunks) if change == "fit" else (_CHUNK * chunks, 1)
    return Graph(["Relu a c"], {"a": (size,)}, runs)


def decode(rng: random.Random, change: str) -> Graph:
    length, runs = rng.randrange(32, 65) << 10, 1
    if change == "fit":
        length, runs = 256, length // 256
    return Graph(_PRODUCTS, {"q": (1, 8, 1, 64), "k": (1, 8, 64, length), "v": (1, 8, length, 64)}, runs)


def tiny(rng: random.Random, change: str) -> Graph:
    number, parts = rng.randrange(200, 800, 50), ["a"] if change != "own" else ["a", "b"]
    nodes = [f"Sigmoid {part}{i or ''} {part}{i + 1}" for i in range(number) for part in parts]
    return Graph(nodes, dict.fromkeys(parts, (1, 64 // len(parts))))


def linear(_: random.Random, change: str) -> Graph:
    """Return a layer; ``change`` is the batch."""
    return Graph(["MatMul a W c"], {"a": (int(change or 1), 4096), "W": (4096, 4096)})


def on_onnx(
    make: Callable[[random.Random, str], Graph],
) -> Callable[[random.Random, str], Callable[..., Any]]:
    """Return the builder of a model that runs a graph as the canary does."""

    def built(rng: random.Random, change: str) -> Callable[..., Any]:
        graph = make(rng, "" if change == "narrow" else change)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            graph.save(path)
            if change == "narrow":
                _hide_vectors(Path(folder))
            from infercanary.probe.targets.onnx import OnnxTarget
            from infercanary.probe.timing import HostClock

            target, clock = OnnxTarget(**graph.options(path)), HostClock()
            target.open()

        def run(_: Any) -> None:
            for _ in range(graph.runs):
                clock.measure(target.run)

        return run

    return built


def _hide_vectors(folder: Path) -> None:
    library = folder / "narrow_cpu.so"
    source = Path(__file__).with_name("narrow_cpu.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    if ctypes.CDLL(str(library)).narrow():
        raise RuntimeError("this CPU has no CPUID faulting")


GRAPHS = {
    f"onnx {make.__name__}": make for make in (gemm, convolution, prefill, chain, relu, decode, tiny, linear)
}
