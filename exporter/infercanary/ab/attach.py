"""``infercanary attach``: prints the lines that put a probe into an image's containers, without a build.

To find the Python for the probe, the volume's own entrypoint runs briefly in the image.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress
from importlib import resources

import click
import docker

import infercanary
from infercanary.ab.daemon import UNREACHED, check_volume, find_image, labels, one_line, open_daemon
from infercanary.command import exit_codes
from infercanary.command.interruption import Interruption
from infercanary.command.settings import UsageError
from infercanary.contract.text import printable
from infercanary.contract.vocabulary import ENABLE_LABEL

_VOLUME = "infercanary-probe"
_ENTRYPOINT = "/infercanary/beside"
_CHECK_SECONDS = 60
_FILL = (
    f"fill it: docker run --rm --volume {_VOLUME}:/infercanary --entrypoint true infercanary-probe:dev "
    "(docs/other-ways.md)"
)
_SIDECAR = "run the probe as a sidecar (docs/other-ways.md)"


@click.command(name="attach", epilog=exit_codes.epilog({}))
@click.argument("name", metavar="IMAGE")
def command(name: str) -> int:
    """Print the lines for Docker Compose and Kubernetes that put a probe beside the server of IMAGE, without a build.

    \b
      infercanary attach search:1.4
      infercanary attach vllm/vllm-openai:latest

    The volume infercanary-probe must be there: docs/other-ways.md. The image is pulled if it is missing. A container
    of IMAGE runs for a moment, without network and without the server, to find the server's Python.
    """
    with closing(open_daemon()) as client:
        image, _ = find_image(client, name, Interruption())
        entrypoint, arguments = (image["Config"].get(key) or [] for key in ("Entrypoint", "Cmd"))
        if not entrypoint + arguments:
            raise UsageError(f"image {name} has neither ENTRYPOINT nor CMD; {_SIDECAR}")
        check_volume(client, _VOLUME, _FILL)
        notes = _check(client, name, entrypoint + arguments)
    click.echo(lines(name, entrypoint, arguments, notes), nl=False)
    return 0


def lines(name: str, entrypoint: list[str], arguments: list[str], notes: str) -> str:
    """Return the lines for Compose and for Kubernetes.

    Args:
        name: The image's name.
        entrypoint: The image's ENTRYPOINT.
        arguments: The image's CMD.
        notes: Output of the check.
    """
    text = resources.files(__package__).joinpath("attach.txt").read_text(encoding="utf-8")
    # Compose and Kubernetes both replace $NAME or $(NAME), and print $ for $$.
    server, command = (
        json.dumps(words).replace("$", "$$") for words in ([_ENTRYPOINT, *entrypoint], arguments)
    )
    return text % {
        "image": name,
        "notes": "".join(f"# {printable(line)}\n" for line in notes.splitlines()),
        "version": infercanary.__version__,
        "entrypoint": server,
        "command": command,
    }


def _check(client: docker.APIClient, name: str, server: list[str]) -> str:
    """Run the volume's entrypoint in the image without the server. Return the output.

    Raises:
        UsageError: The image has no shell, or no Python for the probe.
    """
    container = None
    try:
        container = client.create_container(
            name,
            ["--check", *server],
            entrypoint=[_ENTRYPOINT],
            labels={**labels(_CHECK_SECONDS), ENABLE_LABEL: "false"},
            network_disabled=True,
            host_config=client.create_host_config(binds=[f"{_VOLUME}:/infercanary:ro"], read_only=True),
        )
        client.start(container)
        code = client.wait(container, timeout=_CHECK_SECONDS)["StatusCode"]
        notes = bytes(client.logs(container)).decode(errors="replace").replace("infercanary: ", "")
    except UNREACHED as error:
        raise UsageError(
            f"image {name} cannot run {_ENTRYPOINT} ({one_line(error)}): if the image has no shell, {_SIDECAR}; if "
            f"the volume {_VOLUME} is empty, {_FILL}"
        ) from None
    finally:
        if container:
            with suppress(*UNREACHED):
                client.remove_container(container, force=True, v=True)
    if code:
        why = "no shell in this image" if notes.startswith("exec ") else printable(" ".join(notes.split()))
        raise UsageError(f"image {name}: {why}; {_SIDECAR}")
    return notes
