"""Real upgrades in real Docker, judged by the real exporter: the verdict on each, and after how many runs.

One service, whose image, the example server's, is upgraded repeatedly, each time from the image before; two
others go on beside it with their own, and a load of requests varies all the while. First the same image is restarted
(20 times by default): it must call nothing there, and from these it estimates how much restarts differ. It
prints a table, and exits with 1 where a verdict, a cause or a named component is not the right one.

Needs Docker, and the image ``infercanary-example:dev`` (``docker compose build``). Containers are named
``infercanary-upgrades-…``, and are gone afterwards. It takes an hour and a half.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import math
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from images import BASE, docker, slower

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "resnet18"))

from load import load

NAME = "infercanary-upgrades"
SERVICE, SIBLINGS = f"{NAME}-service", (f"{NAME}-sibling-1", f"{NAME}-sibling-2")
RUNS = 50  # of a start


class Step(NamedTuple):
    """An upgrade: the Dockerfile's lines after FROM, and what is right to say of it."""

    name: str
    lines: str
    verdicts: tuple[str, ...]
    cause: str = ""
    named: str = ""
    hog: bool = False
    small: bool = False
    """Whether many starts are needed to see it."""


def steps(mean: float) -> list[Step]:
    """Each from the one before; ``mean`` is the base's latency in seconds."""
    base = "ENV OMP_NUM_THREADS=1"

    rebuilt = f"{base}\nLABEL rebuilt={{}}"
    back = ("improved",)
    return [
        Step(
            "identical rebuild", rebuilt.format(1), ("equivalent", "unconfirmed", "inconclusive"), small=True
        ),
        Step("5 % slower", f"{base}\n{slower(0.05 * mean)}", ("regressed",), "image", small=True),
        Step("rollback from it", base, back, "image", "rollback", small=True),
        Step("30 % slower", f"{base}\n{slower(0.30 * mean)}", ("regressed",), "image"),
        Step("rollback from it", base, back, "image", "rollback"),
        Step("two threads, not one", "ENV OMP_NUM_THREADS=2", back, "image", "intra-op threads 1 → 2"),
        Step("one thread, not two", base, ("regressed",), "image", "intra-op threads 2 → 1"),
        Step(
            "ATen without vector instructions",
            f"{base}\nENV ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41",
            ("regressed",),
            "image",
            "ATEN_CPU_CAPABILITY",
        ),
        Step("rollback from it", base, back, "image", "ATEN_CPU_CAPABILITY"),
        Step(
            "identical rebuild, as a CPU hog starts",
            rebuilt.format(2),
            ("regressed",),
            "host",
            hog=True,
        ),
    ]


def built(lines: str) -> str:
    """An image on the base's: its id."""
    return docker("build", "--quiet", "-", text=f"FROM {BASE}\n{lines}\n")


def start(name: str, image: str, *options: str) -> None:
    """Replace the container ``name`` by one of ``image``."""
    remove(name)
    docker(
        *("run", "--detach", "--name", name, "--no-healthcheck", "--label", "infercanary.enable=true"),
        *("--label", f"infercanary.service={name}", *options, image),
    )  # fmt: skip


def remove(*names: str) -> None:
    """Remove containers that may not be there."""
    subprocess.run(["docker", "rm", "--force", "--volumes", *names], capture_output=True, check=False)


class Exporter:
    """The exporter, asked over HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def values(self) -> dict[tuple[str, frozenset[str]], float]:
        """Name and label values → value."""
        text = self._get("/metrics")
        families = text_string_to_metric_families(text)
        return {(s.name, frozenset(s.labels.values())): s.value for f in families for s in f.samples}

    def value(self, name: str, *labels: str) -> float:
        """The one sample of that name with these label values; 0 where there is none."""
        found = [v for (n, has), v in self.values().items() if n == name and has.issuperset(labels)]
        return found[0] if found else 0.0

    def verdict(self) -> str:
        """That holds for the service."""
        names = {
            has
            for (n, has), v in self.values().items()
            if n == "infercanary_verdict" and v and has >= {SERVICE, "latency"}
        }
        words = {
            "settling",
            "no_baseline",
            "inconclusive",
            "unconfirmed",
            "equivalent",
            "regressed",
            "improved",
        }
        return next((word for has in names for word in has & words), "none")

    def sentence(self) -> str:
        """What the page says of the service."""
        card = re.search(rf"<h2>{SERVICE}</h2>.*?</article>", self._get("/"), re.DOTALL)
        said = re.search(r'class="verdict [^"]*"><p>(.*?)</p>', card[0], re.DOTALL) if card else None
        return html.unescape(said[1]) if said else ""

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url + path, timeout=30) as response:
            return str(response.read().decode())


@contextmanager
def exporter(port: int) -> Iterator[Exporter]:
    """With a store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "infercanary", "exporter", "--listen", f"127.0.0.1:{port}"]
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            child = subprocess.Popen([*command, "--store", f"{folder}/judge.sqlite"], stderr=errors)
        try:
            yield Exporter(port)
        finally:
            child.terminate()
            child.wait(20)


