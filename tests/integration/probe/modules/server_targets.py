"""Makes targets of servers from the options that differ from the defaults."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from infercanary.probe import HostClock
from infercanary.probe.targets import Failure
from infercanary.probe.targets.http import HttpOptions, HttpTarget
from infercanary.probe.targets.kserve import KserveOptions, KserveTarget
from infercanary.probe.targets.openai import OpenaiOptions, OpenaiTarget


def http_target(url, **options):
    return HttpTarget(HttpOptions(url=url, **options))


def kserve_target(url, model, **options):
    return KserveTarget(KserveOptions(url=url, model=model, **options))


def openai_target(url, model, **options):
    return OpenaiTarget(OpenaiOptions(url=url, model=model, **options))


@contextmanager
def fails(reason, *words):
    """Expect a failure with this reason and with a message of one line that contains these words."""
    with pytest.raises(Failure, match=r"^[^\n]*$") as failure:
        yield
    assert failure.value.reason == reason
    assert [word for word in words if word not in str(failure.value)] == [], failure.value


def opened(target):
    target.open()
    target.prepare()
    return target


def measured(target):
    return HostClock().measure(target.run)


def values_of(target):
    return target.values(measured(target)[1])
