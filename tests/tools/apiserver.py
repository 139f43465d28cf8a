"""A real API server with its etcd and nothing else: no kubelet and no controller touches what is put there."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ports import free_port

PROGRAMS = Path(os.environ.get("KUBERNETES", "/var/cache/infercanary/kubernetes"))
ADMIN = "admin-of-the-test"
_START_SECONDS = 60.0


class Refused(Exception):
    """An answer that is no success."""


class ApiServer:
    """On loopback, with RBAC and service accounts.

    Args:
        folder: Where both keep their files.
        allow_all: No RBAC.
    """

    def __init__(self, folder: Path, *, allow_all: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._allow_all = allow_all
        self._etcd_port, self._peer_port, self.port = free_port(), free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = folder / "apiserver.crt"
        keys = folder / "accounts.key"
        if not keys.exists():
            subprocess.run(["openssl", "genrsa", "-out", str(keys), "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')

    def __enter__(self) -> ApiServer:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._launch(
            "etcd", "--data-dir", str(self._folder / "etcd"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--unsafe-no-fsync",
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("kube-apiserver", "etcd"):
            self._end(name)
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)

    def start(self) -> None:
        """Start the API server, and wait until it is ready."""
        keys = str(self._folder / "accounts.key")
        self._launch(
            "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self._etcd_port}",
            "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", str(self.port),
            "--cert-dir", str(self._folder), "--service-account-key-file", keys,
            "--service-account-signing-key-file", keys, "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-cluster-ip-range", "10.97.0.0/24", "--token-auth-file", str(self._folder / "tokens.csv"),
            "--authorization-mode", "AlwaysAllow" if self._allow_all else "RBAC", "--anonymous-auth=false",
            # Pods are put onto a node that is not there, by whoever tests.
            "--disable-admission-plugins", "ServiceAccount", "--etcd-compaction-interval", "0", "--allow-privileged",
        )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.call("GET", "/readyz")
                self.call("GET", "/api/v1/namespaces/default")
                return
            except (OSError, Refused):
                if time.monotonic() > deadline or self._processes["kube-apiserver"].poll() is not None:
                    log = (self._folder / "kube-apiserver.log").read_text().splitlines()
                    raise RuntimeError("no API server: " + "\n".join(log[-5:])) from None
                time.sleep(0.2)

    def stop(self) -> None:
        """End the API server, as a machine that fails does; etcd goes on."""
        self._end("kube-apiserver")

    def compact(self) -> None:
        """Let etcd forget all versions but the last, as it does every five minutes in a cluster."""
        state = self._etcd("/v3/kv/range", {"key": "AA=="})
        revision = int(state["header"]["revision"])
        self._etcd("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def call(self, method: str, path: str, body: Any = None, token: str = ADMIN) -> Any:
        """The answer as JSON, or as text where it is none.

        Raises:
            Refused: It is no success.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        request.add_header("Content-Type", kind)
        context = ssl.create_default_context(cafile=self.ca_file)
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from None
        return json.loads(text) if text.startswith("{") else text

    def _etcd(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._etcd_port}{path}", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def _launch(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(PROGRAMS / name), *arguments], stdout=log, stderr=log, cwd=self._folder
            )

    def _end(self, name: str) -> None:
        if process := self._processes.pop(name, None):
            process.kill()
            process.wait()
