"""The Helm chart: current copies, one-line errors, and manifests with everything that a cluster needs."""

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from infercanary.contract.report import DEFAULT_PORT
from tests.for_each import for_each
from tests.programs import ROOT, ended
from tests.scenarios import cases

CHART = ROOT / "charts/infercanary"
GENERATOR = runpy.run_path(str(ROOT / "charts/generate.py"))
VALUES = (CHART / "values.yaml").read_text()
OPERATOR = ("--api-versions", "monitoring.coreos.com/v1")

helm = pytest.mark.skipif(
    not shutil.which("helm") and not os.environ.get("CI"), reason="no program helm: .ci/helm installs it"
)


def rendered(*options):
    found = [each for each in yaml.safe_load_all(GENERATOR["render"](*options)) if each]
    objects = {f"{each['kind']}/{each['metadata']['name']}": each for each in found}
    assert len(objects) == len(found)
    return objects


# Generated files -------------------------------------------------------------------------------------------------


@for_each(GENERATOR["copies"]().items(), lambda file: str(file[0].relative_to(CHART)))
def test_copies_are_current(file):
    path, text = file
    assert path.is_file() and path.read_text() == text, "this file is stale: run `make chart`"


def test_there_is_no_copy_of_what_is_gone():
    there = {path for folder in GENERATOR["COPIES"] for path in (CHART / folder).iterdir()}
    assert there == GENERATOR["copies"]().keys(), "run `make chart`"


def test_the_readme_is_current():
    assert (CHART / "README.md").read_text() == GENERATOR["readme"](), "run `make chart`"


