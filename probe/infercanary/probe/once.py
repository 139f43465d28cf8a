"""``infercanary probe --once``: one run of every canary, as a text for a person who is about to ship an image.

The text is made of a report and nothing else, so it says what the exporter would get.
"""

from __future__ import annotations

import logging
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

from infercanary.command.exit_codes import ExitCode
from infercanary.contract.bottleneck import LIMITS, Limit
from infercanary.contract.measures import OUTPUT
from infercanary.contract.profile import shares
from infercanary.contract.report import Metric, Report, Run, decode
from infercanary.contract.text import printable
from infercanary.contract.vocabulary import COMPONENTS, COMPUTE_THREADS, TAGS, labelled_tags
from infercanary.probe import controls, failing, record
from infercanary.probe.duty import DUTY_CAP, INTERVAL
from infercanary.probe.loop import Probe
from infercanary.probe.measures import described
from infercanary.probe.samplers.nvml.faults import STATE as NVML_STATE
from infercanary.probe.samplers.nvml.slow import INFO as GPU_INFO
from infercanary.probe.samplers.threads import GRANTED, OVERSUBSCRIPTION
from infercanary.probe.sampling import SUCCESS
from infercanary.probe.shown import columns, digits, opened, show, time_text
from infercanary.probe.tags import Values, values
from infercanary.probe.targets import matmul
from infercanary.probe.targets.openai import BETWEEN_TOKENS, FIRST_TOKEN
from infercanary.probe.targets.wire.timing_headers import SERVER

log = logging.getLogger("infercanary.probe")

_LEAST_WIDTH, _MOST_WIDTH = 80, 120
_LABEL = 13  # columns, besides the indentation
_NAME = 24  # columns of a name at most: a target may call its phases anything
_OPERATORS = 5
_REST = 0.005  # of the wall time: a larger part that is in no phase gets a row

_UNCHECKED = "not checked: no numbers were read from it, so a wrong answer goes unnoticed"

_NVML_STATES = {
    "no_driver": "no NVIDIA driver here",
    "no_permission": "the container may not reach the GPU's device files; recreate it",
    "version_mismatch": "the driver was upgraded under the container; restart the container",
    "lost": "a GPU fell off the bus or needs a reset; see the kernel's log (NVRM: Xid)",
    "failing": "NVML fails; the log says how",
    "hanging": "NVML does not answer; see the kernel's log (NVRM)",
}

_CUDA_MISSING = {
    "cpu_only_build": "its engine is a CPU-only build; install one with CUDA (of torch, or onnxruntime-gpu)",
    "no_libraries": "its engine's CUDA libraries cannot be loaded; install the versions that it was built for",
    "version_mismatch": "its engine, CUDA's libraries and the driver do not go together; its line above has the "
    "versions",
    "provider_missing": "its engine, ONNX Runtime, lacks the provider that was asked for; install a build that has it",
    "no_device": "its engine sees no device; check the driver, and that the container was started with "
    "the GPU (docker run --gpus device=0)",
}

# Row → components; the device comes last. The other components follow in one paragraph.
_ROWS = {
    row: [component.name for component in COMPONENTS.values() if component.row == row]
    for row in sorted({c.row: None for c in COMPONENTS.values() if c.row}, key=lambda row: row == "device")
}


def once(probe: Probe) -> int:
    """Open every canary, run each once, and print the report.

    Args:
        probe: One that was not opened yet.

    Returns:
        The exit code.

    Raises:
        UsageError: A canary cannot be opened by the user's mistake; the others were run and printed before.
    """
    mistake = opened(probe)
    configured = values(decode(probe.report("")).families).get(INTERVAL.name, {}).get((), 0.0)
    log.info("running every canary once")
    report = probe.once()
    if report is None:  # stopped meanwhile
        return 0
    show(render(report, configured, columns(_LEAST_WIDTH, _MOST_WIDTH)))
    if mistake is not None:
        raise mistake
    known = values(report.families)
    runs = last_runs(report)
    good = all(name in runs and runs[name].outcome == "ok" for name in _states(known))
    # Nothing of a canary that failed can be compared.
    return ExitCode.FINE if good else ExitCode.INCONCLUSIVE


