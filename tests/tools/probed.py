"""The exporter's image in a container, beside a container with many probes from a script of tests/hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness import OWN_LABEL, ROOT, compose, remove, run

IMAGE = "infercanary-exporter:dev"
MOUNT = f"--volume={ROOT / 'tests/hostile'}:/hostile:ro"
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
STATE = "{{.State.Running}} {{.State.OOMKilled}} {{.RestartCount}}"
UNHARMED = "true false 0"


def state(name: str) -> str:
    """Of a container; UNHARMED where it runs since it was started."""
    return run("docker", "inspect", "--format", STATE, name).strip()


@contextmanager
def exporter(
    name: str, folder: Path, script: str, probes: int, *options: str, arguments: tuple[str, ...] = ()
) -> Iterator[str]:
    """Start both on a network of the exporter's name; all are gone afterwards.

    Args:
        name: Of the exporter's container; others that begin with it and a hyphen are removed, too.
        folder: For its settings; what else is in it lies in /etc/infercanary, too.
        script: In tests/hostile, what probes do.
        probes: How many.
        options: Of its `docker run`.
        arguments: Of the exporter.

    Yields:
        Its address.
    """
    compose("build", "--quiet", "exporter", seconds=600)
    listed = [
        {"url": f"http://{name}-probes:{9800 + n}", "service": f"s{n}", "container": "c"}
        for n in range(probes)
    ]
    settings = {"discovery": "none", "probes": listed, "store": "/var/lib/infercanary/judge.sqlite"}
    (folder / "exporter.yaml").write_text(json.dumps(settings))
    folder.chmod(0o755)
    started = ("docker", "run", "--detach", "--init", "--label", OWN_LABEL, "--network", name)
    with ExitStack() as stack:
        remove(name, f"{name}-probes", f"{name}-attacker")
        run("sh", "-c", f"docker network rm {name} 2>/dev/null || true")
        run("docker", "network", "create", "--label", OWN_LABEL, name)
        stack.callback(run, "docker", "network", "rm", name)
        stack.callback(remove, name, f"{name}-probes", f"{name}-attacker")
        run(
            *(*started, "--name", f"{name}-probes", MOUNT, "--entrypoint", "python", IMAGE),
            *(f"/hostile/{script}.py", "0.0.0.0", "9800", str(probes)),
        )
        run(
            *(*started, *HARDENED, "--name", name, "--memory", "512m", "--memory-swap", "512m"),
            *("--publish", "127.0.0.1::9797", "--volume", "/var/lib/infercanary"),
            *("--volume", f"{folder}:/etc/infercanary:ro", *options),
            *(IMAGE, "--config", "/etc/infercanary/exporter.yaml", *arguments),
        )
        yield run("docker", "port", name, "9797/tcp").strip()
