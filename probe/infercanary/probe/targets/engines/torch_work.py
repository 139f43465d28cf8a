"""Bytes of torch's operators, computed from the shapes that torch's profiler records.

An operator that is not listed here has unknown work, unless it calls only listed operators. Bytes are a lower bound
of the traffic: each input that the operator reads, plus the output of an operator that makes one pass over its
inputs.
"""

from __future__ import annotations

import math
from typing import Any

_BYTES = {"float": 4, "c10::Half": 2, "c10::BFloat16": 2, "double": 8, "long int": 8, "int": 4, "bool": 1}
"""Dtype in the profiler's words → bytes of an element."""
_NAMES = {
    # Products. Their work is unknown if torch does not count the floating-point operations.
    "product": """conv2d mm bmm addmm baddbmm _addmm_activation conv1d conv3d conv_transpose1d conv_transpose2d
        conv_transpose3d""",
    # One pass over the inputs. The output has the size of the largest input.
    "each": """add sub rsub mul div relu relu6 clamp clamp_min clamp_max gelu silu sigmoid tanh exp log sqrt rsqrt pow
        neg abs square reciprocal erf sin cos hardtanh hardswish hardsigmoid leaky_relu elu mish softplus where
        masked_fill maximum minimum addcmul lerp bitwise_and bitwise_not logical_not remainder floor round
        _softmax _log_softmax native_layer_norm native_group_norm native_batch_norm batch_norm
        _native_batch_norm_legit_no_training _fused_rms_norm _transform_bias_rescale_qkv""",
    # One pass over the given tensors. The output is small, or is one of these tensors.
    "pass": """copy_ sum mean amax amin max min argmax argmin prod any all norm linalg_vector_norm var std var_mean eq
        ne lt le gt ge fill_ zero_ avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d isnan isfinite""",
    # Rows of a table are read and written. The second tensor is the index.
    "rows": "embedding index_select",
    "attention": "scaled_dot_product_attention",
    # Views: operators without a pass over the data.
    "view": """view _unsafe_view _reshape_alias as_strided as_strided_ transpose t permute expand squeeze squeeze_
        unsqueeze unsqueeze_ select slice narrow detach alias empty empty_like empty_strided resize_ resolve_conj
        resolve_neg unfold diagonal lift_fresh unbind split split_with_sizes chunk item _local_scalar_dense""",
    # Operators that return a view or make a copy, depending on the operators inside.
    "either": "reshape flatten unflatten contiguous to type_as expand_as dropout",
}
_RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}

_UNKNOWN = math.nan, math.nan


def work_of(span: Any) -> tuple[float, float]:
    """Return floating-point operations and bytes of one call; NaN if unknown.

    Args:
        span: Event of torch's profiler, with the events inside.
    """
    event, name = span.event, span.name.removeprefix("aten::")
    # an operator in place, such as "relu_", has the same work
    rule = _RULES.get(name) or _RULES.get(name.rstrip("_"))
    if rule in (None, "view", "either"):
        parts = [work_of(part) for part in span.inner if part.is_operator and rule != "view"]
        flops, size = (sum(column) for column in zip((0.0, 0.0), *parts, strict=True))
        # An operator with its own loop may call only views, which have no work.
        return (flops, size) if rule or size else _UNKNOWN
    tensors = [pair for pair in zip(event.shapes(), event.dtypes(), strict=False) if pair[0]]
    sizes = [math.prod(shape) * _BYTES.get(dtype, math.nan) for shape, dtype in tensors]
    shapes = [shape for shape, _ in tensors]
    flops, read = sum(part.event.flops() for part in span.parts()), sum(sizes)
    # only tensors with dimensions have a shape, so single numbers do not count
    fewest = 2 if rule in ("attention", "rows") else 1
    if len(sizes) < fewest or (rule == "product" and not flops):
        return _UNKNOWN
    if rule == "attention":  # each query and key take part in two products
        return 4 * math.prod(shapes[0]) * shapes[1][-2], read
    if rule == "rows":
        return flops, sizes[1] + 2 * sizes[0] / max(1, shapes[0][0]) * math.prod(shapes[1])
    return flops, read + (max(sizes) if rule == "each" else 0)
