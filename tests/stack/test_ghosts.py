"""The ghost failures, end to end: made in real Docker, judged by the exporter, reported by Prometheus and Alertmanager.

The stack is the shipped one but for its patience: windows of rates and `for` are seconds here, in a copy of the rules.
What is asserted is the text that the webhook received. All troubles run side by side, each on a CPU of its own choice.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from harness import (
    ALERTMANAGER,
    EXPORTER,
    OWN_LABEL,
    PROJECT,
    PROMETHEUS,
    ROOT,
    Stack,
    build,
    compose,
    eventually,
    get,
    remove_containers,
    run,
    services,
)

BASE = "infercanary-example:dev"
SLOW = "infercanary-example:slow"
REBUILT = "infercanary-example:rebuilt"
MUTABLE = "infercanary-example:latest"
GHOSTS = Path(__file__).parent / "ghosts"
# In the webhook's address, and in the environment of a container that is watched: it is to be found nowhere else.
SECRET = "s3cr3t-t0k3n-0f-a-t3st"
NVML = ROOT / "tests/fake_nvml"
PROBE = ("infercanary", "probe", "--config", "/app/probe.yaml")
REPLICAS = ("steady-1", "steady-2", "steady-3")
# What may fire on a machine that others use too, at any time, and is no ghost's doing.
BY_CHANCE = {"InferCanarySharedCores", "InferCanaryNoisyNeighbour", "InferCanaryEnvironmentChanged"}


class Alert(NamedTuple):
    """One that the webhook received."""

    status: str
    labels: dict[str, str]
    text: str
    """Summary and description."""
    received_at: float

    @property
    def name(self) -> str:
        return self.labels["alertname"]


class Ghosts:
    """The stack, what runs beside it, and the notifications about it."""

    def __init__(self, stack: Stack, folder: Path, override: Path) -> None:
        self.stack = stack
        self._folder = folder
        self._override = override

    def compose(self, *arguments: str) -> str:
        """`docker compose` on the shipped file, with less patience."""
        files = ("--file", str(ROOT / "docker-compose.yml"), "--file", str(self._override))
        secret = str(self._folder / "webhook-url")
        return compose(*files, *arguments, seconds=240, ALERT_WEBHOOK_URL_FILE=secret)

    def notified(self, service: str = "", name: str = "", status: str = "firing") -> list[Alert]:
        """What the webhook received so far, of a service, of an alert."""
        lines = run("docker", "logs", f"{PROJECT}-alert-webhook-1").splitlines()
        received = [json.loads(line) for line in lines if line.startswith("{")]
        alerts = [
            Alert(
                each["status"],
                each["labels"],
                " ".join(each["annotations"].values()),
                notification["received_at"],
            )
            for notification in received
            for each in notification["alerts"]
        ]
        return [
            alert
            for alert in alerts
            if service in ("", alert.labels.get("service"))
            and name in ("", alert.name)
            and alert.status == status
        ]

    def alert(self, name: str, service: str, status: str = "firing", seconds: float = 120) -> Alert:
        """The first notification of it, once there is one."""
        [first, *_] = eventually(
            f"{name} of {service}", seconds, lambda: self.notified(service, name, status)
        )
        print(f"{first.text}\n")
        return first

    def start(
        self, service: str, *options: str, image: str = BASE, name: str = "", command: tuple[str, ...] = ()
    ) -> None:
        """A container on the stack's network, of ``name`` or of its service's; instead of the one that had it."""
        name = f"{PROJECT}-{name or service}"
        run("sh", "-c", f"docker rm --force {name} 2>/dev/null || true")
        run(
            *("docker", "run", "--detach", "--name", name, "--label", OWN_LABEL, "--no-healthcheck", "--init"),
            *("--label", "infercanary.enable=true", "--label", f"infercanary.service={service}"),
            *("--network", f"{PROJECT}_inference", "--env", "OMP_NUM_THREADS=1"),
            *options, image, *command,
        )  # fmt: skip

    def probe(
        self, service: str, *options: str, canaries: dict[str, Any], image: str = BASE, name: str = ""
    ) -> None:
        """A container with a probe alone."""
        settings = self._folder / f"{name or service}.yaml"
        pace = {"interval_seconds": 0.5, "duty_cap": 0.3, "timeout_seconds": 2}
        settings.write_text(yaml.safe_dump({"canaries": canaries, **pace}))
        mounts = (f"{settings}:/app/probe.yaml:ro", f"{GHOSTS / 'models.py'}:/app/models.py:ro")
        volumes = (option for mount in mounts for option in ("--volume", mount))
        self.start(service, *volumes, *options, image=image, name=name, command=PROBE)

    def runs(self, service: str, runs: int) -> None:
        """Wait until every start of the service that is under way has given so many runs."""
        eventually(
            f"{runs} runs of {service}",
            240,
            lambda: (
                (seen := self.stack.samples("infercanary_runs_total", service=service, outcome="ok"))
                and all(value >= runs for _, value in seen)
            ),
        )

    def verdict(self, service: str) -> set[str]:
        """Those that hold for its canaries."""
        return {
            labels["verdict"]
            for labels, on in self.stack.samples("infercanary_verdict", service=service)
            if on
        }


def impatient(folder: Path) -> Path:
    """Copies of the settings with seconds for minutes, and a Compose file that mounts them."""
    rules = folder / "rules"
    shutil.copytree(ROOT / "prometheus/rules", rules)
    for file in rules.iterdir():
        text = re.sub(r"\[\d+m\]", "[45s]", file.read_text())
        file.write_text(re.sub(r"\b(for|keep_firing_for): \d+m", r"\1: 5s", text))
    config = folder / "alertmanager.yml"
    text = (ROOT / "prometheus/alertmanager.yml").read_text()
    text = re.sub(r"group_wait: \w+", "group_wait: 1s", text)
    config.write_text(re.sub(r"group_interval: \w+", "group_interval: 5s", text))
    for file in (config, *rules.iterdir()):
        file.chmod(0o644)
    (folder / "webhook-url").write_text(f"http://alert-webhook:8080/{SECRET}\n")
    (folder / "webhook-url").chmod(0o644)
    override = folder / "compose.yml"
    override.write_text(
        yaml.safe_dump({
            "services": {
                "prometheus": {"volumes": [f"{rules}:/etc/prometheus/rules:ro"]},
                "alertmanager": {"volumes": [f"{config}:/etc/alertmanager/alertmanager.yml:ro"]},
                # By the name that the shipped secret has.
                "alert-webhook": {
                    "image": BASE,
                    "command": ["python", "/app/webhook.py"],
                    "volumes": [f"{GHOSTS / 'webhook.py'}:/app/webhook.py:ro"],
                    "networks": ["monitoring"],
                    "healthcheck": {"disable": True},
                    "init": True,
                },
                "classify": {"cpuset": "1"},
                "moderate": {"cpuset": "1"},
            }
        })
    )  # fmt: skip
    return override


def model(fault: str = "none", **options: Any) -> dict[str, Any]:
    return {"target": "models:Model", "options": {"fault": fault, **options}}


def steady(ghosts: Ghosts, tag: str) -> None:
    for name in REPLICAS:
        ghosts.probe("steady", name=name, image=tag, canaries={"model": model(seconds=0.05)})


def shop(ghosts: Ghosts, tag: str) -> None:
    """The example's server with a probe in its process; at a pace of a second."""
    ghosts.start(
        "shop",
        "--cpuset-cpus",
        "1",
        "--env",
        "PROBE_INTERVAL_SECONDS=1",
        "--env",
        "PROBE_DUTY_CAP=0.4",
        image=tag,
    )


