"""The example server with a probe that also profiles. A benchmark pauses and resumes the probe in the running server.

Requests: ``POST /probe/hold`` and ``POST /probe/release``. Settings: HOST, PORT, PROBE_LISTEN, and PROBE_INTERVAL
(seconds).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "resnet18"))

from model import SHAPE
from server import CLASSIFIER, create_app

from gate import Gate
from infercanary.probe import Probe, TorchTarget

_GATE = web.AppKey("gate", Gate)


async def probing(app: web.Application) -> AsyncIterator[None]:
    """Run the example's probe, with profiles, while the application runs."""
    classifier = app[CLASSIFIER]
    probe = Probe(
        {"resnet18": TorchTarget(classifier.model, [{"shape": list(SHAPE)}], device=classifier.device)},
        listen=os.environ["PROBE_LISTEN"],
        interval_seconds=float(os.environ["PROBE_INTERVAL"]),
        profile=True,
        executor=app[_GATE],
    )
    probe.start()
    yield
    app[_GATE].open.set()
    probe.stop()


async def hold(request: web.Request) -> web.Response:
    """Pause the probe; a running turn ends normally."""
    request.app[_GATE].open.clear()
    return web.Response()


async def release(request: web.Request) -> web.Response:
    """Resume the probe."""
    request.app[_GATE].open.set()
    return web.Response()


def main() -> None:
    app = create_app()
    app[_GATE] = Gate(app[CLASSIFIER].pool)
    app.cleanup_ctx.append(probing)
    app.router.add_post("/probe/hold", hold)
    app.router.add_post("/probe/release", release)
    web.run_app(app, host=os.environ["HOST"], port=int(os.environ["PORT"]), access_log=None)


if __name__ == "__main__":
    main()
