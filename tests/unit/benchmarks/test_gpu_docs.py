"""docs/gpu.md names every step and every tested device; devices have metrics of the same names and kinds."""

import re

from gpu_claims.step import steps
from tests.programs import ROOT

GOLDEN = ROOT / "tests/golden"
PAGE = ROOT / "docs/gpu.md"
OF_DEVICE_FILES = "infercanary_gpu_own_processes"  # No scripted GPU has this metric.


def kinds(text):
    """Return the type of each metric. A metric's unit is part of its name."""
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))


def devices():
    found = {}
    for path in GOLDEN.glob("nvml_*_*.metrics"):
        found.setdefault(re.sub(r"^nvml_|_(idle|loaded)$", "", path.stem), []).append(path)
    return found


def test_devices_show_metrics_of_the_same_names_and_kinds():
    scripted = kinds("".join((GOLDEN / f"nvml_{state}.metrics").read_text() for state in ("idle", "loaded")))
    assert len(scripted) > 20
    assert devices()
    for device, paths in devices().items():
        assert len(paths) == 2, f"{device}: idle and loaded"
        for path in paths:
            ours = kinds(path.read_text())
            ours.pop(OF_DEVICE_FILES, None)
            assert len(ours) > 15 and ours.items() <= scripted.items(), (device, set(ours) - set(scripted))


def test_the_page_has_each_device_and_each_step():
    page = PAGE.read_text()
    for device in devices():
        assert f"`{device}`" in page
    assert [name for name in steps() if f"`{name}`" not in page] == []
    for path in (ROOT / "benchmarks/results").glob("gpu-*.md"):
        assert path.name in page, "the page must link each device's table"
