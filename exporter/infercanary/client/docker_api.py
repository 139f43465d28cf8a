"""Docker's API, asked directly."""

from __future__ import annotations

from typing import Any

import docker


class DirectClient(docker.APIClient):
    """A client that goes through no proxy of the environment (``HTTP_PROXY``, ``ALL_PROXY``), whatever reaches Docker.

    Docker is on this host, or behind a socket proxy beside it. ``trust_env`` is no way to say so: it is set by the base
    class, which asks for the daemon's version at once.
    """

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """See :meth:`requests.Session.merge_environment_settings`.

        Args:
            url: As there.
            proxies: As there; it has no effect.
            stream: As there.
            verify: As there.
            cert: As there.

        Returns:
            The settings, without proxies.
        """
        settings = super().merge_environment_settings(url, {}, stream, verify, cert)
        return {**settings, "proxies": {}}
