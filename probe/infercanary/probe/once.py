"""``infercanary probe --once`` and ``--profile``: run or profile each canary once, and print the results."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click

from infercanary.command.exit_codes import ExitCode, worst
from infercanary.command.settings import UsageError
from infercanary.contract.measures import measure_of
from infercanary.contract.profile import NO_CUPTI, Profile, shares
from infercanary.contract.report import Metric, Report, Run
from infercanary.contract.vocabulary import COMPONENTS, TAGS, labelled_tags
from infercanary.probe import canary_metrics, controls
from infercanary.probe.loop import Probe
from infercanary.probe.samplers.nvml.slow import INFO as GPU_INFO
from infercanary.probe.samplers.threads import GRANTED
from infercanary.probe.tags import Values, values
from infercanary.probe.targets import matmul
from infercanary.probe.targets.openai import BETWEEN_TOKENS, FIRST_TOKEN
from infercanary.probe.targets.wire.timing_headers import SERVER
from infercanary.render.document import Document, Fact, Table
from infercanary.render.text import render_texts
from infercanary.render.units import count, quantities, quantity, short, value, when

log = logging.getLogger("infercanary.probe")

_OPERATORS = 5
_UNCHECKED = "not checked: the target reads no numbers from the output, so a wrong answer goes unnoticed"
_CUDA_MISSING = {
    "cpu_only_build": "is a CPU-only build; install torch with CUDA, or onnxruntime-gpu",
    "no_libraries": "cannot load its CUDA libraries; install the versions for which the engine was built",
    "version_mismatch": "does not fit CUDA's libraries or the driver; the log has the versions",
    "provider_missing": "lacks the requested provider; install a build with this provider",
    "no_device": "sees no device; check the driver, and start the container with the GPU (docker run --gpus device=0)",
}
_NO_CUPTI = (
    "the driver does not let CUPTI time kernels: operators are shown by the host's time. On the host set "
    "NVreg_RestrictProfilingToAdminUsers=0 for the driver, or give the container CAP_SYS_ADMIN"
)
_PARTS: Sequence[tuple[str, Metric, str, float]] = (
    ("cold start", canary_metrics.COLD_START, "s", 1),
    ("bottleneck", canary_metrics.BOTTLENECK, "ratio", 1),
    ("server", SERVER, "s", 1),  # phases that the server's clock measures, as parts of the phase `wait`
    ("first token", FIRST_TOKEN, "s", 1),
    ("between tokens", BETWEEN_TOKENS, "s", 1),
    ("product", matmul.FLOPS, "GFLOP/s", 1e-9),
)
"""Label, metric, unit, and the factor that converts to this unit."""


def once(probe: Probe, profiles: bool, trace: Path | None) -> int:
    """Open every canary, run or profile each canary once, and print the results.

    Returns:
        The exit code: 3 if a canary has no good run, or no profile.

    Raises:
        UsageError: A user's mistake prevents the opening of a canary. Results of other canaries are printed first.
    """
    log.info("loading and warming up all canaries; a large model takes minutes")
    mistake = None
    try:
        probe.open()
    except UsageError as error:
        mistake = error
    log.info("%s every canary once", "profiling" if profiles else "running")
    if profiles:
        documents = [profile_document(name, result) for name, result in probe.profile(trace).items()]
    elif (report := probe.once()) is None:  # the probe was stopped before the end of the round
        return 0
    else:
        documents = report_documents(report)
    click.echo(render_texts(documents, width=shutil.get_terminal_size().columns), nl=False)
    if mistake is not None:
        raise mistake
    return worst(document.exit_code for document in documents)


def report_documents(report: Report) -> list[Document]:
    """Return a report as documents: canaries with their last runs, controls, environment, warnings."""
    points: Values = defaultdict(dict, values(report.families))  # a missing metric becomes an empty mapping
    # leave out runs of earlier probes, which come from the journal
    runs = {run.canary: run for run in report.runs if not run.boot_id}
    at = min((run.started_at for run in runs.values()), default=report.started_at)
    warnings = list(_warnings(points, runs))
    seconds = [
        (name, device, value(number, "s")) for (device, name), number in points[controls.SECONDS.name].items()
    ]
    return [
        Document(name="InferCanary", sentence=f"one run, {when(at)}"),
        *(
            Document(
                name=f"canary {name}",
                sentence=state,
                facts=list(_facts(name, runs.get(name), report, points)),
                exit_code=_exit_code(name in runs and runs[name].outcome == "ok"),
            )
            for (name, state), is_on in points[canary_metrics.STATE.name].items()
            if is_on
        ),
        Document(name="controls", tables=[Table("", ("work", "device", "time"), seconds)]),
        Document(name="environment", facts=list(_environment(report.environment, points))),
        Document(name="warnings", sentence="" if warnings else "none", facts=warnings),
    ]


def profile_document(name: str, profile: Profile | str) -> Document:
    """Return a canary's profile as a document; without a profile, the document gives the reason."""
    if isinstance(profile, str):
        return Document(
            name=f"canary {name}", sentence=f"no profile: {profile}", exit_code=_exit_code(is_good=False)
        )
    wall = median(profile.wall)

    def cells(times: Sequence[float]) -> list[str]:
        time = median(times)
        return [value(time, "s"), quantity(time / wall, "ratio") if wall else ""]

    rows = [
        [row.kind, row.name if row.name != row.kind else "", row.device, short(row.calls, 6), *cells(row.seconds),
         row.shapes]
        for row in profile.rows
    ]  # fmt: skip
    if any(profile.rest):
        rows.append(["other operators", "", "", "", *cells(profile.rest), ""])
    rows.append(["outside operators", "", "", "", *cells(profile.outside), ""])
    return Document(
        name=f"canary {name}",
        sentence=f"{count(profile.repeats, 'repeat')} profiled by {profile.engine}, {when(profile.taken_at)}; "
        f"median {value(wall, 's')} for one inference, including the profiler's cost",
        notes=[_NO_CUPTI] if profile.state == NO_CUPTI else [],
        tables=[Table("", ("operator", "by", "device", "calls", "time", "share", "shapes"), rows)],
    )


