"""``infercanary doctor``: the command."""

from __future__ import annotations

import platform
import shutil
from typing import Any, get_args

import click
import msgspec

import infercanary
from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.doctor.ability import MODULES, Ability, Machine, State, checks
from infercanary.doctor.asking import NotAsked, ask
from infercanary.render.document import Document, Fact
from infercanary.render.json import json_line, plain_values
from infercanary.render.text import render_text

VERSION = 1
"""Version of the format of ``--json``. A new field does not change the version."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``--json``."""

    schema_version: int = VERSION
    infercanary: str
    """Version of the doctor."""
    python: str
    counts: dict[State, int]
    """Number of checks by state."""
    checks: list[Ability]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``--json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"infercanary doctor --json, version {VERSION}",
        **msgspec.json.schema(Diagnosis),
    }


def answer_document(answer: Ability) -> Document:
    """Return one answer as a document. Its label is the state, because names of NVML functions are too long for the
    label column.
    """
    finding = "; ".join(filter(None, (answer.found, answer.why))) + (answer.fix and f" → {answer.fix}")
    return Document(facts=[Fact(answer.state, f"{answer.name}: {finding}")])


@click.command(
    name="doctor",
    epilog=exit_codes.epilog(
        {
            ExitCode.FINE: "the checks ran, with any result",
            ExitCode.REGRESSED: "the checks could not run",
            ExitCode.INCONCLUSIVE: "with --limits, no limit is known for a canary",
        }
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/doctor.v1.json).")
@click.option(
    "--only",
    "wanted",
    multiple=True,
    type=click.Choice(list(MODULES)),
    help="Run only the checks of this section; may be repeated.",
)
@click.option(
    "--device",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="GPU for the checks of events, graphs and CUPTI, as a CUDA device number.",
)
@click.option(
    "--limits",
    "settings",
    metavar="PROBE_YAML",
    help="Instead, find what limits each canary of this settings file: memory, compute, I/O or scheduling.",
)
def command(as_json: bool, wanted: tuple[str, ...], device: int, settings: str | None) -> int:
    """Check what a probe can do on this machine and in this container. Run the command where the probe
    runs, as the same user.

    \b
      infercanary doctor
      infercanary doctor --only NVML --only GPU --json
      infercanary doctor --limits probe.yaml

    Each line is OK, limited, refused, or absent (the machine lacks this part, which is not a fault), with the reason
    and the next action. Sections: host (clocks, cores, NUMA), container (cgroup, pressure, permissions), engines,
    driver, NVML (each function that the probe calls), GPU (modes, tenants), CUDA (events, drift, streams, graphs),
    CUPTI.

    The command changes nothing, and sets no mode. On a GPU with enough free memory, it creates a CUDA context for a
    moment. It also lists the processes on the GPUs once; the probe itself only counts them. Each check has a deadline,
    so that a hanging driver does not block the command.

    With --limits, the command opens each canary of the settings file, loads the CPU or GPU fully for some seconds, and
    says what limits the canary now (docs/limits.md). JSON: docs/schemas/limits.v1.json.
    """
    table = [check for check in checks() if not wanted or check.section in wanted]
    width = shutil.get_terminal_size((100, 24)).columns
    if settings is not None:
        from infercanary.doctor.limits import report_limits  # imports engines, which only --limits needs

        return report_limits(settings, as_json, width)
    answers: list[Ability] = []
    section = ""
    try:
        for answer in ask(table, Machine(device=device)):
            answers.append(answer)
            if as_json:
                continue
            if answer.section != section:
                section = answer.section
                click.echo(f"\n{section}")
            click.echo(render_text(answer_document(answer), width), nl=False)
    except NotAsked as error:
        click.echo(f"infercanary: doctor: the checks cannot run: {error}", err=True)
        return ExitCode.REGRESSED
    states = [answer.state for answer in answers]
    counts: dict[State, int] = {state: states.count(state) for state in get_args(State)}
    if as_json:
        diagnosis = Diagnosis(
            infercanary=infercanary.__version__,
            python=platform.python_version(),
            counts=counts,
            checks=answers,
        )
        click.echo(json_line(plain_values(diagnosis)), nl=False)
    else:
        numbers = ", ".join(f"{number} {state}" for state, number in counts.items())
        click.echo(f"\n{len(answers)} checks: {numbers}")
    return ExitCode.FINE
