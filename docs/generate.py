"""``make docs``: writes the generated pages and parts of pages.

These are docs/metrics.md, contract/kinds.py, the exporter's page of the runbooks, the probe's settings in
docs/probe.md, the JSON Schemas, and the policy's numbers in pages that repeat them.

A new metric needs no change here, unless none of the ``PARTS`` fits its name, or a label has a fixed set of
values. The source of the page is the declarations beside the code that uses them. A sentence that repeats a
number of :mod:`infercanary.judge.policy` needs a line in ``STATEMENTS``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

import infercanary.exporter
import infercanary.probe
from infercanary.ab.answer import ExperimentAnswer
from infercanary.client import accept, fetch
from infercanary.compare.changes import ScanResult
from infercanary.compare.comparison import ComparisonResult
from infercanary.compare.hosts import HostComparison
from infercanary.compare.overview import OverviewRow
from infercanary.contract.bottleneck import LIMITS
from infercanary.contract.report import Kind, Metric
from infercanary.contract.vocabulary import (
    CANARY_STATES,
    CAUSES,
    CONTROLS,
    OUTCOMES,
    PHASES,
    TAGS,
)
from infercanary.doctor import command as doctor
from infercanary.doctor import limits as doctor_limits
from infercanary.exporter import limits
from infercanary.judge.model import Changed
from infercanary.judge.operators import Kind as OperatorChange
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import STATES
from infercanary.probe import canary_metrics, measures, scopes
from infercanary.probe.samplers import registered
from infercanary.probe.samplers.cgroup.metrics import RESOURCES
from infercanary.probe.samplers.nvml import fast, faults, slow
from infercanary.probe.settings import Settings
from infercanary.probe.targets import REASONS
from infercanary.probe.targets.matmul import PRECISIONS
from infercanary.render.json import VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs/metrics.md"
TABLE = ROOT / "probe/infercanary/contract/kinds.py"
SCHEMAS = ROOT / "docs/schemas"
RUNBOOKS = ROOT / "docs/runbooks.md"
RUNBOOKS_PAGE = ROOT / "exporter/infercanary/exporter/runbooks.html"
PREFIX = "infercanary_"


PARTS: Mapping[str, str] = {
    "Latency": "latency phase bottleneck run_median run_iqr server first_token between_tokens matmul",
    "What a run takes": "run_memory run_samples run_energy inference",
    "Runs and canaries": "runs run_failures tagged_runs eligible canary_state canary_failure cold_start cuda_missing "
    "output_error environment",
    "Controls": "control_seconds",
    "Sweeps": "sweep",
    "GPU": "gpu nvml",
    "Threads": "cpu_seconds context_switches migrations run_queue allowed_cpus off_node process thread",
    "cgroup": "cgroup tcp",
    "Process": "gc stalled resident",
    "The probe itself": "probe interval missed_slots lateness busy duty sampler journal",
    "Verdicts": "verdict measure shift baseline current upgrade restart_deviation judged "
    "cpu_fallback drift control_baseline",
    "The judge itself": "judge store stored unjudged",
    "Exporter": "up report_age canary_waiting container_info container_oom_kills container_shared gpu_shared "
    "gpu_unknown poll rejected budget runs_collected runs_left_out runs_lost worker build links "
    "event_loop refused_containers discovery discovered config connections",
}
"""Section → first words of the metrics' names, after the prefix; the longest match decides."""

_UNITS = {
    "timestamp_seconds": "seconds since 1970",
    "bytes_per_second": "bytes per second",
    "flops_per_second": "operations per second",
    "samples_per_second": "samples per second",
    **{unit: unit for unit in ("seconds", "bytes", "hertz", "ratio", "celsius", "watts", "joules", "cores")},
}

