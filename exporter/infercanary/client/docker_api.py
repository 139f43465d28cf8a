"""Client for Docker's API without proxies."""

from __future__ import annotations

from typing import Any

import docker


class DirectClient(docker.APIClient):
    """Docker client that ignores the environment's proxies (``HTTP_PROXY``, ``ALL_PROXY``).

    Docker is on this host, or behind a socket proxy next to it. The base class already asks the daemon for its version
    in ``__init__``, so clearing ``trust_env`` afterwards would be too late.
    """

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Override :meth:`requests.Session.merge_environment_settings`, ignoring all proxies."""
        settings = super().merge_environment_settings(url, {}, stream, verify, cert)
        return {**settings, "proxies": {}}
