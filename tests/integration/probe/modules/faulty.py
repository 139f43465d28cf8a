"""A small inference server with faults: Open Inference Protocol, OpenAI's stream, and plain HTTP.

The server uses raw sockets, because an HTTP library would refuse to send most of the faults. It also runs as
a program.
"""

from __future__ import annotations

import gzip
import json
import math
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
OUTPUT = INPUT | {"name": "y"}
MAX_BYTES = 200_000
"""More bytes than any valid answer."""
BODY = b'{"scores":[1.0,2.0,3.0]}'
GOOD = "$ok~$json~$length~~$body"

# Faults: the answer to an inference request, or to a path that ends with the text before `@`. `~` is the end
# of a line, `#` the length of the body, `...` a pause between two packets. The server repeats the text after
# `>>`. A final `!` closes the connection.
FAULTS = r"""
not_ready | /ready@HTTP/1.1 503 Status~#~~
no_stats | /stats@HTTP/1.1 500 Status~#~~
loading | /models@HTTP/1.1 503 Status~#~~
error | HTTP/1.1 500 Status~#~~{"error": "the model\\nfell over"}
limited | HTTP/1.1 429 Status~Retry-After: 1~#~~{"error": "too many requests"}
overloaded | HTTP/1.1 503 Status~#~~{"error": "come back later"}
redirect | HTTP/1.1 307 Moved~Location: http://elsewhere/v2~#~~
slow | >>...
half_body | $ok~Content-Length: 1000~~$body!
compressed | $ok~Content-Encoding: gzip~#~~
junk | \0\0\x12\x04\0\0\0\0\0
endless | $ok~$chunked~~>>1000~$kilobytes~
bad_json | $ok~$json~#~~{"outputs": [
deep_json | $ok~#~~$deep
other_json | $ok~#~~["nothing", {"of": "the protocol"}]
error_body | $ok~#~~{"error": "the model fell over"}
missing_output | $ok~#~~{"outputs": []}
other_output | $ok~#~~{"outputs": [{"name": "z", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
null | $ok~#~~{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, null, 4]}]}
wrong_shape | $ok~#~~{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
wrong_rank | $ok~#~~{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4, 1], "data": [1, 2, 3, 4]}]}
wrong_dtype | $ok~#~~{"outputs": [{"name": "y", "datatype": "FP64", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
wrong_length | $ok~#~~{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3]}]}
wrong_size | $ok~#~~{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4],\
 "parameters": {"binary_data_size": 16}}]}
error_in_stream | $ok~$events~#~~data: {"error": {"message": "out of memory", "code": 500}}\n\n
stream_ends | $ok~$events~#~~data: {"choices": [{"delta": {"content": "Once"}}]}\n\n
stream_breaks | $ok~$events~$chunked~~40~data: {"choices"!
"""
SCRIPTS = dict(line.split(" | ") for line in FAULTS.replace("\\\n", "").strip().splitlines())
WORDS = {
    "$ok": b"HTTP/1.1 200 OK",
    "$json": b"Content-Type: application/json",
    "$events": b"Content-Type: text/event-stream",
    "$length": b"Content-Length: %d" % len(BODY),
    "$chunked": b"Transfer-Encoding: chunked",
    "$body": BODY,
    "$rest": BODY[1:],
    "$gzip": gzip.compress(BODY),
    "$many": b"X-A: a\r\n" * 150,
    "$large": b"1," * MAX_BYTES,
    "$deep": b"[" * 100_000,
    "$nothing": b"",
    "$kilobytes": bytes(4096),
}


def wire(text):
    raw = text.encode().decode("unicode_escape").encode("latin-1").replace(b"~", b"\r\n")
    for word, meant in WORDS.items():
        raw = raw.replace(word.encode(), meant)
    head, _, body = raw.partition(b"\r\n\r\n")
    return raw.replace(b"#", b"Content-Length: %d" % len(body), 1) if b"#" in head else raw