@helm
def test_plain_manifests_are_current():
    for path, text in GENERATOR["plain"]().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make chart`"


def test_the_versions_are_the_packages():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [version] = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert (chart["version"], chart["appVersion"]) == (version, version)


# Values -----------------------------------------------------------------------------------------------------------


def test_every_value_is_in_the_readme():
    described = {key for key, *_ in GENERATOR["described"](VALUES)}
    for key, value in yaml.safe_load(VALUES).items():
        inner = [f"{key}.{name}" for name in value] if isinstance(value, dict) else []
        assert {key, *inner} & described, key


MISTAKES = """
imge.tag=1                                        | Additional property imge is not allowed
store.path=/x                                     | store: Additional property path is not allowed
store.postgres.url=postgresql://me:secret@db/x    | store.postgres.url: Does not match pattern
store.hostPath=data                               | store.hostPath: Does not match pattern
image.repository=x:1                              | image.repository: Does not match pattern
image.digest=sha256:1                             | image.digest: Does not match pattern
monitoring.thresholds.shift_ratio=much            | shift_ratio: Does not match pattern
image.pullPolicy=never                            | image.pullPolicy must be one of
links.grafana=grafana.example.com                 | links.grafana: Does not match
config.store=/tmp/x                               | config: Must not validate the schema
rbac.create=yes                                   | rbac.create: Invalid type
monitoring.endpoint.honorLabels=false             | monitoring.endpoint: Must not validate
networkPolicy.probePorts={0}                      | probePorts.0: Must be greater than or equal to 1
serviceAccount.create=false                       | serviceAccount.name: name the account that is there
monitoring.enabled=true monitoring.thresholds.shft_ratio=1 | no threshold shft_ratio in rules/thresholds.yml
"""


@helm
@cases(MISTAKES)
def test_a_mistake_is_named(values, message):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        GENERATOR["render"](*(f"--set={value}" for value in values.split()))
    assert message in str(failed.value.stderr)


# Rendered objects -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything():
    if not shutil.which("helm") and not os.environ.get("CI"):
        pytest.skip("no program helm: .ci/helm installs it")
    return rendered(*OPERATOR, "--set=networkPolicy.enabled=true")


@helm
def test_lint():
    ended("helm", "lint", "--strict", "--quiet", CHART)


def pod(objects):
    return objects["DaemonSet/infercanary"]["spec"]["template"]


def test_selectors_and_ports_are_those_of_the_pods(everything):
    labels = pod(everything)["metadata"]["labels"].items()
    kinds = ("DaemonSet", "PodMonitor", "NetworkPolicy", "Service")
    daemon, monitor, policy, service = (everything[f"{kind}/infercanary"]["spec"] for kind in kinds)
    matched = [daemon["selector"]["matchLabels"], monitor["selector"]["matchLabels"]]
    for selector in (*matched, policy["podSelector"]["matchLabels"], service["selector"]):
        assert selector
        assert selector.items() <= labels
    [container] = pod(everything)["spec"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9797}]
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(9797, "metrics")]
    [endpoint], [ingress] = monitor["podMetricsEndpoints"], policy["ingress"]
    assert endpoint["port"] == ingress["ports"][0]["port"] == "metrics"


def test_the_policy_for_a_namespace_of_workloads_lets_the_exporter_in(everything):
    page = (ROOT / "docs/kubernetes.md").read_text()
    [text] = [each for each in re.findall(r"```yaml\n(.+?)```", page, re.DOTALL) if "NetworkPolicy" in each]
    [rule] = yaml.safe_load(text)["spec"]["ingress"]
    [source] = rule["from"]
    assert source["podSelector"]["matchLabels"].items() <= pod(everything)["metadata"]["labels"].items()
    assert [*source["namespaceSelector"]["matchLabels"].values()] == ["infercanary"]
    probes, _ = everything["NetworkPolicy/infercanary"]["spec"]["egress"]
    assert rule["ports"] == probes["ports"] == [{"protocol": "TCP", "port": DEFAULT_PORT}]


def test_rules_limits_and_dashboards_are_those_of_the_compose_stack(everything):
    for file in (ROOT / "prometheus/rules").glob("*.yml"):
        spec = everything[f"PrometheusRule/infercanary-{file.stem}"]["spec"]
        assert spec == yaml.safe_load(file.read_text())
        names = [group["name"] for group in spec["groups"]]
        assert len(names) == len({*names}), "the Prometheus Operator refuses duplicate names"
    [job, *_] = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    monitor = everything["PodMonitor/infercanary"]["spec"]
    limits = [key for key in job if key.endswith("_limit")]
    assert len(limits) >= 5
    for key in limits:
        assert monitor[re.sub(r"_(\w)", lambda found: found[1].upper(), key)] == job[key]
    for file in (ROOT / "grafana/dashboards/json").glob("*.json"):
        found = everything[f"ConfigMap/infercanary-dashboard-{file.stem}"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(found)) < 256 << 10, (
            "kubectl apply keeps the object in an annotation of limited size"
        )
        assert json.loads(found["data"][f"infercanary-{file.name}"]) == json.loads(file.read_text())


CHOICES = """
podAnnotations.a=b                                     | DaemonSet spec.template.metadata.annotations.a | b
api monitoring.enabled=false                           | PodMonitor | null
no-api=                                                | PodMonitor | null
api monitoring.thresholds.shift_ratio=0.1              | thresholds | vector(0.1)
image.repository=r.example.com:5000/x image.digest=DIGEST | container image | r.example.com:5000/x@DIGEST
config.poll_seconds=2                                  | config poll_seconds | 2
config.discovery=none                                  | config discovery | none
serviceAccount.create=false serviceAccount.name=mine   | pod serviceAccountName | mine
serviceAccount.create=false serviceAccount.name=mine   | ServiceAccount | null
priorityClass.create=false priorityClass.name=high     | pod priorityClassName | high
priorityClass.create=false priorityClass.name=high     | PriorityClass | null
priorityClass.create=false                             | pod priorityClassName | null
store.hostPath=/data                                   | pod initContainers.0.command.0 | chown
store.hostPath=/data                                   | pod initContainers.0.command.1 | "10002"
no-api=                                                | pod initContainers | null
podSecurityContext.runAsUser=null                      | pod securityContext.runAsUser | null
webConfigSecret=web                                    | container livenessProbe.tcpSocket.port | metrics
no-api= | ClusterRole rules | [{apiGroups: [""], resources: [pods], verbs: [list, watch]}]
dashboards.enabled=false                               | dashboards | []
POSTGRES?sslmode=require SECRET | config store | postgresql://me@db/x?sslmode=require&password_file=STORE/password
POSTGRES SECRET                                        | pod volumes.?postgres.secret.secretName | db
POSTGRES SECRET                                        | container volumeMounts.?postgres.mountPath | STORE
POSTGRES                                               | config store | postgresql://me@db/x
POSTGRES                                               | pod volumes.?postgres | null
"""
SHORT = {
    "POSTGRES": "store.postgres.url=postgresql://me@db/x",
    "STORE": "/etc/infercanary-store",
    "SECRET": "store.postgres.secret=db",
    "DIGEST": "sha256:" + "0" * 64,
}


def written(text):
    return re.sub("|".join(SHORT), lambda found: SHORT[found[0]], text)


def at(value, path):
    """Return the value at a path, or None; ``?name`` selects the entry of a list by its name."""
    for key in path.split(".") if path else ():
        if isinstance(value, list):
            named = {each.get("name"): each for each in value if isinstance(each, dict)}
            value = named.get(key[1:]) if key[0] == "?" else value[int(key)]
        else:
            value = (value or {}).get(key)
    return value


@helm
@cases(CHOICES)
def test_a_value_does_what_it_says(values, path, expected):
    words = written(values).split()
    objects = rendered(
        *OPERATOR * (words[0] == "api"), *(f"--set={word}" for word in words if "=" in word[1:-1])
    )
    kind, _, rest = path.partition(" ")
    spec = pod(objects)["spec"]
    roots = {
        "pod": spec,
        "container": spec["containers"][0],
        "config": yaml.safe_load(objects["ConfigMap/infercanary"]["data"]["exporter.yaml"]),
        "dashboards": [name for name in objects if "-dashboard-" in name],
        "thresholds": at(objects.get("PrometheusRule/infercanary-thresholds"), "spec.groups"),
    }
    found = at(roots.get(kind, objects.get(f"{kind}/infercanary")), rest)
    if kind == "thresholds":
        name = "infercanary:threshold:shift_ratio"
        [found] = [rule["expr"] for group in found for rule in group["rules"] if rule.get("record") == name]
    assert found == yaml.safe_load(written(expected))


@helm
@cases(
    [("rbac.create=true", True), ("store.hostPath=/x", False), (SHORT["POSTGRES"], False)],
)
def test_the_notes_warn_of_history_that_ends_with_the_pod(value, is_lost, tmp_path):
    """`helm template` omits the notes, so a copy of the chart includes them in an object."""
    chart = Path(shutil.copytree(CHART, tmp_path / "chart"))
    notes = '{{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}'
    (chart / "templates/notes.yaml").write_text(f"kind: Notes\nnotes: {notes}\n")
    command = [
        "helm",
        "template",
        str(chart),
        "--show-only=templates/notes.yaml",
        "--set=image.repository=a/b",
    ]
    done = ended(*command, f"--set={value}")
    assert ("History is in an emptyDir" in yaml.safe_load(done.stdout)["notes"]) == is_lost


@helm
def test_probes_have_time_on_a_busy_node_and_a_secret_restarts_pods():
    values = ("podAnnotations.a=b", SHORT["POSTGRES"], "webConfigSecret=web", "networkPolicy.enabled=true")
    objects = rendered(*(f"--set={value}" for value in values))
    [container] = pod(objects)["spec"]["containers"]
    for probe, seconds in (("startupProbe", 300), ("livenessProbe", 120)):
        assert container[probe]["periodSeconds"] * container[probe]["failureThreshold"] >= seconds
    assert pod(objects)["metadata"]["annotations"].keys() == {"a", "checksum/store"}
    assert "--web-config=/etc/infercanary-web/web.yml" in container["args"]
    [subject] = objects["ClusterRoleBinding/infercanary"]["subjects"]
    assert subject["name"] == pod(objects)["spec"]["serviceAccountName"]
    [*_, egress] = objects["NetworkPolicy/infercanary"]["spec"]["egress"]
    assert {"protocol": "TCP", "port": 5432} in egress["ports"]
