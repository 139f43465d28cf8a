"""Sweeps of a torch model on a real device: throughput, peak memory, and a batch that does not fit."""

import pytest

from infercanary.probe.load import Load, Measurement
from infercanary.probe.targets import Unsized
from tests.gpu.targets import opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("torch_cuda")


def measured(target, batch, concurrency=1):
    return Measurement("a", target, Load(batch, concurrency), 2.0, None).measure()


def convolution(**options):
    """Return a convolution with a small output: copies of a large output would limit the rate at any batch size."""
    layer = torch.nn.Conv2d(3, 64, 7, stride=4)
    model = torch.nn.Sequential(layer, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).cuda().eval()
    return opened(model, (1, 3, 224, 224), runs=1, **options)


def test_throughput_and_memory_grow_with_the_batch():
    target = convolution()
    one, many = measured(target, 1), measured(target, 64)
    assert many.rate > 2 * one.rate
    assert many.latency > one.latency
    assert many.rate == pytest.approx(64 / many.latency, rel=0.2)
    # At least the output of the convolution: 64 channels of 55 × 55 float32.
    assert many.peak_bytes - one.peak_bytes > 60 * 64 * 55 * 55 * 4


def test_threads_have_streams_of_their_own():
    several = measured(convolution(), 1, concurrency=4)
    assert several.rate == pytest.approx(4 / several.latency, rel=0.3)


def test_a_batch_that_does_not_fit_is_reported_and_leaves_nothing():
    weight = torch.ones(1, device="cuda")
    # The target is opened without a run: even a batch of 1 needs 256 GiB.
    target = opened(lambda x: x.expand(x.shape[0], 2**36) + weight, (1, 1))
    before = torch.cuda.memory_reserved()
    assert measured(target, 2).reason == "out_of_memory"
    assert torch.cuda.memory_reserved() <= before + (2 << 20)


def test_a_graph_has_one_size():
    target = convolution(mode="graph")
    with pytest.raises(Unsized, match="a CUDA graph has the size"):
        target.copy_with_batch(2)
