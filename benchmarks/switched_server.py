"""The example server with a probe that a benchmark starts and ends while it serves, so that one process is both sides.

``POST /probe/on`` starts a probe, which profiles too; ``POST /probe/off`` ends it. Settings: HOST, PORT, PROBE_LISTEN.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "resnet18"))

from model import SHAPE
from server import CLASSIFIER, create_app

from infercanary.probe import Probe, TorchTarget

_PROBE = web.AppKey("probe", list[Probe])  # none or one


async def on(request: web.Request) -> web.Response:
    """A probe as the example has it, and profiles."""
    classifier = request.app[CLASSIFIER]
    target = TorchTarget(classifier.model, [{"shape": list(SHAPE)}], device=classifier.device)
    probe = Probe(
        {"resnet18": target},
        listen=os.environ["PROBE_LISTEN"],
        profile=True,
        executor=classifier.pool,
        on_hang=classifier.replace_pool,
    )
    request.app[_PROBE].append(probe)
    await asyncio.to_thread(probe.start)
    return web.Response()


async def off(request: web.Request) -> web.Response:
    """Ends it, after its run."""
    await asyncio.to_thread(request.app[_PROBE].pop().stop)
    return web.Response()


def main() -> None:
    """Serve."""
    app = create_app()
    app[_PROBE] = []
    app.router.add_post("/probe/on", on)
    app.router.add_post("/probe/off", off)
    web.run_app(app, host=os.environ["HOST"], port=int(os.environ["PORT"]), access_log=None)


if __name__ == "__main__":
    main()
