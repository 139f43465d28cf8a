"""A real Prometheus whose target has labels of the exporter's names, as service monitors give them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from ports import free_port

ROOT = Path(__file__).parents[3]
GIVEN = {"service": "monitoring", "namespace": "monitoring", "pod": "exporter-x7", "container": "exporter"}

Query = Callable[[str], list[dict[str, str]]]


def answer(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.load(response)


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """Asks a Prometheus that scrapes a real exporter twice: as shipped, and without `honor_labels`."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on PATH")
    folder = tmp_path_factory.mktemp("target")
    exporter, prometheus = free_port(), free_port()
    (folder / "exporter.yaml").write_text(
        f"listen: 127.0.0.1:{exporter}\npoll_seconds: 0.3\ndiscovery: none\n"
        "probes: [{url: 'http://127.0.0.1:9', service: search, container: search-1}]\n"
    )
    [shipped] = [
        job
        for job in yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())["scrape_configs"]
        if job["job_name"] == "infercanary"
    ]
    targets = [{"targets": [f"127.0.0.1:{exporter}"], "labels": GIVEN}]
    every = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "static_configs": targets}
    del shipped["dns_sd_configs"]  # of Compose
    jobs = [{**shipped, **every}, {**shipped, **every, "job_name": "renamed", "honor_labels": False}]
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump(
            {
                "global": {"evaluation_interval": "500ms"},
                "rule_files": [str(ROOT / "prometheus/rules/*.yml")],
                "scrape_configs": jobs,
            }
        )
    )
    with ExitStack() as ended:
        for command in (
            [sys.executable, "-m", "infercanary", "exporter", "--config", str(folder / "exporter.yaml")],
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{prometheus}", "--log.level=error"],
        ):  # fmt: skip
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            ended.callback(process.wait, 10)
            ended.callback(process.terminate)

        def ask(expression: str) -> list[dict[str, str]]:
            asked = urllib.parse.quote(expression)
            found = answer(f"http://127.0.0.1:{prometheus}/api/v1/query?query={asked}")
            return [each["metric"] for each in found["data"]["result"]]

        yield ask


def eventually(query: Query, expression: str) -> list[dict[str, str]]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if found := query(expression):
                return found
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"nothing within 20 s: {expression}")


def test_the_exporters_labels_stay(query: Query) -> None:
    [up] = eventually(query, 'infercanary_up{job="infercanary"}')
    assert (up["service"], up["container"]) == ("search", "search-1")
    assert not [label for label in up if label.startswith("exported_")]
    assert (up["instance"], up["job"]) == (up["instance"], "infercanary") and "127.0.0.1" in up["instance"]
    eventually(query, 'instance_service_container:infercanary_up:max{service="search"}')
    assert not query('{job="infercanary", exported_service!=""}')


def test_without_honor_labels_no_rule_knows_the_service(query: Query) -> None:
    """That the test above can fail."""
    [up] = eventually(query, 'infercanary_up{job="renamed"}')
    assert (up["service"], up["exported_service"]) == ("monitoring", "search")
    eventually(query, 'instance_service_container:infercanary_up:max{service="monitoring"}')
