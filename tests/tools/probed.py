"""The exporter's image in a container, beside a container with many probes from a script of tests/hostile."""

import json
from contextlib import ExitStack, contextmanager

from harness import OWN_LABEL, ROOT, compose, remove, run

IMAGE = "infercanary-exporter:dev"
MOUNT = f"--volume={ROOT / 'tests/hostile'}:/hostile:ro"
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
STATE = "{{.State.Running}} {{.State.OOMKilled}} {{.RestartCount}}"
UNHARMED = "true false 0"


def state(name):
    """Return the state of a container; UNHARMED means that it never restarted."""
    return run("docker", "inspect", "--format", STATE, name).strip()


@contextmanager
def exporter(name, folder, script, probes, *options, arguments=()):
    """Run an exporter and a container with probes on a separate network, and yield the exporter's address.

    Args:
        name: Name of the exporter's container. Containers whose names begin with it and a hyphen are removed
    as well.
        folder: Folder of settings, mounted at /etc/infercanary.
        script: Script in tests/hostile that simulates the probes.
        probes: Number of probes.
        options: Options of the exporter's `docker run`.
        arguments: Arguments of the exporter.
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