def render(report: Report, interval_seconds: float, width: int = _LEAST_WIDTH) -> str:
    """Write the report as text.

    Args:
        report: After one run of every canary.
        interval_seconds: Between runs, as configured.
        width: Columns.

    Returns:
        Lines that a terminal can show, none with white space at its end; the last one ends with a line end.
    """
    known = values(report.families)
    runs = last_runs(report)
    at = min((run.started_at for run in runs.values()), default=report.started_at)
    version = report.environment.get("infercanary", "")
    when = datetime.fromtimestamp(at, timezone.utc)
    blocks = [[f"InferCanary {version}".strip() + f": one run, {when:%Y-%m-%d %H:%M:%S} UTC"]]
    for name, state in _states(known).items():
        blocks.append(list(_canary(name, state, runs.get(name), known, width)))
        if report.outputs.get(name) == ():
            blocks[-1] += _row("output", _UNCHECKED, width)
    blocks += [list(_controls(device, known)) for device in _devices(known)]
    blocks.append(list(_environment(report, known, width)))
    blocks.append(list(_samplers(known, width)))
    blocks.append(list(_warnings(report, runs, known, interval_seconds, width)))
    text = "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block) + "\n"
    # Names and messages come out of other people's code, and this goes to a terminal.
    return "\n".join(map(printable, text.replace("\xa0", " ").split("\n")))


def last_runs(report: Report) -> dict[str, Run]:
    """Canary → its last run by this probe (those of an earlier one, out of the journal, are not shown).

    Args:
        report: Its runs are in order of their sequence.

    Returns:
        Without the canaries that did not run.
    """
    return {run.canary: run for run in report.runs if not run.boot_id}


def _states(known: Values) -> dict[str, str]:
    """Canary → its state, in the order of the settings."""
    points = known.get(record.STATE.name, {})
    states = {name: "unknown" for name, _ in points}
    return states | {name: state for (name, state), on in points.items() if on}


def _canary(name: str, state: str, run: Run | None, known: Values, width: int) -> Iterator[str]:
    def value(metric: Metric, *labels: str) -> float | None:
        return known.get(metric.name, {}).get((name, *labels))

    yield f"canary {name}: {state}"
    if run is None:
        why = "it was not open in time (open_timeout_seconds)" if state == "failing" else "it was not run"
        yield from _row("no run", why, width)
    elif run.outcome != "ok":
        yield from _row(run.outcome.replace("_", " "), run.detail or "unknown; the log says why", width)
    median = value(record.MEDIAN)
    if run is not None and median is not None:
        parts = [f"median {time_text(median)}", f"min {time_text(min(run.latencies))}"]
        if (iqr := value(record.IQR)) is not None:
            parts.append(f"IQR {time_text(iqr)}")
        yield from _row("latency", _joined(*parts, _count(len(run.latencies), "repeat")), width)
    if value(record.COLD_START, "load") is not None:
        steps = {"load": "load", "first_run": "first run", "warm_up": "warm-up"}
        texts = (f"{words} {time_text(value(record.COLD_START, step))}" for step, words in steps.items())
        yield from _row("cold start", _joined(*texts), width)
    if run is not None and median:
        yield from _phases(run.phases, median, width)
        yield from _bottlenecks({limit: value(record.BOTTLENECK, limit) for limit in LIMITS}, width)
    if run is not None and run.profile is not None:
        found = shares(run.profile, _OPERATORS)
        yield from _row(
            "operators", _joined(*(f"{name} {_share(part)}" for name, part in found.items())), width
        )
    for label, text in described(run.measures).items() if run is not None else ():
        yield from _row(label, text, width)
    own = {part: seconds for (of, part), seconds in known.get(SERVER.name, {}).items() if of == name}
    if own:
        text = _joined(*(f"{part} {time_text(seconds)}" for part, seconds in own.items()))
        yield from _row("server", f"{text}  of one inference, by its own clock; within wait", width)
    if (salted := value(FIRST_TOKEN, "salted")) is not None:
        plain = time_text(value(FIRST_TOKEN, "plain"))
        text = f"{time_text(salted)} of a new prompt, {plain} of the plain one, which a cache may know"
        yield from _row("first token", text, width)
    if run is not None and (tokens := run.measures.get(OUTPUT)) is not None:
        apart = value(BETWEEN_TOKENS)
        text = f", {time_text(apart)} from one to the next" if apart is not None else ""
        yield from _row("tokens", _count(tokens, "token") + text, width)
    points = known.get(matmul.FLOPS.name, {}).items()
    if rates := [f"{part} {digits(rate / 1e9)} GFLOP/s" for (of, part), rate in points if of == name]:
        yield from _row("product", _joined(*rates), width)
    if run is not None:
        for tag, label in zip(run.tags, labelled_tags(run.tags, run.clock_reason), strict=True):
            meaning = TAGS[tag].meaning if tag in TAGS else "unknown to this version"
            yield from _row("tag", f"{label}: {meaning}", width)


