"""The cluster's test images as one archive that `ctr images import` and `docker load` can read.

All images share the root file system of the exporter's image, so the archive stores it once. The image of a
canary adds a few small files, and differs from the images of other canaries by its environment.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from typing import NamedTuple

from harness import run

EXPORTER = f"infercanary-exporter:{os.environ.get('INFERCANARY_TAG', 'dev')}"
# The base image's stand-in contains wheels for builds without network, which are larger than all other files.
_NOT_NEEDED = ("./opt/wheelhouse", "./etc/pip.conf")


class Image(NamedTuple):
    environment: Mapping[str, str] = {}
    command: tuple[str, ...] = ()
    """Entrypoint; empty for the exporter's entrypoint."""


def archive(path, images, files):
    """Write an archive with the exporter's image and other images.

    Args:
        path: Path of the archive.
        images: Images by name with tag.
        files: Texts by path in these images. The exporter's image has none of these files.
    """
    work = path.parent / f"{path.name}.parts"
    work.mkdir()
    root = work / "root.tar"
    run(
        *("docker", "run", "--rm", "--network", "none", "--user", "0", "--volume", f"{work}:/out"),
        *("--entrypoint", "tar", EXPORTER, "--create", "--file", f"/out/{root.name}", "--one-file-system"),
        *("--directory", "/", "--exclude=./out", *(f"--exclude={name}" for name in _NOT_NEEDED), "."),
    )
    (work / "files.tar").write_bytes(_layer(files))
    layers = {name: _digest(work / name) for name in (root.name, "files.tar")}
    shipped = json.loads(run("docker", "image", "inspect", EXPORTER))[0]["Config"]
    manifest = []
    for number, (name, image) in enumerate({EXPORTER: Image(), **images}.items()):
        used = [*layers] if image.command else [root.name]
        settings = {key: shipped[key] for key in ("User", "Env", "Entrypoint", "WorkingDir")}
        settings["Env"] = settings["Env"] + [f"{key}={value}" for key, value in image.environment.items()]
        if image.command:
            settings |= {"Entrypoint": list(image.command), "WorkingDir": "/canary"}
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layers[each]}" for each in used]},
        }
        (work / f"{number}.json").write_text(json.dumps(config))
        manifest.append({"Config": f"{number}.json", "RepoTags": [name], "Layers": used})
    (work / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(path, "w") as tar:
        for each in ("manifest.json", *(f"{number}.json" for number in range(len(manifest))), *layers):
            tar.add(work / each, arcname=each)
            (work / each).unlink()
    work.rmdir()


def small_copy(image, tag, *changes):
    """Copy an image's files without the wheels.

    Args:
        image: Image to copy.
        tag: Name of the copy.
        changes: Lines of a Dockerfile with the copy's settings, because only files are copied.
    """
    left_out = " ".join(f"--exclude={name}" for name in _NOT_NEEDED)
    options = " ".join(f"--change '{line}'" for line in changes)
    read = f"docker run --rm --network none --user 0 --entrypoint tar {image} -c --one-file-system -C / {left_out} ."
    run("sh", "-c", f"{read} | docker import {options} - {tag}", seconds=300)


def _layer(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(text.encode()), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _digest(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