def crowded(ghosts: Ghosts, tag: str) -> None:
    canaries = {"model": model(seconds=0.02, computes=True)}
    ghosts.probe("crowded", "--cpuset-cpus", "0", image=tag, canaries=canaries)


@pytest.fixture(scope="module")
def ghosts(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ghosts]:
    """The stack without patience, and each service with its first image or, where that is none, its trouble."""
    folder = tmp_path_factory.mktemp("ghosts")
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    folder.parent.parent.chmod(0o755)
    here = Ghosts(stack, folder, impatient(folder))
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", str(NVML / "nvml.c"), "-o", str(library)], check=True)
    build(REBUILT, f"FROM {BASE}\nLABEL rebuilt=1\n")
    run("docker", "tag", BASE, MUTABLE)
    compose("--profile", "broken", "build", "--quiet", "broken-upgrade", seconds=600)
    try:
        here.compose("up", "--detach", "alert-webhook")  # `--wait` wants a health check
        here.compose("up", "--detach", "--wait", *services())
        steady(here, BASE)
        crowded(here, BASE)
        resnet = {
            "model": "model:build", "inputs": [{"shape": [1, 3, 224, 224]}], "device": "cuda", "cpu_fallback": True,
        }  # fmt: skip
        here.probe(
            *(
                "wheel",
                "--cpuset-cpus",
                "1",
                "--env",
                "LD_LIBRARY_PATH=/fake",
                "--env",
                "FAKE_NVML=/fake/script",
            ),
            *(
                "--volume",
                f"{library}:/fake/{library.name}:ro",
                "--volume",
                f"{NVML / 'idle.script'}:/fake/script:ro",
            ),
            canaries={"resnet18": {"target": "torch", "options": resnet}},
        )
        here.probe(
            *("faulty", "--cpuset-cpus", "1"),
            *("--env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "--env", f"HF_TOKEN={SECRET}"),
            canaries={fault: model(fault) for fault in ("raises", "hangs", "answers_otherwise")},
        )
        here.probe("unnamed", "--cpuset-cpus", "1", image=MUTABLE, canaries={"model": model()})
        here.probe("limited", "--cpuset-cpus", "1", canaries={"model": model(seconds=0.05, computes=True)})
        run("docker", "update", "--cpus", "0.1", f"{PROJECT}-limited")
        yield here
    except BaseException:
        print(here.compose("logs", "--tail", "40"))
        raise
    finally:
        remove_containers()
        run("docker", "rmi", "--force", MUTABLE, REBUILT)
        compose("up", "--detach", "--wait", "--remove-orphans", *services(), seconds=240)


def test_h_a_mutable_tag(ghosts: Ghosts) -> None:
    alert = ghosts.alert("InferCanaryMutableImageTag", "unnamed")
    assert f"unnamed runs {MUTABLE}, a tag that may be another image tomorrow" in alert.text
    assert alert.labels["severity"] == "info"


def test_f_a_cpu_only_wheel_where_nvml_sees_a_gpu(ghosts: Ghosts) -> None:
    eventually("NVML sees a GPU", 60, lambda: ghosts.stack.samples("infercanary_gpu_up", service="wheel"))
    alert = ghosts.alert("InferCanaryCudaMissing", "wheel")
    assert "resnet18 is to run on a GPU, and its engine has no CUDA: cpu_only_build" in alert.text
    assert "a wheel that was built for CPUs only" in alert.text
    assert f"Image: {BASE}." in alert.text
    assert alert.labels["severity"] == "critical"


@pytest.mark.parametrize(("fault", "outcome"), [("raises", "raised"), ("hangs", "timed_out")])
def test_g_a_canary_that_fails(ghosts: Ghosts, fault: str, outcome: str) -> None:
    eventually(
        "the webhook was notified",
        120,
        lambda: [
            a for a in ghosts.notified("faulty", "InferCanaryCanaryFailing") if a.labels["canary"] == fault
        ],
    )
    [alert, *_] = [
        a for a in ghosts.notified("faulty", "InferCanaryCanaryFailing") if a.labels["canary"] == fault
    ]
    assert f"canary {fault} fails: the model does not answer a fixed, valid input" in alert.text
    assert re.search(rf"Within 30 minutes:.* \d+ {outcome}", alert.text), alert.text


def test_g_another_answer_to_the_same_input(ghosts: Ghosts) -> None:
    alert = ghosts.alert("InferCanaryOutputUnstable", "faulty")
    assert alert.labels["canary"] == "answers_otherwise"
    assert "gives another answer to the same input than after its start" in alert.text


def test_d_a_cpu_quota_that_was_lowered(ghosts: Ghosts) -> None:
    alert = ghosts.alert("InferCanaryCpuThrottled", "limited")
    assert f"{PROJECT}-limited runs out of its CPU quota" in alert.text
    assert "Its quota is 0.1 cores." in alert.text


def test_no_secret_is_shown(ghosts: Ghosts) -> None:
    """Neither the webhook's nor a watched container's: not in metrics, on pages, in logs, in images, to the webhook."""
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
    assert len(places) > 15 and all(places.values())
    assert [place for place, text in places.items() if SECRET in text] == []


@pytest.mark.quiet
def test_b_an_identical_rebuild(ghosts: Ghosts) -> None:
    """Sleeps, so that a shared machine's noise is not what is judged; the restart teaches how much starts differ."""
    ghosts.runs("steady", 26)
    for name in REPLICAS:
        run("docker", "restart", "--time", "2", f"{PROJECT}-{name}")
    time.sleep(6)  # a poll sees that they are gone
    ghosts.runs("steady", 26)
    steady(ghosts, REBUILT)
    eventually("a verdict", 120, lambda: ghosts.verdict("steady") == {"equivalent"})
    ghosts.runs("steady", 30)
    assert ghosts.verdict("steady") == {"equivalent"}
    assert {alert.name for alert in ghosts.notified("steady")} <= BY_CHANCE


@pytest.fixture(scope="module")
def upgraded(ghosts: Ghosts) -> float:
    """A slow image of one service, and a neighbour that comes as another is rebuilt; the time of it."""
    for service in (
        "limited",
        "faulty",
        "wheel",
        "unnamed",
        *REPLICAS,
    ):  # their alerts came, and the CPUs are needed
        run("docker", "rm", "--force", f"{PROJECT}-{service}")
    shop(ghosts, BASE)
    ghosts.runs("shop", 26)
    ghosts.runs("crowded", 26)
    shop(ghosts, SLOW)
    since = time.time()
    run(
        *(
            "docker",
            "run",
            "--detach",
            "--name",
            f"{PROJECT}-neighbour",
            "--label",
            OWN_LABEL,
            "--no-healthcheck",
        ),
        *("--network", "none", "--cpuset-cpus", "0", BASE, "sh", "-c", "while :; do :; done"),
    )
    crowded(ghosts, REBUILT)
    return since


@pytest.mark.quiet
def test_a_a_slower_image(ghosts: Ghosts, upgraded: float) -> None:
    alert = ghosts.alert("InferCanaryImageRegressed", "shop", seconds=240)
    runs = ghosts.stack.value("infercanary_judged_runs", service="shop")
    print(
        f"from the slow image's start to the webhook: {alert.received_at - upgraded:.0f} s, {runs:.0f} runs"
    )
    assert alert.labels["severity"] == "critical"
    # On a slow machine with few cores its neighbours feel how much it computes, and that is the host's part.
    by = r"by (the image|host and image)"
    assert re.search(rf"shop: resnet18 is [\d.]+% slower since the upgrade, {by}", alert.text), alert.text
    changed = r"regressed \+[\d.]+ % \[\+[\d.]+, \+[\d.]+\]: (image;|host \+.* image \+)"
    assert re.search(changed, alert.text), alert.text
    compared = ghosts.stack.samples("infercanary_upgrade_info", service="shop")
    assert {labels["candidate_image"].partition(" ")[0] for labels, _ in compared} == {SLOW}
    assert re.search(r"torch_cpu_capability \S+ → (DEFAULT|default)", alert.text), alert.text
    # Which control feels it a little differs from machine to machine.
    assert "; compute phase; controls " in alert.text, alert.text


@pytest.mark.quiet
def test_c_a_noisy_neighbour(ghosts: Ghosts, upgraded: float) -> None:
    alert = ghosts.alert("InferCanaryNoisyNeighbour", "crowded")
    assert alert.labels["layer"] == "host"
    assert f"{PROJECT}-crowded waits for a CPU in" in alert.text
    eventually("a verdict", 120, lambda: ghosts.verdict("crowded") & {"regressed", "inconclusive"})
    ghosts.runs("crowded", 30)
    blamed = ghosts.stack.samples("infercanary_shift_cause", service="crowded")
    causes = {labels["cause"] for labels, on in blamed if on}
    # On a machine where others work too it may be both, or not known, or one look may say so and the next not;
    # the image alone is never blamed, in no look.
    assert causes <= {"host", "both", "unknown"}
    assert causes or ghosts.verdict("crowded") == {"inconclusive"}
    blaming = ghosts.notified("crowded", "InferCanaryImageRegressed")
    assert [alert.text for alert in blaming if alert.labels["cause"] == "image"] == []


def test_i_a_rollback_resolves_the_alert(ghosts: Ghosts, upgraded: float) -> None:
    ghosts.alert("InferCanaryImageRegressed", "shop", seconds=240)
    shop(ghosts, BASE)
    ghosts.alert("InferCanaryImageRegressed", "shop", status="resolved")


def test_e_shared_cores(ghosts: Ghosts) -> None:
    for name in ("right", "left"):
        ghosts.probe(name, "--cpuset-cpus", "1", canaries={"model": model(seconds=0.1, computes=True)})
        ghosts.runs(name, 2)  # an alert's text names who was there when it was raised
    alert = ghosts.alert("InferCanarySharedCores", "left", seconds=180)
    assert f"{PROJECT}-left waits for CPUs that other monitored containers may use too" in alert.text
    assert f"{PROJECT}-right" in alert.text
    assert alert.labels["layer"] == "host"
