"""The ghost failures, end to end: made in real Docker, judged by the exporter, sent by Prometheus and Alertmanager.

What is asserted is the text that the webhook received. All troubles run side by side, each on a CPU of its own choice.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    Stack,
    build,
    eventually,
    get,
    remove,
    remove_containers,
    replace_classify,
    run,
)

REBUILT = "infercanary-example:rebuilt"
MUTABLE = "infercanary-example:latest"
NVML = ROOT / "tests/fake_nvml"
PROBE = ("infercanary", "probe", "--config", "/app/probe.yaml")
REPLICAS = ("steady-1", "steady-2", "steady-3")
# What may fire on a machine that others use too, at any time, and is no ghost's doing.
BUSY = ("--label", OWN_LABEL, "--no-healthcheck", "--network", "none")
LOOP = ("sh", "-c", "while :; do :; done")
BY_CHANCE = {"InferCanarySharedCores"}


class Ghosts:
    """Containers in trouble, beside the stack."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self._folder = folder

    def probe(
        self, service: str, *options: str, canaries: dict[str, Any], image: str = EXAMPLE, name: str = ""
    ) -> None:
        """A container with a probe alone, of ``name`` or of its service's; instead of the one that had it."""
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


def model(fault: str = "none", **options: Any) -> dict[str, Any]:
    return {"target": "models:Model", "options": {"fault": fault, **options}}


def steady(ghosts: Ghosts, tag: str) -> None:
    for name in REPLICAS:
        ghosts.probe("steady", name=name, image=tag, canaries={"model": model(seconds=0.05)})


def crowded(ghosts: Ghosts, tag: str) -> None:
    canaries = {"model": model(seconds=0.02, computes=True)}
    ghosts.probe("crowded", "--cpuset-cpus", "0", image=tag, canaries=canaries)


