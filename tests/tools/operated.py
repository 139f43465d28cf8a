"""A real Prometheus with the configuration that the Prometheus Operator makes from the objects in a cluster."""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import contextmanager
from typing import NamedTuple

import yaml
from harness import background, eventually, get, query
from ports import free_port

NAMESPACE = "monitoring"
# Like the object of kube-prometheus-stack, but it selects all rules and monitors. It has no replica, because
# the program runs beside the cluster.
PROMETHEUS = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "test", "namespace": NAMESPACE},
    "spec": {
        "replicas": 0,
        "scrapeInterval": "1s",
        "evaluationInterval": "1s",
        "podMonitorSelector": {},
        "podMonitorNamespaceSelector": {},
        "ruleSelector": {},
        "ruleNamespaceSelector": {},
    },
}
_RELOADER = {"SHARD": "0", "POD_NAME": "prometheus-test-0"}
"""Variables that the config reloader beside Prometheus would substitute."""
_THERE = ("--namespace", NAMESPACE, "--output", "name")
_SECRET, _RULES = "prometheus-test", "prometheus-test-rulefiles-0"


class Prometheus(NamedTuple):
    url: str

    def query(self, expression):
        return query(self.url, expression)

    def rules(self):
        groups = json.loads(get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


def configuration(cluster, job, folder):
    """Wait for the operator's configuration, and write it to files.

    Args:
        cluster: Cluster with the operator.
        job: Job that the operator makes of a PodMonitor; the function waits for this job.
        folder: Folder for rules and configuration.

    Returns:
        The operator's configuration, with new paths of credentials and rules.
    """

    def made():
        names = {
            name.partition("/")[2] for name in cluster.kubectl("get", "secret,configmap", *_THERE).split()
        }
        if not {_SECRET, _RULES} <= names:
            return None
        packed = cluster.get("secret", _SECRET, *_THERE[:2])["data"]["prometheus.yaml.gz"]
        text = gzip.decompress(base64.b64decode(packed)).decode()
        for variable, value in _RELOADER.items():
            text = text.replace(f"$({variable})", value)
        rules = cluster.get("configmap", _RULES, *_THERE[:2]).get("data", {})
        return (text, rules) if job in text and rules else None

    found = eventually("a configuration by the Prometheus Operator", 60, made)
    text, rules = found
    (folder / "rules").mkdir()
    for name, content in rules.items():
        (folder / "rules" / name).write_text(content)
    config = yaml.safe_load(text)
    config["rule_files"] = [f"{folder}/rules/*"]
    for scrape in config["scrape_configs"]:
        for discovery in scrape["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = cluster.kubeconfig
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def running(config):
    address = f"127.0.0.1:{free_port()}"
    command = (
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={config.parent / 'data'}",
        f"--web.listen-address={address}", "--log.level=warn",
    )  # fmt: skip
    path = config.parent / "prometheus.log"
    try:
        with path.open("w") as log, background(*command, stdout=log, stderr=log):
            eventually("Prometheus is ready", 30, lambda: get(f"http://{address}/-/ready"))
            yield Prometheus(f"http://{address}")
    finally:
        print(path.read_text()[-4000:])
