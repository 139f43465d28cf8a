"""The digest of a PyTorch model's weights, on any device."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from typing import Any

from infercanary.probe.targets.engines.digests import PIECE_BYTES, WHOLE_BYTES, name_digest, piece_begins

_COPIED_BYTES = 32 << 20  # bytes of a model on a GPU that are copied at a time
_LAYOUT_DIGITS = 8
_PIECES = 16  # for each tensor, if the model is too large to be digested as a whole
_COMPILED = "_orig_mod."  # `torch.compile` adds this to the names in a module; the weights are the same


def digest_of(torch: Any, model: Any, whole: int = WHOLE_BYTES) -> str:
    """Digest the names, dtypes, shapes and bytes of a model's parameters and persistent buffers.

    ``state_dict()`` is not used: its hooks may gather weights from other processes, and would wait for them.

    Args:
        torch: The module.
        model: Any object; a server's own model is only read.
        whole: Size in bytes above which only ``_PIECES`` pieces of each tensor are digested.

    Returns:
        ``weights-sha256:BYTES.LAYOUT`` or ``weights-sample:…``; LAYOUT is a digest of names, dtypes and shapes alone.
        Empty if the model is not a module, or has no weights.
    """
    if not isinstance(model, torch.nn.Module):
        return ""
    weights = {name.replace(_COMPILED, ""): tensor.detach() for name, tensor in _weights(model)}
    if not weights:
        return ""
    is_whole = sum(t.numel() * t.element_size() for t in weights.values()) <= whole
    digest, layout = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        line = f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
        digest.update(line)
        layout.update(line)
        size = tensor.numel() * tensor.element_size()
        step = _COPIED_BYTES if is_whole else PIECE_BYTES
        for begin in range(0, size, step) if is_whole else piece_begins(size, _PIECES):
            digest.update(_read(torch, tensor, begin, min(size, begin + step)))
    return f"{name_digest('weights', digest.hexdigest(), is_whole)}.{layout.hexdigest()[:_LAYOUT_DIGITS]}"


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    passing = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "_non_persistent_buffers_set", ())
    }
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name not in passing)


def _read(torch: Any, tensor: Any, begin: int, end: int) -> Any:
    """Read bytes of a tensor in the order of its indices; without numpy, which torch may lack."""
    size = tensor.element_size()
    first, last = begin // size, -(-end // size)
    elements = _elements(tensor, first, last).view(torch.uint8).cpu()
    view = (ctypes.c_char * elements.numel()).from_address(elements.data_ptr())
    return bytes(view)[begin - first * size : end - first * size]


def _elements(tensor: Any, begin: int, end: int) -> Any:
    """Return a range of elements. If the memory order differs, as in channels_last, copy only the affected rows."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)[begin:end]
    row = tensor[0].numel()
    first, last = begin // row, -(-end // row)
    if last - first == 1:
        return _elements(tensor[first], begin - first * row, end - first * row)
    return tensor[first:last].contiguous().reshape(-1)[begin - first * row : end - first * row]
