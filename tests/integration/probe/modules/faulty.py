"""A small inference server with a fault: it speaks the Open Inference Protocol, OpenAI's stream, and plain HTTP.

On raw sockets, since most faults are in what an HTTP library would not let out. As a program, it serves at a port.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 4]}
F = TypeVar("F", bound="Faulty")
WORDS = ["Once", " upon", " a", " time"]
DOCUMENTS: dict[str, tuple[Any, int]] = {
    "error": ({"error": "the model\nfell over"}, 500),
    "limited": ({"error": "too many requests"}, 429),
    "overloaded": ({"error": "come back later"}, 503),
    "error_body": ({"error": "the model fell over"}, 200),
    "other_json": (["nothing", {"of": "the protocol"}], 200),
}
"""Faults that are documents, each the answer to an inference."""
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
BYTES = {
    "redirect": b"HTTP/1.1 307 Moved\r\nLocation: http://elsewhere/v2\r\nContent-Length: 0\r\n\r\n",
    "half_body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b" " * 500,
    "compressed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n",
    "junk": b"220 mail.example.org ESMTP\r\n",
    "bad_json": JSON % (13, b'{"outputs": ['),
    "deep_json": JSON % (100_000, b"[" * 100_000),
}


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port from which nothing comes back: the kernel drops what asks for a connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


class Faulty:
    """Serves at ``127.0.0.1:port`` until it is stopped. ``fault`` is read at each request."""

    def __init__(self, fault: str = "", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.fault = fault
        self.words = WORDS
        self.has_usage = True
        self.streams = ""
        """The events of each completion, instead of those of ``words``."""
        self.model: dict[str, Any] = {"name": "double", "platform": "test", "versions": ["1"]}
        self.model |= {"inputs": [INPUT], "outputs": [OUTPUT]}
        self.extensions = ["binary_tensor_data", "statistics"]
        self.config: dict[str, Any] = {}
        self.models: list[dict[str, Any]] = []
        self.heads: list[str] = []
        """More lines for the head of an answer."""
        self.connections = 0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        """Request line, headers and body of each."""
        self._count = 0
        self._tls = tls
        self._ends = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No connection is taken or kept any more."""
        self._ends.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in self._open:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            connected.close()

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connected)
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                connected = self._tls.wrap_socket(connected, server_side=True)
            except OSError:
                connected.close()
                return
            self._open.append(connected)
        with suppress(OSError), connected, connected.makefile("rb") as file:
            while line := file.readline():
                headers = {}
                while (header := file.readline().strip()) != b"":
                    name, _, value = header.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                body = file.read(int(headers.get("content-length", 0)))
                self.requests.append((line.decode().strip(), headers, body))
                method, path, _ = line.decode().split()
                self._answer(connected, method, path, headers, body)
                if headers.get("connection") == "close":
                    break
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _answer(
        self, connected: socket.socket, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        fault, token, n = self.fault, headers.get("authorization", ""), self._count
        stats = {part: {"count": n, "ns": n * ns} for part, ns in (("queue", 1000), ("compute_infer", 5000))}
        documents: dict[str, tuple[Any, int]] = {
            "/v2": ({"name": "faulty", "version": "1", "extensions": self.extensions}, 200),
            "/ready": (
                {"name": "double", "ready": fault != "says_not_ready"},
                503 if fault == "not_ready" else 200,
            ),
            "/stats": (
                {"model_stats": [{"name": "double", "inference_stats": stats}]},
                500 if fault == "no_stats" else 200,
            ),
            "/models": ({"data": self.models}, 503 if fault == "loading" else 200),
            "/config": (self.config, 200 if self.config else 404),
            "": (self.model, 200) if method == "GET" and "/v2/models/" in path else (None, 0),
        }
        document, status = next(found for end, found in documents.items() if path.endswith(end))
        if status:
            self._json(connected, document, status)
        elif token.startswith("Bearer wrong"):
            self._json(connected, {"error": f"no user has {token}"}, 401)
        elif fault in DOCUMENTS:
            self._json(connected, *DOCUMENTS[fault])
        elif fault in BYTES:
            connected.sendall(BYTES[fault])
            if fault == "half_body":
                connected.shutdown(socket.SHUT_RDWR)
        elif fault == "slow":
            self._ends.wait(30)
        elif fault == "reset":
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionAbortedError  # closes it, which is then a reset
        elif fault == "endless":
            connected.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not self._ends.is_set():
                connected.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        elif path.endswith("completions"):
            self._stream(connected, path.endswith("chat/completions"))
        elif path.endswith("/infer"):
            self._infer(connected, headers, body)
        else:
            score = 0.5 if fault != "wrong_answer" else 0.9
            self._json(connected, {"score": score, "labels": ["a", "b"], "more": [[1, 2], [3]]})

    def _infer(self, connected: socket.socket, headers: dict[str, str], body: bytes) -> None:
        self._count += 1
        length = headers.get("inference-header-content-length")
        head = json.loads(body[: int(length)] if length else body)
        (given,) = head["inputs"]
        if length:
            data = struct.unpack("<4f", body[int(length) :])
            assert given["parameters"]["binary_data_size"] == 16
        else:
            data = given["data"]
        values: list[Any] = [2 * value for value in data]
        output: dict[str, Any] = dict(OUTPUT)
        match self.fault:
            case "wrong_answer":
                values = [value + 1 for value in values]
            case "not_finite":
                values[2] = float("nan")
            case "null":
                values[2] = None
            case "wrong_shape":
                output["shape"], values = [1, 3], values[:3]
            case "wrong_length":
                values = values[:3]
            case "wrong_rank":
                output["shape"] = [4]
            case "wrong_dtype":
                output["datatype"] = "FP64"
            case "missing_output":
                return self._json(connected, {"outputs": []})
            case "other_output":
                output["name"] = "z"
        if length and None not in values:
            blob = struct.pack(f"<{len(values)}{'d' if output['datatype'] == 'FP64' else 'f'}", *values)
            size = len(blob) + (100 if self.fault == "wrong_size" else 0)
            answer = json.dumps({"outputs": [output | {"parameters": {"binary_data_size": size}}]}).encode()
            kind = f"application/octet-stream\r\nInference-Header-Content-Length: {len(answer)}"
            return self._send(connected, 200, kind, answer + blob)
        return self._json(connected, {"outputs": [output | {"data": [values]}]})

    def _stream(self, connected: socket.socket, is_chat: bool) -> None:
        """As https://platform.openai.com/docs/api-reference/chat-streaming has it: role, text, end, usage, [DONE]."""
        self._count += 1
        words = ["Twice", *self.words[1:]] if self.fault == "wrong_answer" else self.words
        kind = "chat.completion.chunk" if is_chat else "text_completion"

        def event(choices: list[Any], usage: Any = None) -> str:
            common = {"id": "c-1", "object": kind, "created": 1694268190, "model": "m", "choices": choices}
            return json.dumps(common | {"usage": usage})

        def choice(text: str, end: str | None = None) -> list[Any]:
            said = {"delta": {"content": text} if text else {}} if is_chat else {"text": text}
            return [{"index": 0, **said, "logprobs": None, "finish_reason": end}]

        events = [event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])] if is_chat else []
        events += [event(choice(word)) for word in words]
        if self.fault == "error_in_stream":
            events[-1] = json.dumps({"error": {"message": "out of memory", "code": 500}})
        elif self.fault != "stream_ends":
            events.append(event(choice("", "length")))
            if self.has_usage:
                events.append(
                    event([], {"completion_tokens": len(words), "prompt_tokens": 1, "total_tokens": 5})
                )
            events.append("[DONE]")
        head = [
            "HTTP/1.1 200 OK",
            "Content-Type: text/event-stream; charset=utf-8",
            "Transfer-Encoding: chunked",
        ]
        connected.sendall("".join(f"{line}\r\n" for line in [*head, *self.heads, ""]).encode())
        if self.streams:
            chunk = self.streams.encode()
            return connected.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(chunk), chunk))
        for i, data in enumerate(events):
            if self.fault == "stream_breaks" and i == 3:
                connected.sendall(b'40\r\ndata: {"choices"')
                return connected.shutdown(socket.SHUT_RDWR)
            time.sleep(0.002)
            chunk = f": a comment\r\ndata: {data}\r\n\r\n".encode()
            connected.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        return connected.sendall(b"0\r\n\r\n")

    def _json(self, connected: socket.socket, document: Any, status: int = 200) -> None:
        self._send(connected, status, "application/json", json.dumps(document).encode())

    def _send(self, connected: socket.socket, status: int, kind: str, body: bytes) -> None:
        more = "".join(f"{line}\r\n" for line in self.heads)
        head = (
            f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        )
        connected.sendall(head.encode() + body)


if __name__ == "__main__":
    Faulty(port=int(sys.argv[1]))
    print("serves", flush=True)
    threading.Event().wait(600)
