"""``infercanary doctor``: the command."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator

import click
import msgspec

import infercanary
from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.doctor.ability import SECTIONS, Ability, Machine, checks
from infercanary.doctor.asking import NotAsked, ask
from infercanary.doctor.rendering import answer_document, diagnosis, summary
from infercanary.render.text import render_text

_NAMES = [name for name, _ in SECTIONS]


@click.command(
    name="doctor",
    epilog=exit_codes.epilog(
        {
            ExitCode.FINE: "the checks were made, whatever they found",
            ExitCode.REGRESSED: "they could not be made",
        }
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/doctor.v1.json).")
@click.option(
    "--only",
    "wanted",
    multiple=True,
    type=click.Choice(_NAMES),
    help="Make the checks of this section only; may be repeated.",
)
@click.option(
    "--device",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="CUDA's number of the GPU on which events, graphs and CUPTI are tried.",
)
@click.option(
    "--drift-seconds",
    type=click.FloatRange(0, 60),
    default=10.0,
    show_default=True,
    help="How long the GPU's clock is compared with the host's; 0 leaves that out.",
)
def command(as_json: bool, wanted: tuple[str, ...], device: int, drift_seconds: float) -> int:
    """Check what a probe can do on this machine and in this container. Run it where the probe runs, as the same user.

    \b
      infercanary doctor
      infercanary doctor --only NVML --only GPU --json

    Each line is OK, limited, refused, or absent (there is no such thing here, which is no fault), with the reason and
    what to do. Sections: host (clocks, cores, NUMA), container (cgroup, pressure, permissions), engines, driver, NVML
    (each function that the probe calls), GPU (modes, clocks, tenants), CUDA (events, drift, streams, graphs), CUPTI.

    It changes nothing: clocks are not locked, no mode is set. On a GPU it makes a context for a moment, if there is
    room for one, and lists the processes there once, which the probe itself never does for more than their number. Each
    check has a deadline, so that a driver that hangs does not hang it.
    """
    machine = Machine(device=device, drift_seconds=drift_seconds)
    table = [each for each in checks() if not wanted or each.section in wanted]
    made: list[Ability] = []

    def asked() -> Iterator[Ability]:
        for each in ask(table, machine):
            made.append(each)
            yield each

    try:
        if as_json:
            found = diagnosis([*asked()], infercanary.__version__, platform.python_version())
            click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1))
            return ExitCode.FINE
        width = shutil.get_terminal_size((100, 24)).columns
        section = ""
        for each in asked():
            if each.section != section:
                click.echo(f"\n{each.section}" if section else each.section)
                section = each.section
            click.echo(render_text(answer_document(each), width), nl=False)
    except NotAsked as error:
        click.echo(f"infercanary: doctor: the checks cannot be made: {error}", err=True)
        return ExitCode.REGRESSED
    click.echo(f"\n{summary(made)}")
    return ExitCode.FINE
