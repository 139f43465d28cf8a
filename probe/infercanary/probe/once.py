"""``infercanary probe --once`` and ``--profile``: documents of a report and of profiles, printed for a person."""

from __future__ import annotations

import io
import logging
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click

from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.contract.measures import measure_of
from infercanary.contract.profile import NO_CUPTI, Profile, shares
from infercanary.contract.report import Metric, Report, Run, decode
from infercanary.contract.vocabulary import COMPONENTS, TAGS, labelled_tags
from infercanary.probe import controls, failing, record
from infercanary.probe.duty import INTERVAL
from infercanary.probe.loop import Probe
from infercanary.probe.samplers.nvml.faults import STATE as NVML_STATE
from infercanary.probe.samplers.nvml.slow import INFO as GPU_INFO
from infercanary.probe.samplers.threads import GRANTED, OVERSUBSCRIPTION
from infercanary.probe.sampling import SUCCESS
from infercanary.probe.tags import Values, values
from infercanary.probe.targets import matmul
from infercanary.probe.targets.openai import BETWEEN_TOKENS, FIRST_TOKEN
from infercanary.probe.targets.wire.timing_headers import SERVER
from infercanary.render.document import Document, Fact, Table
from infercanary.render.text import render_texts
from infercanary.render.units import count, quantities, quantity, short, value, when

log = logging.getLogger("infercanary.probe")

_LEAST_WIDTH, _MOST_WIDTH = 80, 120
_OPERATORS = 5
_REST = 0.005  # of the wall time: a larger part that is in no phase is named
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
    "cpu_only_build": "is a CPU-only build; install one with CUDA (of torch, or onnxruntime-gpu)",
    "no_libraries": "cannot load its CUDA libraries; install the versions that it was built for",
    "version_mismatch": "does not fit CUDA's libraries or the driver; the log has the versions",
    "provider_missing": "lacks the provider that was asked for; install a build that has it",
    "no_device": "sees no device; check the driver, and start the container with the GPU (docker run --gpus device=0)",
}
_NO_CUPTI = (
    "the driver does not let CUPTI time kernels: operators are shown by the host's time. On the host set "
    "NVreg_RestrictProfilingToAdminUsers=0 for the driver, or give the container CAP_SYS_ADMIN"
)
_PARTS: Sequence[tuple[str, Metric, str, float]] = (
    ("cold start", record.COLD_START, "s", 1),
    ("bottleneck", record.BOTTLENECK, "ratio", 1),
    ("server", SERVER, "s", 1),  # by its own clock, within the phase wait
    ("first token", FIRST_TOKEN, "s", 1),
    ("between tokens", BETWEEN_TOKENS, "s", 1),
    ("product", matmul.FLOPS, "GFLOP/s", 1e-9),
)
"""Row, metric, unit, and factor to that unit."""


def once(probe: Probe) -> int:
    """Open every canary, run each once, and print the report.

    Args:
        probe: One that was not opened yet.

    Returns:
        The exit code.

    Raises:
        UsageError: A canary cannot be opened by the user's mistake; the others were run and printed before.
    """
    mistake = _open(probe)
    configured = _known(decode(probe.report("")))[INTERVAL.name].get((), 0.0)
    log.info("running every canary once")
    report = probe.once()
    if report is None:  # stopped meanwhile
        return 0
    _print(report_documents(report, configured))
    if mistake is not None:
        raise mistake
    runs = last_runs(report)
    good = all(name in runs and runs[name].outcome == "ok" for name in _states(_known(report)))
    # Nothing of a canary that failed can be compared.
    return ExitCode.FINE if good else ExitCode.INCONCLUSIVE


def profile(probe: Probe, trace: Path | None) -> int:
    """Open every canary, profile each, and print the tables.

    Args:
        probe: One that was not opened yet.
        trace: Where the engine's trace is written; None for nowhere.

    Returns:
        The exit code: 3 where a canary has no profile.

    Raises:
        UsageError: A canary cannot be opened by the user's mistake; the others were profiled and printed before.
    """
    mistake = _open(probe)
    log.info("profiling every canary")
    profiles = probe.profile(trace)
    _print([profile_document(name, each) for name, each in profiles.items()])
    if mistake is not None:
        raise mistake
    return (
        ExitCode.INCONCLUSIVE if any(isinstance(each, str) for each in profiles.values()) else ExitCode.FINE
    )


