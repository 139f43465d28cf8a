"""A small inference server with the probe in its own process, on the same model object.

``POST /predict`` takes an image as 3 × 224 × 224 bytes (channels first) and answers with the most likely class. The
three lines that add InferCanary to a server are marked 1, 2 and 3. Environment variables: HOST, PORT, DEVICE (cpu),
IMAGE_SIZE (224 pixels; a smaller image is faster), PROBE (on), PROBE_LISTEN, PROBE_INTERVAL_SECONDS, PROBE_DUTY_CAP,
PROBE_TIMEOUT_SECONDS.
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

_BYTES = SHAPE[1] * SHAPE[2] * SHAPE[3]


class Classifier:
    """The model, and a pool with a single thread: one inference at a time, as on a GPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.model = build().to(device)
        self.pool = ThreadPoolExecutor(1)

    async def __call__(self, body: bytes) -> int:
        while True:
            pool = self.pool
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, self._infer, body)
            except asyncio.CancelledError:
                if pool is self.pool:
                    raise  # the client closed the connection

    def replace_pool(self) -> ThreadPoolExecutor:
        """Replace the pool if its thread hangs; waiting requests move to the new pool."""
        hung, self.pool = self.pool, ThreadPoolExecutor(1)
        hung.shutdown(wait=False, cancel_futures=True)
        return self.pool

    def _infer(self, body: bytes) -> int:
        with torch.inference_mode():
            image = torch.frombuffer(bytearray(body), dtype=torch.uint8).reshape(SHAPE).to(self.device)
            return int(self.model(image.float() / 255).argmax())


CLASSIFIER = web.AppKey("classifier", Classifier)


async def predict(request: web.Request) -> web.Response:
    """Answer with the class of the image in the request."""
    body = await request.read()
    if len(body) != _BYTES:
        raise web.HTTPBadRequest(text=f"send {_BYTES} bytes, {SHAPE[1:]}; got {len(body)}\n")
    return web.json_response({"class": await request.app[CLASSIFIER](body)})


async def healthy(_: web.Request) -> web.Response:
    """Answer the container's health check."""
    return web.Response(text="ok\n")


async def probed(app: web.Application) -> AsyncIterator[None]:
    """Run the probe as long as the server runs."""
    classifier = app[CLASSIFIER]
    probe = Probe(  # 2
        {"resnet18": TorchTarget(classifier.model, [{"shape": list(SHAPE)}], device=classifier.device)},
        listen=os.environ.get("PROBE_LISTEN", "9798"),
        interval_seconds=float(os.environ.get("PROBE_INTERVAL_SECONDS", "10")),
        duty_cap=float(os.environ.get("PROBE_DUTY_CAP", "0.01")),
        timeout_seconds=float(os.environ.get("PROBE_TIMEOUT_SECONDS", "10")),
        executor=classifier.pool,
        on_hang=classifier.replace_pool,
    )
    probe.start()  # 3
    yield
    await asyncio.to_thread(probe.stop)


def create_app() -> web.Application:
    """Make the server. With PROBE=off it has no probe, to measure the cost of the probe."""
    app = web.Application(client_max_size=2 * _BYTES)
    app[CLASSIFIER] = Classifier(os.environ.get("DEVICE", "cpu"))
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
