"""Short processes without their imports, which are most of the time of each: one process has imported what they need,
and each is a fork of it.

Each is still a process of its own: it loads libraries itself, and ends as any interpreter does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

MODULES = Path(__file__).parent


class Fork:
    """A process that runs ``code``; what it writes is read from ``file``, which is its standard input too."""

    def __init__(
        self, address: str, code: str, arguments: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self.file = self._socket.makefile("rw", encoding="utf-8")
        self.ask({"code": code, "arguments": arguments, "environment": environment})
        self._pid = int(self.file.readline())

    def ask(self, order: Any) -> None:
        """Write a line of JSON."""
        self.file.write(json.dumps(order) + "\n")
        self.file.flush()

    def kill(self) -> None:
        """End it, and read nothing more."""
        os.kill(self._pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Read nothing more."""
        self.file.close()
        self._socket.close()

    def output(self, seconds: float) -> tuple[str, int]:
        """All that it wrote, and its exit code; TimeoutError where it has not ended in time."""
        self._socket.settimeout(seconds)
        try:
            text, _, code = self.file.read().rpartition("\0")
        except TimeoutError:
            self.kill()
            raise
        self.close()
        return text, int(code)


class Forks:
    """The process that is forked, with these modules and this environment; to be used in a ``with``.

    Args:
        modules: That are imported once.
        environment: Beside that of the tests.
    """

    def __init__(self, *modules: str, **environment: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forks-"))  # a socket's path must be short
        self._address = str(self._folder / "socket")
        self._log = (self._folder / "log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forked", self._address, *modules], cwd=MODULES, env={**os.environ, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip

    def __enter__(self) -> Forks:
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), self.errors()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=20)  # it ends when its standard input does
        self._log.close()
        shutil.rmtree(self._folder)

    def errors(self) -> str:
        """What they wrote to standard error since this was asked last."""
        self._log.seek(0)
        text = self._log.read()
        self._log.truncate(0)
        return text

    def begin(self, code: str, *arguments: str, **environment: str) -> Fork:
        """Start one."""
        return Fork(self._address, code, arguments, environment)

    def run(self, code: str, seconds: float = 120.0) -> Any:
        """What one prints, as JSON."""
        text, status = self.begin(code).output(seconds)
        assert status == 0, (status, text, self.errors())
        return json.loads(text)

    def found(self, prelude: str, body: str, **names: Any) -> dict[str, Any]:
        """What ``body`` leaves in ``found``, with these names."""
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        left: dict[str, Any] = self.run(prelude + given + body + "\nprint(json.dumps(found))")
        return left


@contextmanager
def forks_of(
    *modules: str, environment: Callable[[Path], Mapping[str, str]]
) -> Iterator[Callable[[Path], Forks]]:
    """The process to fork for each folder of libraries, started when it is asked for first."""
    with ExitStack() as stack:
        yield cache(lambda folder: stack.enter_context(Forks(*modules, **environment(folder))))


def library_path(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the libraries of a folder."""
    return {"LD_LIBRARY_PATH": str(folder)}


def _serve(address: str, *modules: str) -> None:
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if os.fork():
                connection.close()
                continue
            listener.close()
            _follow(connection)
            break


def _follow(connection: socket.socket) -> None:
    """Become the process that was asked for; a parent of it remains, which says how it ended."""
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):  # nobody wants to know
            connection.sendall(f"\0{os.waitstatus_to_exitcode(status)}".encode())
        os._exit(0)
    for number in (0, 1):
        os.dup2(connection.fileno(), number)
    connection.close()
    print(os.getpid(), flush=True)
    order = json.loads(sys.stdin.readline())
    os.environ.update(order["environment"])
    sys.argv[1:] = order["arguments"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(order["code"], "<forked>", "exec"), vars(main))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
