"""A tenant shares a real GPU with a separate probe process: the tenant's allocations still succeed."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("torch_cuda")

MIB = 1 << 20
MODEL = """
import torch

held = []

def small():
    return torch.nn.ReLU()

def greedy():
    while True:
        held.append(torch.ones(64 << 20, dtype=torch.uint8, device="cuda"))
"""


@pytest.fixture
def tenant():
    """Yield a function that fills the device until this many bytes are free; free the memory at the end."""
    held = []

    def fill(left):
        torch.cuda.empty_cache()
        while (more := torch.cuda.mem_get_info()[0] - left) > 2 * MIB:
            held.append(torch.empty(min(more, 1 << 30), dtype=torch.uint8, device="cuda"))

    yield fill
    held.clear()
    torch.cuda.empty_cache()


def probed(folder, factory, reserve=None):
    (folder / "models_of_test.py").write_text(MODEL)
    canary = f"{{model: 'models_of_test:{factory}', inputs: [{{shape: [1, 8]}}], device: cuda}}"
    (folder / "probe.yaml").write_text(
        f"device_memory_reserve: {'null' if reserve is None else reserve}\n"
        f"canaries: {{c: {{target: torch, options: {canary}}}}}\n"
    )
    command = [sys.executable, "-m", "infercanary", "probe", "--once"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_full_device_is_left_to_its_tenant(tenant, tmp_path):
    tenant(300 * MIB)
    with probed(tmp_path, "small") as process:
        least = torch.cuda.mem_get_info()[0]
        while process.poll() is None:
            torch.empty(
                200 * MIB, dtype=torch.uint8, device="cuda"
            )  # allocates like a request; raises an error if the device is full
            torch.cuda.empty_cache()
            least = min(least, torch.cuda.mem_get_info()[0])
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3 and "canaries.c.device: a CUDA context" in output, output
    assert least > 290 * MIB


def test_a_factory_that_takes_all_leaves_the_reserve(tenant, tmp_path):
    tenant(4 << 30)
    least = 4 << 30
    with probed(tmp_path, "greedy", reserve=1 << 30) as process:
        while process.poll() is None:
            least = min(least, torch.cuda.mem_get_info()[0])
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3 and "out of memory (device)" in output, output
    # torch's allocator keeps the reserve; only kernels may use a part of it
    assert (1 << 30) - 256 * MIB < least < 2 << 30
