"""The fingerprint of the environment."""

import platform
from importlib import metadata

import pytest

from infercanary.probe import environment
from infercanary.probe.environment import fingerprint


def test_the_components():
    found = fingerprint({"torch": "2.13.0"})
    known = {
        "python": platform.python_version(), "kernel": platform.release(), "torch": "2.13.0",
        "infercanary": metadata.version("infercanary"),
    }  # fmt: skip
    assert found.items() >= known.items()
    assert list(found) == sorted(found)
    assert {"libc", "os", "architecture", "cpu_model", "gil", "python_implementation"} <= found.keys()


def test_the_clock_policy_and_the_numa_nodes(monkeypatch, tmp_path):
    (tmp_path / "governor").write_text("powersave\n")
    (tmp_path / "status").write_text("Name:\tpython\nMems_allowed_list:\t0-1\n")
    (_, *governor), (_, *nodes) = environment._PLACED.values()
    placed = {"cpu_governor": (tmp_path / "governor", *governor), "numa_nodes": (tmp_path / "status", *nodes)}
    monkeypatch.setattr(environment, "_PLACED", placed)
    assert fingerprint({}).items() >= {"cpu_governor": "powersave", "numa_nodes": "0-1"}.items()
    (tmp_path / "governor").unlink()
    assert "cpu_governor" not in fingerprint({})


def test_only_known_variables_are_shown_and_values_are_short_and_printable(monkeypatch):
    """Variables may be secrets. A single value that is too long or odd would make the exporter refuse the whole
    family.
    """
    variables = {
        "OMP_NUM_THREADS": "3",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "LD_PRELOAD": "/lib/\udcff\n\x07x.so",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = fingerprint({"long": "x" * 1000, "wide": "模" * 1000, "none": None})  # type: ignore[dict-item]
    expected = {
        "env_OMP_NUM_THREADS": "3",
        "env_LD_PRELOAD": "/lib/???x.so",
        "wide": "模" * 66,
        "none": "None",
    }
    assert found.items() >= expected.items()
    assert len(found["long"]) == 200
    assert "hunter2" not in str(found)


# The first two of 72 CPUs of a Grace, for which the kernel reports no model name.
GRACE = "".join(
    f"processor\t: {cpu}\nBogoMIPS\t: 2000.00\n"
    "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid sve sve2 svebf16 i8mm bf16 dgh\n"
    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n\n"
    for cpu in range(2)
)
BIG_AND_LITTLE = GRACE + "CPU implementer\t: 0x41\nCPU part\t: 0xd03\n"


CPUS = {
    GRACE: "implementer 0x41, part 0xd4f",
    BIG_AND_LITTLE: "implementer 0x41, part 0xd4f, implementer 0x41, part 0xd03",
    "vendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Xeon 8480\n": "Xeon 8480",
    "processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdc\n": "unknown",
    "": "unknown",
}


@pytest.mark.parametrize(("cpuinfo", "model"), CPUS.items())
def test_the_cpu_has_a_name_on_each_architecture(tmp_path, monkeypatch, cpuinfo, model):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(environment, "_CPUS", tmp_path / "cpuinfo")
    assert environment._cpu_model() == model
