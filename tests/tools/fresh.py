"""A process in which no other test left anything."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_a_fresh_process(function: Callable[[], T]) -> T:
    """What a function of a module returns in a child process.

    In this process other tests leave threads: pools of an engine, some of them pinned, and threads that are ending.
    They take memory, too.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        return child.submit(function).result(60)
