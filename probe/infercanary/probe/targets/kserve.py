"""The target for servers that speak the Open Inference Protocol (KServe v2): Triton, KServe, MLServer, and others.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from infercanary.command.settings import UsageError, convert
from infercanary.probe.targets import Failure, Reading, register
from infercanary.probe.targets.wire.connection import Response
from infercanary.probe.targets.wire.server import ServerOptions, ServerTarget, converted, document, whole
from infercanary.probe.targets.wire.tensors import (
    KserveInput,
    Tensor,
    drawn,
    dtype_of,
    from_bytes,
    from_json,
    places,
    request_body,
)
from infercanary.probe.targets.wire.timing_headers import SERVER, header_readings, recent_headers
from infercanary.probe.targets.wire.triton_config import ModelConfig
from infercanary.probe.timing import Phase

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
_LENGTH = "Inference-Header-Content-Length"


class _ServerMetadata(msgspec.Struct):
    name: str = ""
    version: str = ""
    extensions: list[str] | None = None


class _TensorMetadata(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int] | None = None


class _ModelMetadata(msgspec.Struct):
    platform: str | None = None
    versions: list[str] | None = None
    inputs: list[_TensorMetadata] | None = None
    outputs: list[_TensorMetadata] | None = None


class _Ready(msgspec.Struct):
    ready: bool = True


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class _Inferred(msgspec.Struct):
    outputs: list[_Output]


class _Total(msgspec.Struct):
    count: int = 0
    ns: int = 0


class _ModelStats(msgspec.Struct):
    inference_stats: dict[str, _Total] = {}


class _Stats(msgspec.Struct):
    model_stats: list[_ModelStats]


class KserveOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of ``target: kserve``; ``url`` is what comes before ``/v2`` in the server's addresses."""

    model: str
    """The model's name."""
    version: str | int | None = None
    """Of the model; without one the server chooses."""
    inputs: Sequence[Any] | None = None
    """One :class:`~infercanary.probe.targets.wire.tensors.KserveInput` each. What is left out is taken from the
    model's metadata; where that leaves a size open (-1) or the input out, ``shape`` is needed."""
    seed: int = 0
    """Inputs without ``data`` are drawn from it."""
    binary: bool | None = None
    """Whether tensors go as binary data; by default where the server says that it has that extension."""


