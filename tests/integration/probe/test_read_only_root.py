"""A read-only root without a temporary folder and a home folder, which probe and exporter do not need."""

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress

import pytest
from watching import MODULES, fetch, until

# Make each mount read-only, only for this process and its children.
NAMESPACE = """
mount --make-rprivate / || exit 77
while read -r _ place kind _; do
    case $kind in proc | sysfs | cgroup* | devpts | mqueue) ;; *) mount -o remount,bind,ro "$place" ;; esac
done < /proc/self/mounts
for place in /tmp /var/tmp /dev/shm /; do
    ! touch "$place/infercanary-test" 2> /dev/null || { echo "$place can be written" >&2; exit 77; }
done
cd / && unset TMPDIR
"$0" -m infercanary probe --config "$1" &
exec "$0" -m infercanary exporter --config "$2"
"""
PROBE = """
canaries: {{some: {{target: "scripted:Scripted"}}}}
listen: 127.0.0.1:{port}
interval_seconds: 1
duty_cap: 1
samplers: {{nvml: false}}
"""
EXPORTER = """
listen: 127.0.0.1:{port}
discovery: none
poll_seconds: 1
probes: [{{url: "http://127.0.0.1:{probe}", service: search, container: search-1}}]
"""


@pytest.mark.root
def test_probe_and_exporter_on_a_read_only_root_without_a_home(tmp_path):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root for separate mounts")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        probe, exporter = (each.getsockname()[1] for each in (one, other))
    files = {
        "probe.yaml": PROBE.format(port=probe),
        "exporter.yaml": EXPORTER.format(port=exporter, probe=probe),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", NAMESPACE, sys.executable,
             *(str(tmp_path / name) for name in files)],
            stderr=log, env={**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(MODULES)},
        ) as process,
    ):  # fmt: skip

        def is_up():
            """Return True if the exporter has read the probe's report with runs."""
            if process.poll() == 77:
                pytest.skip(f"separate mounts are not permitted here: {(tmp_path / 'log').read_text()}")
            assert process.poll() is None, (tmp_path / "log").read_text()
            with suppress(OSError):  # not up yet
                seen = fetch(f"http://127.0.0.1:{probe}")
                with urllib.request.urlopen(f"http://127.0.0.1:{exporter}/metrics", timeout=5) as answer:
                    page = answer.read().decode()
                return seen.runs("some", "ok") >= 2 and bool(
                    re.search(r"^infercanary_up\{.*\} 1", page, re.M)
                )
            return False

        try:
            until(is_up, "both are up")
        finally:
            process.kill()
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "Read-only" not in said
