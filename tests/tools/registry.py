"""A real image registry on loopback (Debian's docker-registry), which Docker and containerd trust without TLS."""

import shutil
from contextlib import contextmanager

from harness import background, eventually, get


@contextmanager
def running(folder, address, has_users=False):
    """Run a registry with its files in this folder; with users, it requires a name and a password."""
    config = folder / "registry.yml"
    users = f"auth: {{htpasswd: {{realm: test, path: {folder}/users}}}}\n" if has_users else ""
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: {address}}}\n{users}"
    )
    try:
        with background("docker-registry", "serve", str(config)):
            path = "" if has_users else "v2/"  # without credentials it serves only its root
            eventually("the registry answers", 20, lambda: get(f"http://{address}/{path}") is not None)
            yield
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)
