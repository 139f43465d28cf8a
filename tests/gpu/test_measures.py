"""Memory measured for a torch model on a real device: peak in the probe's own process, otherwise memory in use."""

import gc

import pytest

from infercanary.contract.measures import DEVICE_MEMORY
from infercanary.probe.measures import Taking
from infercanary.probe.samplers.cgroup import ContainerCpu
from tests.gpu.targets import opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("torch_cuda")

MIB = 1 << 20


class Taker(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Keeps some memory, and allocates more memory while it computes."""

    def __init__(self, holds, takes):
        super().__init__()
        self.register_buffer("held", torch.ones(holds, dtype=torch.uint8))
        self.takes = takes

    def forward(self, x):
        return x + torch.ones(self.takes, dtype=torch.uint8, device=x.device)[:1].float()


def memory(holds, takes, *, is_guest=False):
    target = opened(Taker(holds, takes).cuda().eval(), (1, 8), runs=1)
    taking = Taking(target, ContainerCpu())
    taking.is_guest = is_guest
    taking.begin()
    timing, _ = target.clock.measure(target.run)
    found = taking.end([timing], calls_a_server=False)
    target.close()
    del target, taking
    gc.collect()  # Free the model now: otherwise its memory would count in the next measurement.
    return found[DEVICE_MEMORY]


def test_a_peak_is_what_is_held_and_what_is_taken():
    least = memory(MIB, MIB)
    assert memory(201 * MIB, MIB) - least == pytest.approx(200 * MIB, rel=0.05)
    assert memory(MIB, 101 * MIB) - least == pytest.approx(100 * MIB, rel=0.05)


def test_in_a_servers_process_its_peak_stays_and_what_is_held_is_known():
    least = memory(MIB, 300 * MIB)
    peak = torch.cuda.max_memory_allocated()
    assert memory(201 * MIB, MIB, is_guest=True) - memory(MIB, 101 * MIB, is_guest=True) == pytest.approx(
        200 * MIB, rel=0.05
    )
    assert torch.cuda.max_memory_allocated() >= peak >= least
