"""A headless Chromium, controlled through its DevTools protocol, for pictures and tests of pages.

https://chromedevtools.github.io/devtools-protocol/ lists the methods. aiohttp implements the transport, so only
Chromium must be installed (apt-get install chromium).
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

_START_SECONDS = 60.0


class Tab:
    """One page.

    Args:
        socket: A WebSocket to the page.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its answer.

        Args:
            method: Name, such as ``Page.navigate``.
            parameters: Parameters by the protocol's names.

        Returns:
            The answer.

        Raises:
            RuntimeError: Chromium refuses the call.
        """
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    async def run(self, script: str) -> Any:
        """Evaluate JavaScript in the page.

        Args:
            script: An expression; a promise is awaited.

        Returns:
            Value as in JSON.

        Raises:
            RuntimeError: The script throws an error.
        """
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def show(self, html: str, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Display a document.

        Args:
            html: The document.
            width: Width of the window in CSS pixels; the height is 900.
            dark: True if the reader prefers a dark page.
            media: ``screen`` or ``print``.
        """
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        frame = (await self.call("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        await self.call("Page.setDocumentContent", frameId=frame, html=html)

    async def picture(self, height: int) -> bytes:
        """Return a picture of the page.

        Args:
            height: Pixels from the top.

        Returns:
            A PNG.
        """
        size = await self.run("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": size, "height": height, "scale": 1}
        answer = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """Start Chromium with an empty page; Chromium ends with the context.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        child = await asyncio.create_subprocess_exec(
            program, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            address = await asyncio.wait_for(_address(child), _START_SECONDS)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{address}/json/list") as response:
                    pages = [each for each in await response.json() if each["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            child.kill()
            await child.wait()


async def _address(child: asyncio.subprocess.Process) -> str:
    """Read and return the address of DevTools, which Chromium prints."""
    assert child.stderr is not None
    async for line in child.stderr:
        if b"DevTools listening on ws://" in line:
            return line.decode().partition("ws://")[2].partition("/")[0]
    raise FileNotFoundError("chromium ended before it printed its DevTools address")
