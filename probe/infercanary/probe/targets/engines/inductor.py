"""The operators that a fused kernel was made of, by the name that torch's compiler, Inductor, gave it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

# Such as triton_poi_fused_add_relu_3; of a loop on the CPU graph_0_cpp_fused__softmax_1, where
# torch._inductor.config.cpp.enable_kernel_profile is on.
_FUSED = re.compile(r"(?:graph_\d+_)?(?P<kernel>(?:cpp|triton_[a-z]+)_fused_(?P<operators>\w+?))(?:_\d+)?")


def fused(name: str, known: Collection[str]) -> tuple[str, str] | None:
    """Read the name of a kernel.

    Args:
        name: Of an event.
        known: Names of torch's operators, without namespace and overload: they have underscores, as what joins them.

    Returns:
        What the kernel does (``fused add, relu``), and its name without numbers; None where it is no fused kernel.
    """
    match = _FUSED.fullmatch(name)
    if match is None:
        return None
    return "fused " + ", ".join(_split(match["operators"], known)), match["kernel"]


def _split(text: str, known: Collection[str]) -> list[str]:
    """At each place the longest name that is known; else up to the next underscore."""
    found = []
    while text:
        ends = [i for i, sign in enumerate(text) if sign == "_" and i] + [len(text)]
        end = next((i for i in reversed(ends) if text[:i] in known), ends[0])
        found.append(text[:end])
        text = text[end + 1 :]
    return found
