"""Changes of a model with a known operator, each with two sides to record.

The sentence of a comparison must name the operator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import onnx.numpy_helper
import torch
from recorder import Side
from torch import nn

from infercanary.judge.operators import Kind, State
from infercanary.probe import TorchTarget
from infercanary.probe.targets.onnx import OnnxTarget


class Trial(NamedTuple):
    before: Side
    after: Side
    operator: str | None
    """Operator that is named first; None if no operator explains the change."""
    change: Kind | None
    state: State = "explained"
    detail: str = ""


def _torch(model, *shape):
    return lambda: TorchTarget(model, [{"shape": list(shape)}])


def _linears(count=2, size=384):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(size, size) for _ in range(count))).eval()


def _hooked():
    """Return a model with a forgotten debugging hook that calls a layer repeatedly."""
    model = _linears()

    def again(layer, inputs, output):
        for _ in range(4):
            layer.forward(*inputs)

    model[1].register_forward_hook(again)
    return model


def _normalised(is_fused):
    """Return cheap convolutions with normalization layers, or with the normalization folded into their weights."""
    torch.manual_seed(0)
    layers = []
    for _ in range(4):
        pair = nn.Conv2d(8, 8, 1).eval(), nn.BatchNorm2d(8).eval()
        layers += [nn.utils.fusion.fuse_conv_bn_eval(*pair)] if is_fused else pair
    return nn.Sequential(*layers).eval()


class _Doubled(nn.Module):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.layers = _linears()
        self.layers[1].double()

    def forward(self, x):
        first, second = self.layers
        return second(first(x).double())


def _tokenised(x):
    text = "the quick brown fox jumps over the lazy dog " * 400
    ids = {}
    for word in text.split():
        ids.setdefault(word, len(ids))
    return _MODEL(x)


_MODEL = _linears(2, 256)


def _plain(x):
    return _MODEL(x)


def _onnx(folder, optimization):
    """Return a GELU, exported as five nodes. ONNX Runtime's optimization fuses these nodes into one."""
    path = folder / "model.onnx"
    if not path.exists():
        onnx.save(_written_out_gelu(), path)
    return lambda: OnnxTarget(str(path), intra_op_threads=1, graph_optimization=optimization)


def _written_out_gelu():
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


def _model(nodes, weights=()):
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [128, 512]) for name in ("x", "y")
    ]
    graph = onnx.helper.make_graph(nodes, "model", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def trials(folder):
    # With less than a millisecond per repeat, most repeats are undisturbed even on a busy machine.
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