_MEMORY_ERRORS = tuple(slow._SEVERITIES)
VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("phase_seconds", "phase"): tuple(PHASES),
    ("bottleneck_ratio", "bottleneck"): tuple(limit for limit in LIMITS if limit != "memory"),
    ("run_memory_peak_bytes", "where"): measures.PLACES,
    ("matmul_flops_per_second", "precision"): PRECISIONS,
    ("runs_total", "outcome"): OUTCOMES,
    ("run_failures_total", "reason"): REASONS,
    ("tagged_runs_total", "tag"): tuple(TAGS),
    ("shift_operator_seconds", "change"): tuple(get_args(OperatorChange)),
    ("canary_state", "state"): CANARY_STATES,
    ("cold_start_seconds", "step"): ("load", "first_run", "warm_up", "time_to_steady"),
    ("cuda_missing", "reason"): canary_metrics.CUDA_MISSING_REASONS,
    ("cpu_seconds_total", "scope"): scopes.SCOPES,
    ("context_switches_total", "scope"): scopes.SCOPES[:2],
    ("context_switches_total", "kind"): ("voluntary", "involuntary"),
    ("migrations_total", "scope"): scopes.SCOPES[:2],
    ("run_queue_seconds_total", "scope"): scopes.SCOPES[:2],
    ("allowed_cpus", "scope"): scopes.SCOPES[:2],
    ("off_node_threads", "scope"): scopes.SCOPES[:2],
    ("resident_memory_bytes", "scope"): (scopes.PROCESS, scopes.BESIDE),
    ("control_seconds", "control"): tuple(CONTROLS),
    ("cgroup_pressure_waiting_seconds_total", "resource"): RESOURCES,
    ("cgroup_pressure_stalled_seconds_total", "resource"): RESOURCES,
    ("sampler_success", "sampler"): tuple(registered()),
    ("nvml_state", "state"): faults.STATES,
    ("gpu_clock_event_seconds_total", "reason"): tuple(fast.event_fields("999").values()),
    ("gpu_pcie_bytes_total", "direction"): tuple(fast._PCIE_FIELDS.values()),
    ("gpu_temperature_celsius", "sensor"): ("gpu", "memory"),
    ("gpu_ecc_errors_total", "severity"): _MEMORY_ERRORS,
    ("gpu_remapped_rows_total", "severity"): _MEMORY_ERRORS,
    ("gpu_row_remap", "state"): ("failed", "pending"),
    ("verdict", "verdict"): STATES,
    ("shift_cause", "cause"): CAUSES,
    ("shift_cause", "changed"): get_args(Changed),
    ("upgrade_info", "changed"): get_args(Changed),
    ("shift_bottleneck_ratio", "bottleneck"): LIMITS,
    ("control_baseline_seconds", "control"): tuple(CONTROLS),
    ("shift_control_ratio", "control"): tuple(CONTROLS),
    ("poll_failures_total", "reason"): get_args(fetch.Failure),
    ("rejected_total", "reason"): get_args(accept.Reason),
    ("budget_exceeded_total", "budget"): limits.BUDGETS,
}
"""Metric (without the prefix) and label → possible values."""


def declared(
    packages: Sequence[ModuleType] = (infercanary.probe, infercanary.exporter),
) -> list[Metric]:
    """Return every metric declared in a module of these packages, sorted by name."""
    found: dict[str, Metric] = {}
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                for metric in value if isinstance(value, tuple) else (value,):
                    if isinstance(metric, Metric) and found.setdefault(metric.name, metric) != metric:
                        raise ValueError(f"{metric.name} has two different declarations")
    return [found[name] for name in sorted(found)]


_TABLE = '''\
"""Kind of each metric of the shipped probe, by the metric's name without ``_total``.

Made by `make docs` from the declarations in the code: change those, not this file. The exporter refuses a metric that
has one of these names but another kind, because such a metric would displace the metric of the other probes.
"""

from __future__ import annotations

from infercanary.contract.report import Kind

KINDS: dict[str, Kind] = {{
{lines}
}}
'''


def table(metrics: Iterable[Metric]) -> str:
    """Return the text of the module with the kinds of the probe's metrics.

    Raises:
        ValueError: One name has two kinds.
    """
    kinds: dict[str, Kind] = {}
    for metric in metrics:
        stem = metric.name.removesuffix("_total")
        if kinds.setdefault(stem, metric.kind) != metric.kind:
            raise ValueError(
                f"{stem} is the name of a {kinds[stem]} and of a {metric.kind}; rename one of them"
            )
    return _TABLE.format(lines="\n".join(f'    "{stem}": "{kinds[stem]}",' for stem in sorted(kinds)))


_METRICS = re.compile(r"(<!-- metrics: made by `make docs` .*-->\n).*", re.DOTALL)


