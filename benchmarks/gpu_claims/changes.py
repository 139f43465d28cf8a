"""Ten changes to a model: in interleaved runs of both sides, each change must be found, with the right cause."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from gpu_claims.claim import Measured
from gpu_claims.step import Busy, NotRun, Place, need, step, synchronized, torch_module
from infercanary.contract.profile import Profile
from infercanary.probe import TorchTarget
from infercanary.probe.targets.controls import available_controls

_RUNS, _REPEATS, _PROFILED = 24, 5, 6


class Seen(NamedTuple):
    """Measured facts about a change."""

    verdict: str
    shift: float
    phases: dict[str, float]
    """Phase → increase in seconds."""
    operators: dict[str, str]
    """Operator → its change in words."""
    control: float
    """Ratio of the arithmetic control, new to old; 1 means unchanged."""
    outside: float
    """Increase of the time outside operators, in seconds."""


class Change(NamedTuple):
    """One change: both sides, and a test for its cause."""

    name: str
    sides: Callable[[Any, Place], tuple[TorchTarget, TorchTarget]]
    cause: str
    """The right cause, in words."""
    is_named: Callable[[Seen], bool]
    on_cpu: bool = True
    around: Callable[[Any, Place, bool], Any] = lambda torch, place, is_new: nullcontext()
    under_load: bool = False
    """True to load the GPU with other processes while the new side runs. The GPU's clock then falls, and the controls
    become slower.
    """


def _width(place: Place) -> int:
    return 4096 if place.on_gpu else 384


def _target(place: Place, model: Any, shape: list[int], **options: Any) -> TorchTarget:
    return TorchTarget(model, [{"shape": shape}], device=place.device, **options)


def _grew(seen: Seen, phase: str) -> bool:
    """Return True if this phase has more than 40 % of the increase of all phases that grew."""
    whole = sum(value for value in seen.phases.values() if value > 0)
    return seen.phases.get(phase, 0.0) > 0.4 * whole > 0


def _operator(*words: str) -> Callable[[Seen], bool]:
    """Return True if a changed operator, or the description of its change, contains one of these words."""
    return lambda seen: any(
        word in f"{name} {detail}" for name, detail in seen.operators.items() for word in words
    )


def _products(torch: Any, place: Place) -> tuple[Any, list[int]]:
    width = _width(place)
    matrices = [torch.randn(width, width, device=place.device) / width**0.5 for _ in range(3)]
    return matrices, [width, width]


def _tf32(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    matrices, shape = _products(torch, place)

    def model(x: Any) -> Any:
        for matrix in matrices:
            x = x @ matrix
        return x

    return _target(place, model, shape), _target(place, model, shape)


@contextmanager
def _tf32_around(torch: Any, place: Place, is_new: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not is_new
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _channels_last(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    channels, side = (128, 128) if place.on_gpu else (32, 48)
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(channels, channels, 3) for _ in range(3)]
    plain = torch.nn.Sequential(*layers).to(place.device).eval()

    # each layer uses the other memory layout, with conversions before and after
    def switching(x: Any) -> Any:
        for layer in plain:
            x = layer(x.contiguous(memory_format=torch.channels_last)).contiguous()
        return x

    shape = [16 if place.on_gpu else 1, channels, side, side]
    return _target(place, plain, shape), _target(place, switching, shape)


def _float64(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    matrices, shape = _products(torch, place)
    double = matrices[1].double()

    def plain(x: Any) -> Any:
        return x @ matrices[0] @ matrices[1]

    def with_double(x: Any) -> Any:
        return ((x @ matrices[0]).double() @ double).float()

    return _target(place, plain, shape), _target(place, with_double, shape)


def _small_layers(torch: Any, place: Place) -> tuple[Any, list[int]]:
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).to(place.device).eval(), [8, 256]


def _graph(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    model, shape = _small_layers(torch, place)
    return _target(place, model, shape, mode="graph"), _target(place, model, shape)


def _attention(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    length = 2048 if place.on_gpu else 256
    dtype = torch.bfloat16 if place.on_gpu else torch.float32

    def side(backend: Any) -> TorchTarget:
        def model(x: Any) -> Any:
            with torch.nn.attention.sdpa_kernel(backend):
                y = x.to(dtype)
                return torch.nn.functional.scaled_dot_product_attention(y, y, y)

        return _target(place, model, [4, 8, length, 64])

    backends = torch.nn.attention.SDPBackend
    return side(backends.FLASH_ATTENTION), side(backends.MATH)


def _copy(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    matrices, shape = _products(torch, place)
    copies = 24 if place.on_gpu else 60

    def plain(x: Any) -> Any:
        return x @ matrices[0]

    def copied(x: Any) -> Any:
        for _ in range(copies):
            x = x.clone()
        return x @ matrices[0]

    return _target(place, plain, shape), _target(place, copied, shape)


def _launch(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    model, shape = _small_layers(torch, place)

    def bound_by_the_host(x: Any) -> Any:
        for layer in model:
            until = time.perf_counter() + 30e-6
            while time.perf_counter() < until:
                pass
            x = layer(x)
        return x

    return _target(place, model, shape), _target(place, bound_by_the_host, shape)


def _synchronised(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    model, shape = _small_layers(torch, place)

    def waits(x: Any) -> Any:
        for layer in model:
            x = layer(x)
            if float(x.flatten()[0]) == 1e30:
                return x
        return x

    return _target(place, model, shape), _target(place, waits, shape)


def _pinned(torch: Any, place: Place) -> tuple[TorchTarget, TorchTarget]:
    host = torch.randn(32 << 20)

    def side(buffer: Any) -> TorchTarget:
        return _target(place, lambda x: buffer.to(place.device, non_blocking=True)[:8] + x, [8])

    return side(host.pin_memory()), side(host)


def _controls_moved(seen: Seen) -> bool:
    return seen.control > 1.03


CHANGES = (
    Change(
        "TF32 off",
        _tf32,
        "another kernel of the same operator",
        _operator("aten::matmul", "aten::mm"),
        False,
        _tf32_around,
    ),
    Change(
        "channels last in between",
        _channels_last,
        "a conversion that is new",
        _operator("contiguous", "clone", "copy_", "conv2d"),
    ),
    Change("a float64 layer", _float64, "other numbers: float64", _operator("matmul", "aten::to", "double")),
    Change("graph → eager", _graph, "launches", lambda s: _grew(s, "launch") or _grew(s, "compute"), False),
    Change(
        "SDPA backend",
        _attention,
        "another kernel of attention",
        _operator("scaled_dot_product", "_math", "matmul"),
    ),
    Change("extra copies", _copy, "copies that are new", _operator("clone", "copy_")),
    Change(
        "a smaller clock, by load",
        _tf32,
        "the host: controls moved too",
        _controls_moved,
        under_load=True,
    ),
    Change(
        "CPU-bound launches",
        _launch,
        "time outside of operators, or launch",
        lambda s: _grew(s, "launch") or s.outside > 0,
    ),
    Change(
        "a synchronise too many",
        _synchronised,
        "reads of a value",
        _operator("item", "_local_scalar", "select", "flatten"),
    ),
    Change("pinned memory off", _pinned, "the copy from the host", _operator("aten::to", "copy_"), False),
)


def measured(change: Change, place: Place) -> Seen:
    """Measure both sides in turns, with profiles, and the control after each turn."""
    if not change.under_load:
        return _measured(change, place, partial(change.around, torch_module(place), place))
    with Busy(place, "compute", 2 if place.on_gpu else 4) as load:
        return _measured(change, place, lambda is_new: load.at_work() if is_new else nullcontext())


def _measured(change: Change, place: Place, around: Callable[[bool], AbstractContextManager[Any]]) -> Seen:
    from infercanary.judge import compare
    from infercanary.judge.operators import compare_operators

    torch = torch_module(place)
    sides = change.sides(torch, place)
    available, _ = available_controls(place.device)
    control = available.get("gpu_fma", available.get("cpu_spin"))
    for side, target in enumerate(sides):
        with around(bool(side)):
            target.open()
            for _ in range(3):
                target.clock.measure(target.run)
    stack = ExitStack()
    work = stack.enter_context(control()) if control is not None else None
    walls: tuple[list[float], list[float]] = ([], [])
    phases: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    controls: tuple[list[float], list[float]] = ([], [])
    profiles: tuple[list[Profile], list[Profile]] = ([], [])
    for turn in range(place.times(_RUNS, least=10)):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            target = sides[side]
            with around(bool(side)):
                timings = [target.clock.measure(target.run)[0] for _ in range(_REPEATS)]
                if work is not None:
                    controls[side].append(statistics.median(work() for _ in range(9)))
                if turn < 2:
                    profiles[side].append(target.profile(_PROFILED))
            walls[side].append(statistics.median(t.wall for t in timings))
            phases[side].append(
                {n: statistics.median(t.phases[n] for t in timings) for n in timings[0].phases}
            )
    synchronized(torch, place)
    for target in sides:
        target.close()
    stack.close()
    judged = compare(walls[0], walls[1])
    middle = [{n: statistics.median(p[n] for p in each) for n in each[0]} for each in phases]
    operators = compare_operators(*profiles, (statistics.median(walls[0]), statistics.median(walls[1])))
    changed = {} if operators is None else {s.operator: f"{s.change} {s.detail}" for s in operators.shifts}
    before, after = (statistics.median(side[-1].outside) for side in profiles)
    moved = statistics.median(controls[1]) / statistics.median(controls[0]) if control is not None else 1.0
    grown = {name: middle[1].get(name, 0.0) - value for name, value in middle[0].items()}
    return Seen(judged.verdict, judged.shift, grown, changed, moved, after - before)


def _step(change: Change) -> Callable[[Place], list[Measured]]:
    def measure(place: Place) -> list[Measured]:
        if not place.on_gpu and not change.on_cpu:
            raise NotRun("this change exists on CUDA only")
        need("numpy", "scipy")
        seen = measured(change, place)
        is_found = seen.verdict in ("regressed", "improved")
        is_right = float(is_found and change.is_named(seen))
        operators = "; ".join(f"{name} {how}".strip() for name, how in list(seen.operators.items())[:3])
        note = (
            f"{seen.verdict} {seen.shift:+.1%}, control {seen.control:.2f} times, "
            f"outside {seen.outside * 1e6:+.0f} µs; {operators or 'no operator named'}"
        )
        return [
            Measured(
                f"{change.name}: found, and its cause named ({change.cause})",
                "yes (1)",
                is_right,
                is_right,
                is_right,
                least=1.0,
                note=note,
            )
        ]

    return measure


for _change in CHANGES:
    _name = "".join(c if c.isalnum() else "-" for c in _change.name.lower().replace(" → ", "-")).strip("-")
    step(f"change-{_name.replace('--', '-')}", f"a seeded change: {_change.name}")(_step(_change))