@register("kserve")
class KserveTarget(ServerTarget):
    """Asks a server for one inference, with fixed inputs. Phases: ``connect``, ``send``, ``wait``, ``receive``."""

    options_type = KserveOptions

    def __init__(self, options: KserveOptions) -> None:
        """Check the options.

        Args:
            options: As in the settings.

        Raises:
            UsageError: An option cannot be meant so.
        """
        super().__init__(options)
        model, version, binary = options.model, options.version, options.binary
        if not isinstance(model, str) or not model:
            raise UsageError(f"model: `{model}` is no name of a model")
        if isinstance(version, bool) or not isinstance(version, (str, int, type(None))) or version == "":
            raise UsageError(f"version: `{version}` is no version; give text such as `1`, or leave it out")
        if not isinstance(binary, (bool, type(None))):
            raise UsageError(f"binary: `{binary}` is neither true nor false")
        self._identity = [model, "" if version is None else str(version)]
        self._name = f"`{model}`" if version is None else f"`{model}`, version `{version}`"
        base = self._server.base
        self._v2 = f"{base}/v2"
        self._model = f"{base}/v2/models/{quote(model, safe='')}"
        if version is not None:
            self._model += f"/versions/{quote(str(version), safe='')}"
        self._specs: list[KserveInput] | None = None
        if options.inputs is not None:
            entries = convert(options.inputs, list[Any], "inputs")
            self._specs = [convert(e, KserveInput, f"inputs[{i}]") for i, e in enumerate(entries)]
        self._seed = whole("seed", options.seed, least=0)
        self._binary = binary
        self._request = b""
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._totals: dict[str, _Total] | None = None
        self._headers = recent_headers()

    def open(self) -> None:
        """Wait until the model is ready, read its metadata, and make the request.

        Raises:
            UsageError: A file cannot be read, or the inputs do not fit the model.
            Failure: The server cannot be reached, or is not ready in time.
        """
        server = self._server
        server.open()
        server.until_ready(self._require_ready)
        self._about = self._metadata(self._v2, _ServerMetadata, "the server's metadata")
        self._of_model = self._metadata(self._model, _ModelMetadata, "the model's metadata")
        extensions = self._about.extensions or []
        self._has_stats = "statistics" in extensions
        self._config = ModelConfig()
        if "model_configuration" in extensions:
            self._config = self._metadata(f"{self._model}/config", ModelConfig, "the model's configuration")
        self._is_binary = "binary_tensor_data" in extensions if self._binary is None else self._binary
        self._body, length = request_body((self._input(*entry) for entry in self._entries()), self._is_binary)
        self._lengths = {"Content-Type": "application/json"}
        if self._is_binary:
            self._lengths = {"Content-Type": "application/octet-stream", _LENGTH: str(length)}
        self._outputs = {output.name: output for output in self._of_model.outputs or []}
        self._shapes = {}
        self._make_request()

    def prepare(self) -> None:
        """Read tokens again, require that the model is ready, and note the server's counters; before each run."""
        self._server.refresh()
        self._make_request()
        self._require_ready()
        self._totals = self._stats() if self._has_stats else None
        self._headers = recent_headers()

    def run(self, phase: Phase) -> tuple[Response, bytes]:
        """Make one inference.

        Returns:
            The answer's head and its body.
        """
        answer = self._server.connection.ask("POST", self._request, phase)
        with phase("receive"):
            body = answer.read()
        if answer.status != 200:
            self._server.refuse(f"inference with {self._name} failed", answer, body)
        self._server.require_plain(answer)
        self._headers.append(answer.headers)
        return answer, body

    def values(self, result: tuple[Response, bytes]) -> list[float]:
        """Return evenly spread places of all outputs, by name; NaN if anything in them is not finite."""
        return places(sorted(self._checked(result), key=lambda tensor: tensor.name))

    def check(self, result: tuple[Response, bytes]) -> None:
        """Require all outputs, of the types and shapes of the metadata and of the first answer."""
        self._checked(result)

    def readings(self) -> list[Reading]:
        """Return the server's own times: means over the run by its statistics, or what the answers' headers report."""
        before = self._totals
        after = self._stats() if before is not None else None
        if before is None or after is None:
            return header_readings(self._headers)
        found = []
        for part in PARTS:
            earlier, later = before.get(part, _Total()), after.get(part, _Total())
            if (count := later.count - earlier.count) > 0 and later.ns >= earlier.ns:
                found.append(Reading(SERVER, (later.ns - earlier.ns) / count / 1e9, (part,)))
        return found

    def environment(self) -> dict[str, str]:
        """Report the server's name and version, the model's platform, versions and limits, and how tensors are sent."""
        server = f"{self._about.name} {self._about.version}".strip()
        return {
            "kserve_server": server or "unknown",
            "kserve_platform": self._of_model.platform or "unknown",
            "kserve_model_versions": " ".join(self._of_model.versions or []) or "unknown",
            "kserve_tensors": "binary" if self._is_binary else "json",
            **self._config.components(),
        }

    def identity(self) -> str:
        """Return the model's name and versions as the server reports them; without versions, the server's own."""
        versions = self._identity[1] or " ".join(self._of_model.versions or [])
        server = f"{self._about.name} {self._about.version}".strip()
        of = f"version {versions}" if versions else server
        return f"server: {self._identity[0]} {of}" if of else ""

    def settings(self) -> dict[str, object]:
        """List the inputs, and how they are sent."""
        return {"inputs": self._specs, "seed": self._seed, "binary": self._binary}

    def close(self) -> None:
        """Close the connection."""
        self._server.close()
        self._request, self._body = b"", bytearray()

    def _require_ready(self) -> None:
        for path, what in (
            (f"{self._v2}/health/ready", "the server is not ready"),
            (f"{self._model}/ready", f"the model {self._name} is not ready"),
        ):
            answer, body = self._server.get(path)
            if answer.status != 200:
                self._server.refuse(what, answer, body, "not_ready")
            # KServe's own servers report it in the body, with status 200.
            if body.lstrip().startswith(b"{") and not document(body, _Ready, "readiness").ready:
                raise Failure("not_ready", f"{what}: it says so")

    def _metadata(self, path: str, kind: type[Any], what: str) -> Any:
        """Read metadata; empty where the server has none, since it is optional in some servers."""
        answer, body = self._server.get(path)
        if answer.status in (404, 405, 501):
            return kind()
        if answer.status != 200:
            self._server.refuse(what, answer, body)
        self._server.require_plain(answer)
        return document(body, kind, what)

    def _entries(self) -> list[tuple[int, KserveInput, _TensorMetadata | None]]:
        """Each input: its place in the options, what they say of it, and what the server does."""
        known = self._of_model.inputs or []
        if self._specs is None:
            if not known:
                raise UsageError(
                    f"inputs: the server does not report those of {self._name}; give name, shape and dtype of each"
                )
            return [(i, KserveInput(), tensor) for i, tensor in enumerate(known)]
        by_name = {tensor.name: tensor for tensor in known}
        entries = []
        for i, spec in enumerate(self._specs):
            if spec.name is None and i >= len(known):
                raise UsageError(f"inputs[{i}]: it needs a `name`; the server reports {len(known)} inputs")
            if known and spec.name is not None and spec.name not in by_name:
                raise UsageError(
                    f"inputs[{i}].name: the model has no input `{spec.name}`; it has {', '.join(by_name)}"
                )
            entries.append((i, spec, known[i] if spec.name is None else by_name.get(spec.name)))
        return entries

    def _input(
        self, i: int, spec: KserveInput, declared: _TensorMetadata | None
    ) -> tuple[Tensor, dict[str, Any]]:
        name = spec.name or (declared.name if declared is not None else "")
        text = spec.dtype or (declared.datatype if declared is not None else None)
        if text is None:
            raise UsageError(f"inputs[{i}].dtype: the server does not report that of `{name}`; give it")
        dtype = dtype_of(text, f"inputs[{i}].dtype")
        sizes = declared.shape if declared is not None else None
        if spec.shape is not None:
            shape = spec.shape
        elif sizes is None or any(size < 0 for size in sizes):
            seen = "does not report the shape" if sizes is None else f"leaves sizes open in the shape {sizes}"
            raise UsageError(f"inputs[{i}].shape: the server {seen} of `{name}`; give it")
        else:
            shape = tuple(sizes)
        return drawn(name, dtype, shape, spec, self._seed + i, f"inputs[{i}]"), dict(spec.parameters)

    def _make_request(self) -> None:
        self._request = self._server.request("POST", f"{self._model}/infer", self._body, self._lengths)

    def _checked(self, result: tuple[Response, bytes]) -> list[Tensor]:
        names = self._outputs.keys() or set(self._shapes)
        tensors = self._decoded(*result)
        for tensor in tensors:
            self._check(tensor)
        if missing := names - {tensor.name for tensor in tensors}:
            raise Failure("wrong_shape", f"the output `{min(missing)}` is missing from the answer")
        if not tensors:
            raise Failure("wrong_shape", "the answer has no outputs")
        return tensors

    def _decoded(self, answer: Response, body: bytes) -> list[Tensor]:
        """Read the outputs, whichever way the server sent each."""
        length = answer.headers.get(_LENGTH)
        if length is not None and not (
            length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= len(body)
        ):
            raise Failure("malformed", f"the answer has {len(body)} bytes, and {_LENGTH} {length}")
        at = len(body) if length is None else int(length)
        tensors = []
        answered = document(body[:at], Any, "the answer to an inference")
        if isinstance(answered, dict) and answered.get("error"):  # some servers send errors with status 200
            said = self._server.excerpt(body[:at], 200)
            raise Failure("error_answer", f"inference with {self._name} failed: {said}")
        for output in converted(answered, _Inferred, "the answer to an inference").outputs:
            name, dtype, shape = output.name, output.datatype, output.shape
            if any(size < 0 for size in shape):
                raise Failure("wrong_shape", f"the output `{name}` has the shape {shape}")
            size = (output.parameters or {}).get("binary_data_size")
            if size is None:
                tensors.append(from_json(name, dtype, shape, output.data or []))
                continue
            if not isinstance(size, int) or not 0 <= size <= len(body) - at:
                raise Failure("malformed", f"the output `{name}` ends after the answer does")
            tensors.append(from_bytes(name, dtype, shape, body[at : at + size]))
            at += size
        return tensors

    def _check(self, tensor: Tensor) -> None:
        """Refuse another type or shape than the metadata and the first answer have."""
        declared = self._outputs.get(tensor.name)
        if self._outputs and declared is None:
            raise Failure(
                "wrong_shape",
                f"the answer has an output `{tensor.name}`, which the metadata has not",
            )
        if declared is not None:
            if declared.datatype != tensor.dtype:
                raise Failure(
                    "wrong_shape",
                    f"the output `{tensor.name}` is {tensor.dtype}, and {declared.datatype} in the metadata",
                )
            if declared.shape is not None and not _fits(tensor.shape, declared.shape):
                raise Failure(
                    "wrong_shape",
                    f"the output `{tensor.name}` has the shape {list(tensor.shape)}, "
                    f"and {declared.shape} in the metadata",
                )
        first = self._shapes.setdefault(tensor.name, (tensor.dtype, tensor.shape))
        if first != (tensor.dtype, tensor.shape):
            raise Failure(
                "wrong_shape",
                f"the output `{tensor.name}` is {tensor.dtype} {list(tensor.shape)}, "
                f"and was {first[0]} {list(first[1])} in the first answer",
            )

    def _stats(self) -> dict[str, _Total] | None:
        """The server's totals since it started, over the versions of the model; None where it does not report them.

        A failure here is ignored: a run without them is as good as one with them.
        """
        try:
            answer, body = self._server.get(f"{self._model}/stats")
            stats = document(body, _Stats, "the server's statistics") if answer.status == 200 else None
        except Failure:
            return None
        totals: dict[str, _Total] = {}
        for model in stats.model_stats if stats is not None else ():
            for part, total in model.inference_stats.items():
                before = totals.get(part, _Total())
                totals[part] = _Total(before.count + total.count, before.ns + total.ns)
        return totals or None


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(
        size == known or known < 0 for size, known in zip(shape, declared, strict=True)
    )
