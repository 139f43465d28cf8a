"""Hidden failures, end to end: caused in real Docker, judged by the exporter, sent by Prometheus and
Alertmanager.

The tests check the text that the webhook received. All troubles run at the same time, each on its own CPU.
"""

import re
import subprocess

import pytest
import yaml
from harness import (
    ALERTMANAGER,
    EXAMPLE,
    EXPORTER,
    GHOSTS,
    OWN_LABEL,
    PROJECT,
    PROMETHEUS,
    ROOT,
    SECRET,
    eventually,
    get,
    remove,
    remove_containers,
    replace_classify,
    run,
)

from tests.scenarios import cases

MUTABLE = "infercanary-example:latest"
NVML = ROOT / "tests/fake_nvml"
PROBE = ("infercanary", "probe", "--config", "/app/probe.yaml")
TROUBLES = ("wheel", "faulty", "unnamed", "limited")
# Alerts that may fire at any time on a machine with other load.
BY_CHANCE = {"InferCanarySharedCores"}


class Ghosts:
    def __init__(self, stack, folder):
        self.stack = stack
        self._folder = folder

    def probe(self, service, *options, canaries, image=EXAMPLE, name=""):
        """Start a container with only a probe. Its name is ``name`` or the service; an older container of this
        name is removed.
        """
        settings = self._folder / f"{name or service}.yaml"
        pace = {"interval_seconds": 0.5, "duty_cap": 0.3, "timeout_seconds": 2}
        settings.write_text(yaml.safe_dump({"canaries": canaries, **pace}))
        mounts = (f"{settings}:/app/probe.yaml:ro", f"{GHOSTS / 'models.py'}:/app/models.py:ro")
        volumes = (option for mount in mounts for option in ("--volume", mount))
        name = f"{PROJECT}-{name or service}"
        remove(name)
        run(
            *("docker", "run", "--detach", "--name", name, "--label", OWN_LABEL, "--no-healthcheck", "--init"),
            *("--label", "infercanary.enable=true", "--label", f"infercanary.service={service}"),
            *("--network", f"{PROJECT}_inference", "--env", "OMP_NUM_THREADS=1"),
            *volumes, *options, image, *PROBE,
        )  # fmt: skip


def model(fault="none", **options):
    return {"target": "models:Model", "options": {"fault": fault, **options}}


