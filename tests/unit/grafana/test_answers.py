"""Dashboard queries with missing values, duplicate series, or one GPU: promtool evaluates them on a few series."""

import shutil

import pytest
import yaml

from grafana.queries import queries
from tests.programs import ended
from tests.scenarios import cases

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")

QUERIES = {
    f"{query.dashboard}: {query.place.removeprefix('panel ')}": query.expression for query in queries()
}

UP = "instance_service_container:infercanary_up:max"
SCRAPES = {
    'instance_job:up:max{job="infercanary", instance="node-1:9797"}': "1x20",
    'instance_job:up:max{job="infercanary", instance="node-2:9797"}': "1x10 0x10",
    f'{UP}{{instance="node-1:9797", service="search", container="search-1"}}': "1x20",
    f'{UP}{{instance="node-1:9797", service="search", container="search-2"}}': "0x20",
    f'{UP}{{instance="node-2:9797", service="search", container="search-3"}}': "1x10 stale",
}
"""After ten minutes one of two exporters goes down, with one of three replicas. Another replica does not answer."""

SHIFTS = {
    f'{name}{{service="search", namespace="{namespace}", canary="resnet18"{more}}}': f"{value}x20"
    for namespace, value in (("prod", 0.346), ("staging", 0.002))
    for name, more, value in (
        ("service_canary:infercanary_shift_ratio:max", "", value),
        ("service_canary_verdict:infercanary_verdict:max", ', verdict="regressed"', 1),
        (UP, ', instance="node-1:9797", container="server"', 1),
    )
}
FALLBACK = {
    'service_canary:infercanary_cpu_fallback:holds{service="search", canary="resnet18"}': "1x20",
    'infercanary_cuda_missing{instance="node-1:9797", service="search", canary="resnet18", reason="no_device"}': "1x20",
    'infercanary_cuda_missing{instance="node-1:9797", service="chat", canary="llm", reason="no_device"}': "1x20",
}
ALERT = 'alertname="InferCanaryProbeDown", severity="warning", service="search", pod="search-x7k2p", container="server"'
ALERTS = {
    f'ALERTS{{alertstate="firing", {ALERT}}}': "1x20",
    f"ALERTS_FOR_STATE{{{ALERT}}}": "600x20",
    'infercanary:links:info{runbooks="http://host/runbooks"}': "1x20",
}
GPU = {
    f'{name}{{instance="node-1:9797", service="search", container="search-{number}", gpu="{gpu}"{more}}}': value
    for number, gpu in ((1, 0), (2, 3))
    for name, more, value in (
        ("infercanary_gpu_info", ', uuid="GPU-5a6f1a2b-0c1d"', "1x20"),
        ("infercanary_gpu_shared", "", "1x20"),
        ("infercanary_gpu_remapped_rows_total", ', severity="corrected"', "3x20"),
        ("infercanary_gpu_remapped_rows_total", ', severity="uncorrected"', "2x20"),
    )
}


SERIES = {"scrapes": SCRAPES, "shifts": SHIFTS, "fallback": SCRAPES | FALLBACK, "alerts": ALERTS, "gpu": GPU}
ANSWERS = """
self: Probes A                  | replica   | scrapes  | {search-1 node-1: 1, search-2 node-1: 0, search-3 node-2: -1}
self: Exporters A               | instance  | scrapes  | {"node-1:9797": 1, "node-2:9797": 0}
fleet: Broken now A             | instance  | scrapes  | {"node-2:9797": 1}
fleet: Inventory A              | service   | scrapes  | {search: 3}
fleet: Inventory B              | service   | scrapes  | {search: 1}
fleet: Inventory C              | service   | scrapes  | {search: 2}
fleet: Services: last upgrade B | namespace | shifts   | {prod: 1, staging: 1}
fleet: Services: last upgrade B | change    | shifts   | {+34.6 %: 1, +0.2 %: 1}
fleet: Broken now D             | canary    | fallback | {resnet18: 2}
fleet: Firing alerts A          | alert     | alerts   | {ProbeDown: 600000}
fleet: Firing alerts A          | replica   | alerts   | {search-x7k2p/server: 600000}
fleet: Firing alerts A          | runbooks  | alerts   | {"http://host/runbooks": 600000}
host: Neighbours on the GPU A   | id        | gpu      | {GPU-5a6f1a2b: 1}
host: GPU errors D              | id        | gpu      | {GPU-5a6f1a2b: 5}
"""


@cases(ANSWERS)
def test_answer(place, by, series, expected, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    samples = [
        {"labels": f'{{{by}="{text}"}}', "value": value} for text, value in yaml.safe_load(expected).items()
    ]
    query = {"expr": f"sum by ({by}) ({QUERIES[place]})", "eval_time": "15m", "exp_samples": samples}
    inputs = [{"series": name, "values": values} for name, values in SERIES[series].items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": [query]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    ended(promtool, "test", "rules", file)
