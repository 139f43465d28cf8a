"""InferCanary: did an upgrade change the latency of an inference container, by how much, and why?

This package has two source trees: ``probe/infercanary`` (for images of inference servers) and
``exporter/infercanary``. A wheel joins them; an editable install and a checkout on ``PYTHONPATH`` have both on
``sys.path``, where ``extend_path`` finds the second. Names are imported at first use (PEP 562), so ``import
infercanary`` is cheap and works with either tree alone.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infercanary.notebook.magic import load as load_ipython_extension  # noqa: F401
    from infercanary.notebook.reading import read as read
    from infercanary.notebook.timed import time as time
    from infercanary.probe import Probe as Probe

    __version__: str

__path__ = extend_path(__path__, __name__)

_UNKNOWN_VERSION = "0+unknown"  # version of a checkout that is not installed; valid by PEP 440
_PARTS = ("judge", "probe")
_LAZY = {
    "Probe": ("infercanary.probe", "Probe"),
    "load_ipython_extension": ("infercanary.notebook.magic", "load"),
    "read": ("infercanary.notebook.reading", "read"),
    "time": ("infercanary.notebook.timed", "time"),
}
__all__ = ["Probe", "__version__", "read", "time"]


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        value: object = _version()
    elif name in _LAZY:
        module, attribute = _LAZY[name]
        value = getattr(import_module(module), attribute)
    else:
        raise AttributeError(f"module 'infercanary' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:
        return _UNKNOWN_VERSION
