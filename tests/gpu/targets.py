"""Opens targets on CUDA for the tests."""

from infercanary.probe import TorchTarget


def opened(model, shape, *, runs=0, **options):
    """Return an open target with one input of this shape, after ``runs`` warm-up runs."""
    target = TorchTarget(model, [{"shape": [*shape]}], device="cuda", **options)
    target.open()
    for _ in range(runs):
        target.clock.measure(target.run)
    return target
