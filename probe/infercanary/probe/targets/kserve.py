"""Target for servers with the Open Inference Protocol (KServe v2): Triton, KServe, MLServer, and others.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from urllib.parse import quote

import msgspec

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Failure, Reading, register
from infercanary.probe.targets.engines.environment import reported
from infercanary.probe.targets.engines.options import Seed
from infercanary.probe.targets.wire.connection import Response
from infercanary.probe.targets.wire.server import Name, ServerOptions, document
from infercanary.probe.targets.wire.server_target import ServerTarget
from infercanary.probe.targets.wire.tensors import (
    DTYPES,
    KserveInput,
    Output,
    Tensor,
    drawn,
    numbers_of,
    request_body,
    spread,
)
from infercanary.probe.targets.wire.timing_headers import SERVER
from infercanary.probe.timing import Phase

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
_LENGTH = "Inference-Header-Content-Length"


class _ServerMetadata(msgspec.Struct):
    name: str = ""
    version: str = ""
    extensions: list[str] | None = None


class _TensorMetadata(msgspec.Struct):
    name: str
    datatype: str | None = None
    shape: list[int] | None = None


class _ModelMetadata(msgspec.Struct):
    platform: str | None = None
    versions: list[str] | None = None
    inputs: list[_TensorMetadata] | None = None
    outputs: list[_TensorMetadata] | None = None


class _Answer(msgspec.Struct):
    outputs: list[Output] = []


class _Total(msgspec.Struct):
    count: int = 0
    ns: int = 0


class _ModelStats(msgspec.Struct):
    inference_stats: dict[str, _Total] = {}


class _Stats(msgspec.Struct):
    model_stats: list[_ModelStats] = []


class _Instances(msgspec.Struct):
    count: int = 1
    kind: str = ""


class _Batching(msgspec.Struct):
    max_queue_delay_microseconds: int = 0


class _ModelConfig(msgspec.Struct):
    """Settings of Triton's extension `model_configuration` that change how requests are served.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
    """

    max_batch_size: int = 0
    instance_group: list[_Instances] = []
    dynamic_batching: _Batching | None = None


class KserveOptions(ServerOptions, frozen=True, kw_only=True):
    """Options of ``target: kserve``; ``url`` is the server's address without ``/v2``."""

    model: Name
    """Name of the model."""
    version: Name | int | None = None
    """Version of the model; by default the server chooses a version."""
    inputs: list[KserveInput] | None = None
    """Missing keys are taken from the model's metadata. ``shape`` is required if the metadata has a variable size (-1)
    or lacks the input.
    """
    seed: Seed = 0
    """Seed of random values for inputs without ``data``."""
    binary: bool | None = None
    """True to send tensors as binary data; by default true if the server reports this extension."""


