"""An image with incompatible libraries: its container stays up, and reports the message of the loader.

The image is the example's; a fault is added to its container at the start.
"""

import yaml
from canaries import PROBE
from harness import eventually, run

from tests.scenarios import cases

OPTIONS = {"model": "torch:relu", "inputs": [{"shape": [2]}]}
SETTINGS = {
    "canaries": {
        "on-gpu": {"target": "torch", "options": {**OPTIONS, "device": "cuda"}},
        "on-cpu": {"target": "torch", "options": OPTIONS},
    }
}
LIBRARY = "/usr/local/lib/python3.11/dist-packages/torch/lib/libgomp.so.1"


def points(report, metric):
    return {tuple(p.labels) for f in report.families if f.name == metric for p in f.points if p.value}


@cases([
        (("--user", "0"), f"rm {LIBRARY}", "libgomp.so.1: cannot open shared object file: No such file or directory)"),
        (("--env", "LD_LIBRARY_PATH=/app/old"), "true", "/app/old/libgomp.so.1: file too short)"),
    ],
    ids=["gone", "wrong-path"],
)  # fmt: skip
def test_a_library_that_does_not_fit(options, before, said, start, tmp_path):
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump(SETTINGS))
    library = tmp_path / "libgomp.so.1"
    library.write_text("a file, and no library\n")
    library.chmod(0o644)
    mount = f"--volume={library}:/app/old/{library.name}:ro"
    canary = start(mount, *options, command=("sh", "-c", f"{before}; exec {' '.join(PROBE)}"))
    failures = lambda: points(canary.report(), "infercanary_canary_failure_info")  # noqa: E731
    eventually("both fail", 60, lambda: len(failures()) == 2)
    report = canary.report()
    assert run("docker", "inspect", "--format", "{{.State.Running}}", canary.name).strip() == "true"
    assert points(report, "infercanary_cuda_missing") == {("on-gpu", "no_libraries")}
    assert points(report, "infercanary_canary_state") == {("on-gpu", "failing"), ("on-cpu", "failing")}
    for canary_name, reason, detail in failures():
        assert canary_name in SETTINGS["canaries"]
        assert reason == "no_libraries"
        assert said in detail
