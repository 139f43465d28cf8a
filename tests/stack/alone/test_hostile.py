"""The exporter's image with Compose's limits is attacked, beside 20 honest probes: ``make hostile``."""

import os
import re
import ssl
import time

import pytest
from attacks import ATTACKS
from harness import OWN_LABEL, run
from onlooker import Watch
from probed import IMAGE, MOUNT, UNHARMED, exporter, state

from tests.integration.exporter.processes import certificate

PROBES = 20
SECONDS = float(os.environ.get("HOSTILE_SECONDS", "600"))
MOST_BYTES = 300 << 20
"""Limit of the exporter's memory. Compose gives the container 512 MiB; without an attack it uses about 100."""
TLS = frozenset({"silent", "half_hellos"})
# The file with a control group's peak memory has a different name in each cgroup version.
PEAK = "cat /sys/fs/cgroup/memory/memory.max_usage_in_bytes /sys/fs/cgroup/memory.peak 2>/dev/null || true"


@pytest.mark.campaign
@pytest.mark.parametrize("way", [*ATTACKS])
def test_hostile_for_ten_minutes(tmp_path, way):
    name = f"infercanary-hostile-{way.replace('_', '-')}"
    options = ("--pids-limit", "256", "--cpus", "0.5", "--ulimit", "nofile=1024:1024")
    arguments: tuple[str, ...] = ()
    if way in TLS:
        certificate(tmp_path, "server").with_suffix(".key").chmod(0o644)
        (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}")
        arguments = ("--web-config", "/etc/infercanary/web.yml")
    with exporter(name, tmp_path, "honest", PROBES, *options, arguments=arguments) as address:
        context = ssl.create_default_context(cafile=str(tmp_path / "server.pem")) if way in TLS else None
        watch = Watch(f"http{'s' if context else ''}://{address}", PROBES, context)
        try:
            deadline = time.monotonic() + 60
            while watch.value("infercanary_up") < PROBES:
                assert time.monotonic() < deadline, (watch.faults[-3:], run("docker", "logs", name))
                time.sleep(0.2)
            watch.clear()
            time.sleep(5)
            quiet = watch.p99
            watch.clear()
            run(
                *(
                    "docker",
                    "run",
                    "--rm",
                    "--name",
                    f"{name}-attacker",
                    "--label",
                    OWN_LABEL,
                    "--network",
                    name,
                ),
                *("--cpus", "0.5", "--ulimit", "nofile=4096:4096", MOUNT, "--entrypoint", "python", IMAGE),
                *("/hostile/attacks.py", way, name, "9797", str(SECONDS)),
                seconds=SECONDS + 120,
            )
        finally:
            watch.end()
        peak = int(run("docker", "exec", name, "sh", "-c", PEAK))
        log = run("docker", "logs", name)
        unharmed = state(name) == UNHARMED
    refused = watch.value("infercanary_connections_refused_total")
    print(
        f"{way}: scrape p99 {watch.p99:.3f} s (without attack {quiet:.3f} s), memory {peak >> 20} MiB, "
        f"{refused:g} connections refused"
    )
    assert unharmed
    assert watch.faults == []
    assert watch.p99 < 1
    assert peak < MOST_BYTES
    assert refused > 0
    assert len(re.findall("Traceback|connection was closed", log)) < SECONDS + 10
