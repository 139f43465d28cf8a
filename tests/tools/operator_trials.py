"""Changes of a model with a known operator, each as two sides to record.

A comparison's sentence must name the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnx.numpy_helper
import torch
from recorder import Side
from torch import Tensor, nn

from infercanary.judge.operators import Kind, State
from infercanary.probe import TorchTarget
from infercanary.probe.targets.onnx import OnnxTarget


class Trial(NamedTuple):
    """A change, and what is to be said of it."""

    before: Side
    after: Side
    operator: str | None
    """The one that is named first; None where none explains it."""
    change: Kind | None
    state: State = "explained"
    detail: str = ""


def _torch(model: Callable[..., Any], *shape: int) -> Side:
    return lambda: TorchTarget(model, [{"shape": list(shape)}])


def _linears(count: int = 2, size: int = 384) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(size, size) for _ in range(count))).eval()


def _hooked() -> nn.Module:
    """A layer that is called again and again by a hook, as a debugging aid may that somebody forgot."""
    model = _linears()

    def again(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        for _ in range(4):
            layer.forward(*inputs)

    model[1].register_forward_hook(again)
    return model


def _normalised(is_fused: bool, pairs: int = 4) -> nn.Module:
    """Cheap convolutions with their normalisation, or with that folded into their weights."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(pairs):
        pair = nn.Conv2d(8, 8, 1).eval(), nn.BatchNorm2d(8).eval()
        layers += [nn.utils.fusion.fuse_conv_bn_eval(*pair)] if is_fused else pair
    return nn.Sequential(*layers).eval()


class _Doubled(nn.Module):  # type: ignore[misc]
    """Two layers, of which one computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _linears()
        self.layers[1].double()

    def forward(self, x: Tensor) -> Any:
        first, second = self.layers
        return second(first(x).double())


def _tokenised(x: Tensor) -> Any:
    """A step before the model, in Python alone."""
    text = "the quick brown fox jumps over the lazy dog " * 400
    ids: dict[str, int] = {}
    for word in text.split():
        ids.setdefault(word, len(ids))
    return _MODEL(x)


_MODEL = _linears(2, 256)


def _plain(x: Tensor) -> Any:
    return _MODEL(x)


def _onnx(folder: Path, optimization: Literal["all", "disabled"]) -> Side:
    """A GELU that is written out, as exporters do: ONNX Runtime makes one node of its five."""
    path = folder / "model.onnx"
    if not path.exists():
        onnx.save(_written_out_gelu(), path)
    return lambda: OnnxTarget(str(path), intra_op_threads=1, graph_optimization=optimization)


def _written_out_gelu() -> onnx.ModelProto:
    make = onnx.helper.make_node
    numbers = {"root": 2.0**0.5, "one": 1.0, "half": 0.5}
    weights = [onnx.numpy_helper.from_array(np.array(x, np.float32), name) for name, x in numbers.items()]
    nodes = [
        make("Div", ["x", "root"], ["scaled"]),
        make("Erf", ["scaled"], ["erf"]),
        make("Add", ["erf", "one"], ["shifted"]),
        make("Mul", ["x", "shifted"], ["twice"]),
        make("Mul", ["twice", "half"], ["y"]),
    ]
    return _model(nodes, weights)


def _model(nodes: list[onnx.NodeProto], weights: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    """From `x` to `y`, both of 128 by 512."""
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [128, 512]) for name in ("x", "y")
    ]
    graph = onnx.helper.make_graph(nodes, "model", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def trials(folder: Path) -> Mapping[str, Trial]:
    """Each trial by its name.

    Args:
        folder: Where models are written.
    """
    # Below a millisecond: on a busy machine most repeats are then undisturbed.
    rows = (32, 384)
    return {
        "hook": Trial(
            _torch(_linears(), *rows), _torch(_hooked(), *rows), "aten::linear", "grew", detail=" calls"
        ),
        "unfused": Trial(
            _torch(_normalised(True), 1, 8, 96, 96),
            _torch(_normalised(False), 1, 8, 96, 96),
            "aten::batch_norm",
            "new",
        ),
        "float64": Trial(
            _torch(_linears(), *rows),
            _torch(_Doubled(), *rows),
            "aten::linear",
            "grew",
            detail="double",
        ),
        "unoptimised": Trial(_onnx(folder, "all"), _onnx(folder, "disabled"), "Erf", "new"),
        "tokeniser": Trial(_torch(_plain, 16, 256), _torch(_tokenised, 16, 256), None, None, "outside"),
    }
