"""The API server accepts every key in the templates of `deploy/` for rollout controllers."""

import subprocess

import pytest
import yaml
from cluster import GIVEN, SCRIPT
from harness import ROOT

# In `make test`, deploy/check uses Argo's schema: its installation in a cluster takes a quarter of a minute.
NAMES = (pytest.param("argo-rollouts", marks=pytest.mark.campaign), "flagger")


@pytest.mark.skipif(bool(GIVEN), reason="the test would add kinds to a given cluster")
@pytest.mark.parametrize("name", NAMES)
def test_each_is_by_its_schema(cluster, name):
    added = subprocess.run([SCRIPT, "kinds", name], capture_output=True, text=True, timeout=60)
    if "no kinds of" in added.stderr:
        pytest.skip(added.stderr.strip())
    assert added.returncode == 0, added.stderr
    objects = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deploy" / name).iterdir())]
    assert len(objects) == 2
    for each in objects:
        each["metadata"]["namespace"] = "default"
        assert "created" in created(cluster, each)
        each["spec"]["nmae"] = "wrong"
        with pytest.raises(AssertionError, match=r'unknown field "spec\.nmae"'):
            created(cluster, each)


def created(cluster, found):
    return cluster.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "--filename", "-"), text=yaml.safe_dump(found)
    )