def _phases(phases: Mapping[str, float], wall: float, width: int) -> Iterator[str]:
    """Bars of what follows one another; launching is beside them, since the host does it while the device works."""
    if not phases:
        return
    order = ["queue", "h2d", "compute", "d2h", "connect", "send", "wait", "first_token"]
    bars = {name: phases[name] for name in order if name in phases}
    bars |= {name: seconds for name, seconds in phases.items() if name not in (*order, "launch")}
    if (rest := wall - sum(bars.values())) > _REST * wall:
        bars["(rest)"] = rest
    column = min(_NAME, max(map(len, bars)))
    label = "phases"
    for name, seconds in bars.items():
        time = time_text(seconds)
        start = f"  {label:<{_LABEL}}{name[:column]:<{column}}  {time:>8}  {100 * seconds / wall:5.1f} %  "
        yield start + "#" * round(min(1.0, seconds / wall) * (width - len(start)))
        label = ""
    if (launch := phases.get("launch")) is not None:
        text = (
            f"{time_text(launch)} of the host's time, {_share(launch / wall)} of the wall time, to enqueue the work; "
            "it overlaps the phases and is no part of their sum"
        )
        if launch > phases.get("compute", launch):
            text += "; longer than compute: the host sets the pace"
        yield from _row("launch", text, width)


def _bottlenecks(shares: Mapping[Limit, float | None], width: int) -> Iterator[str]:
    """What the time went to, the largest share first; without what rounds to nothing."""
    shown = {limit: share for limit, share in shares.items() if share is not None and share >= _REST}
    named = [
        f"{limit} {100 * share:.0f} %" for limit, share in sorted(shown.items(), key=lambda item: -item[1])
    ]
    if named:
        yield from _row("bottleneck", _joined(*named), width)


def _devices(known: Values) -> list[str]:
    return list(dict.fromkeys(device for device, _ in known.get(controls.SECONDS.name, {})))


def _controls(device: str, known: Values) -> Iterator[str]:
    points = known.get(controls.SECONDS.name, {}).items()
    seconds = {name: value for (of, name), value in points if of == device}
    yield f"controls on {device}: the same work in every image"
    column = max(map(len, seconds))
    for name, value in seconds.items():
        yield f"  {name:<{column}}  {time_text(value):>8}"


def _environment(report: Report, known: Values, width: int) -> Iterator[str]:
    left = dict(report.environment)
    yield "environment"
    if not left:
        yield from _row("", "unknown", width)
        return
    for title, components in _ROWS.items():
        if found := [left.pop(name) for name in components if name in left]:
            yield from _row(title, ", ".join(found), width)
    for labels in dict.fromkeys(known.get(GPU_INFO.name, {})):
        gpu = dict(zip(GPU_INFO.labels, labels, strict=False))
        text = (
            f"{gpu.get('name')}, driver {gpu.get('driver_version')} (CUDA {gpu.get('cuda_version')} at most)"
        )
        yield from _row(f"GPU {gpu.get('gpu')}", text, width)
    granted = known.get(GRANTED.name, {}).get(())
    cpus = "an unknown number of granted CPUs" if granted is None else _count(granted, "granted CPU")
    threads = _joined_once(left.pop(component, "") for component in COMPUTE_THREADS)
    yield from _row("threads", f"{threads or 'unknown how many'}, on {cpus}", width)
    yield from _row("CPU", left.pop("cpu_model", "unknown"), width)
    others = "; ".join(f"{name} {text}".replace(" ", "\xa0", 1) for name, text in left.items())
    yield from _row("others", others, width)


