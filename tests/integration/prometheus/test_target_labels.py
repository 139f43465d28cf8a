"""A real Prometheus whose target has the exporter's label names, as service monitors add them."""

import shutil

import operated
import pytest
import yaml
from harness import ROOT, eventually

from tests.integration.exporter.processes import ExporterProcess

GIVEN = {"service": "monitoring", "namespace": "monitoring", "pod": "exporter-x7", "container": "exporter"}


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    """Query a Prometheus that scrapes a real exporter twice: as shipped, and without `honor_labels`."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on PATH")
    folder = tmp_path_factory.mktemp("target")
    exporter = ExporterProcess(folder, {"search-1": "http://127.0.0.1:9"})
    config = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())
    [shipped] = [job for job in config["scrape_configs"] if job["job_name"] == "infercanary"]
    del shipped["dns_sd_configs"]  # this part of the configuration is only for Compose
    targets = [{"targets": [f"127.0.0.1:{exporter.port}"], "labels": GIVEN}]
    shipped |= {"scrape_interval": "500ms", "scrape_timeout": "400ms", "static_configs": targets}
    config = {
        "global": {"evaluation_interval": "500ms"},
        "rule_files": [str(ROOT / "prometheus/rules/*.yml")],
        "scrape_configs": [shipped, {**shipped, "job_name": "renamed", "honor_labels": False}],
    }
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    exporter.start()
    try:
        with operated.running(path) as prometheus:
            yield lambda expression: [labels for labels, _ in prometheus.query(expression)]
    finally:
        exporter.kill()


def comes(query, expression):
    [labels] = eventually(expression, 20, lambda: query(expression))
    return labels


def test_the_exporters_labels_stay(query):
    up = comes(query, 'infercanary_up{job="infercanary"}')
    assert (up["service"], up["container"]) == ("s", "search-1")
    assert not [label for label in up if label.startswith("exported_")]
    assert up["job"] == "infercanary"
    assert "127.0.0.1" in up["instance"]
    comes(query, 'instance_service_container:infercanary_up:max{service="s"}')
    assert not query('{job="infercanary", exported_service!=""}')


def test_without_honor_labels_no_rule_knows_the_service(query):
    """Without `honor_labels`, no rule may find the service: this proves that the test above can fail."""
    up = comes(query, 'infercanary_up{job="renamed"}')
    assert (up["service"], up["exported_service"]) == ("monitoring", "s")
    comes(query, 'instance_service_container:infercanary_up:max{service="monitoring"}')