@register("kserve")
class KserveTarget(ServerTarget):
    """Asks a server for one inference with fixed inputs."""

    options_type = KserveOptions
    _options: KserveOptions

    def __init__(self, options: KserveOptions) -> None:
        """Check the options.

        Raises:
            UsageError: An option is invalid.
        """
        super().__init__(options)
        model, version = self._options.model, self._options.version
        self._name = f"`{model}`" if version is None else f"`{model}`, version `{version}`"
        self._model = f"{self._server.base}/v2/models/{quote(model, safe='')}"
        if version is not None:
            self._model += f"/versions/{quote(str(version), safe='')}"
        self._path = f"{self._model}/infer"
        self._totals: Counter[tuple[str, str]] = Counter()

    def open(self) -> None:
        """Wait until the model is ready, read its metadata, and make the request.

        Raises:
            UsageError: A file cannot be read, or the inputs do not fit the model.
            Failure: The server cannot be reached, or is not ready in time.
        """
        super().open()
        server = self._server
        self._about = server.get_document(f"{server.base}/v2", _ServerMetadata, "the server's metadata")
        self._of_model = server.get_document(self._model, _ModelMetadata, "the model's metadata")
        extensions = self._about.extensions or []
        self._has_stats = "statistics" in extensions
        self._config = _ModelConfig()
        if "model_configuration" in extensions:
            self._config = server.get_document(
                f"{self._model}/config", _ModelConfig, "the model's configuration"
            )
        binary = self._options.binary
        self._is_binary = "binary_tensor_data" in extensions if binary is None else binary
        self._body, length = request_body(self._inputs(), self._is_binary)
        if self._is_binary:
            self._headers = {"Content-Type": "application/octet-stream", _LENGTH: str(length)}
        self._expected = {output.name: output for output in self._of_model.outputs or []}
        self._make_request()

    def prepare(self) -> None:
        """Read header files again, require a ready model, and read the server's counters. Called before each run."""
        super().prepare()
        self._require_ready()
        self._totals = self._stats()

    def run(self, phase: Phase) -> tuple[Response, bytes]:
        """Make one inference; return the head and the body of the answer."""
        return self._ask(phase, 200, f"inference with {self._name} failed")

    def values(self, result: tuple[Response, bytes]) -> list[float]:
        """Return evenly spaced values of all outputs, sorted by name. The last value is NaN if any value is NaN or
        infinity.
        """
        numbers = self._outputs(result)
        count = sum(output.count for output, _ in numbers)
        return spread(chain.from_iterable(values for _, values in numbers), count)

    def check(self, result: tuple[Response, bytes]) -> None:
        """Require all outputs, with the types and shapes of the metadata and of the first answer."""
        self._outputs(result)

    def readings(self) -> list[Reading]:
        """Return the server's own times: means over the run from its statistics, or else from the answers' headers."""
        after = self._stats() if self._totals else None
        if not after:
            return super().readings()
        # Counter drops negative numbers, so a server restart leaves no reading.
        growth = after - self._totals
        return [
            Reading(SERVER, growth[part, "ns"] / count / 1e9, (part,))
            for part in PARTS
            if (count := growth[part, "count"])
        ]

    def environment(self) -> dict[str, str]:
        """Return the server's name and version, the model's platform, versions and limits, and the tensor encoding."""
        return self._serving() | reported(
            {
                "kserve_server": self._server_version(),
                "kserve_platform": self._of_model.platform,
                "kserve_model_versions": " ".join(self._of_model.versions or []),
                "kserve_tensors": "binary" if self._is_binary else "json",
            }
        )

    def identity(self) -> str:
        """Return the model's name and versions as the server reports them. Without versions, return the server's
        version.
        """
        version = self._options.version
        versions = " ".join(self._of_model.versions or []) if version is None else str(version)
        detail = f"version {versions}" if versions else self._server_version()
        return f"server: {self._options.model} {detail}" if detail else ""

    def settings(self) -> dict[str, object]:
        """Return the inputs and their encoding, which determine the work."""
        options = self._options
        return {"inputs": options.inputs, "seed": options.seed, "binary": options.binary}

    def _serving(self) -> dict[str, str]:
        """Return the server's instances and batching; empty if the server does not report them. Triton does."""
        config, batching = self._config, self._config.dynamic_batching
        if not config.instance_group:
            return {}
        groups = (f"{g.count} {g.kind.removeprefix('KIND_')}".strip() for g in config.instance_group)
        return {
            "kserve_instances": " + ".join(groups),
            "kserve_max_batch_size": str(config.max_batch_size),
            "kserve_batching": f"waits {batching.max_queue_delay_microseconds} µs" if batching else "off",
        }

    def _server_version(self) -> str:
        return f"{self._about.name} {self._about.version}".strip()

    def _require_ready(self) -> None:
        answer, body = self._server.get(f"{self._model}/ready")
        if answer.status != 200:
            self._server.refuse(f"the model {self._name} is not ready", answer, body, "not_ready")

    def _inputs(self) -> list[Tensor]:
        """Make each input from the settings and the model's metadata."""
        declared = {tensor.name: tensor for tensor in self._of_model.inputs or ()}
        given = self._options.inputs or [KserveInput()] * len(declared)
        if not given:
            raise UsageError(
                f"inputs: the server does not report the inputs of {self._name}; give name, shape and dtype of each "
                "input"
            )
        inputs = []
        for i, spec in enumerate(given):
            place = f"inputs[{i}]"
            name = spec.name or dict(enumerate(declared)).get(i, "")
            if not name or (declared and name not in declared):
                raise UsageError(
                    f"{place}.name: `{name}` is no input of the model, which has {', '.join(declared) or 'none'}"
                )
            metadata = declared.get(name, _TensorMetadata(name))
            dtype = spec.dtype or metadata.datatype
            if dtype not in DTYPES:
                raise UsageError(
                    f"{place}.dtype: `{name}` needs one of {', '.join(DTYPES)}, not {dtype or 'nothing'}"
                )
            shape = metadata.shape if spec.shape is None else spec.shape
            if shape is None or any(size < 0 for size in shape):
                raise UsageError(
                    f"{place}.shape: the server reports {shape or 'no shape'} of `{name}`; give all sizes"
                )
            inputs.append(drawn(name, dtype, tuple(shape), spec, self._options.seed + i, place))
        return inputs

    def _outputs(self, result: tuple[Response, bytes]) -> list[tuple[Output, Iterable[float]]]:
        """Return the outputs of an answer by name, from JSON or binary data. Raise an error for unexpected outputs."""
        answer, body = result
        length = answer.headers.get(_LENGTH.lower(), "")
        end = int(length) if length.isdecimal() else len(body)
        decoded = document(body[:end], _Answer, "the answer to an inference")
        numbers = {}
        for output in decoded.outputs:
            self._require_expected(output)
            begin, end = end, end + (output.size or 0)
            numbers[output.name] = output, numbers_of(output, body[begin:end])
        missing = sorted(self._expected.keys() - numbers)
        if missing or not numbers:
            said = self._server.excerpt(body, 200)  # a server may report an error with status 200
            raise Failure("wrong_shape", f"the answer lacks outputs ({', '.join(missing)}): {said}")
        self._expected = {o.name: _TensorMetadata(o.name, o.datatype, o.shape) for o in decoded.outputs}
        return [numbers[name] for name in sorted(numbers)]

    def _require_expected(self, output: Output) -> None:
        """Raise an error for an output whose type or shape differs from the metadata or from the first answer."""
        expected = self._expected.get(output.name)
        if self._expected and (expected is None or not _fits(output, expected)):
            known = f"{expected.datatype} {expected.shape}" if expected else "missing"
            raise Failure(
                "wrong_shape",
                f"the output `{output.name}` is {output.datatype} {output.shape}, but {known} in the metadata or the "
                "first answer",
            )

    def _stats(self) -> Counter[tuple[str, str]]:
        """Return the server's totals since its start, summed over the model's versions; empty if not reported.

        A failure is ignored, because a run without statistics is still valid.
        """
        totals: Counter[tuple[str, str]] = Counter()
        stats = _Stats()
        with suppress(Failure):
            if self._has_stats:
                stats = self._server.get_document(f"{self._model}/stats", _Stats, "the server's statistics")
        for model in stats.model_stats:
            for part, total in model.inference_stats.items():
                totals[part, "count"] += total.count
                totals[part, "ns"] += total.ns
        return totals


def _fits(output: Output, expected: _TensorMetadata) -> bool:
    sizes = output.shape if expected.shape is None else expected.shape
    return (
        expected.datatype in (None, output.datatype)
        and len(output.shape) == len(sizes)
        and all(size == known or known < 0 for size, known in zip(output.shape, sizes, strict=True))
    )