def render(metrics: Iterable[Metric]) -> str:
    parts: dict[str, list[Metric]] = {title: [] for title in PARTS}
    for metric in metrics:
        parts[_part(metric)].append(metric)
    contents = " · ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in parts)
    sections = [text for title, its in parts.items() for text in (f"## {title}", *map(_section, its))]
    how = "Below each name: kind, unit and labels with their values; meaning; how to read it."
    return "\n\n".join(["\n## All metrics", how, contents, *sections]) + "\n"


def unit(name: str) -> str:
    """Return the unit at the end of a metric's name, or an empty text."""
    stem = name.removesuffix("_total")
    return next((text for suffix, text in _UNITS.items() if stem.endswith(f"_{suffix}")), "")


def _part(metric: Metric) -> str:
    stems = {stem: title for title, words in PARTS.items() for stem in words.split()}
    rest = metric.name.removeprefix(PREFIX) + "_"
    fitting = [stem for stem in stems if rest.startswith(f"{stem}_")]
    if not fitting:
        raise ValueError(
            f"{metric.name} has no section: add the first word of its name to PARTS in docs/generate.py"
        )
    return stems[max(fitting, key=len)]


def _section(metric: Metric) -> str:
    labels = (_label(metric.name, name) for name in metric.labels)
    facts = " · ".join((metric.kind, unit(metric.name) or "no unit", *labels))
    return "\n\n".join(filter(None, (f"### `{metric.name}`", facts, metric.help, metric.reading)))


def _label(metric: str, name: str) -> str:
    known = VALUES.get((metric.removeprefix(PREFIX), name), ())
    return f"`{name}`" + (f" ({', '.join(f'`{value}`' for value in known)})" if known else "")


# Numbers of the policy in texts that people write -------------------------------------------------------------------

_WORDS = ("none", "one", "two", "three", "four", "five", "six")
STATEMENTS: Mapping[str, Sequence[str]] = {
    "README.md": ("`equivalent` (the change is within ±{effect} %)",),
    "docs/ab.md": (
        "equivalent (within ±{effect} %)",
        "regressed: {effect} % or more, and clear of ±{clear} %",
        "+{effect} % for `0%`",
    ),
    "docs/adr/0009-the-judge.md": (
        "the looks from {first_look} to {last_look} runs again",
        "the latest {baseline_runs} runs of the last {history} starts of each container",
        "compares blocks of {block_runs} runs with the image's first day, or its first {drift_blocks} blocks",
    ),
    "docs/exporter.md": (
        "judge: {smallest_effect: {effect_ratio}, false_calls: {false_calls}}",
        "beyond a third of this value, at most {clear} %",
    ),
    "docs/runbooks.md": (
        "at most {some} % of the shift (50 % of a small shift)",
        "is worse, by {measure_effect} % or more",
        "a verdict after {first_look} runs may be taken back",
        "the new image is gone ({gone_minutes} to 30 minutes",
        "started {cold_starts} or more times, and each start took longer than every old start, by at least "
        "{cold_start} % and {cold_start_seconds} s",
        "the last {drift_runs} runs, also from before a restart",
        "is judged after {first_drift_runs} runs",
    ),
    "docs/verdicts.md": (
        "from {first_look} to {last_look} runs of a start",
        "a change is at least {measure_effect} %",
        "the change is within ±{effect} %",
        "by {effect} % or more, with the whole interval outside ±{clear} %",
    ),
}
"""File → its statements with numbers of the policy. A space stands for any white space."""


def numbers(policy: Policy) -> dict[str, str]:
    """Return the numbers of the policy by name in ``STATEMENTS``, as written in texts."""
    *looks, last = policy.decide.looks
    return {
        "effect_ratio": f"{policy.decide.smallest_effect:g}",
        "effect": f"{100 * policy.decide.smallest_effect:g}",
        "measure_effect": f"{100 * policy.pool.measure_effect:g}",
        "false_calls": f"{policy.decide.false_calls:g}",
        "clear": f"{100 * policy.decide.clear_zone:g}",
        "looks": f"{', '.join(map(str, looks))} and {last}",
        "first_look": str(policy.decide.looks[0]),
        "last_look": str(policy.decide.looks[-1]),
        "history": str(policy.pool.history),
        "baseline_runs": str(policy.pool.baseline_runs),
        "cold_start": f"{100 * (policy.attribute.cold_start_ratio - 1):g}",
        "cold_start_seconds": f"{policy.attribute.cold_start_seconds:g}",
        "cold_starts": _WORDS[policy.attribute.cold_starts],
        "some": f"{100 * (1 - policy.attribute.whole_share):g}",
        "gone_minutes": f"{policy.pool.gone_seconds / 60:g}",
        "block_runs": str(policy.drift.block_runs),
        "drift_blocks": str(policy.drift.blocks),
        "drift_runs": str(policy.drift.blocks * policy.drift.block_runs),
        "first_drift_runs": str(2 * policy.drift.blocks * policy.drift.block_runs),
    }


