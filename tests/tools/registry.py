"""A real image registry on loopback (Debian's docker-registry), which Docker and containerd trust without TLS."""

import shutil
from contextlib import contextmanager

from harness import background, eventually, get


@contextmanager
def running(folder, address):
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: {address}}}\n"
    )
    try:
        with background("docker-registry", "serve", str(config)):
            eventually("the registry answers", 20, lambda: get(f"http://{address}/v2/"))
            yield
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)
