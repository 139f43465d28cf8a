"""Every word that probe and exporter both know, so that a new one cannot be known to one side alone."""

from __future__ import annotations

ENABLE_LABEL = "infercanary.enable"
SERVICE_LABEL = "infercanary.service"
PORT_LABEL = "infercanary.port"
SOCKET_LABEL = "infercanary.socket"
WATCHES_LABEL = "infercanary.watches"