@contextmanager
def full_backlog():
    """Yield a port that never answers: its queue is full, so the kernel drops requests for connections."""
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
    """Serves at ``127.0.0.1:port``, and reads ``fault`` and ``script`` at each request."""

    def __init__(self, port=0, tls=None):
        self.fault = ""
        """A key of ``FAULTS``, or reset, wrong_answer, not_finite."""
        self.script = ""
        """Answer to inferences, instead of a fault's answer."""
        self.answers_once = False
        """True to close a connection at its second request."""
        self.words = ["Once", " upon", " a", " time"]
        self.has_usage = True
        self.streams = ""
        """Events of each completion, instead of events from ``words``."""
        self.model: dict[str, Any] = {"name": "double", "platform": "test", "versions": ["1"]}
        self.model |= {"inputs": [INPUT], "outputs": [OUTPUT]}
        self.extensions = ["binary_tensor_data", "statistics"]
        self.config: dict[str, Any] = {}
        self.models: list[dict[str, Any]] = []
        self.heads: list[str] = []
        """Additional lines for the head of an answer."""
        self.connections = 0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        """Request line, headers and body of each request."""
        self._count = 0
        self._tls = tls
        self._ends = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ends.set()
        for connected in (self._listener, *self._open):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            connected.close()

    def _accept(self):
        with suppress(OSError):
            while not self._ends.is_set():
                connected, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connected)
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answered = 0
        with suppress(OSError):  # an error closes the connection
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_side=True)
                self._open.append(connected)
            with connected, connected.makefile("rb") as file:
                while line := file.readline():
                    headers = {}
                    while (header := file.readline().strip()) != b"":
                        name, _, value = header.decode("latin-1").partition(":")
                        headers[name.lower()] = value.strip()
                    body = file.read(int(headers.get("content-length", 0)))
                    if self.answers_once and answered:
                        break
                    self.requests.append((line.decode().strip(), headers, body))
                    method, path, _ = line.decode().split()
                    self._answer(connected, method, path, headers, body)
                    answered += 1
                    if headers.get("connection") == "close":
                        break
                connected.shutdown(socket.SHUT_RDWR)

    def _answer(self, connected, method, path, headers, body):
        n, token = self._count, headers.get("authorization", "")
        stats = {part: {"count": n, "ns": n * ns} for part, ns in (("queue", 1000), ("compute_infer", 5000))}
        documents = {
            "/v2": {"name": "faulty", "version": "1", "extensions": self.extensions},
            "/ready": {"name": "double", "ready": True},
            "/stats": {"model_stats": [{"name": "double", "inference_stats": stats}]},
            "/models": {"data": self.models},
            "/config": self.config,
        }
        found = [document for end, document in documents.items() if path.endswith(end)]
        if method == "GET" and "/v2/models/" in path:
            found.append(self.model)
        place, _, script = (self.script or SCRIPTS.get(self.fault, "")).rpartition("@")
        if script and (path.endswith(place) if place else not found):
            self._play(connected, script)
        elif found:
            self._json(connected, found[0], 200 if found[0] else 404)
        elif token.startswith("Bearer wrong"):
            self._json(connected, {"error": f"no user has {token}"}, 401)
        elif self.fault == "reset":
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionAbortedError
        elif path.endswith("completions"):
            self._stream(connected, path.endswith("chat/completions"))
        elif path.endswith("/infer"):
            self._infer(connected, headers, body)
        else:
            score = 0.5 if self.fault != "wrong_answer" else 0.9
            self._json(connected, {"score": score, "labels": ["a", "b"], "more": [[1, 2], [3]]})

    def _play(self, connected, script):
        once, is_endless, again = script.removesuffix("!").partition(">>")
        self._send_packets(connected, once)
        while is_endless and not self._ends.is_set():
            self._send_packets(connected, again)
        if script.endswith("!"):
            raise ConnectionAbortedError

    def _send_packets(self, connected, text):
        first, *packets = text.split("...")
        connected.sendall(wire(first))
        for packet in packets:
            self._ends.wait(0.02)
            connected.sendall(wire(packet))

    def _infer(self, connected, headers, body):
        self._count += 1
        length = headers.get("inference-header-content-length")
        [given] = json.loads(body[: int(length)] if length else body)["inputs"]
        data = struct.unpack("<4f", body[int(length) :]) if length else given["data"]
        values = [2 * value + (self.fault == "wrong_answer") for value in data]
        if self.fault == "not_finite":
            values[2] = math.nan
        if not length:
            return self._json(connected, {"outputs": [OUTPUT | {"data": [values]}]})
        assert given["parameters"]["binary_data_size"] == 16
        head = json.dumps({"outputs": [OUTPUT | {"parameters": {"binary_data_size": 16}}]}).encode()
        kind = f"application/octet-stream\r\nInference-Header-Content-Length: {len(head)}"
        return self._send(connected, 200, kind, head + struct.pack("<4f", *values))

    def _stream(self, connected, is_chat):
        """Stream role, text, end, usage and [DONE]: https://platform.openai.com/docs/api-reference/chat-streaming."""
        kind = "chat.completion.chunk" if is_chat else "text_completion"

        def event(choices, usage=None):
            common = {"id": "c-1", "object": kind, "created": 1694268190, "model": "m", "choices": choices}
            return json.dumps(common | {"usage": usage})

        def choice(text, end=None):
            said = {"delta": {"content": text} if text else {}} if is_chat else {"text": text}
            return [{"index": 0, **said, "logprobs": None, "finish_reason": end}]

        events = [event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])] if is_chat else []
        events += [*(event(choice(word)) for word in self.words), event(choice("", "length"))]
        if self.has_usage:
            usage = {"completion_tokens": len(self.words), "prompt_tokens": 1, "total_tokens": 5}
            events.append(event([], usage))
        made = [f": a comment\r\ndata: {data}\r\n\r\n" for data in (*events, "[DONE]")]
        connected.sendall(wire("$ok~$events; charset=utf-8~$chunked~~"))
        for chunk in [self.streams] if self.streams else made:
            time.sleep(0.002)
            connected.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk.encode()))
        connected.sendall(b"0\r\n\r\n")

    def _json(self, connected, document, status=200):
        self._send(connected, status, "application/json", json.dumps(document).encode())

    def _send(self, connected, status, kind, body):
        lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {kind}", *self.heads]
        head = "".join(f"{line}\r\n" for line in [*lines, f"Content-Length: {len(body)}", ""])
        connected.sendall(head.encode() + body)


if __name__ == "__main__":
    Faulty(port=int(sys.argv[1]))
    print("serves", flush=True)
    threading.Event().wait(600)
