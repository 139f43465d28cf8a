import random

import pytest

from infercanary.contract.report import Run
from infercanary.probe.journal import Journal


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        if isinstance(content, (bytes, str)):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        else:
            path.write_text("".join(f"{line}\n" for line in content))
        return str(path)

    return write


@pytest.fixture
def numbers():
    def numbers(level=0.02, count=100, seed=1, noise=0.01):
        rng = random.Random(seed)
        return [level * rng.lognormvariate(0, noise) for _ in range(count)]

    return numbers


@pytest.fixture
def journal(tmp_path):
    """Write a journal like a probe's, with one boot for each of ``levels``."""

    def journal(
        name,
        levels,
        *,
        count=40,
        torch="2.7.0",
        boot="",
        canaries=("resnet18",),
        control=1.0,
        max_bytes=16 << 20,
        outputs=None,
        more=None,
        **fields,
    ):
        rng = random.Random(name)
        path = tmp_path / name
        for number, level in enumerate(levels):
            writer = Journal(path, f"{boot or name}-{number}", max_bytes)
            for i in range(count):
                for canary in canaries:
                    median = level * rng.lognormvariate(0, 0.005)
                    run = {
                        "sequence": i, "canary": canary, "scheduled_at": 0.0,
                        "started_at": 1.7e9 + 1e5 * number + 10 * i, "outcome": "ok",
                        "latencies": (0.99 * median, median, 1.5 * median),
                        "phases": {"h2d": 0.002, "compute": median - 0.002},
                        "controls": {"cpu_spin": 4e-4 * control * rng.lognormvariate(0, 0.003)},
                    }  # fmt: skip
                    known = (outputs or {}) if i else {}  # the first run is not steady, and reports no output
                    writer.append(
                        [Run(**(run | fields))], {"torch": torch, "python": "3.11", **(more or {})}, known
                    )
            assert writer.close(5)
        return str(path)

    return journal
