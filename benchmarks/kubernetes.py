"""What a node of 10,000 pods costs the exporter: CPU of 1,000 watch events, memory, and how late its event loop is.

    python benchmarks/kubernetes.py record build/pods
    python benchmarks/kubernetes.py replay build/pods

``record`` starts a real etcd and a real API server, from the folder $KUBERNETES, and no controller, which would
remove the pods. It creates pods of a node that no kubelet is of, with the status that a kubelet writes. Then it
changes, deletes and creates them, and keeps the list and all that a watch says meanwhile, byte for byte. ``replay``
serves that from loopback, from another process, at a steady rate, to the discovery as the exporter runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/tools"))

from apiserver import ADMIN, ApiServer

from infercanary.exporter.__main__ import settle_garbage
from infercanary.exporter.discovery.base import Discovery
from infercanary.exporter.discovery.kubernetes import KubernetesPods

NODE = "bench"
PODS = 10_000
EVENTS = 40_000
RATE = 1_000  # events a second
TICK = 0.005
PAGE = 100
GOLDEN = Path(__file__).parents[1] / "tests/golden/kubernetes/pods.json.gz"
ENABLED = b'"infercanary.io/enable":"true"'
OFF = b'"infercanary.io/enable":"no  "'


# Recording -------------------------------------------------------------------------------------------------------


class Pods:
    """Creates and changes the pods of the node, as many at once as the API server likes.

    Args:
        session: Of the proxy.
        url: Of the API server's ``/api/v1``.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/namespaces/default/pods"
        recorded = json.loads(gzip.decompress(GOLDEN.read_bytes()))["items"]
        [self._like, *_] = [pod for pod in recorded if pod["metadata"]["name"].startswith("search")]
        self._made = 0
        self._random = random.Random(20)
        self.names: list[str] = []

    async def make(self) -> None:
        """Create one, and give it the status of one that runs."""
        self._made += 1
        name = f"search-b4688fc97-{self._made:06}"
        meta, spec = self._like["metadata"], self._like["spec"]
        containers = [{**each, "volumeMounts": []} for each in spec["containers"]]
        pod = {
            "metadata": {"name": name, "labels": meta["labels"], "annotations": meta["annotations"]},
            "spec": {"containers": containers, "nodeName": NODE, "terminationGracePeriodSeconds": 0},
        }
        await self._call("POST", self._url, pod)
        await self._status(name)
        self.names.append(name)

    async def change(self) -> None:
        """Half are a new condition, some a restart, the rest a pod that is replaced."""
        place = self._random.randrange(len(self.names))
        name, what = self.names[place], self._random.random()
        if what < 0.75:
            await self._status(name)
            return
        self.names[place] = self.names[-1]
        self.names.pop()
        await self._call("DELETE", f"{self._url}/{name}", {"gracePeriodSeconds": 0})
        await self.make()

    async def _status(self, name: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        like, number = self._like["status"], self._random.getrandbits(256)
        container = {**like["containerStatuses"][0], "restartCount": number % 1000}
        if number % 4 == 0:
            container["containerID"] = f"containerd://{number:064x}"
        conditions = [{**each, "lastTransitionTime": now} for each in like["conditions"]]
        made = int(name.rpartition("-")[2])
        address = f"10.{made >> 16 & 255}.{made >> 8 & 255}.{made & 255}"
        status = {
            **like,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": [container],
            "conditions": conditions,
        }
        status.pop("initContainerStatuses", None)
        await self._call("PATCH", f"{self._url}/{name}/status", {"status": status})

    async def _call(self, method: str, url: str, body: Any) -> None:
        headers = {
            "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"
        }
        async with self._session.request(method, url, data=json.dumps(body), headers=headers) as response:
            if response.status >= 300:
                raise RuntimeError(f"{method} {url}: {response.status} {await response.text()}")
            await response.read()


async def many(count: int, what: Callable[[], Awaitable[None]], beside: int = 24) -> None:
    """Do it so often."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await what()

    await asyncio.gather(*(some() for _ in range(beside)))


async def record(folder: Path, api: ApiServer) -> None:
    """Keep a list, and what a watch says from there on."""
    selector = {"fieldSelector": f"spec.nodeName={NODE}"}
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=api.ca_file))
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with aiohttp.ClientSession(
        api.url, timeout=timeout, connector=connector, headers=headers
    ) as session:
        node = {"metadata": {"name": NODE}}
        async with session.post("/api/v1/nodes", json=node) as response:
            assert response.status in (201, 409), await response.text()
        pods = Pods(session, "/api/v1")
        await many(PODS, pods.make)
        pages: list[bytes] = []
        more, version = "", ""
        while True:
            query = {**selector, "limit": str(PAGE), **({"continue": more} if more else {})}
            async with session.get("/api/v1/pods", params=query) as response:
                pages.append(await response.read())
            meta = json.loads(pages[-1])["metadata"]
            more, version = meta.get("continue", ""), meta["resourceVersion"]
            if not more:
                break
        (folder / "pages.jsonl").write_bytes(b"".join(page.strip() + b"\n" for page in pages))
        watch = {**selector, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        changing: asyncio.Task[None] | None = None
        lines = 0
        async with session.get("/api/v1/pods", params=watch) as response:
            with (folder / "watch.jsonl").open("wb") as file:
                changing = asyncio.create_task(many(EVENTS, pods.change))
                async for piece in response.content.iter_any():
                    file.write(piece)
                    lines += piece.count(b"\n")
                    if lines >= EVENTS:
                        break
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    print(f"{PODS} pods on {len(pages)} pages, {lines} events")


# Replaying -------------------------------------------------------------------------------------------------------


def serve(folder: Path, asking: int) -> None:
    """An API server's answers, of which every ``asking``-th pod asks for it; its port is the first line it prints."""

    def edited(body: bytes) -> bytes:
        name = body.partition(b'"name":"search-b4688fc97-')[2][:6]
        return body if int(name or b"0") % asking == 0 else body.replace(ENABLED, OFF)

    def page(body: bytes) -> bytes:
        if asking == 1:
            return body
        listed = json.loads(body)
        listed["items"] = [
            json.loads(edited(json.dumps(each, separators=(",", ":")).encode())) for each in listed["items"]
        ]
        return json.dumps(listed, separators=(",", ":")).encode()

    pages = [page(line) for line in (folder / "pages.jsonl").read_bytes().splitlines()]
    tokens = {json.loads(body)["metadata"].get("continue", ""): i + 1 for i, body in enumerate(pages)}
    events = [edited(line) + b"\n" for line in (folder / "watch.jsonl").read_bytes().splitlines()[:EVENTS]]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(
                body=pages[tokens[request.query["continue"]] if request.query["continue"] else 0]
            )
        response = web.StreamResponse()
        await response.prepare(request)
        begun, sent = time.monotonic(), 0
        while sent < len(events):
            due = min(len(events), int((time.monotonic() - begun) * RATE))
            if due > sent:
                await response.write(b"".join(events[sent:due]))
                sent = due
            await asyncio.sleep(0.002)
        await asyncio.sleep(60)
        return response

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/api/v1/pods", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    asyncio.run(run())


async def measure(port: int) -> dict[str, float]:
    """Follow what is replayed, and measure the own process."""
    settle_garbage()
    process = psutil.Process()
    before = process.memory_info().rss
    changes: list[float] = []
    source = KubernetesPods(f"http://127.0.0.1:{port}", NODE)
    discovery = Discovery(source, lambda: changes.append(time.monotonic()))
    loop = asyncio.get_running_loop()
    taken, take = 0, source._take

    def counted(line: bytes) -> bool:
        nonlocal taken
        taken += 1
        return take(line)

    source._take = counted  # type: ignore[method-assign]

    async def late(until: Callable[[], bool]) -> list[float]:
        """By how much each tick was, in order of size."""
        lags = []
        while not until():
            expected = loop.time() + TICK
            await asyncio.sleep(TICK)
            lags.append(max(0.0, loop.time() - expected))
        return sorted(lags)

    cpu, begun = time.process_time(), time.monotonic()
    discovery.start()
    while_listing = await late(lambda: discovery.up)
    listed, listing = time.monotonic() - begun, time.process_time() - cpu
    cpu = time.process_time()
    lags = await late(lambda: taken >= EVENTS)
    used = time.process_time() - cpu
    result = {
        "containers": len([*discovery.containers]),
        "list_seconds": listed,
        "list_cpu_seconds": listing,
        "list_lag_p99_ms": 1e3 * while_listing[len(while_listing) * 99 // 100],
        "cpu_ms_per_1000_events": 1e6 * used / EVENTS,
        "lag_p50_ms": 1e3 * lags[len(lags) // 2],
        "lag_p99_ms": 1e3 * lags[len(lags) * 99 // 100],
        "lag_max_ms": 1e3 * lags[-1],
        "memory_mb": (process.memory_info().rss - before) / 1e6,
        "publications": len(changes),
    }
    await discovery.stop()
    return result


def replay(folder: Path) -> None:
    """Measure, where all pods ask for it and where each 50th does; each in a process of its own."""
    for asking in (1, 50):
        here = [sys.executable, __file__]
        server = subprocess.Popen(
            [*here, "serve", str(folder), str(asking)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            done = subprocess.run([*here, "measure", port], capture_output=True, text=True, check=True)
        finally:
            server.kill()
            server.wait()
        numbers = json.loads(done.stdout.splitlines()[-1])
        print(f"one pod in {asking} asks for it:")
        for name, number in numbers.items():
            print(f"  {name:24} {number:10.2f}")
        if numbers["lag_p99_ms"] > 20:
            sys.exit(f"the event loop is {numbers['lag_p99_ms']:.1f} ms late (p99); 20 ms are allowed")


def main(arguments: Iterable[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "replay", "serve", "measure"))
    parser.add_argument("rest", nargs="+")
    args = parser.parse_args(arguments)
    if args.what == "record":
        folder = Path(args.rest[0])
        with ApiServer(folder / "api", allow_all=True) as api:
            asyncio.run(record(folder, api))
    elif args.what == "replay":
        replay(Path(args.rest[0]))
    elif args.what == "serve":
        serve(Path(args.rest[0]), int(args.rest[1]))
    else:
        print(json.dumps(asyncio.run(measure(int(args.rest[0])))))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
