"""Targets for servers, made of the options that differ from the defaults."""

from __future__ import annotations

from typing import Any

from infercanary.probe.targets.http import HttpOptions, HttpTarget
from infercanary.probe.targets.kserve import KserveOptions, KserveTarget
from infercanary.probe.targets.openai import OpenaiOptions, OpenaiTarget


def http_target(url: str, **options: Any) -> HttpTarget:
    return HttpTarget(HttpOptions(url=url, **options))


def kserve_target(url: str, model: str, **options: Any) -> KserveTarget:
    return KserveTarget(KserveOptions(url=url, model=model, **options))


def openai_target(url: str, model: str, **options: Any) -> OpenaiTarget:
    return OpenaiTarget(OpenaiOptions(url=url, model=model, **options))