@pytest.fixture(scope="module")
def ghosts(stack, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ghosts")
    folder.chmod(0o755)
    run("docker", "tag", EXAMPLE, MUTABLE)
    try:
        yield Ghosts(stack, folder)
    finally:
        remove_containers()
        run("docker", "rmi", "--force", MUTABLE)


@pytest.fixture(scope="module")
def troubles(ghosts, tmp_path_factory):
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    library.parent.chmod(0o755)
    subprocess.run(["cc", "-shared", "-fPIC", str(NVML / "nvml.c"), "-o", str(library)], check=True)
    second = ("--cpuset-cpus", "1")
    resnet = {
        "model": "model:build", "inputs": [{"shape": [1, 3, 224, 224]}], "device": "cuda", "cpu_fallback": True,
    }  # fmt: skip
    ghosts.probe(
        "wheel",
        *second,
        *("--env", "LD_LIBRARY_PATH=/fake", "--env", "FAKE_NVML=/fake/script"),
        *("--volume", f"{library}:/fake/{library.name}:ro"),
        *("--volume", f"{NVML / 'idle.script'}:/fake/script:ro"),
        canaries={"resnet18": {"target": "torch", "options": resnet}},
    )
    ghosts.probe(
        "faulty",
        *second,
        *("--env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "--env", f"HF_TOKEN={SECRET}"),
        canaries={fault: model(fault) for fault in ("raises", "hangs", "answers_otherwise")},
    )
    ghosts.probe("unnamed", *second, image=MUTABLE, canaries={"model": model()})
    ghosts.probe("limited", *second, canaries={"model": model(seconds=0.05, computes=True)})
    run("docker", "update", "--cpus", "0.1", f"{PROJECT}-limited")
    return ghosts


def test_a_mutable_tag(troubles):
    """The tag has not moved yet, so no alert fires; the status page contains a note."""
    note = f"runs {MUTABLE}, a tag that may point to another image tomorrow"
    eventually("the line on the page", 60, lambda: note in get(EXPORTER).decode())
    assert {alert.name for alert in troubles.stack.received("unnamed")} <= BY_CHANCE


@cases(
    [
        ("wheel", "InferCanaryCudaMissing", {"severity": "critical"}, "cpu only build"),
        ("faulty", "InferCanaryCanaryFailing", {"canary": "raises"}, "canary raises fails"),
        ("faulty", "InferCanaryCanaryFailing", {"canary": "hangs"}, "canary hangs fails"),
        ("faulty", "InferCanaryOutputChanged", {"since": "start", "canary": "answers_otherwise"}, "differs"),
        ("limited", "InferCanaryCpuThrottled", {}, f"{PROJECT}-limited on .* CPU quota"),
    ],
    ids=["wheel", "raises", "hangs", "other-answer", "quota"],
)
def test_a_trouble_has_its_alert(service, name, labels, words, troubles):
    alert = troubles.stack.alert(name, service, **labels)
    assert re.search(words, alert.text), alert.text


def test_no_secret_is_shown(troubles):
    pages = [f"{EXPORTER}{path}" for path in ("/", "/metrics")]
    pages += [f"{PROMETHEUS}{path}" for path in ("/metrics", "/api/v1/alerts", "/api/v1/status/config")]
    pages += [f"{ALERTMANAGER}{path}" for path in ("/metrics", "/api/v2/status", "/api/v2/alerts")]
    places = {url: get(url).decode() for url in pages}
    places |= {
        f"logs of {name}": run("sh", "-c", f"docker logs {name} 2>&1")
        for name in run("docker", "ps", "--format", "{{.Names}}", "--filter", f"name=^{PROJECT}").split()
    }
    for tag in run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "infercanary-*").split():
        places[tag] = run("docker", "inspect", tag) + run("docker", "history", "--no-trunc", tag)
    assert len(places) > 15
    assert all(places.values())
    assert [place for place, text in places.items() if SECRET in text] == []


@pytest.fixture(scope="module")
def upgrades(troubles, request):
    """Return the time of the upgrade of `classify`, on a machine without the other troubles."""
    remove(*(f"{PROJECT}-{name}" for name in TROUBLES))  # the webhook has received their alerts
    # Request this fixture here: as an argument, a fixture of the session would run before the module's
    # fixtures.
    return request.getfixturevalue("upgrade")


def test_a_slower_image(ghosts, upgrades, request):
    stack = ghosts.stack
    request.getfixturevalue("judged")
    # At the first look, the interval may still include changes that are not severe.
    alert = stack.alert("InferCanaryImageRegressed", "classify", severity="critical")
    runs = stack.value("infercanary_judged_runs", service="classify")
    took = alert.received_at - upgrades
    print(f"from the slow image's start to the webhook: {took:.0f} s, {runs:.0f} runs")
    compared = stack.samples("infercanary_upgrade_info", service="classify")
    candidates = {labels["candidate_image"].partition(" ")[0] for labels, _ in compared}
    assert candidates == {"infercanary-example:slower"}
    # On a slow machine with few cores, the image's load also slows its neighbours, and counts as slowdown by
    # the host.
    blamed = stack.samples("infercanary_shift_cause", service="classify")
    assert {labels["cause"] for labels, on in blamed if on} <= {"image", "both"}
    for words in (r"resnet18 is [\d.]+ % slower", r"torch_cpu_capability \S+ → (DEFAULT|default)"):
        assert re.search(words, alert.text), alert.text
    # Meanwhile, a neighbour may use memory bandwidth. The controls then count a part of the change as the
    # host's.
    assert re.search(r"; (compute|memory)\b", alert.text), alert.text


def test_a_rollback_resolves_the_alert(ghosts, judged):
    replace_classify("dev", 2)
    ghosts.stack.alert("InferCanaryImageRegressed", "classify", status="resolved")
