"""The command line: ``infercanary <command>``. Each command has its own package, which is imported at the call."""

from __future__ import annotations

import importlib
import sys
import traceback

from infercanary.command.interpreter import libraries_first

libraries_first()  # must come before the import of the first library

import click

import infercanary
from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.command.extras import needed_by
from infercanary.command.settings import UsageError

COMMANDS = {
    "probe": ("infercanary.probe.__main__", "Run canary inferences in this container."),
    "beside": (
        "infercanary.probe.beside",
        "Run a server with a probe beside it, as a container's entrypoint.",
    ),
    "attach": (
        "infercanary.ab.attach",
        "Print the lines that put a probe into an image's containers, without a build.",
    ),
    "exporter": ("infercanary.exporter.__main__", "Find the probes on this host and serve their metrics."),
    "compare": (
        "infercanary.compare.commands.compare",
        "Compare two files of runs: is the candidate slower, and why.",
    ),
    "ab": (
        "infercanary.ab.command",
        "Compare two images before a deploy: is the second one slower, and why.",
    ),
    "bisect": (
        "infercanary.bisect.command",
        "Find which difference between two images makes the second one slower.",
    ),
    "scan": ("infercanary.compare.commands.scan", "Find when the latency in one file of runs changed."),
    "report": (
        "infercanary.compare.commands.report",
        "Compare one model across images, engines, devices and hosts, from exporters' stores.",
    ),
    "doctor": (
        "infercanary.doctor.command",
        "Check what a probe can do on this machine, and how to fix the rest.",
    ),
    "check-config": ("infercanary.command.check", "Check settings files without starting anything."),
    "demo": (
        "infercanary.demo.__main__",
        "Upgrade a small server on this machine to a slow version, and show the verdict.",
    ),
}


class _Commands(click.Group):
    """Imports a command only when it is called, because an image with the probe may lack the exporter."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with needed_by(f"`{cmd_name}`", "demo" if cmd_name == "demo" else "exporter"):
            command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_codes.epilog()
)
@click.version_option(infercanary.__version__, message="infercanary %(version)s")
def cli() -> None:
    """Time one fixed inference in every inference container: did an upgrade change latency, by how much, and why?

    \b
      infercanary doctor
      infercanary probe --config probe.yaml --once
    """


def _in_one_line(error: click.ClickException) -> UsageError:
    message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if context is None:
        return UsageError(message)
    return UsageError(f"{message}; see `{context.command_path} --help`")


def main() -> None:
    """Run the command line and exit. A user's mistake gives one line on standard error, and exit code 2."""
    try:
        code = cli(prog_name="infercanary", standalone_mode=False)
    except UsageError as error:
        click.echo(f"infercanary: {error}", err=True)
        code = ExitCode.USAGE
    except click.ClickException as error:
        if len(sys.argv) == 1:
            error.show()
        else:
            click.echo(f"infercanary: {_in_one_line(error)}", err=True)
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    except Exception:
        traceback.print_exc()
        code = ExitCode.FAULT
    sys.exit(code)