@contextmanager
def varying_load() -> Iterator[None]:
    """Requests to the service, at another rate every few seconds."""
    ended = threading.Event()

    def ask() -> None:
        rng = random.Random(1)
        while not ended.is_set():
            try:
                address = docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", SERVICE)
                rate = rng.choice((0.5, 1, 2))
                asyncio.run(load(f"http://{address}:8000/predict", rng.uniform(3, 10), rate=rate, warm_up=0))
            except (Exception, SystemExit):  # it is being restarted
                ended.wait(1)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(30)


def ran(up: Exporter, before: float, runs: int) -> None:
    """Wait until the service's probe has given so many runs more."""
    deadline = time.monotonic() + 300
    while (counted := up.value("infercanary_runs_collected_total", SERVICE)) - before < runs:
        if counted < before:  # the exporter let go of the container while that was down, and counts anew
            before = 0.0
        if time.monotonic() > deadline:
            raise SystemExit(f"{SERVICE}: no {runs} runs within five minutes; see docker logs {SERVICE}")
        time.sleep(1)


def main() -> None:
    """Restart, upgrade, and print what was said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--restarts", type=int, default=20, help="of one image (default: %(default)s)")
    parser.add_argument(
        "--starts",
        type=int,
        default=12,
        help="of an image that is 5 %% or less off; of others a third (default: 12)",
    )
    parser.add_argument("--large", action="store_true", help="leave out those that need many starts")
    parser.add_argument("--interval", default="0.7", help="seconds between runs (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=19797, help="of the exporter, on loopback (default: %(default)s)"
    )
    args = parser.parse_args()
    options = ("--env", f"PROBE_INTERVAL_SECONDS={args.interval}")
    # Enough for a run a second or two; what is left of two cores is for the siblings and the load.
    served = (*options, "--env", "PROBE_DUTY_CAP=0.8")
    hogs = [f"{NAME}-hog-{i}" for i in range(2)]
    wrong = 0
    try:
        with exporter(args.port) as up, varying_load():
            time.sleep(3)
            base = built("ENV OMP_NUM_THREADS=1")
            for sibling in SIBLINGS:
                start(sibling, base, "--env", "PROBE_DUTY_CAP=0.1", *options)
            start(SERVICE, base, *served)
            for restart in range(args.restarts + 1):
                if restart:
                    docker("restart", "--time", "5", SERVICE)
                ran(up, up.value("infercanary_runs_collected_total", SERVICE), RUNS)
                print(f"start {restart} of {args.restarts}: {up.verdict()}", file=sys.stderr, flush=True)
            time.sleep(5)
            tests, alarms = (up.value(f"infercanary_judge_aa_{n}", SERVICE) for n in ("tests", "alarms"))
            deviation = up.value("infercanary_restart_deviation_ratio", SERVICE)
            total, count = (up.value(f"infercanary_latency_seconds_{n}", SERVICE) for n in ("sum", "count"))
            print(f"restarts of one image: {tests:.0f} judged, {alarms:.0f} called a change")
            print(
                f"restart SD as estimated: {deviation:.2%}; canary {1e3 * total / count:.1f} ms\n", flush=True
            )
            wrong += alarms > 0 or tests == 0
            print("| upgrade | said | right | runs |\n|---|---|---|---|")
            for step in steps(total / count):
                if step.small and args.large:
                    continue
                image = built(step.lines)
                if step.hog:
                    for hog in hogs:
                        docker("run", "--detach", "--name", hog, BASE, "sh", "-c", "while :; do :; done")
                for number in range(args.starts if step.small else math.ceil(args.starts / 3)):
                    before = up.value("infercanary_runs_collected_total", SERVICE) if number else 0.0
                    if number:
                        docker("restart", "--time", "5", SERVICE)
                    else:
                        start(SERVICE, image, *served)
                        time.sleep(3)
                    ran(up, before, RUNS)
                time.sleep(5)
                said, verdict = up.sentence(), up.verdict()
                called = verdict in ("regressed", "improved")
                right = (
                    verdict in step.verdicts
                    and (not called or f": {step.cause}" in said)
                    and step.named in said
                )
                wrong += not right
                runs = up.value("infercanary_judged_runs", SERVICE)
                print(f"| {step.name} | {said} | {'yes' if right else 'NO'} | {runs:.0f} |", flush=True)
    finally:
        remove(SERVICE, *SIBLINGS, *hogs)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
