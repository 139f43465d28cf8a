"""Models of limits.py for torch, with seeded sizes.

Each function builds a model from the source of its sizes, and from the change: "", "fit" or "own"; for models
with a batch, the change is the batch.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path("/var/tmp/infercanary-limits.bin")
"""File on a disk, not in memory."""

_CHUNK = 1 << 15  # floats of 4 bytes: 128 KiB

Run = Callable[..., Any]


def _times(number: int, work: Callable[[], Any]) -> Run:
    def run(_: Any) -> Any:
        for _ in range(number):
            result = work()
        return result[0] if isinstance(result, list) else result

    return run


def gemm(rng: random.Random, change: str) -> Run:
    import torch

    size, number = rng.randrange(512, 1025, 128), 1
    if change == "fit":
        size, number = 128, (size // 128) ** 3
    a, b = torch.randn(2, size, size)
    return _times(number, lambda: torch.mm(a, b))


def convolution(rng: random.Random, change: str) -> Run:
    import torch

    channels, size, number = rng.choice((32, 64, 96)), 56, rng.randrange(2, 7)
    layer = torch.nn.Conv2d(channels, channels, 3, padding=1)
    data = torch.randn(1 if change == "fit" else number, channels, size, size)
    return _times(number if change == "fit" else 1, lambda: layer(data))


def prefill(rng: random.Random, change: str) -> Run:
    import torch

    heads = 1 if change == "fit" else 8
    query = torch.randn(1, heads, rng.randrange(768, 1537, 128), 64)
    attention = torch.nn.functional.scaled_dot_product_attention
    return _times(8 // heads, lambda: attention(query, query, query))


def chain(rng: random.Random, change: str) -> Run:
    import torch

    chunks = rng.randrange(768, 1537)
    data = torch.randn(_CHUNK * (1 if change == "fit" else chunks))
    return _times(chunks if change == "fit" else 1, lambda: data.mul_(0.5).add_(1.0).relu_())


def copy(rng: random.Random, change: str) -> Run:
    import torch

    chunks = rng.randrange(768, 1537)
    source, target = torch.randn(2, _CHUNK * (1 if change == "fit" else chunks))
    return _times(chunks if change == "fit" else 1, lambda: target.copy_(source))


def decode(rng: random.Random, change: str) -> Run:
    import torch

    length, number = rng.randrange(32, 65) << 10, 1
    if change == "fit":
        length, number = 256, length // 256
    keys, values = torch.randn(2, 1, 8, length, 64)
    query = torch.randn(1, 8, 1, 64)
    attention = torch.nn.functional.scaled_dot_product_attention
    return _times(number, lambda: attention(query, keys, values))


def gather(rng: random.Random, change: str) -> Run:
    import torch

    rows, number = 512 if change == "fit" else 1 << 20, rng.randrange(100, 400) << 10
    table, result = torch.randn(rows, 64), torch.empty(number, 64)
    index = torch.randint(rows, (number,))
    return _times(1, lambda: torch.index_select(table, 0, index, out=result))


def tiny(rng: random.Random, change: str) -> Run:
    import torch

    parts = [torch.randn(64)] if change != "own" else [*torch.randn(2, 32)]
    return _times(rng.randrange(200, 800, 50), lambda: [torch.sigmoid(part) for part in parts])


def python(rng: random.Random, change: str) -> Run:
    import torch

    number = rng.randrange(100_000, 300_000)
    a, b = torch.randn(2, 256, 256)

    def run() -> Any:
        total = float(sum(i % 7 for i in range(number)))
        return torch.tensor([total]) if change == "own" else torch.mm(a, b)

    return _times(1, run)


def lock(rng: random.Random, change: str) -> Run:
    import torch

    held, guard = rng.uniform(4e-3, 12e-3), threading.Lock()
    a, b = torch.randn(2, 256, 256)

    def hold() -> None:
        while True:
            with guard:
                time.sleep(held)
            time.sleep(1e-3)

    def run() -> Any:
        with guard:
            return torch.mm(a, b)

    if change != "own":
        threading.Thread(target=hold, daemon=True).start()
    return _times(1, run)


def file(rng: random.Random, change: str) -> Run:
    import torch

    size = rng.randrange(4, 17) << 20
    path = FILE.with_suffix(f".{size}{change}")
    path.write_bytes(os.urandom(size))
    os.sync()
    handle = os.open(path, os.O_RDONLY)
    path.unlink()

    def run() -> Any:
        if change != "own":
            os.posix_fadvise(handle, 0, size, os.POSIX_FADV_DONTNEED)
        data = bytearray(os.pread(handle, size, 0))
        return torch.frombuffer(data, dtype=torch.uint8)[:64].float()

    return _times(1, run)


def linear(rng: random.Random, change: str) -> Run:
    import torch

    layer, data = torch.nn.Linear(4096, 4096), torch.randn(int(change or 1), 4096)
    return lambda given: layer(data if given is None else given)


def image(rng: random.Random, change: str) -> Run:
    import torch

    layer, data = torch.nn.Conv2d(64, 64, 3, padding=1), torch.randn(int(change or 1), 64, 56, 56)
    return lambda given: layer(data if given is None else given)


def small(rng: random.Random, change: str) -> Run:
    import torch

    data = torch.randn(int(change or 1), 64)

    def run(given: Any) -> Any:
        result = data if given is None else given
        for _ in range(200):
            result = torch.sigmoid(result)
        return result

    return run