_NUMBER = rf"[\d.]+(?:, \d+)*(?: and \d+)?|{'|'.join(_WORDS)}"


def numbered(text: str, statements: Iterable[str], policy: Policy) -> str:
    """Return ``text`` with the policy's current numbers in its statements.

    Raises:
        ValueError: A statement of STATEMENTS is missing in the text.
    """
    known = numbers(policy)
    for statement in statements:
        words = [re.split(r"\{(\w+)\}", word) for word in statement.split()]
        pattern = r"(\s+(?:# )?)".join(
            "".join(f"(?P<{part}>{_NUMBER})" if i % 2 else re.escape(part) for i, part in enumerate(word))
            for word in words
        )
        found = [*re.finditer(pattern, text)]
        if not found:
            raise ValueError(
                f"the text has no {statement!r}: copy the new wording to STATEMENTS in docs/generate.py"
            )
        for match in reversed(found):
            for name in sorted(match.groupdict(), key=match.start, reverse=True):
                text = text[: match.start(name)] + known[name] + text[match.end(name) :]
    return text


# The probe's settings ------------------------------------------------------------------------------------------------

PROBE_PAGE = ROOT / "docs/probe.md"
_SETTINGS = re.compile(r"(<!-- settings: made by `make docs` -->\n).*(?=<!-- end of settings -->)", re.DOTALL)


