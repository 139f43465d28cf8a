"""Print the folder with the probe's packages for this Python, and on standard error the versions that the image has.

`beside` runs this file in the image's Python, which may be older than the probe supports.
"""

import os
import sys

try:
    libc = "glibc" if os.confstr("CS_GNU_LIBC_VERSION") else "musl"
except (OSError, ValueError):
    libc = "musl"
version = ".".join(map(str, sys.version_info[:2]))
name = f"{sys.implementation.name} {version}{sys.abiflags} {os.uname().machine} {libc}".replace(" ", "-")
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
if not os.path.isdir(folder):
    sys.exit(
        f"infercanary: {sys.executable} is {name}; the probe needs CPython 3.10 to 3.13 on x86_64 or aarch64"
    )

from importlib import metadata  # noqa: E402 - Python 3.8

differing = []
for package in metadata.distributions(path=[folder]):
    try:
        found = metadata.version(package.metadata["Name"])
    except metadata.PackageNotFoundError:
        continue
    if found != package.version:
        differing.append(f"{package.metadata['Name']} {package.version} (image: {found})")
own = f" with its own {', '.join(sorted(differing))}" if differing else ""
print(f"infercanary: the probe runs in {sys.executable}{own}", file=sys.stderr)
print(name)
