"""One ONNX model in ONNX Runtime: loaded on the execution providers that were asked for, and on no others."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from importlib.util import find_spec
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.probe.gpu.cuda_driver import Device, NoSuchGpu
from infercanary.probe.samplers import Unavailable
from infercanary.probe.targets.engines.cuda_versions import unfit_driver
from infercanary.probe.targets.engines.environment import seen_by_nvml
from infercanary.probe.targets.engines.needs import unbounded
from infercanary.probe.targets.engines.onnx_providers import (
    CPU,
    CUDA,
    ON_CUDA,
    device_id,
    library_fault,
    short_name,
    why_not,
)
from infercanary.probe.targets.failures import NoCuda
from infercanary.probe.targets.libraries import is_installed, misfit

_MOST_NAMED = 400  # characters: an environment's text has a bound


class OnnxSession:
    """Loads a model, and closes it. On CUDA it has a device, and runs on that device's stream."""

    def __init__(
        self,
        path: str,
        providers: Sequence[str],
        provider_options: Mapping[str, Mapping[str, str]],
        cpu_fallback: bool,
    ) -> None:
        """Load nothing yet.

        Args:
            path: The model's file.
            providers: In order of preference, by ONNX Runtime's names.
            provider_options: Provider → its options.
            cpu_fallback: Whether to go on without a provider that cannot be loaded.

        Raises:
            UsageError: The options name more than one GPU.
        """
        self.ordinal = device_id(provider_options)
        """The GPU that was asked for."""
        self.gpu: Device | None = None
        """The device that it runs on; None on the CPU, and while it is closed."""
        self.session: Any = None
        """The ``onnxruntime.InferenceSession``; None while it is closed."""
        self.cuda_missing = ""
        """Why there is no CUDA where it was asked for; empty where there is."""
        self._path = path
        self._asked = providers
        self._options = provider_options
        self._cpu_fallback = cpu_fallback

    def open(
        self,
        ort: Any,
        session_options: Callable[[], Any],
        device_memory_left: Callable[[], int | None] = unbounded,
    ) -> None:
        """Load the model on what was asked for or, with ``cpu_fallback``, on what there is of it.

        Args:
            ort: The module ``onnxruntime``.
            session_options: Makes the ``onnxruntime.SessionOptions`` of each attempt.
            device_memory_left: Says the bytes of the device that its arena may take; None to bound nothing.

        Raises:
            UsageError: The model, or a provider, cannot be loaded.
            NoCuda: There is no CUDA; :attr:`cuda_missing` says why.
        """
        self._ort, self._session_options = ort, session_options
        self._device_memory_left = device_memory_left
        self.cuda_missing = ""
        providers = self._obtainable()
        try:
            self._load(providers)
        except UsageError:
            # Some providers raise where ONNX Runtime cannot load their libraries; others are left out.
            faulty = [provider for provider in providers if library_fault(ort, provider)]
            if not faulty:
                raise
        else:
            faulty = [provider for provider in providers if provider not in self.session.get_providers()]
        for provider in faulty:
            self._miss(*self._why_not_started(provider), provider)
        if faulty:
            left = [provider for provider in providers if provider not in faulty]
            if self.gpu is not None and not any(provider in ON_CUDA for provider in left):
                self.gpu.close()  # and the session with it
                self.gpu = None
            self._load(left)
        if self.gpu is not None:
            self.cuda_missing = ""  # without TensorRT it may run on CUDA alone
        nodes = self.nodes()
        if nodes and not self._cpu_fallback and not nodes[self._asked[0]]:
            where = ", ".join(f"{n} on {name}" for name, n in sorted(nodes.items()))
            raise UsageError(
                f"providers: none of the model's nodes runs on {self._asked[0]} ({where}): it lacks their operators or "
                "dtypes; convert the model, or name the provider that runs it first"
            )

    def another(self, options: Any) -> Any:
        """Load the model once more, on the providers that this session runs on; on the CPU only.

        Args:
            options: An ``onnxruntime.SessionOptions``.

        Returns:
            An ``onnxruntime.InferenceSession``, which is the caller's own.
        """
        assert self.gpu is None, "a second session would need a stream of its own"
        providers = [(name, self._options.get(name, {})) for name in self.session.get_providers()]
        return self._ort.InferenceSession(
            self._path, sess_options=options, providers=providers, enable_fallback=0
        )

    def close(self) -> None:
        """Release the session and the device."""
        gpu, self.gpu = self.gpu, None
        if gpu is not None:
            gpu.close()
        self._drop()

    def nodes(self) -> Counter[str]:
        """Return how many of the model's nodes each provider runs; empty where this version does not report it.

        Returns:
            ONNX Runtime's name of a provider → nodes.
        """
        return Counter(provider for provider, _ in self._placed())

    def left_to_the_cpu(self) -> str:
        """Which operators run on the CPU although an accelerator was asked for first.

        The provider has no kernel for these, or ONNX Runtime prefers the CPU for them, as it does for shapes.

        Returns:
            Such as ``NonZero (3 nodes), Unique``, by name; empty where there are none. What is too long ends in a
            digest of the whole, so that a change in the part that was cut off is visible.
        """
        on_cpu = (kind for provider, kind in self._placed() if provider == CPU and self._asked[0] != CPU)
        named = [f"{kind} ({n} nodes)" if n > 1 else kind for kind, n in sorted(Counter(on_cpu).items())]
        text = ", ".join(named)
        if len(text) <= _MOST_NAMED:
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{text[:_MOST_NAMED].rpartition(', ')[0]} and others: {len(named)} in all, digest {digest}"

    def _placed(self) -> list[tuple[str, str]]:
        """Of each node its provider and its operator; empty where this version does not report it."""
        with suppress(Exception):
            parts = self.session.get_provider_graph_assignment_info()
            return [(part.ep_name, node.op_type) for part in parts for node in part.get_nodes()]
        return []

    def ran_by(self) -> str:
        """The first of the session's providers that has nodes to run; the first of all where that is not known."""
        nodes = self.nodes()
        registered: list[str] = self.session.get_providers()
        return next((provider for provider in registered if nodes[provider]), registered[0])

    def require_our_stream(self) -> None:
        """Refuse a session that does not run on our stream: events there would time nothing.

        Raises:
            UsageError: This version does not say that it does.
        """
        for provider, options in self.session.get_provider_options().items():
            if provider in ON_CUDA and options.get("has_user_compute_stream") != "1":
                raise UsageError(
                    f"providers: onnxruntime {self._ort.__version__} does not say that {provider} runs on the stream "
                    "that it was given (user_compute_stream); install onnxruntime-gpu 1.18 or newer"
                )

    def _drop(self) -> None:
        self.session = None

    def _obtainable(self) -> list[str]:
        """Those providers that this build has, and a device for; the device is then open."""
        available = self._ort.get_available_providers()
        providers = [provider for provider in self._asked if self._is_built_with(provider, available)]
        if (first := next((provider for provider in providers if provider in ON_CUDA), None)) is None:
            return providers
        without = [provider for provider in providers if provider not in ON_CUDA]
        name = f"onnxruntime {self._ort.__version__}"
        if why := unfit_driver(name, str(getattr(self._ort, "cuda_version", "") or "")):
            self._miss("version_mismatch", why, first)
            return without
        try:
            self.gpu = Device(self.ordinal)
        except NoSuchGpu as error:
            raise UsageError(
                f"provider_options: device_id {self.ordinal} was asked for, but {error}; count from 0 the GPUs "
                "that the container has"
            ) from None
        except Unavailable as error:
            fix = "check the driver, and that the container was started with the GPU"
            self._miss("no_device", f"{error}; {fix}", first)
            return without
        self.gpu.before_close(self._drop)  # the session has its stream
        # CUDA may come as wheels, which only ONNX Runtime knows how to find; what it prints goes where logs go.
        if (
            find_spec("nvidia") is not None
            and (preload := getattr(self._ort, "preload_dlls", None)) is not None
        ):
            with redirect_stdout(sys.stderr):
                preload()
        return providers

    def _why_not_started(self, provider: str) -> tuple[str, str]:
        """The reason, and the line with the fix, of a provider that this build has and that is not in the session."""
        cuda = getattr(self._ort, "cuda_version", "") if provider in ON_CUDA else ""
        built_for = f"install the libraries that it was built for{f' (CUDA {cuda})' if cuda else ''}"
        cannot = f"ONNX Runtime cannot start {provider}:"
        if not (fault := library_fault(self._ort, provider)):
            return "provider_missing", f"{cannot} the log above says why; {built_for}"
        found = misfit(fault)
        if found is None or found.reason == "no_libraries":
            return "no_libraries", f"{cannot} {fault}; {built_for}"
        return found.reason, f"{cannot} {fault}; {found.fix}"

    def _is_built_with(self, provider: str, available: Sequence[str]) -> bool:
        if provider in available:
            return True
        version = self._ort.__version__
        reason = "cpu_only_build"
        fix = "install onnxruntime-gpu in its place" if provider in ON_CUDA else "install a build that has it"
        if any(each in available for each in ON_CUDA):
            reason, fix = "provider_missing", "install a build that has it"
        elif provider in ON_CUDA and is_installed("onnxruntime-gpu"):
            # Both wheels write to one folder, and the one that was installed last has it.
            reason = "provider_missing"
            fix = "onnxruntime-gpu is installed too, and covered by another wheel: uninstall both, and install it alone"
        self._miss(
            reason,
            f"onnxruntime {version} is a build without {provider} (it has {', '.join(available)}); {fix}",
            provider,
        )
        return False

    def _miss(self, reason: str, why: str, provider: str) -> None:
        """Refuse to go on without a provider that was asked for; with ``cpu_fallback`` only note the reason."""
        if provider in ON_CUDA:
            self.cuda_missing = reason
        if self._cpu_fallback:
            return
        lacking = NoCuda if provider in ON_CUDA else UsageError
        seen = seen_by_nvml() if provider in ON_CUDA else ""
        raise lacking(
            f"providers: `{short_name(provider)}` was asked for{seen}, but {why}, or set `providers: [cpu]`"
        )

    def _load(self, providers: Sequence[str]) -> None:
        """Make the session, without ONNX Runtime's own fallback, which prints on standard output."""
        with_options = [
            (
                provider,
                {**self._limit(provider), **self._options.get(provider, {}), **self._stream_option(provider)},
            )
            for provider in providers or [CPU]
        ]
        with self.gpu.current() if self.gpu is not None else nullcontext():
            self.session = None
            try:
                self.session = self._ort.InferenceSession(
                    self._path,
                    sess_options=self._session_options(),
                    providers=with_options,
                    enable_fallback=0,
                )
            except Exception as error:
                why = why_not(error, self._path, self._ort.__version__)
                raise UsageError(f"model: `{self._path}` {why}") from None

    def _limit(self, provider: str) -> dict[str, str]:
        """Of CUDA only: TensorRT's workspace decides which kernels it chooses, and would be another measurement."""
        if self.gpu is None or provider != CUDA or (size := self._device_memory_left()) is None:
            return {}
        return {"gpu_mem_limit": str(max(1, size))}

    def _stream_option(self, provider: str) -> dict[str, str]:
        if self.gpu is None or provider not in ON_CUDA:
            return {}
        return {"device_id": str(self.ordinal), "user_compute_stream": str(self.gpu.stream.value)}
