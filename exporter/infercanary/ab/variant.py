"""What B gets of its own: the options that end in ``-b``, so that one image is compared under two settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from infercanary.ab import conditions
from infercanary.ab.conditions import Conditions
from infercanary.command.settings import UsageError
from infercanary.compare.options import combined
from infercanary.compare.recording import shown

_LONGEST = 60  # characters of a setting in a sentence


class Variant(NamedTuple):
    """The options for B as they were given; what was left out is as of A."""

    environment: tuple[str, ...] = ()
    cpus: float | None = None
    memory: str = ""
    command: str = ""
    config: str = ""

    def conditions(self, same: Conditions) -> Conditions:
        """Return B's conditions.

        Args:
            same: A's.

        Returns:
            The same with what was given for B; its variables are added to A's.

        Raises:
            UsageError: An option cannot be meant so.
        """
        given: dict[str, Any] = {}
        if self.cpus is not None:
            given["cpus"] = conditions.cpus(self.cpus, "--cpus-b")
        if self.memory:
            given["memory"] = conditions.memory(self.memory, "--memory-b")
        if self.environment:
            own = conditions.environment(self.environment, "--env-b")
            given["environment"] = {**same.environment, **own}
        if self.command:
            if same.settings:
                raise UsageError(
                    "--command-b: B runs the probe by --config or --model; give --config-b, or leave those out"
                )
            given["command"] = conditions.command(self.command, "--command-b")
        if self.config:
            if not same.settings:
                raise UsageError("--config-b: belongs to --config; give that too")
            given["settings"] = conditions.document(conditions.settings(self.config))
        return msgspec.structs.replace(same, **given)


def _variant(
    env_b: tuple[str, ...], cpus_b: float | None, memory_b: str, command_b: str, config_b: str
) -> Variant:
    return Variant(env_b, cpus_b, memory_b, command_b, config_b)


options = combined(
    "of_b",
    _variant,
    click.option(
        "--env-b",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of B only, beside those of --env; may be repeated. With a setting of B's one image may "
        "be given: A and B are then the same.",
    ),
    click.option("--cpus-b", type=float, metavar="NUMBER", help="B's instead of --cpus."),
    click.option("--memory-b", default="", metavar="SIZE", help="B's instead of --memory."),
    click.option("--command-b", default="", metavar="TEXT", help="B's instead of --command."),
    click.option("--config-b", default="", metavar="FILE", help="B's instead of --config."),
)
"""The options; the command gets them as its argument ``of_b``."""


def differing(same: Variant, of_b: Variant) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings in which the arms differ, as their options name them.

    Args:
        same: The options of both, as they were given.
        of_b: Those of B.

    Returns:
        A's and B's: option or variable → value. A side has none of what is not set for it. The value of a variable
        that was given without one is not shown: it may be a secret.
    """
    a = {**_variables(same.environment), **_limits(same)}
    b = {**a, **_variables(of_b.environment), **_limits(of_b)}
    differ = [name for name in b if b[name] != a.get(name)]
    names = sorted(differ, key=lambda name: name.startswith("--"))  # variables first
    return {name: a[name] for name in names if name in a}, {name: b[name] for name in names}


def words(settings: Mapping[str, str]) -> str:
    """Write settings as one line, such as ``OMP_NUM_THREADS=2, --cpus 0.5``.

    Args:
        settings: From :func:`differing`.

    Returns:
        Empty text where there are none.
    """
    each = (
        f"{name} {value}" if name.startswith("--") else f"{name}={value}" for name, value in settings.items()
    )
    return ", ".join(shown(text, _LONGEST) for text in each)


def _variables(entries: Sequence[str]) -> dict[str, str]:
    parts = (entry.partition("=") for entry in entries)
    return {name: value if given else "(as here)" for name, given, value in parts}


def _limits(of: Variant) -> dict[str, str]:
    cpus = "" if of.cpus is None else f"{of.cpus:g}"
    each = {"--cpus": cpus, "--memory": of.memory, "--command": of.command, "--config": of.config}
    return {name: value for name, value in each.items() if value}