def _open(probe: Probe) -> UsageError | None:
    """Open every canary. A mistake of the user is raised when the other canaries were shown."""
    log.info("loading and warming up every canary; a large model takes minutes")
    try:
        probe.open()
    except UsageError as error:
        return error
    return None


def _print(documents: Sequence[Document]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a µ is not in every container's encoding
    width = min(_MOST_WIDTH, max(_LEAST_WIDTH, shutil.get_terminal_size().columns))
    click.echo(render_texts(documents, width=width), nl=False)


def report_documents(report: Report, interval_seconds: float) -> list[Document]:
    """Return what the exporter would get, for a person: canaries, controls, environment, samplers, warnings.

    Args:
        report: After one run of every canary.
        interval_seconds: Between runs, as configured.
    """
    known = _known(report)
    runs = last_runs(report)
    at = min((run.started_at for run in runs.values()), default=report.started_at)
    warnings = list(_warnings(known, runs, interval_seconds))
    seconds = [
        (name, device, value(number, "s")) for (device, name), number in known[controls.SECONDS.name].items()
    ]
    return [
        Document(name="InferCanary", sentence=f"one run, {when(at)}"),
        *(
            Document(name=f"canary {name}", sentence=state, facts=list(_facts(name, state, report, known)))
            for name, state in _states(known).items()
        ),
        Document(name="controls", tables=[Table("", ("work", "device", "time"), seconds)]),
        Document(name="environment", facts=list(_environment(report.environment, known))),
        Document(name="samplers", facts=list(_samplers(known))),
        Document(name="warnings", sentence="" if warnings else "none", facts=warnings),
    ]


def profile_document(name: str, profile: Profile | str) -> Document:
    """Return a canary's profile, or why there is none."""
    if isinstance(profile, str):
        return Document(name=f"canary {name}", sentence=f"no profile: {profile}")
    wall = median(profile.wall)

    def row(name: str, by: str, device: str, calls: str, times: Sequence[float], *more: str) -> list[str]:
        time = median(times)
        return [
            name,
            by,
            device,
            calls,
            value(time, "s"),
            quantity(time / wall, "ratio") if wall else "",
            *more,
        ]

    rows = [
        row(each.kind, each.name if each.name != each.kind else "", each.device, short(each.calls, 6), each.seconds,
            quantity(each.allocated, "bytes") if each.allocated else "", each.shapes)
        for each in profile.rows
    ]  # fmt: skip
    if any(profile.rest):
        rows.append(row("other operators", "", "", "", profile.rest, "", ""))
    rows.append(row("outside operators", "", "", "", profile.outside, "", ""))
    return Document(
        name=f"canary {name}",
        sentence=f"{count(profile.repeats, 'repeat')} profiled by {profile.engine}, {when(profile.taken_at)}; "
        f"median {value(wall, 's')} an inference, with what the profiler adds",
        notes=[_NO_CUPTI] if profile.state == NO_CUPTI else [],
        tables=[
            Table("", ("operator", "by", "device", "calls", "time", "share", "allocates", "shapes"), rows)
        ],
    )


def last_runs(report: Report) -> dict[str, Run]:
    """Canary → its last run by this probe (those of an earlier one, out of the journal, are not shown).

    Args:
        report: Its runs are in order of their sequence.

    Returns:
        Without the canaries that did not run.
    """
    return {run.canary: run for run in report.runs if not run.boot_id}


def _phases(phases: Mapping[str, float], wall: float) -> str:
    """Phases with their shares of the wall time; launching is beside them: the device works meanwhile."""
    parts = {name.replace("_", " "): seconds for name, seconds in phases.items() if name != "launch"}
    if parts and (rest := wall - sum(parts.values())) > _REST * wall:
        parts["rest"] = rest
    return ", ".join(
        f"{name} {value(seconds, 's')}" + (f" ({quantity(seconds / wall, 'ratio')})" if wall else "")
        for name, seconds in parts.items()
    )


def _known(report: Report) -> Values:
    """Metric → its points; none for a metric that the report lacks."""
    return defaultdict(dict, values(report.families))


def _states(known: Values) -> dict[str, str]:
    """Canary → its state, in the order of the settings."""
    return {name: state for (name, state), on in known[record.STATE.name].items() if on}


def _facts(name: str, state: str, report: Report, known: Values) -> Iterator[Fact]:
    run = last_runs(report).get(name)
    if run is None:
        why = "it was not open in time (open_timeout_seconds)" if state == "failing" else "it was not run"
        yield Fact("no run", why)
        return
    if run.outcome != "ok":
        yield Fact(run.outcome.replace("_", " "), run.detail or "unknown; the log says why")
    if run.latencies:
        wall = median(run.latencies)
        times = {"median": wall, "min": min(run.latencies), "IQR": known[record.IQR.name].get((name,), 0.0)}
        yield Fact("latency", f"{quantities(times, 's')}, {count(len(run.latencies), 'repeat')}")
        yield Fact("phases", _phases(run.phases, wall))
        if (launch := run.phases.get("launch", 0)) > 0:
            slow = (
                "; longer than compute: the host sets the pace"
                if launch > run.phases.get("compute", launch)
                else ""
            )
            yield Fact("launch", f"{value(launch, 's')} of the host's time, beside the phases{slow}")
    for label, metric, unit, factor in _PARTS:
        points = known[metric.name].items()
        parts = {
            " ".join(labels).replace("_", " "): factor * x for (of, *labels), x in points if of == name and x
        }
        if unit == "ratio":  # the largest first
            parts = dict(sorted(parts.items(), key=lambda part: -part[1]))
        yield Fact(label, quantities(parts, unit).strip())
    if run.profile is not None:
        yield Fact("operators", quantities(shares(run.profile, _OPERATORS), "ratio"))
    for measure, number in run.measures.items():
        if (about := measure_of(measure)) is not None:
            yield Fact(about.words, number, about.unit or "ratio")
    if report.outputs.get(name) == ():
        yield Fact("output", _UNCHECKED)
    for tag, label in zip(run.tags, labelled_tags(run.tags, run.clock_reason), strict=True):
        yield Fact("tag", f"{label}: {TAGS[tag].meaning if tag in TAGS else 'unknown to this version'}")


def _environment(environment: Mapping[str, str], known: Values) -> Iterator[Fact]:
    titles = {name: component.title for name, component in COMPONENTS.items() if component.is_first}
    for name, title in titles.items():
        yield Fact(title, environment.get(name))
    for index, gpu, *_ in known[GPU_INFO.name]:
        yield Fact(f"GPU {index}", gpu)
    yield Fact("granted CPUs", known[GRANTED.name].get((), "unknown"))
    yield Fact(
        "others", "; ".join(f"{name} {text}" for name, text in environment.items() if name not in titles)
    )


def _samplers(known: Values) -> Iterator[Fact]:
    succeeded = {name: good for (name,), good in known[SUCCESS.name].items()}
    state = next((name for (name,), on in known[NVML_STATE.name].items() if on), "ok")
    failed = {name: "no values; the log says why" for name, good in succeeded.items() if not good}
    if state != "ok" and "nvml" in succeeded:
        failed["nvml"] = f"{state}: {_NVML_STATES.get(state, '')}"
    yield Fact("working", ", ".join(name for name in succeeded if name not in failed))
    yield from (Fact(name, why) for name, why in failed.items())


def _warnings(known: Values, runs: Mapping[str, Run], interval_seconds: float) -> Iterator[Fact]:
    for (name, reason), on in known[failing.CUDA_MISSING.name].items():
        if on:
            ran = (
                ". It ran on the CPU instead (cpu_fallback)" if name in runs and runs[name].latencies else ""
            )
            yield Fact(
                name, f"it was to run on CUDA, but its engine {_CUDA_MISSING.get(reason, reason)}{ran}"
            )
    yield from (Fact(name, matmul.ADVICE) for (name,), on in known[matmul.UNUSED.name].items() if on)
    if (ratio := known[OVERSUBSCRIPTION.name].get((), 0)) > 1:
        yield Fact(
            "threads",
            f"{short(ratio, 3)} computing threads for each granted CPU: they wait for one another; lower "
            "OMP_NUM_THREADS (ONNX Runtime: intra_op_threads), or grant more CPUs",
        )
    if (needed := known[INTERVAL.name].get((), 0)) > interval_seconds:
        yield Fact(
            "interval",
            f"the duty cap allows a run every {short(needed, 3)} s, not every {short(interval_seconds, 3)} s as "
            "configured; raise duty_cap, accept the longer interval, or use smaller inputs",
        )
