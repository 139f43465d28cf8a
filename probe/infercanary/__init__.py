"""Knows for every inference container whether its latency changed after an upgrade, by how much, and why.

The parts of this package lie in two trees of the repository: ``probe/infercanary`` (what goes into other people's
images) and ``exporter/infercanary``. A wheel joins them; an editable install and a checkout on ``PYTHONPATH`` have both
on ``sys.path``, where ``extend_path`` finds the second. Names are imported when they are first used (PEP 562), so
``import infercanary`` costs nothing and works with either part alone.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infercanary.probe import Probe as Probe

__path__ = extend_path(__path__, __name__)

_LAZY = {"Probe": "infercanary.probe"}
__all__ = ["Probe", "__version__"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("infercanary")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'infercanary' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
