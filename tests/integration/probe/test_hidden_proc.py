"""`/proc` is mounted with `hidepid=2`, which hides the processes of other users from a probe."""

import shutil

import pytest
from fresh import in_a_pid_namespace

SCRIPT = """
import subprocess
from infercanary.probe.samplers.processes import ProcessSampler
from infercanary.probe.samplers.threads import ThreadSampler
from infercanary.probe.measures import resident
own = subprocess.Popen(["sleep", "60"])
for kind in (ProcessSampler, ThreadSampler):
    print(kind.name, len(list(kind().sample())) > 0)
shown = {label for f in ProcessSampler().sample() for p in f.points for label in p.labels}
print("foreign", "tail" in shown, "resident", resident() > 0)
own.kill()
"""


@pytest.mark.root
def test_the_samplers_show_what_they_may_see():
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    # A process in group 0 sees all processes in spite of hidepid, so the probe runs in another group.
    shell = (
        "mount -t proc -o hidepid=2 proc /proc || exit; "
        "setpriv --reuid 65534 --clear-groups tail -f /dev/null & sleep 0.2; "
        'setpriv --regid 65533 --clear-groups --bounding-set -sys_ptrace --inh-caps -all "$0" -c "$1"; kill $!'
    )
    printed = in_a_pid_namespace(shell, SCRIPT)
    assert printed.splitlines() == ["processes True", "threads True", "foreign False resident True"]
