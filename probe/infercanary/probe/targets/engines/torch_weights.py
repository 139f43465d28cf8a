"""The digest of a PyTorch model's weights, wherever they lie."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from typing import Any

from infercanary.probe.targets.engines.digests import PIECE_BYTES, WHOLE_BYTES, name_digest, piece_begins

_COPIED_BYTES = 32 << 20  # of a model on a GPU, at a time
_LAYOUT_DIGITS = 8
_PIECES = 16  # of each tensor of a model that is too large to be digested as a whole
_COMPILED = (
    "_orig_mod."  # what `torch.compile` puts into the names of a module: it makes no other weights of them
)


def digest_of(torch: Any, model: Any, whole: int = WHOLE_BYTES) -> str:
    """Digest the names, dtypes, shapes and bytes of a model's parameters and lasting buffers.

    Not by ``state_dict()``: its hooks may gather what is spread over processes, which would wait for the others.

    Args:
        torch: The module.
        model: Anything; a server's own object is only read.
        whole: Of a model with more bytes than that, up to ``_PIECES`` pieces of each tensor are digested.

    Returns:
        ``weights-sha256:BYTES.LAYOUT`` or ``weights-sample:…``, the second part of names, dtypes and shapes alone;
        empty where it is no module, or has no weights.
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
    """Read bytes of a tensor in order of its indices, without numpy, which torch may lack."""
    size = tensor.element_size()
    first, last = begin // size, -(-end // size)
    elements = _elements(tensor, first, last).view(torch.uint8).cpu()
    view = (ctypes.c_char * elements.numel()).from_address(elements.data_ptr())
    return bytes(view)[begin - first * size : end - first * size]


def _elements(tensor: Any, begin: int, end: int) -> Any:
    """Return a stretch of elements; of weights in another order, such as channels_last, only their rows are copied."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)[begin:end]
    row = tensor[0].numel()
    first, last = begin // row, -(-end // row)
    if last - first == 1:
        return _elements(tensor[first], begin - first * row, end - first * row)
    return tensor[first:last].contiguous().reshape(-1)[begin - first * row : end - first * row]