def settings_table() -> str:
    """Return a table of the probe's settings: key, default, range, and the docstring below each declaration."""
    [declaration] = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(declaration, ast.ClassDef)
    meanings = {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(declaration.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip
    kind = msgspec.inspect.type_info(Settings)
    assert isinstance(kind, msgspec.inspect.StructType)
    lines = ["| key | default | range | meaning |", "|---|---|---|---|"]
    for field in kind.fields:
        default = field.default_factory() if callable(field.default_factory) else field.default
        written = json.dumps(default).strip('"')
        lines.append(f"| `{field.name}` | `{written}` | {_range(field.type)} | {meanings[field.name]} |")
    return "\n".join(lines) + "\n"


def _range(kind: Any) -> str:
    """Return a range such as ``0.1 to 86400``, or an empty text if any value of the type is allowed."""
    kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    number = next(
        (k for k in kinds if isinstance(k, msgspec.inspect.FloatType | msgspec.inspect.IntType)), None
    )
    if number is None:
        return ""
    low = (
        f"above {number.gt:g}" if number.gt is not None else f"{number.ge:g}" if number.ge is not None else ""
    )
    high = "" if number.le is None else f" to {number.le:g}"
    return f"{low}{high}" if high or not low else f"{low} or more".replace("above 0 or more", "above 0")


def files() -> dict[Path, str]:
    """Return the text of each generated file by path."""
    made = {}
    for name, statements in STATEMENTS.items():
        path = ROOT / name
        try:
            made[path] = numbered(path.read_text(encoding="utf-8"), statements, LIVE)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    page = made.get(PROBE_PAGE, PROBE_PAGE.read_text(encoding="utf-8"))
    made[PROBE_PAGE] = _SETTINGS.sub(lambda match: match[1] + settings_table(), page)
    book = made.get(RUNBOOKS, RUNBOOKS.read_text(encoding="utf-8"))
    made[RUNBOOKS_PAGE] = web_page(book)
    made |= {
        SCHEMAS / f"{name}.v{VERSION}.json": json.dumps(schema, indent=1, sort_keys=True) + "\n"
        for name, schema in printed().items()
    }
    made |= {
        SCHEMAS / f"{name}.v{module.VERSION}.json": json.dumps(module.schema(), indent=1, sort_keys=True)
        + "\n"
        for name, module in (("doctor", doctor), ("limits", doctor_limits))
    }
    page = TARGET.read_text(encoding="utf-8")
    made[TARGET] = _METRICS.sub(lambda match: match[1] + render(declared()), page)
    return {TABLE: table(declared([infercanary.probe])), **made}


def printed() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each command's ``--json`` output."""
    text, number = {"type": "string"}, {"type": "number"}
    experiment = {
        "ended": text,
        "seconds": number,
        "finished_at": number,
        "failures": {"type": "array", "items": {"type": "object"}},
    }
    return {
        "compare": schema_of_answer("compare", [ComparisonResult], {}),
        "scan": schema_of_answer("scan", [ScanResult], {}),
        "ab": schema_of_answer("ab", [ExperimentAnswer], experiment),
        "report": schema_of_rows("report", OverviewRow),
        "hosts": schema_of_rows("report --hosts", HostComparison),
    }


def schema_of_answer(
    command: str, results: Sequence[type[msgspec.Struct]], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the schema of :func:`~infercanary.render.json.render_json`.

    The answer has the fields of the worst canary, and all canaries under ``canaries``.

    Args:
        command: Name of the command.
        results: Structs whose fields together are the fields of a canary's result.
        more: Schemas, by name, of fields that the command adds to the whole answer.
    """
    _, definitions = msgspec.json.schema_components(results, ref_template="#/$defs/{name}")
    fields: dict[str, Any] = {}
    for result in results:
        fields |= definitions.pop(result.__name__)["properties"]
    canary = {"type": "object", "properties": fields}
    whole = {
        **fields,
        "schema_version": {"const": VERSION},
        "canaries": {"type": "array", "items": {"$ref": "#/$defs/canary"}},
        **more,
    }
    return {
        "$schema": DIALECT,
        "title": f"infercanary {command} --json, version {VERSION}",
        "type": "object",
        "properties": _with_null(whole),
        "required": ["schema_version", "verdict", "notes", "canaries"],
        "$defs": _with_null({**definitions, "canary": canary}),
    }


def schema_of_rows(command: str, row: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a list of structs.

    Args:
        command: Name of the command that prints the list.
        row: The struct.
    """
    _, definitions = msgspec.json.schema_components([row], ref_template="#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": f"infercanary {command} --json, version {VERSION}",
        "type": "array",
        "items": {"$ref": f"#/$defs/{row.__name__}"},
        "$defs": _with_null(definitions),
    }


def _with_null(schema: Any) -> Any:
    """Allow null for each number: in JSON, null stands for a number that is not finite."""
    if isinstance(schema, dict):
        made = {key: _with_null(value) for key, value in schema.items()}
        return {**made, "type": ["number", "null"]} if made.get("type") == "number" else made
    return [_with_null(each) for each in schema] if isinstance(schema, list) else schema


def web_page(markdown: str) -> str:
    """Return a page of the docs as HTML for the exporter. Headings have the same ids as on GitHub.

    Args:
        markdown: Text with links to headings, web addresses, and other pages of the docs. The exporter does not serve
            other pages, so these links become names of files.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    for heading, content in pairwise(tokens):
        if heading.type == "heading_open":
            name = re.sub(r"[^\w\s-]", "", content.content.lower())
            heading.attrSet("id", re.sub(r"\s", "-", name))
    for token in tokens:
        inside, elsewhere = [], ""
        for child in token.children or []:
            if child.type == "link_open":
                target = str(child.attrGet("href"))
                elsewhere = (
                    "" if target.startswith(("#", "https://", "http://")) else target.partition("#")[0]
                )
            if elsewhere and child.type == "link_close":
                inside.append(Token("text", "", 0, content=f" (docs/{elsewhere})"))
            elif not (elsewhere and child.type == "link_open"):
                inside.append(child)
        if token.children:
            token.children = inside
    html = parser.renderer.render(tokens, parser.options, {})
    return "\n".join(line.rstrip() for line in html.splitlines()) + "\n"


def main() -> None:
    """Write all files; after an error, exit with one line that names the necessary change."""
    try:
        made = files()
    except ValueError as error:
        sys.exit(f"make docs: {error}")
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
