"""Makes targets for servers from the options that differ from the defaults."""

from __future__ import annotations

from typing import Any

from infercanary.probe import HostClock
from infercanary.probe.targets.http import HttpOptions, HttpTarget
from infercanary.probe.targets.kserve import KserveOptions, KserveTarget
from infercanary.probe.targets.openai import OpenaiOptions, OpenaiTarget
from infercanary.probe.timing import Timing


def http_target(url: str, **options: Any) -> HttpTarget:
    return HttpTarget(HttpOptions(url=url, **options))


def kserve_target(url: str, model: str, **options: Any) -> KserveTarget:
    return KserveTarget(KserveOptions(url=url, model=model, **options))


def openai_target(url: str, model: str, **options: Any) -> OpenaiTarget:
    return OpenaiTarget(OpenaiOptions(url=url, model=model, **options))


def opened(target: Any) -> Any:
    target.open()
    target.prepare()
    return target


def measured(target: Any) -> tuple[Timing, Any]:
    return HostClock().measure(target.run)


def values_of(target: Any) -> list[float]:
    """Return the output values of one inference."""
    found: list[float] = target.values(measured(target)[1])
    return found
