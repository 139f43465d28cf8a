"""Every mistake in settings: one line on standard error that names the place and the remedy, and exit code 2."""

# ruff: noqa: E501 - what is said is one line, and is one line here

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infercanary.command import cli as cli
from infercanary.probe.samplers import registered
from infercanary.probe.targets import names

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent / "bad_config"

MODULES = {
    "models.py": "import torch\ndef good(): return torch.nn.Linear(2, 2)\nNUMBER = 5\n"
    "class Picky:\n    def __init__(self, size): self.size = size + 1\n",
    "needs_another.py": "import another_that_is_not_here\n",
    "raises.py": "raise RuntimeError('no licence\\nfound')\n",
    "exits.py": "raise SystemExit(0)\n",
    "syntax.py": "def (\n",
}


def too_long() -> str:
    """What this Python says of a number with 5,000 digits."""
    try:
        return str(int("9" * 5000))
    except ValueError as error:
        return str(error)


# File → what is said after `infercanary: <file>`.
EXPECTED = {
    "bad_reference": ": canaries.c.target: `../models:good` is not of the form package.module:attribute",
    "built_in_function": ": canaries.c.options: `builtins:max` refuses them: TypeError: max expected at least 1 argument, got 0",
    "canaries_empty": ": canaries: expected a mapping with at least 1 in it",
    "canaries_list": ": canaries: expected a mapping, got a list; leave the `-` out, and write `name: value`",
    "canaries_null": ": canaries: expected a mapping, got nothing",
    "canary_name": ": canaries: `a canary` is not a name of letters, digits, `_`, `.` and `-` (64 at most)",
    "canary_number": ": canaries: expected text, got a whole number as a key; put it in quotes",
    "canary_text": ": canaries.c: expected a mapping, got text; its keys: target, options, sweep",
    "constructor_raises": ': canaries.c.options: `models:Picky` refuses them: TypeError: can only concatenate str (not "int") to str',
    "date": ": a value that YAML cannot read (month must be in 1..12); put it in quotes",
    "device": ": canaries.c.options: device: `gpu` is none of cpu, cuda, cuda:N",
    "dtype": ": canaries.c.options: inputs[0].dtype: torch has no dtype `fp32`; it has float32, bfloat16, int64, …",
    "duplicate_canary": ":4:3: the key `c` is here a second time; keep one",
    "duplicate_key": ":3:1: the key `listen` is here a second time; keep one",
    "duty_cap_percent": ": duty_cap: expected a number <= 1.0",
    "duty_cap_zero": ": duty_cap: expected a number > 0.0",
    "empty": ": the required key `canaries` is missing",
    "interval_bool": ": interval_seconds: expected a number, got true or false",
    "interval_nan": ":2:19: `.nan` is not a finite number; give one",
    "interval_negative": ": interval_seconds: expected a number >= 0.1",
    "interval_text": ": interval_seconds: expected a number, got text; leave its unit out: 10 for 10 s, 0.05 for 5 %",
    "interval_zero": ": interval_seconds: expected a number >= 0.1",
    "key_of_two_lines": ": unknown key `two lines`; known keys: listen, tls, token_file, interval_seconds, duty_cap, timeout_seconds, open_timeout_seconds, controls, samplers, profile, journal, memory_reserve, device_memory_reserve, canaries",
    "graph_on_cpu": ": canaries.c.options: mode: `graph` is a CUDA graph; it needs `device: cuda`",
    "journal_nowhere": ": journal: no folder `/nowhere`; make it, or mount a volume there",
    "memory_reserve": ": memory_reserve: expected a whole number >= 0",
    "device_memory_reserve": ": device_memory_reserve: expected a whole number, got text",
    "journal_folder": ": journal: `/tmp` is a folder; name a file in it",
    "sampler_unknown": f": samplers: no sampler `gpu`; there are {', '.join(sorted(registered()))}",
    "sampler_text": ": samplers.nvml: expected true or false, got text",
    "controls_text": ": controls: expected true or false, got text",
    "listen_foreign": ": listen: cannot listen on 192.0.2.1:9798 (Cannot assign requested address); free it, choose another, or make its folder writable for this user (uid <uid>)",
    "listen_number": ": listen: '98000' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797; or unix:///path",
    "listen_port": ": listen: '127.0.0.1:99999' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797; or unix:///path",
    "listen_url": ": listen: 'http://127.0.0.1:9798' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797; or unix:///path",
    "listen_word": ": listen: 'everywhere' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797; or unix:///path",
    "long_number": f": a value that YAML cannot read ({too_long()}); put it in quotes",
    "missing_attribute": ": canaries.c.target: module `models` (<cwd>/models.py) has no `Missing`; check the spelling",
    "missing_colon": ":3:9: not YAML: mapping values are not allowed here; is a `:` missing above, or the indentation wrong?",
    "missing_module": ": canaries.c.target: no module `no_such_module`; install it, or start where it is found (the working directory is searched)",
    "missing_module_inside": ": canaries.c.target: `needs_another` needs the module `another_that_is_not_here`, which is not installed",
    "missing_option": ": canaries.c.options: the required key `inputs` is missing",
    "missing_target": ": canaries.c: the required key `target` is missing",
    "model_corrupt_file": ": canaries.c: model: `corrupt.pt` cannot be loaded (<why>); save it with torch.jit.save (.pt, .ts) or torch.export.save (.pt2)",
    "model_missing_file": ": canaries.c: model: no file `no_such_file.pt`; check the path (it starts at <cwd>)",
    "model_missing_module": ": canaries.c: model: no module `no_such_module`; install it, or start where it is found (the working directory is searched)",
    "model_unknown_file": ": canaries.c: model: `model.onnx` is neither package.module:factory nor a .pt, .ts, .torchscript, .pt2 file",
    "module_exits": ": canaries.c.target: `exits` cannot be imported: SystemExit: 0; fix it there",
    "module_raises": ": canaries.c.target: `raises` cannot be imported: RuntimeError: no licence; fix it there",
    "module_syntax": ": canaries.c.target: `syntax` cannot be imported: SyntaxError: invalid syntax (syntax.py, line 1); fix it there",
    "no_canaries": ": the required key `canaries` is missing",
    "not_a_reference": ": canaries.c.target: no target `models.good()`; built in: <built in>; or package.module:attribute",
    "not_a_target": ": canaries.c: Linear is no target: it lacks open, run, values, environment, close; wrap a model: TorchTarget(model, inputs)",
    "not_callable": ": canaries.c.target: `models:NUMBER` is not callable; name a class or a function that makes a target",
    "onnx_provider": ": canaries.c.options: providers: no provider `gpu`; there are cpu, cuda, tensorrt, or ONNX Runtime's name of another, such as OpenVINOExecutionProvider",
    "open_timeout_huge": ":2:23: `1.0e+999` is not a finite number; give one",
    "option_number": ": canaries.c.options: expected text, got a whole number as a key; put it in quotes",
    "option_of_wrong_type": ": canaries.c.options: seed: `first` is not a whole number from 0 on",
    "options_list": ": canaries.c.options: expected a mapping, got a list; leave the `-` out, and write `name: value`",
    "python_object": ":2:9: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'; leave the tag out",
    "shape_of_wrong_type": ": canaries.c.options: inputs[0]: shape: expected a list, got text; write it in brackets, as in [a, b]",
    "socket_folder": ": listen: cannot listen on unix:///no/such/folder/probe.sock (No such file or directory); free it, choose another, or make its folder writable for this user (uid <uid>)",
    "socket_long": ": listen: cannot listen on unix:///tmp/<200 x> (AF_UNIX path too long); free it, choose another, or make its folder writable for this user (uid <uid>)",
    "socket_relative": ": listen: 'unix://probe.sock' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797; or unix:///path",
    "sweep_batch": ": canaries.c.sweep.batches[1]: expected a whole number <= 4096",
    "sweep_empty": ": canaries.c.sweep: nothing to sweep; give `batches` or `concurrency`",
    "tab": ":2:1: not YAML: found character '\\t' that cannot start any token; indent with spaces, and put odd characters in quotes",
    "tensorrt_device": ": canaries.c.options: device: `cpu` is none of cuda, cuda:N",
    "timeout_infinite": ":2:18: `.inf` is not a finite number; give one",
    "timeout_zero": ": timeout_seconds: expected a number > 0.0",
    "top_list": ": expected a mapping, got a list; leave the `-` out, and write `name: value`",
    "top_text": ": expected a mapping, got text",
    "two_documents": ":2:1: not YAML: found another document; keep one, without `---`",
    "unclosed_list": ":2:1: not YAML: expected ',' or ']', but got '<stream end>'",
    "undefined_alias": ":2:9: not YAML: found undefined alias 'nowhere'",
    "unknown_canary_key": ": canaries.c: unknown key `modell`; known keys: target, options, sweep",
    "unknown_input_key": ": canaries.c.options: inputs[0]: unknown key `type`; did you mean `dtype`? known keys: shape, dtype, high",
    "unknown_key": ": unknown key `interval`; did you mean `interval_seconds`? known keys: listen, tls, token_file, interval_seconds, duty_cap, timeout_seconds, open_timeout_seconds, controls, samplers, profile, journal, memory_reserve, device_memory_reserve, canaries",
    "unknown_option": ": canaries.c.options: unknown key `input`; did you mean `inputs`? known keys: model, inputs, device, mode, compile_mode, autocast, seed, cpu_fallback",
    "unknown_target": ": canaries.c.target: no target `onnxx`; built in: <built in>; or package.module:attribute",
    "http_body_file": ": canaries.c: body_file: `no/such/body` cannot be read (No such file or directory); check the path and its permissions",
    "http_body_number": ": canaries.c.options: body: expected text, got a whole number",
    "http_expect_key": ": canaries.c.options: expect: unknown key `code`; known keys: status, body, json, values",
    "http_expect_status": ": canaries.c.options: expect.status: expected a whole number <= 599",
    "http_method": ": canaries.c.options: method: `get` is none of DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
    "http_pointer": ": canaries.c.options: expect.values: `outputs/0` is no JSON pointer; it begins with `/`, as in /outputs/0",
    "http_two_bodies": ": canaries.c.options: body: give one of body, body_file and json",
    "kserve_binary": ": canaries.c.options: binary: expected true or false, got text",
    "kserve_input_key": ": canaries.c.options: inputs[0]: unknown key `size`; known keys: name, shape, dtype, high, data, parameters",
    "kserve_input_shape": ": canaries.c.options: inputs[0].shape[0]: expected a whole number >= 0",
    "kserve_model": ": canaries.c.options: model: expected text with at least 1 in it",
    "openai_api": ": canaries.c.options: api: `responses` is none of chat, completions",
    "openai_max_tokens": ": canaries.c.options: max_tokens: expected a whole number >= 1",
    "openai_messages": ": canaries.c.options: messages: they are for `api: chat`; give a prompt",
    "openai_no_prompt": ": canaries.c.options: prompt: give one of prompt and messages",
    "openai_salt": ": canaries.c.options: salt: expected true or false, got a whole number",
    "openai_stream": ": canaries.c.options: body.stream: only a stream is timed here; use `target: http` for the rest",
    "server_ca_file": ": canaries.c.options: ca_file: it is for an https:// address; change url, or leave it out",
    "server_header_file": ": canaries.c: headers.Authorization: `no/such/token` cannot be read (No such file or directory); check the path and its permissions",
    "server_header_key": ": canaries.c.options: headers.X-Key: unknown key `path`; known keys: file, prefix",
    "server_header_name": ": canaries.c.options: headers.X Key: it holds a character that no header can; use Latin letters, digits and `-`",
    "server_header_number": ": canaries.c.options: headers.X-Key: expected text or a mapping, got a whole number",
    "server_header_ours": ": canaries.c.options: headers.Content-Length: it follows from the request itself; leave it out",
    "server_header_value": ": canaries.c.options: headers.X-Key: it holds a character that no header can; use Latin letters, digits and `-`",
    "server_timeout": ": canaries.c.options: timeout_seconds: expected a number >= 0.001",
    "server_url": ": canaries.c.options: url: `grpc://127.0.0.1:8001` is no address; give http://HOST:PORT or https://HOST:PORT, maybe with a path",
    "server_url_password": ": canaries.c.options: url: it holds a user or a password; put that into headers, from a file",
    "server_url_port": ": canaries.c.options: url: `http://127.0.0.1:99999/` is no address; give http://HOST:PORT or https://HOST:PORT, maybe with a path",
    "server_url_query": ": canaries.c.options: url: it has a query (`?…`), and other addresses are made of it; leave that out",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with the modules; signals, path and modules as they were afterwards."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    (tmp_path / "corrupt.pt").write_bytes(b"PK\x03\x04 no model" * 100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What the command line says, run in this process; it must be one line, and exit code 2."""
    monkeypatch.setattr(sys, "argv", ["infercanary", *arguments])
    monkeypatch.setattr(
        "infercanary.probe.__main__.be_ended_first", lambda: None
    )  # this process is the tests'
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert err.count("\n") == 1 and err.endswith("\n")
    return err[:-1]


def test_every_file_is_in_the_table() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_mistake_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(FOLDER / f"{name}.yaml")
    line = said(capsys, monkeypatch, "probe", "--config", path)
    assert line.startswith(f"infercanary: {path}")
    line = (
        line.removeprefix(f"infercanary: {path}")
        .replace(os.getcwd(), "<cwd>")
        .replace(f"(uid {os.getuid()})", "(uid <uid>)")
        .replace(torch.__version__, "<torch>")
        .replace(", ".join(names()), "<built in>")
    )
    line = re.sub("x{200}", "<200 x>", line)
    if name == "model_corrupt_file":  # torch's own words, which change
        line = re.sub(r"\(.*\)(?=; save)", "(<why>)", line)
    assert line == EXPECTED[name]


def test_a_port_that_is_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = tmp_path / "probe.yaml"
        path.write_text(GOOD.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        assert said(capsys, monkeypatch, "probe", "--config", str(path)) == (
            f"infercanary: {path}: listen: cannot listen on 127.0.0.1:{port} (Address already in use); "
            f"free it, choose another, or make its folder writable for this user (uid {os.getuid()})"
        )


GOOD = """\
listen: 127.0.0.1:0
canaries: {c: {target: torch, options: {model: "models:good", inputs: [{shape: [1, 2]}]}}}
"""


@pytest.mark.parametrize("command", ["probe --config", "check-config --probe"])
def test_files_that_cannot_be_read(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "large.yaml").write_text("# " + "x" * 1_000_000)
    (tmp_path / "junk.yaml").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "deep.yaml").write_text("[" * 5_000)
    (tmp_path / "file").write_text("")
    expected = {
        "missing.yaml": "cannot be read (No such file or directory); check the path and its permissions",
        "folder.yaml": "cannot be read (Is a directory); check the path and its permissions",
        "file/probe.yaml": "cannot be read (Not a directory); check the path and its permissions",
        "large.yaml": "larger than 1000000 bytes; is this the right file?",
        "deep.yaml": "nested too deeply; is this the right file?",
    }
    gc.collect()  # or what other tests left may be finalized where the stack has no room for it, and say so
    for path, text in expected.items():
        assert said(capsys, monkeypatch, *command.split(), path) == f"infercanary: {path}: {text}"
    line = said(capsys, monkeypatch, *command.split(), "junk.yaml")
    assert line.startswith("infercanary: junk.yaml: not YAML: ") and line.endswith(
        "; is this the right file?"
    )


@pytest.mark.parametrize("name", ["unknown_key", "missing_module", "model_missing_file", "listen_foreign"])
def test_in_a_process_of_its_own(name: str) -> None:
    """As a person meets it: nothing else on standard error or standard output, not even a log line."""
    path = FOLDER / f"{name}.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "probe", "--config", str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"infercanary: {path}: ")
