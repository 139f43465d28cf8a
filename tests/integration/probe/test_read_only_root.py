"""Probe and exporter on a read-only root, without a temporary folder and without a home folder."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import suppress

import pytest
from ports import free_port
from watching import MODULES, fetch, until

# Make each mount read-only, but only for this process and its children.
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
    probe, exporter, log = free_port(), free_port(), tmp_path / "log"
    (tmp_path / "probe.yaml").write_text(PROBE.format(port=probe))
    (tmp_path / "exporter.yaml").write_text(EXPORTER.format(port=exporter, probe=probe))
    with (
        log.open("w") as errors,
        subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", NAMESPACE, sys.executable,
             tmp_path / "probe.yaml", tmp_path / "exporter.yaml"],
            stderr=errors, env={**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(MODULES)},
        ) as process,
    ):  # fmt: skip

        def is_up():
            if process.poll() == 77:
                pytest.skip(f"separate mounts are not permitted here: {log.read_text()}")
            assert process.poll() is None, log.read_text()
            with suppress(OSError):
                page = urllib.request.urlopen(f"http://127.0.0.1:{exporter}/metrics", timeout=5).read()
                is_polled = re.search(rb"^infercanary_up\{.*\} 1", page, re.MULTILINE)
                return fetch(f"http://127.0.0.1:{probe}").runs("some", "ok") >= 2 and is_polled

        try:
            until(is_up, "both are up")
        finally:
            process.kill()
    assert not re.search("Traceback|Read-only", log.read_text())
