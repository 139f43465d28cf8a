"""NVML's sampler on a real GPU.

The golden files contain the metrics of one GPU model, idle and loaded. Record a new GPU model with:

    UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/gpu/test_nvml.py -k golden; git status tests/golden
"""

import os
import re
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from infercanary.probe.gpu.cuda_driver import Device, pci_bus_id
from infercanary.probe.samplers.nvml import NvmlSampler, visible_gpus
from infercanary.probe.tags import gpus_at, values
from infercanary.probe.targets.controls.cuda import cuda_controls
from tests.scenarios import cases

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def sample():
    """Yield a function that samples while CUDA uses the GPU, as in a server; the driver may unload without a user."""
    device, sampler = Device(0), NvmlSampler()
    try:
        yield lambda: tuple(sampler.sample())
    finally:
        sampler.close()
        device.close()


@contextmanager
def load():
    """Load the GPU for longer than the driver's window of utilization, and then run the block under this load."""
    control = cuda_controls(0, None)["gpu_fma"]
    ended = threading.Event()

    def work():
        while not ended.is_set():
            seconds()

    with control() as seconds:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            time.sleep(2)
            yield
        finally:
            ended.set()
            thread.join()


def label(found):
    indexes = gpus_at(pci_bus_id(0), found)
    assert indexes is not None  # NVML does not list CUDA's GPU
    (index,) = indexes
    return index


def of(found, name):
    return found[f"infercanary_gpu_{name}"][(label(found),)]


def test_the_canarys_gpu_is_among_those_that_answer(sample):
    found = values(sample())
    assert found["infercanary_nvml_state"][("ok",)] == 1
    assert of(found, "up") == 1
    (identity,) = (labels for labels in found["infercanary_gpu_info"] if labels[0] == label(found))
    device = Device(0)
    device.close()
    assert identity[1] == device.name
    assert all(identity[:5])  # name, UUID, PCI address and driver version exist
    assert device.name in visible_gpus()
    assert 0 < of(found, "sm_clock_hertz") <= of(found, "sm_clock_max_hertz") < 5e9
    assert 0 < of(found, "memory_clock_hertz") < 50e9
    assert 0 < of(found, "memory_used_bytes") < of(found, "memory_size_bytes")
    assert 5 < found["infercanary_gpu_temperature_celsius"][label(found), "gpu"] < 110
    assert 0 < of(found, "pcie_link_ratio") <= 1


def counters(families):
    found = values([family for family in families if family.kind == "counter"])
    return {(name, *labels): value for name, points in found.items() for labels, value in points.items()}


def test_load_shows_in_clock_utilization_and_energy_and_no_counter_goes_back(sample):
    with load():
        first, begin = sample(), time.monotonic()
        before = counters(first)
        for _ in range(20):
            time.sleep(0.1)
            last, elapsed = sample(), time.monotonic() - begin
            after = counters(last)
            assert {key: value for key, value in before.items() if after[key] < value} == {}
            before = after
    names = {name.removeprefix("infercanary_gpu_") for name, *_ in before}
    assert names >= {"clock_event_seconds_total", "energy_joules_total"}
    shown = values(last)
    assert of(shown, "utilization_ratio") > 0.2
    assert of(shown, "sm_clock_hertz") > 0.3 * of(shown, "sm_clock_max_hertz")
    watts = (of(shown, "energy_joules_total") - of(values(first), "energy_joules_total")) / elapsed
    print(f"{watts:.0f} W under load, of {of(shown, 'power_limit_watts'):.0f} W")
    assert 5 < watts < 1.2 * of(shown, "power_limit_watts")


def test_it_can_be_let_go_of_and_taken_up_again():
    sampler = NvmlSampler()
    for _ in range(2):
        assert values(sampler.sample())["infercanary_nvml_state"][("ok",)] == 1
        sampler.close()


def exposition(families):
    expose = pytest.importorskip("infercanary.exporter.expose")
    shown = expose.Exposition()
    lines = [expose.write(family, {}) for family in families if family.points]
    assert shown.replace(("", ""), lines) == 0
    text = b"".join(shown.families(in_openmetrics=False)).decode()
    return re.sub(r'(uuid|pci_bus_id)="[^"]*"', r'\1="…"', text)


def series(text):
    """Return the series without values, and without metrics that differ between hosts (versions, seen errors)."""
    lines = (line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
    own = ("infercanary_gpu_info", "infercanary_gpu_xid_errors", "infercanary_gpu_numa_node")
    return {line for line in lines if not line.startswith(own)}


@cases(["idle", "loaded"])
def test_golden(state, sample):
    """GPUs of the same model have the same series. The values in the file are only for readers."""
    if len(visible_gpus()) != 1:
        pytest.skip("several GPUs: a golden file is for one GPU")
    with load() if state == "loaded" else nullcontext():
        time.sleep(2)  # the window of utilization is at most one second
        families = sample()
    kind = re.sub(r"\W+", "_", visible_gpus()[0].lower()).removeprefix("nvidia_")
    golden = GOLDEN / f"nvml_{kind}_{state}.metrics"
    text = exposition(families)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    if not golden.exists():
        pytest.skip(f"no {golden.name} yet: UPDATE_GOLDEN=1 writes it")
    assert series(text) == series(golden.read_text())
