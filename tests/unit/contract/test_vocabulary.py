"""Vocabulary of probe and exporter: both sides know every name."""

import ast
import re
import runpy
from pathlib import Path

import pytest
import torch

import infercanary.judge
import infercanary.probe
from infercanary.ab.neighbours import is_quiet
from infercanary.contract import kinds, vocabulary
from infercanary.contract.kinds import KINDS
from infercanary.contract.vocabulary import (
    BY_ITSELF,
    CANARY_STATES,
    COLD_START_METRIC,
    COMPONENTS,
    COMPUTE_THREADS,
    CONTROLS,
    CONTROLS_MADE_OF,
    DEVICE_COMPONENTS,
    GPU_SHARED_WITH,
    MODEL,
    NOT_JUDGED,
    OUTCOMES,
    PHASES,
    SETTINGS,
    TAGS,
    order_of_interest,
)
from infercanary.judge.model import Sample
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.targets.controls.machine_code import mapped_code
from infercanary.probe.targets.engines.torch_model import environment
from tests.programs import ROOT

CODE = Path(vocabulary.__file__).parents[1]
SIDES = (CODE, Path(next(iter(infercanary.judge.__path__))).parent)


def sample(*tags):
    return Sample(1, "c", 0.0, "ok", 0.01, tags=tags)


def test_the_judge_counts_a_run_by_the_tags_of_the_table():
    assert (
        {tag for tag in TAGS if not sample(tag).is_settled}
        == NOT_JUDGED
        == {"warming", "failing", "beside_canary"}
    )
    assert {"cpu_wait_inside", "cgroup_throttled", "cpuset_changed", "memory_limit"} == BY_ITSELF
    assert {tag for tag in TAGS if not is_quiet(sample(tag))} == {"stalled", "cpu_wait_outside", "gpu_busy"}
    assert not any(tag.by_others for tag in TAGS.values() if not tag.is_judged)


def test_tags_have_a_row_each_in_the_docs():
    assert all(len(tag.meaning) > 20 for tag in TAGS.values())
    [section] = re.findall(
        r"^## Tags of a run\n(.*?)^## ", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*TAGS]


def test_every_control_has_its_classification_whatever_it_is_made_of():
    assert [*cpu_controls(mapped_code()), *cuda_controls(0, mapped_code())] == [*CONTROLS]
    assert [*cpu_controls(None), *cuda_controls(0, None)] == [*CONTROLS]
    assert [kind.bottleneck for kind in CONTROLS.values()] == 2 * ["compute", "memory", "io", "scheduling"]


def test_components_are_those_of_the_targets():
    names = {text for path in (CODE / "probe").rglob("*.py") for text in _texts(path)}
    assert COMPONENTS.keys() <= names | {MODEL, SETTINGS, GPU_SHARED_WITH, CONTROLS_MADE_OF}, (
        "components of canaries, of the exporter, and of the probe itself"
    )
    engine = environment(torch, torch.device("cpu"), "compile", "default", "bfloat16").keys()
    assert {name for name in COMPONENTS if name.startswith("torch") and "cud" not in name} <= engine


def test_components_are_sorted_as_people_ask_for_them():
    given = "zlib numpy env_OMP_NUM_THREADS settings:b torch onnx_inter_op_threads model:b torch_device"
    assert " ".join(sorted(given.split(), key=order_of_interest)) == (
        "model:b settings:b torch_device torch numpy env_OMP_NUM_THREADS onnx_inter_op_threads zlib"
    )
    assert DEVICE_COMPONENTS == ("torch_device", "onnx_device")
    assert set(COMPUTE_THREADS) <= COMPONENTS.keys()


def test_a_step_of_the_cold_start_is_a_gauge_of_the_probe():
    assert KINDS[COLD_START_METRIC] == "gauge"


def test_metrics_that_the_other_side_names_exist():
    """If a metric of the probe is renamed, code that reads it by its old name would find nothing, without an error."""
    declared = {metric.name for metric in runpy.run_path(str(ROOT / "docs/generate.py"))["declared"]()}
    table = Path(kinds.__file__).resolve()  # generated from the declarations; its names lack `_total`
    sources = {path.resolve() for side in SIDES for path in side.rglob("*.py")} - {table}
    named = {text for path in sources for text in _texts(path)}
    table_of_store = "infercanary_schema"
    names = {text for text in named if re.fullmatch(r"infercanary_[a-z0-9_]+", text)}
    assert names - declared == {table_of_store}


def test_phases_that_wait_are_the_hosts():
    assert [phase.name for phase in PHASES.values() if phase.is_waiting] == ["launch", "queue"]
    assert [phase.name for phase in PHASES.values() if not phase.of_server][:3] == ["h2d", "compute", "d2h"]


def test_dashboards_have_a_colour_for_each():
    colours = pytest.importorskip("grafana.dashboards.colours")
    assert colours.CANARY_STATES.keys() == set(CANARY_STATES)
    assert colours.OUTCOMES.keys() == set(OUTCOMES)
    assert [*colours.PHASES] == [phase.name for phase in PHASES.values() if not phase.of_server]
    assert [*colours.CONTROLS] == [*CONTROLS]


def _texts(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