def _samplers(known: Values, width: int) -> Iterator[str]:
    succeeded = known.get(SUCCESS.name, {})
    if not succeeded:
        return
    yield "samplers"
    state = next((name for (name,), on in known.get(NVML_STATE.name, {}).items() if on), "ok")
    if working := [name for (name,), good in succeeded.items() if good and (name != "nvml" or state == "ok")]:
        yield from _row("working", ", ".join(working), width)
    for (name,), good in succeeded.items():
        why = f"{state}: {_NVML_STATES.get(state, '')}" if name == "nvml" and state != "ok" else ""
        if not good:
            yield from _row("no values", f"{name}: {why or 'the log says why'}", width)
        elif why:
            yield from _row(name, why, width)


def _warnings(
    report: Report, runs: Mapping[str, Run], known: Values, interval_seconds: float, width: int
) -> Iterator[str]:
    found = list(_found(report, runs, known, interval_seconds))
    yield "warnings" if found else "warnings: none"
    for warning in found:
        yield from textwrap.wrap(
            warning, width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
        )


def _found(report: Report, runs: Mapping[str, Run], known: Values, interval_seconds: float) -> Iterator[str]:
    for (name, reason), on in known.get(failing.CUDA_MISSING.name, {}).items():
        if on:
            ran = (
                ". It ran on the CPU instead (cpu_fallback)" if name in runs and runs[name].latencies else ""
            )
            yield f"canary {name} was to run on CUDA, but {_CUDA_MISSING.get(reason, reason)}{ran}"
    for name, run in runs.items():
        if run.outcome == "not_finite":
            yield (
                f"canary {name}: its output holds NaN or infinity, and its latency is that of a broken model; "
                "check weights, dtype and inputs"
            )
    for (name,), on in known.get(matmul.UNUSED.name, {}).items():
        if on:
            yield f"canary {name}: {matmul.ADVICE}"
    threads = _joined_once(report.environment.get(component, "") for component in COMPUTE_THREADS)
    ratio = known.get(OVERSUBSCRIPTION.name, {}).get(())
    granted = known.get(GRANTED.name, {}).get(())
    if ratio is not None and ratio > 1:
        cpus = f" on {_count(granted, 'granted CPU')}" if granted is not None else ""
        yield (
            f"oversubscribed: {threads or 'unknown how many'} computing threads{cpus}, {digits(ratio)} for each: they "
            "wait for one another; lower OMP_NUM_THREADS (ONNX Runtime: intra_op_threads), or grant more CPUs"
        )
    elif ratio is None and threads:
        yield "unknown whether threads are oversubscribed: the granted CPUs cannot be read (sampler threads)"
    needed = known.get(INTERVAL.name, {}).get((), interval_seconds)
    cap = known.get(DUTY_CAP.name, {}).get((), 0.0)
    if needed > interval_seconds:
        duty = math.ceil(1000 * cap * needed / interval_seconds) / 1000
        remedy = f"set duty_cap to {duty:g}, " if duty <= 1 else ""
        yield (
            f"the duty cap of {_share(cap)} allows a run every {_short(needed)}\xa0s, not every "
            f"{_short(interval_seconds)}\xa0s as configured; {remedy}accept the longer interval, or use smaller inputs"
        )


def _row(label: str, text: str, width: int) -> list[str]:
    """``text`` beside its label, wrapped."""
    lines = textwrap.wrap(text, width - _LABEL - 2, break_on_hyphens=False) or [""]
    return [f"  {label if i == 0 else '':<{_LABEL}}{line}" for i, line in enumerate(lines)]


def _joined_once(texts: Iterable[str]) -> str:
    """The texts that are not empty, each once."""
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _joined(*parts: str) -> str:
    """Parts in one line, none of which is split where it wraps."""
    return "  ".join(part.replace(" ", "\xa0") for part in parts)


def _count(number: float, noun: str) -> str:
    return f"{number:g}\xa0{noun}{'' if number == 1 else 's'}"


def _share(ratio: float) -> str:
    return f"{_short(100 * ratio)}\xa0%"


def _short(number: float) -> str:
    return f"{float(f'{number:.3g}'):g}"
