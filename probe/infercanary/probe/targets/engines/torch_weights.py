"""The digest of a PyTorch model's weights, on any device."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from typing import Any

from infercanary.probe.targets.engines.digests import PIECE, WHOLE_BYTES, name_digest, piece_begins

_LAYOUT_DIGITS = 8
_PIECES = 16  # number of pieces of each tensor, if the model is too large for a complete digest
# `torch.compile` adds this prefix to the names in a module; the weights are the same
_COMPILED = "_orig_mod."


def digest_of(torch: Any, model: Any, whole: int = WHOLE_BYTES) -> str:
    """Digest the names, dtypes, shapes and bytes of a model's parameters and persistent buffers.

    ``state_dict()`` is not used, because its hooks may wait for weights from other processes.

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
        count = tensor.numel()
        for begin in piece_begins(count, count if is_whole else _PIECES):
            digest.update(_read(_elements(tensor, begin, min(count, begin + PIECE)).view(torch.uint8).cpu()))
    return f"{name_digest('weights', digest.hexdigest(), is_whole)}.{layout.hexdigest()[:_LAYOUT_DIGITS]}"


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    passing = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "_non_persistent_buffers_set", ())
    }
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name not in passing)


def _read(memory: Any) -> bytes:
    """Return the bytes of a tensor on the CPU. Do not use numpy, which torch may lack."""
    return bytes((ctypes.c_char * memory.numel()).from_address(memory.data_ptr()))


def _elements(tensor: Any, begin: int, end: int) -> Any:
    """Return a range of elements. If the memory order differs (as in channels_last), copy only the affected rows."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)[begin:end]
    row = tensor[0].numel()
    first, last = begin // row, -(-end // row)
    if last - first == 1:
        return _elements(tensor[first], begin - first * row, end - first * row)
    return tensor[first:last].contiguous().reshape(-1)[begin - first * row : end - first * row]