@pytest.fixture(scope="module")
def ghosts(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ghosts]:
    """The stack, and each service with its first image or, where that is none, its trouble."""
    folder = tmp_path_factory.mktemp("ghosts")
    folder.chmod(0o755)
    here = Ghosts(stack, folder)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", str(NVML / "nvml.c"), "-o", str(library)], check=True)
    build(REBUILT, f"FROM {EXAMPLE}\nLABEL rebuilt=1\n")
    run("docker", "tag", EXAMPLE, MUTABLE)
    on_the_second = ("--cpuset-cpus", "1")
    try:
        resnet = {
            "model": "model:build", "inputs": [{"shape": [1, 3, 224, 224]}], "device": "cuda", "cpu_fallback": True,
        }  # fmt: skip
        here.probe(
            "wheel",
            *on_the_second,
            *("--env", "LD_LIBRARY_PATH=/fake", "--env", "FAKE_NVML=/fake/script"),
            *("--volume", f"{library}:/fake/{library.name}:ro"),
            *("--volume", f"{NVML / 'idle.script'}:/fake/script:ro"),
            canaries={"resnet18": {"target": "torch", "options": resnet}},
        )
        here.probe(
            "faulty",
            *on_the_second,
            *("--env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "--env", f"HF_TOKEN={SECRET}"),
            canaries={fault: model(fault) for fault in ("raises", "hangs", "answers_otherwise")},
        )
        here.probe("unnamed", *on_the_second, image=MUTABLE, canaries={"model": model()})
        here.probe("limited", *on_the_second, canaries={"model": model(seconds=0.05, computes=True)})
        run("docker", "update", "--cpus", "0.1", f"{PROJECT}-limited")
        yield here
    finally:
        remove_containers()
        run("docker", "rmi", "--force", MUTABLE, REBUILT)


@pytest.mark.usefixtures(
    "rebuilt"
)  # which takes a minute or two, beside the tests before the one that needs it
def test_h_a_mutable_tag(ghosts: Ghosts) -> None:
    """It wakes nobody, for nothing happened yet: the status page says it."""
    note = f"runs {MUTABLE}, a tag that may be another image tomorrow"
    eventually("the line on the page", 60, lambda: note in get(EXPORTER).decode())
    assert {alert.name for alert in ghosts.stack.received("unnamed")} <= BY_CHANCE


def test_f_a_cpu_only_wheel_where_nvml_sees_a_gpu(ghosts: Ghosts) -> None:
    eventually("NVML sees a GPU", 60, lambda: ghosts.stack.samples("infercanary_gpu_up", service="wheel"))
    alert = ghosts.stack.alert("InferCanaryCudaMissing", "wheel")
    assert "resnet18 should run on a GPU" in alert.text and "cpu only build" in alert.text
    assert alert.labels["severity"] == "critical"


@pytest.mark.parametrize(("fault", "outcome"), [("raises", "raised"), ("hangs", "timed_out")])
def test_g_a_canary_that_fails(ghosts: Ghosts, fault: str, outcome: str) -> None:
    alert = ghosts.stack.alert("InferCanaryCanaryFailing", "faulty", canary=fault)
    assert f"canary {fault} fails" in alert.text
    assert ghosts.stack.value("infercanary_runs_total", service="faulty", canary=fault, outcome=outcome)


def test_g_another_answer_to_the_same_input(ghosts: Ghosts) -> None:
    alert = ghosts.stack.alert("InferCanaryOutputChanged", "faulty", since="start")
    assert alert.labels["canary"] == "answers_otherwise"
    assert "output of answers_otherwise differs" in alert.text


def test_d_a_cpu_quota_that_was_lowered(ghosts: Ghosts) -> None:
    alert = ghosts.stack.alert("InferCanaryCpuThrottled", "limited")
    assert re.search(rf"{PROJECT}-limited on \S+: its CPU quota is used up", alert.text), alert.text


def test_no_secret_is_shown(ghosts: Ghosts) -> None:
    """Neither the webhook's nor a watched container's: in no metric, page, log, image, nor message to the webhook."""
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


@pytest.fixture(scope="module")
def rebuilt(ghosts: Ghosts) -> Iterator[Future[None]]:
    """A service restarted once and then rebuilt identically, while other tests run.

    It sleeps, so that a shared machine's noise is not what is judged; the restart shows how much starts differ.
    """
    stack = ghosts.stack

    def rebuild() -> None:
        stack.runs("steady", 26)
        before = stack.starts("steady")
        for name in REPLICAS:
            run("docker", "restart", "--time", "2", f"{PROJECT}-{name}")
        eventually("the exporter has seen all restart", 60, lambda: len(stack.starts("steady") - before) == 3)
        stack.runs("steady", 26)
        steady(ghosts, REBUILT)

    steady(ghosts, EXAMPLE)
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(rebuild)


def test_e_shared_cores(ghosts: Ghosts) -> None:
    for name in ("right", "left"):
        ghosts.probe(name, "--cpuset-cpus", "1", canaries={"model": model(seconds=0.1, computes=True)})
    # That the two meet now and then is no trouble; somebody who computes all the time is, and has no probe.
    run("docker", "run", "--detach", "--name", f"{PROJECT}-busy", *BUSY, "--cpuset-cpus", "1", EXAMPLE, *LOOP)
    alert = ghosts.stack.alert("InferCanarySharedCores", "left", seconds=180)
    assert re.search(rf"{PROJECT}-left on .*CPU wait caused by others on the host", alert.text), alert.text
    assert alert.labels["layer"] == "host"


@pytest.fixture(scope="module")
def upgrades(ghosts: Ghosts, request: pytest.FixtureRequest) -> float:
    """When `classify` was upgraded, on a machine that has nothing else to compute."""
    # Their alerts were received.
    gone = ("limited", "faulty", "wheel", "unnamed", "left", "right", "busy", *REPLICAS)
    remove(*(f"{PROJECT}-{name}" for name in gone))
    # Not an argument: a fixture of the session would come before those of the module.
    since: float = request.getfixturevalue("upgrade")
    return since


def test_b_an_identical_rebuild(ghosts: Ghosts, rebuilt: Future[None]) -> None:
    stack = ghosts.stack
    rebuilt.result(240)
    eventually("a verdict", 120, lambda: stack.verdicts("steady") == {"equivalent"})
    stack.runs("steady", 12)
    assert stack.verdicts("steady") == {"equivalent"}
    assert {alert.name for alert in stack.received("steady")} <= BY_CHANCE


def test_a_a_slower_image(ghosts: Ghosts, upgrades: float, request: pytest.FixtureRequest) -> None:
    stack = ghosts.stack
    request.getfixturevalue("judged")
    alert = stack.alert("InferCanaryImageRegressed", "classify")
    runs = stack.value("infercanary_judged_runs", service="classify")
    print(
        f"from the slow image's start to the webhook: {alert.received_at - upgrades:.0f} s, {runs:.0f} runs"
    )
    # At the first look its interval may still reach down to less than severe.
    alert = stack.alert("InferCanaryImageRegressed", "classify", severity="critical")
    # On a slow machine with few cores its neighbours feel how much it computes, and that is the host's part.
    assert re.search(r"classify: resnet18 is [\d.]+ % slower since the upgrade", alert.text), alert.text
    medians = r"\([\d.,]+ → [\d.,]+ ms\)"
    assert re.search(rf"{medians}: (host [^,]+, [^,]+, )?image", alert.text), alert.text
    changed = rf"regressed \+[\d.]+ % \[\+[\d.]+, \+[\d.]+\] {medians}: (image;|host \+.* image \+)"
    assert re.search(changed, alert.text), alert.text
    compared = stack.samples("infercanary_upgrade_info", service="classify")
    assert {labels["candidate_image"].partition(" ")[0] for labels, _ in compared} == {
        "infercanary-example:slower"
    }
    assert re.search(r"torch_cpu_capability \S+ → (DEFAULT|default)", alert.text), alert.text
    # Where other processes in the container took its CPUs, what they cost is left out, and the shares of the change
    # with it. If a neighbour took memory bandwidth meanwhile, as the controls say then, part of the change is that.
    compute = re.search(r"; compute( phase| \d+ %[^;]* of the change)?; .*controls ", alert.text)
    memory = re.search(r"; memory( \d+ %[^;]* of the change)?; .*controls [^;]*memory_\w+ \+", alert.text)
    assert compute or memory, alert.text


@pytest.mark.campaign
def test_c_a_noisy_neighbour(ghosts: Ghosts) -> None:
    """It comes just when an image is rebuilt identically: the image is not blamed."""
    stack = ghosts.stack
    crowded(ghosts, EXAMPLE)
    stack.runs("crowded", 26)
    options = (*BUSY, "--cpuset-cpus", "0")
    run("docker", "run", "--detach", "--name", f"{PROJECT}-neighbour", *options, EXAMPLE, *LOOP)
    crowded(ghosts, REBUILT)
    alert = stack.alert("InferCanarySharedCores", "crowded", seconds=240)
    assert alert.labels["layer"] == "host"
    assert re.search(rf"{PROJECT}-crowded on .*CPU wait", alert.text), alert.text
    eventually(
        "a verdict", 120, lambda: stack.verdicts("crowded") & {"regressed", "unconfirmed", "inconclusive"}
    )
    stack.runs("crowded", 30)
    blamed = stack.samples("infercanary_shift_cause", service="crowded")
    causes = {labels["cause"] for labels, on in blamed if on}
    # On a machine where others work too it may be both, or not known, or one look may say so and the next not;
    # the image alone is never blamed, in no look.
    assert causes <= {"host", "both", "unknown"}
    assert causes or stack.verdicts("crowded") <= {"unconfirmed", "inconclusive"}
    blaming = stack.received("crowded", "InferCanaryImageRegressed")
    assert [alert.text for alert in blaming if " ms): image" in alert.text] == []


def test_i_a_rollback_resolves_the_alert(ghosts: Ghosts, judged: tuple[float, float]) -> None:
    replace_classify("dev", 2)
    ghosts.stack.alert("InferCanaryImageRegressed", "classify", status="resolved")
