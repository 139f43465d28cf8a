"""What an engine reports of itself, and what a message says about the GPUs that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from infercanary.probe.samplers.nvml import visible_gpus


def reported(components: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Ask an engine for each component; what it does not know, or refuses to say, is left out.

    Older versions of an engine lack some functions. torch also refuses some switches where the host mixed their old
    and new names.

    Args:
        components: Component → what returns its version or setting; None and empty text mean that it is not known.

    Returns:
        Component → text.
    """
    found = {}
    for component, ask in components.items():
        with suppress(Exception):
            value = ask()
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            if text:
                found[component] = text
    return found


def seen_by_nvml() -> str:
    """Return the part of a message about a missing GPU that says what NVML sees; empty where it sees none.

    Returns:
        Text that follows another, such as `` and NVML sees NVIDIA H100``.
    """
    gpus = ", ".join(visible_gpus())
    return f" and NVML sees {gpus}" if gpus else ""
