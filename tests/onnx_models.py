"""Tiny ONNX models. Import this module only after a check that `onnx` is installed."""

from pathlib import Path

import numpy as np
from onnx import TensorProto as Type
from onnx import helper, numpy_helper


def save(name, node, x, y, *more, opset=17, ir=8, weight=None):
    """Save a model of one operator from ``x`` to ``y`` (type and shape), with opset and IR of ONNX Runtime 1.17.

    Args:
        weight: Value of all weights of `MatMul`; None for the values 0 to 11.
    """
    nodes = [helper.make_node(node, ["x", "w"] if node == "MatMul" else ["x"], ["y"]), *more]
    given, made = (helper.make_tensor_value_info(name, *each) for name, each in (("x", x), ("y", y)))
    numbers = np.arange(12) if weight is None else np.full(12, weight)
    weights = numpy_helper.from_array(numbers.astype(np.float32).reshape(4, 3), "w")
    graph = helper.make_graph(nodes, "tiny", [given], [made], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="the test")
    model.ir_version = ir
    Path(name).write_bytes(model.SerializeToString())
    return name


def linear(name="model.onnx", batch="N", **more):
    return save(name, "MatMul", (Type.FLOAT, [batch, 4]), (Type.FLOAT, [batch, 3]), **more)
