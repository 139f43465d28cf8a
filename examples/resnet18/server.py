"""A small inference server with the probe in its own process, on the same model object.

``POST /predict`` takes an image as 3 × 224 × 224 bytes (channels first) and answers the most likely class. The three
lines that a server needs for InferCanary are marked. Settings by environment: HOST, PORT, DEVICE (cpu), PROBE (on),
PROBE_LISTEN, PROBE_INTERVAL_SECONDS, PROBE_DUTY_CAP.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import torch
from aiohttp import web
from model import SHAPE, build

from infercanary.probe import Probe, TorchTarget  # 1

MODEL = web.AppKey("model", torch.nn.Module)
DEVICE = web.AppKey("device", torch.device)
POOL = web.AppKey("pool", ThreadPoolExecutor)
_BYTES = SHAPE[1] * SHAPE[2] * SHAPE[3]


async def predict(request: web.Request) -> web.Response:
    """One image in, one class out."""
    body = await request.read()
    if len(body) != _BYTES:
        raise web.HTTPBadRequest(text=f"send {_BYTES} bytes, {SHAPE[1:]}; got {len(body)}\n")
    label = await asyncio.get_running_loop().run_in_executor(request.app[POOL], _infer, request.app, body)
    return web.json_response({"class": label})


def _infer(app: web.Application, body: bytes) -> int:
    with torch.inference_mode():
        image = torch.frombuffer(bytearray(body), dtype=torch.uint8).reshape(SHAPE).to(app[DEVICE])
        return int(app[MODEL](image.float() / 255).argmax())


async def healthy(_: web.Request) -> web.Response:
    """For the container's health check."""
    return web.Response(text="ok\n")


async def probed(app: web.Application) -> AsyncIterator[None]:
    """The probe lives as long as the server does."""
    device = str(app[DEVICE])
    probe = Probe(  # 2
        {"resnet18": TorchTarget(app[MODEL], [{"shape": list(SHAPE)}], device=device)},
        listen=os.environ.get("PROBE_LISTEN", "0.0.0.0:9798"),
        interval_seconds=float(os.environ.get("PROBE_INTERVAL_SECONDS", "10")),
        duty_cap=float(os.environ.get("PROBE_DUTY_CAP", "0.01")),
        executor=app[POOL],
    )
    probe.start()  # 3
    yield
    await asyncio.to_thread(probe.stop)


def create_app() -> web.Application:
    """The server, with or without its probe (PROBE=off, to measure what the probe costs)."""
    app = web.Application(client_max_size=2 * _BYTES)
    app[DEVICE] = torch.device(os.environ.get("DEVICE", "cpu"))
    app[MODEL] = build().to(app[DEVICE])
    app[POOL] = ThreadPoolExecutor(1)  # one inference at a time, as a GPU would
    app.router.add_post("/predict", predict)
    app.router.add_get("/healthz", healthy)
    if os.environ.get("PROBE", "on") != "off":
        app.cleanup_ctx.append(probed)
    return app


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    web.run_app(
        create_app(),
        host=os.environ.get("HOST", "0.0.0.0"),  # noqa: S104
        port=int(os.environ.get("PORT", "8000")),
        access_log=None,
    )