def _exit_code(is_good: bool) -> ExitCode:
    """Return 3 for a canary without a good run or profile, because such a canary cannot be compared."""
    return ExitCode.FINE if is_good else ExitCode.INCONCLUSIVE


def _facts(name: str, run: Run | None, report: Report, points: Values) -> Iterator[Fact]:
    if run is None:
        yield Fact("no run", "the canary was not open in time (open_timeout_seconds), or the log says why")
        return
    if run.outcome != "ok":
        yield Fact(run.outcome.replace("_", " "), run.detail or "unknown; the log says why")
    if run.latencies:
        wall = median(run.latencies)
        times = {
            "median": wall,
            "min": min(run.latencies),
            "IQR": points[canary_metrics.IQR.name].get((name,), 0.0),
        }
        yield Fact("latency", f"{quantities(times, 's')}, {count(len(run.latencies), 'repeat')}")
        phases = {name.replace("_", " "): seconds for name, seconds in run.phases.items()}
        yield Fact("phases", quantities(phases, "s"))
    for label, metric, unit, factor in _PARTS:
        parts = {
            " ".join(labels).replace("_", " "): factor * number
            for (canary, *labels), number in points[metric.name].items()
            if canary == name and number
        }
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


def _environment(environment: Mapping[str, str], points: Values) -> Iterator[Fact]:
    for name, component in COMPONENTS.items():
        if component.is_first:
            yield Fact(component.title, environment.get(name))
    for index, gpu, *_ in points[GPU_INFO.name]:
        yield Fact(f"GPU {index}", gpu)
    yield Fact("granted CPUs", points[GRANTED.name].get((), "unknown"))


def _warnings(points: Values, runs: Mapping[str, Run]) -> Iterator[Fact]:
    for (name, reason), on in points[canary_metrics.CUDA_MISSING.name].items():
        if on:
            has_run = name in runs and runs[name].latencies
            ran = ". The canary ran on the CPU instead (cpu_fallback)" if has_run else ""
            why = _CUDA_MISSING.get(reason, reason)
            yield Fact(name, f"the canary should run on CUDA, but the engine {why}{ran}")
    yield from (Fact(name, matmul.ADVICE) for (name,), on in points[matmul.UNUSED.name].items() if on)
