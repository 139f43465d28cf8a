"""The Helm chart: its copies are current, it refuses mistakes in one line, and it renders what a cluster needs."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infercanary.contract.report import DEFAULT_PORT
from tests.for_each import for_each

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/infercanary"
GENERATOR = runpy.run_path(str(ROOT / "charts/generate.py"))
VALUES = (CHART / "values.yaml").read_text(encoding="utf-8")
OPERATOR = ("--api-versions", "monitoring.coreos.com/v1")
Object = dict[str, Any]

helm = pytest.mark.skipif(
    not shutil.which("helm") and not os.environ.get("CI"), reason="no program helm: .ci/helm installs it"
)


def rendered(*options: str) -> dict[str, Object]:
    """The chart's objects, by kind and name."""
    found = [each for each in yaml.safe_load_all(GENERATOR["render"](*options)) if each]
    objects = {f"{each['kind']}/{each['metadata']['name']}": each for each in found}
    assert len(objects) == len(found)
    return objects


def refused(*options: str) -> str:
    """What Helm says of these values."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        GENERATOR["render"](*options)
    return str(failed.value.stderr)


# What is generated ------------------------------------------------------------------------------------------------


@for_each(GENERATOR["copies"]().items(), lambda file: str(file[0].relative_to(CHART)))
def test_copies_are_current(file: tuple[Path, str]) -> None:
    path, text = file
    assert path.is_file() and path.read_text(encoding="utf-8") == text, "it is stale: run `make chart`"


def test_there_is_no_copy_of_what_is_gone() -> None:
    there = {path for folder in GENERATOR["COPIES"] for path in (CHART / folder).iterdir()}
    assert there == GENERATOR["copies"]().keys(), "run `make chart`"


def test_the_readme_is_current() -> None:
    assert (CHART / "README.md").read_text(encoding="utf-8") == GENERATOR["readme"](), "run `make chart`"


@helm
def test_plain_manifests_are_current() -> None:
    for path, text in GENERATOR["plain"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run `make chart`"


def test_what_a_description_is() -> None:
    text = "# A\n# section.\na:\n  # One.\n  b: [1]\n  c: 2\n\n# Nothing.\n\nd: {}\n# Last.\ne: {}\n"
    assert [*GENERATOR["described"](text)] == [
        ("a", "", "A section."),
        ("a.b", "`[1]`", "One."),
        ("e", "`{}`", "Last."),
    ]


def test_the_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [version] = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert (chart["version"], chart["appVersion"]) == (version, version)


# Values -----------------------------------------------------------------------------------------------------------


def _keys(values: Any, schema: Object, prefix: str = "") -> tuple[set[str], set[str]]:
    """The keys of values and of their schema, as far down as the schema names them."""
    if not schema.get("properties"):
        return set(), set()
    ours = {f"{prefix}{key}" for key in values}
    theirs = {f"{prefix}{key}" for key in schema["properties"]}
    for key in values.keys() & schema["properties"].keys():
        inner = _keys(values[key], schema["properties"][key], f"{prefix}{key}.")
        ours, theirs = ours | inner[0], theirs | inner[1]
    return ours, theirs


def test_every_value_is_in_the_schema_and_in_the_readme() -> None:
    values = yaml.safe_load(VALUES)
    ours, theirs = _keys(values, json.loads((CHART / "values.schema.json").read_text()))
    assert theirs - ours == {"global", "resources.claims"}  # Helm's own, and Kubernetes'
    assert ours <= theirs
    described = {key for key, *_ in GENERATOR["described"](VALUES)}
    assert {
        key for key in values if not {key, *(f"{key}.{inner}" for inner in _inner(values[key]))} & described
    } == set()


def _inner(value: Any) -> list[str]:
    return [*value] if isinstance(value, dict) else []


MISTAKES = {
    "an unknown key": (("imge.tag=1",), "Additional property imge is not allowed"),
    "an unknown key inside": (("store.path=/x",), "store: Additional property path is not allowed"),
    "a password among the values": (
        ("store.postgres.url=postgresql://me:secret@db/x",),
        "store.postgres.url: Does not match pattern",
    ),
    "a relative folder": (("store.hostPath=data",), "store.hostPath: Does not match pattern"),
    "a tag in the repository": (("image.repository=x:1",), "image.repository: Does not match pattern"),
    "a short digest": (("image.digest=sha256:1",), "image.digest: Does not match pattern"),
    "a word for a number": (
        ("monitoring.thresholds.shift_ratio=much",),
        "shift_ratio: Does not match pattern",
    ),
    "a policy for pulls": (("image.pullPolicy=never",), "image.pullPolicy must be one of"),
    "a link without a scheme": (("links.grafana=grafana.example.com",), "links.grafana: Does not match"),
    "a setting that the chart makes": (("config.store=/tmp/x",), "config: Must not validate the schema"),
    "a switch that is a word": (("rbac.create=yes",), "rbac.create: Invalid type"),
    "honest labels": (("monitoring.endpoint.honorLabels=false",), "monitoring.endpoint: Must not validate"),
    "a port": (("networkPolicy.probePorts={0}",), "probePorts.0: Must be greater than or equal to 1"),
    "no account": (("serviceAccount.create=false",), "serviceAccount.name: name the account that is there"),
    "a threshold that no alert has": (
        ("monitoring.enabled=true", "monitoring.thresholds.shft_ratio=1"),
        "monitoring.thresholds: no threshold shft_ratio in rules/thresholds.yml",
    ),
}


@helm
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    values, said = MISTAKES[mistake]
    assert said in refused(*(f"--set={value}" for value in values))


# What is rendered -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything() -> dict[str, Object]:
    """All objects that the chart has."""
    if not shutil.which("helm") and not os.environ.get("CI"):
        pytest.skip("no program helm: .ci/helm installs it")
    return rendered(*OPERATOR, "--set=networkPolicy.enabled=true")


@helm
def test_lint() -> None:
    subprocess.run(["helm", "lint", "--strict", "--quiet", str(CHART)], check=True, timeout=60)


def pod(objects: dict[str, Object]) -> Object:
    found: Object = objects["DaemonSet/infercanary"]["spec"]["template"]
    return found


def test_selectors_and_ports_are_those_of_the_pods(everything: dict[str, Object]) -> None:
    labels = pod(everything)["metadata"]["labels"].items()
    selectors = (
        everything["DaemonSet/infercanary"]["spec"]["selector"],
        everything["PodMonitor/infercanary"]["spec"]["selector"],
        everything["NetworkPolicy/infercanary"]["spec"]["podSelector"],
    )
    for selector in selectors:
        assert selector["matchLabels"] and selector["matchLabels"].items() <= labels
    [container] = pod(everything)["spec"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9797}]
    service = everything["Service/infercanary"]["spec"]
    assert service["selector"].items() <= labels
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(9797, "metrics")]
    [endpoint] = everything["PodMonitor/infercanary"]["spec"]["podMetricsEndpoints"]
    [ingress] = everything["NetworkPolicy/infercanary"]["spec"]["ingress"]
    assert endpoint["port"] == ingress["ports"][0]["port"] == "metrics"


def test_the_policy_for_a_namespace_of_workloads_lets_the_exporter_in(everything: dict[str, Object]) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    [text] = [
        block for block in re.findall(r"```yaml\n(.+?)```", page, re.DOTALL) if "NetworkPolicy" in block
    ]
    [rule] = yaml.safe_load(text)["spec"]["ingress"]
    [source] = rule["from"]
    assert source["podSelector"]["matchLabels"].items() <= pod(everything)["metadata"]["labels"].items()
    assert [*source["namespaceSelector"]["matchLabels"].values()] == ["infercanary"]
    probes, _ = everything["NetworkPolicy/infercanary"]["spec"]["egress"]
    assert rule["ports"] == probes["ports"] == [{"protocol": "TCP", "port": DEFAULT_PORT}]


def test_it_may_list_and_watch_pods_and_nothing_else(everything: dict[str, Object]) -> None:
    rules = everything["ClusterRole/infercanary"]["rules"]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    [subject] = everything["ClusterRoleBinding/infercanary"]["subjects"]
    assert subject["name"] == pod(everything)["spec"]["serviceAccountName"]


def test_rules_are_those_of_the_compose_stack(everything: dict[str, Object]) -> None:
    files = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    assert files
    for file in files:
        spec = everything[f"PrometheusRule/infercanary-{file.stem}"]["spec"]
        assert spec == yaml.safe_load(file.read_text())
        names = [group["name"] for group in spec["groups"]]
        assert len(names) == len(set(names)), "the Prometheus Operator refuses it"


def test_limits_of_a_scrape_are_those_of_the_compose_stack(everything: dict[str, Object]) -> None:
    [job, *_] = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    spec = everything["PodMonitor/infercanary"]["spec"]
    for key in (
        "sample_limit",
        "body_size_limit",
        "label_limit",
        "label_name_length_limit",
        "label_value_length_limit",
    ):
        assert spec[re.sub(r"_(\w)", lambda found: found[1].upper(), key)] == job[key]


def test_each_dashboard_is_a_config_map(everything: dict[str, Object]) -> None:
    for file in (ROOT / "grafana/dashboards/json").glob("*.json"):
        found = everything[f"ConfigMap/infercanary-dashboard-{file.stem}"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(found)) < 256 << 10, "kubectl apply keeps it in an annotation, which has an end"
        [(name, text)] = found["data"].items()
        assert name == f"infercanary-{file.name}"
        assert json.loads(text) == json.loads(file.read_text())


def _threshold(objects: dict[str, Object]) -> object:
    groups = objects["PrometheusRule/infercanary-thresholds"]["spec"]["groups"]
    [rule] = [r for g in groups for r in g["rules"] if r.get("record") == "infercanary:threshold:shift_ratio"]
    return rule["expr"]


def _container(objects: dict[str, Object]) -> Object:
    [container] = pod(objects)["spec"]["containers"]
    return container


def _config(objects: dict[str, Object]) -> Object:
    return yaml.safe_load(objects["ConfigMap/infercanary"]["data"]["exporter.yaml"])


def _seconds(probe: Object) -> int:
    """After which the kubelet ends it."""
    seconds: int = probe["periodSeconds"] * probe["failureThreshold"]
    return seconds


DIGEST = "sha256:" + "0" * 64
CHOICES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Object]], bool]]] = {
    "no operator": ((), lambda o: not [name for name in o if name.startswith(("PodMonitor", "PrometheusRule"))]),
    "monitoring off": ((*OPERATOR, "--set=monitoring.enabled=false"), lambda o: "PodMonitor/infercanary" not in o),
    "a threshold": (
        (*OPERATOR, "--set=monitoring.thresholds.shift_ratio=0.1"), lambda o: _threshold(o) == "vector(0.1)",
    ),
    "a digest": (
        ("--set=image.repository=r.example.com:5000/x", f"--set=image.digest={DIGEST}"),
        lambda o: _container(o)["image"] == f"r.example.com:5000/x@{DIGEST}",
    ),
    "a setting": (
        ("--set=config.poll_seconds=2", "--set=config.discovery=none"),
        lambda o: (_config(o)["poll_seconds"], _config(o)["discovery"]) == (2, "none"),
    ),
    "an account that is there": (
        ("--set=serviceAccount.create=false", "--set=serviceAccount.name=mine"),
        lambda o: "ServiceAccount/mine" not in o and pod(o)["spec"]["serviceAccountName"] == "mine",
    ),
    "a priority class that is there": (
        ("--set=priorityClass.create=false", "--set=priorityClass.name=high"),
        lambda o: pod(o)["spec"]["priorityClassName"] == "high" and "PriorityClass/infercanary" not in o,
    ),
    "a node without a CPU to spare": (
        (),
        lambda o: _seconds(_container(o)["startupProbe"]) >= 300 and _seconds(_container(o)["livenessProbe"]) >= 120,
    ),
    "no priority class": (("--set=priorityClass.create=false",), lambda o: "priorityClassName" not in pod(o)["spec"]),
    "a folder of the node": (
        ("--set=store.hostPath=/data",),
        lambda o: pod(o)["spec"]["initContainers"][0]["command"] == ["chown", "10002", "/var/lib/infercanary"],
    ),
    "an emptyDir": ((), lambda o: "initContainers" not in pod(o)["spec"]),
    "OpenShift": (
        ("--set=podSecurityContext.runAsUser=null",), lambda o: "runAsUser" not in pod(o)["spec"]["securityContext"],
    ),
    "TLS and users": (
        ("--set=webConfigSecret=web",),
        lambda o: "--web-config=/etc/infercanary-web/web.yml" in _container(o)["args"]
        and _container(o)["livenessProbe"]["tcpSocket"] == {"port": "metrics"},
    ),
    "a store of all nodes": (
        ("--set=store.postgres.url=postgresql://me@db/x?sslmode=require", "--set=store.postgres.secret=db",
         "--set=networkPolicy.enabled=true"),
        lambda o: _config(o)["store"]
        == "postgresql://me@db/x?sslmode=require&password_file=/etc/infercanary-store/password"
        and {"name": "postgres", "secret": {"secretName": "db"}} in pod(o)["spec"]["volumes"]
        and {"name": "postgres", "mountPath": "/etc/infercanary-store", "readOnly": True}
        in _container(o)["volumeMounts"]
        and {"protocol": "TCP", "port": 5432} in o["NetworkPolicy/infercanary"]["spec"]["egress"][-1]["ports"]
        and "checksum/store" in pod(o)["metadata"]["annotations"],
    ),
    "a store without a Secret": (
        ("--set=store.postgres.url=postgresql://me@db/x",),
        lambda o: _config(o)["store"] == "postgresql://me@db/x"
        and "postgres" not in {each["name"] for each in pod(o)["spec"]["volumes"]},
    ),
    "annotations of pods": (
        ("--set=podAnnotations.a=b", "--set=store.postgres.url=postgresql://me@db/x"),
        lambda o: pod(o)["metadata"]["annotations"].keys() == {"a", "checksum/store"},
    ),
    "no dashboards": (("--set=dashboards.enabled=false",), lambda o: not [n for n in o if "-dashboard-" in n]),
}  # fmt: skip


@helm
@pytest.mark.parametrize("choice", CHOICES)
def test_a_value_does_what_it_says(choice: str) -> None:
    options, holds = CHOICES[choice]
    assert holds(rendered(*options))
