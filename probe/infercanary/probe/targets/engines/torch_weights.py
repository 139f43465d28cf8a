"""The digest of a PyTorch model's weights, wherever they lie."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from typing import Any

from infercanary.probe.targets.engines.digests import PIECE_BYTES, WHOLE_BYTES, named, places

_COPIED_BYTES = 32 << 20  # of a model on a GPU, at a time
_LAYOUT_DIGITS = 8
_PIECES = 16  # of each tensor of a model that is too large to be digested as a whole


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
    weights = {name.replace(_COMPILED, ""): tensor for name, tensor in _weights(model)}
    if not weights:
        return ""
    is_whole = sum(t.numel() * t.element_size() for t in weights.values()) <= whole
    digest, layout = hashlib.sha256(), hashlib.sha256()
    with torch.no_grad():
        for name in sorted(weights):
            tensor = weights[name].detach()
            line = f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
            digest.update(line)
            layout.update(line)
            size = tensor.element_size()
            for begin, end in _stretches(tensor.numel() * size, is_whole):
                first = begin // size
                piece = _row_major(tensor, first, -(-end // size)).view(torch.uint8)
                digest.update(_host_bytes(piece[begin - first * size : end - first * size]))
    return f"{named('weights', digest.hexdigest(), is_whole)}.{layout.hexdigest()[:_LAYOUT_DIGITS]}"


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    passing = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "_non_persistent_buffers_set", ())
    }
    for name, buffer in model.named_buffers():
        if name not in passing:
            yield name, buffer


_COMPILED = "_orig_mod."
"""What ``torch.compile`` puts into the names of a module: it makes no other weights of them."""


def _stretches(size: int, is_whole: bool) -> Iterator[tuple[int, int]]:
    """Where the pieces begin and end that are copied to the host one at a time."""
    if is_whole:
        for begin in range(0, size, _COPIED_BYTES):
            yield begin, min(size, begin + _COPIED_BYTES)
        return
    for begin in places(size, _PIECES):
        yield begin, min(size, begin + PIECE_BYTES)


def _row_major(tensor: Any, begin: int, end: int) -> Any:
    """The elements of a stretch in order of their indices; of weights in another order no more is copied than it takes.

    A model in channels_last has its largest tensors so, and a copy of one may be more memory than is free.
    """
    if tensor.is_contiguous():
        return tensor.reshape(-1)[begin:end]
    row = tensor[0].numel()
    first, last = begin // row, -(-end // row)
    if last - first == 1:
        return _row_major(tensor[first], begin - first * row, end - first * row)
    return tensor[first:last].contiguous().reshape(-1)[begin - first * row : end - first * row]


def _host_bytes(piece: Any) -> Any:
    """The bytes of a piece, which stays as it is: without numpy, which torch may lack, and without a copy."""
    on_host = piece.cpu()
    view = (ctypes.c_char * on_host.numel()).from_address(on_host.data_ptr())
    view._tensor = on_host  # it must live as long as the view
    return view
