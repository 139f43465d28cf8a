"""Claims on device memory: of the context, of torch, of the model, and of a probe in a server's process."""

from __future__ import annotations

import json

from gpu_claims.claim import Measured, interval
from gpu_claims.step import Place, child, step, torch_module
from infercanary.probe.memory import BESIDE, CONTEXT, CONTROLS

_MODEL_BYTES = 64 << 20

_CODE = """
import json, sys, time
import torch
device, controls = sys.argv[1], sys.argv[2] == "True"
on_gpu = device != "cpu"
from infercanary.probe import Probe, TorchTarget
from infercanary.probe.measures import resident
from infercanary.probe.memory import device_memory

def used():
    return device_memory(0)[0] if on_gpu else resident()

found, before = {}, used()
def stage(name):
    global before
    now = used()
    found[name], before = now - before, now

if on_gpu:
    from infercanary.probe.gpu.cuda_driver import Device
    held = Device(0)
stage("context")
small = torch.ones(8, device=device) @ torch.ones(8, device=device)
stage("torch")
weights = torch.ones(MODEL_BYTES // 4, device=device)
stage("model")
probe = Probe({"c": TorchTarget(lambda x: x + weights[:8], [{"shape": [8]}], device=device)}, listen="127.0.0.1:0",
              interval_seconds=0.3, duty_cap=1.0, controls=controls)
probe.start()
until = time.monotonic() + 60
while probe.report("").count(b'"outcome":"ok"') < 3 and time.monotonic() < until:
    time.sleep(0.1)
stage("probe")
probe.stop()
print(json.dumps(found))
""".replace("MODEL_BYTES", str(_MODEL_BYTES))


@step("memory", "device memory of a context, of torch, of a model, and of an in-process probe")
def memory(place: Place) -> list[Measured]:
    """Measure the memory in use by NVML, in new processes. Meanwhile, no other process may start on the device."""
    torch_module(place)
    trials = place.times(4, least=2)
    bare, full = ([json.loads(child(place, _CODE, str(on))) for _ in range(trials)] for on in (False, True))
    mib = 1 << 20

    def row(
        claim: str, bound: str, stage: str, trials: list[dict[str, int]], least: float, most: float
    ) -> Measured:
        values = [each[stage] / mib for each in trials]
        return Measured(claim, bound, *interval(values), least, most, unit=" MiB")

    model = _MODEL_BYTES / mib
    return [
        row(
            "a CUDA context",
            f"≤ {CONTEXT // mib} MiB, which the probe asks for first",
            "context",
            bare,
            0,
            CONTEXT / mib,
        ),
        row("torch's own, beside the context", "≤ 512 MiB", "torch", bare, 0, 512),
        row("a model of 64 MiB", "64 to 66 MiB", "model", bare, model, model + 2),
        row(
            "a probe in the server's process, without controls",
            f"≤ {BESIDE // mib} MiB, which the probe asks for first",
            "probe",
            bare,
            0,
            BESIDE / mib,
        ),
        row(
            "the same with controls",
            f"≤ {(BESIDE + CONTROLS) // mib} MiB",
            "probe",
            full,
            0,
            (BESIDE + CONTROLS) / mib,
        ),
    ]


@step("tensor-cores", "the canary `matmul` says whether Tensor Cores are in use")
def tensor_cores(place: Place) -> list[Measured]:
    """Check that half precision is faster than single precision, and that the canary reports Tensor Cores in use."""
    from infercanary.probe.canary import Canary
    from infercanary.probe.histogram import Tally
    from infercanary.probe.targets import make
    from infercanary.probe.targets.matmul import FLOPS, UNUSED, has_tensor_cores

    torch = torch_module(place)
    target = make("matmul", {"device": place.device, **({} if place.on_gpu else {"size": 256})})
    canary = Canary("product", target, Tally(), 60.0, 300.0)
    canary.open(300.0)
    ratios, unused = [], []
    for _ in range(place.times(8)):
        run = canary.round(5)
        readings = run.readings if run is not None else ()
        rates = {labels[0]: value for metric, value, labels in readings if metric is FLOPS}
        unused += [value for metric, value, _ in readings if metric is UNUSED]
        ratios.append(rates.get(canary.environment["matmul_precision"], 0.0) / rates["float32"])
    canary.close(10.0)
    has_them = place.on_gpu and has_tensor_cores(torch, place.device)
    return [
        Measured(
            "half precision over float32, with Tensor Cores",
            "≥ 1.2 times",
            *interval(ratios),
            least=1.2,
            decided=has_them,
        ),
        Measured(
            "`infercanary_matmul_tensorcores_unused` says that they are in use",
            "0",
            max(unused, default=float("nan")),
            0,
            max(unused, default=1),
            most=0,
            decided=has_them,
        ),
    ]
