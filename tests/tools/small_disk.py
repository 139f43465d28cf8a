import shutil
import subprocess
from contextlib import contextmanager, suppress

import pytest


@contextmanager
def mounted(folder, megabytes, user=""):
    """Mount a file system; skip the test if mounting is not permitted.

    Args:
        folder: Folder to create.
        megabytes: Size in MiB.
        user: Owner; empty for the owner of this process.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        if user:
            shutil.chown(folder, user)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast
