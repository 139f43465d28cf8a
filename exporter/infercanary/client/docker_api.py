"""Docker's API, asked directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import docker


class DirectClient(docker.APIClient):
    """A client that goes through no proxy of the environment (``HTTP_PROXY``, ``ALL_PROXY``), whatever reaches Docker.

    Docker is on this host, or behind a socket proxy beside it. ``trust_env`` is no way to say so: it is set by the base
    class, which asks for the daemon's version at once.
    """

    def merge_environment_settings(self, *arguments: Any, **options: Any) -> Mapping[str, Any]:
        """See :meth:`requests.Session.merge_environment_settings`.

        Args:
            arguments: As there.
            options: As there.

        Returns:
            The settings, without proxies.
        """
        settings: Mapping[str, Any] = super().merge_environment_settings(*arguments, **options)
        return {**settings, "proxies": {}}
