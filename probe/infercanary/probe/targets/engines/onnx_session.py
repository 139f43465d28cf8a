"""One ONNX model in ONNX Runtime, loaded only on the requested execution providers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from importlib.util import find_spec
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets.engines.cuda_versions import no_cuda, open_gpu
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


class OnnxSession:
    """Loads and closes a model. On CUDA, the session has a device and runs on the device's stream."""

    def __init__(
        self,
        path: str,
        providers: Sequence[str],
        provider_options: Mapping[str, Mapping[str, str]],
        cpu_fallback: bool,
    ) -> None:
        """Keep the options, but load nothing yet.

        Args:
            path: File of the model.
            providers: ONNX Runtime's names, in order of preference.
            provider_options: Provider → its options.
            cpu_fallback: True to continue without a provider that cannot be loaded.

        Raises:
            UsageError: The options name more than one GPU.
        """
        self.ordinal = device_id(provider_options)
        self.gpu: Device | None = None
        """Device of the session; None on the CPU and while the session is closed."""
        self.session: Any = None
        """The ``onnxruntime.InferenceSession``; None while closed."""
        self.cuda_missing = ""
        self._path = path
        self._asked = providers
        self._options = provider_options
        self._cpu_fallback = cpu_fallback

    def open(
        self, ort: Any, make_options: Callable[[], Any], device_memory_left: Callable[[], int | None]
    ) -> None:
        """Load the model on the requested providers; with ``cpu_fallback``, on the available providers.

        Args:
            ort: The module ``onnxruntime``.
            make_options: Function that makes the ``onnxruntime.SessionOptions`` of each attempt.
            device_memory_left: Function that returns the bytes that the arena may take; None for no limit.

        Raises:
            UsageError: The model or a provider cannot be loaded.
            NoCuda: CUDA is missing; :attr:`cuda_missing` gives the reason.
        """
        self._ort, self._make_options, self._device_memory_left = ort, make_options, device_memory_left
        self.cuda_missing = ""
        providers = [provider for provider in self._asked if self._is_built_in(provider)]
        if not self._open_gpu(next((p for p in providers if p in ON_CUDA), None)):
            providers = [provider for provider in providers if provider not in ON_CUDA]
        try:
            self._load(providers)
        except UsageError:
            # If a provider's library does not load, ONNX Runtime raises an error for some providers and silently
            # drops others.
            faulty = [provider for provider in providers if library_fault(ort, provider)]
            if not faulty:
                raise
        else:
            faulty = [provider for provider in providers if provider not in self.session.get_providers()]
        for provider in faulty:
            self._miss(provider, *self._why_not_started(provider))
        if faulty:
            fit = [provider for provider in providers if provider not in faulty]
            if self.gpu is not None and not any(provider in ON_CUDA for provider in fit):
                self.gpu.close()  # the error's frames also hold the session on this device
                self.gpu = None
            self._load(fit)
        if self.gpu is not None:
            self.cuda_missing = ""  # CUDA works; only TensorRT is missing
        nodes = self.nodes()
        if nodes and not self._cpu_fallback and not nodes[self._asked[0]]:
            where = ", ".join(f"{n} on {name}" for name, n in sorted(nodes.items()))
            raise UsageError(
                f"providers: none of the model's nodes runs on {self._asked[0]} ({where}): the provider lacks "
                "their operators or dtypes; convert the model, or put the provider that runs the nodes first"
            )
        for provider, options in self.session.get_provider_options().items() if self.gpu else ():
            if provider in ON_CUDA and options.get("has_user_compute_stream") != "1":
                raise UsageError(
                    f"providers: onnxruntime {ort.__version__} does not confirm that {provider} runs on the given "
                    "stream (user_compute_stream); install onnxruntime-gpu 1.18 or newer"
                )

    def load_again(self, options: Any) -> Any:
        """Load the model a second time, with other ``onnxruntime.SessionOptions``. Not possible for a session on
        CUDA.
        """
        return self._make_session(self.session.get_providers(), options)

    def close(self) -> None:
        gpu, self.gpu = self.gpu, None
        if gpu is not None:
            gpu.close()
        self._drop()

    def nodes(self) -> Counter[str]:
        """Return the number of the model's nodes by provider; empty if this version does not report the providers."""
        return Counter(provider for provider, _ in self._placed())

    def operators_on_cpu(self) -> str:
        """Return the operators that run on the CPU although an accelerator is the first requested provider.

        The provider has no kernel for these operators, or ONNX Runtime prefers the CPU for them, for example for
        shapes.
        """
        if self._asked[0] == CPU:
            return ""
        counts = Counter(kind for provider, kind in self._placed() if provider == CPU)
        return ", ".join(f"{kind} ({n} nodes)" if n > 1 else kind for kind, n in sorted(counts.items()))

    def first_used(self) -> str:
        """Return the first requested provider that runs nodes; if the nodes are unknown, the first requested
        provider.
        """
        nodes = self.nodes()
        registered: list[str] = self.session.get_providers()
        return next((provider for provider in registered if nodes[provider]), registered[0])

    def _placed(self) -> list[tuple[str, str]]:
        """Return the provider and the operator of each node."""
        with suppress(Exception):  # ONNX Runtime reports this from version 1.24 on
            parts = self.session.get_provider_graph_assignment_info()
            return [(part.ep_name, node.op_type) for part in parts for node in part.get_nodes()]
        return []

    def _drop(self) -> None:
        self.session = None

    def _is_built_in(self, provider: str) -> bool:
        available = self._ort.get_available_providers()
        if provider in available:
            return True
        reason, fix = "cpu_only_build", "install onnxruntime-gpu in its place"
        if provider not in ON_CUDA or any(name in available for name in ON_CUDA):
            reason, fix = "provider_missing", "install a build with this provider"
        elif is_installed("onnxruntime-gpu"):
            # Both wheels write to the same folder: the later installation overwrites the earlier.
            reason = "provider_missing"
            fix = "another wheel overwrote onnxruntime-gpu: uninstall both wheels, then install onnxruntime-gpu again"
        has = ", ".join(available)
        version = self._ort.__version__
        self._miss(
            provider, reason, f"onnxruntime {version} is a build without {provider} (it has {has}); {fix}"
        )
        return False

    def _open_gpu(self, provider: str | None) -> bool:
        """Open the device of the first CUDA provider, if any. Return False if the device cannot be opened."""
        if provider is None:
            return True
        built_for = str(getattr(self._ort, "cuda_version", "") or "")
        asked = f"provider_options: device_id {self.ordinal}"
        try:
            self.gpu = open_gpu(asked, self.ordinal, f"onnxruntime {self._ort.__version__}", built_for)
        except NoCuda as error:
            self._miss(provider, error.reason, str(error))
            return False
        # close the session before the device, because the session uses the device's stream
        self.gpu.before_close(self._drop)
        # If CUDA is installed as wheels, only ONNX Runtime finds the libraries. Send ONNX Runtime's output to standard
        # error, like logs.
        preload = getattr(self._ort, "preload_dlls", None)
        if preload is not None and find_spec("nvidia") is not None:
            with redirect_stdout(sys.stderr):
                preload()
        return True

    def _why_not_started(self, provider: str) -> tuple[str, str]:
        """Return the reason, with an explanation, why the session lacks a provider that this build has."""
        cuda = getattr(self._ort, "cuda_version", "") if provider in ON_CUDA else ""
        fix = f"install the libraries that it was built for{f' (CUDA {cuda})' if cuda else ''}"
        reason, words = "provider_missing", "the log above says why"
        if fault := library_fault(self._ort, provider):
            reason, words = "no_libraries", fault
            found = misfit(fault)
            if found is not None and found.reason != "no_libraries":
                reason, fix = found
        return reason, f"ONNX Runtime cannot start {provider}: {words}; {fix}"

    def _miss(self, provider: str, reason: str, why: str) -> None:
        """Raise an error for a missing provider. With ``cpu_fallback``, only keep the reason."""
        if provider in ON_CUDA:
            self.cuda_missing = reason
        if self._cpu_fallback:
            return
        asked, why = f"providers: `{short_name(provider)}`", f"{why}, or set `providers: [cpu]`"
        if provider in ON_CUDA:
            raise no_cuda(asked, why, reason)
        raise UsageError(f"{asked} was asked for, but {why}")

    def _load(self, providers: Sequence[str]) -> None:
        with self.gpu.current() if self.gpu is not None else nullcontext():
            self.session = None
            try:
                self.session = self._make_session(providers or [CPU], self._make_options())
            except Exception as error:
                why = why_not(error, self._path, self._ort.__version__)
                raise UsageError(f"model: `{self._path}` {why}") from None

    def _make_session(self, providers: Sequence[str], options: Any) -> Any:
        """Make a session without ONNX Runtime's own fallback, which prints to standard output."""
        return self._ort.InferenceSession(
            self._path,
            sess_options=options,
            providers=[(provider, self._options_of(provider)) for provider in providers],
            enable_fallback=0,
        )

    def _options_of(self, provider: str) -> dict[str, str]:
        """Return a provider's options with the device, its stream and the arena's limit."""
        options = dict(self._options.get(provider, {}))
        if self.gpu is None or provider not in ON_CUDA:
            return options
        # Set no limit for TensorRT: the workspace decides which kernels TensorRT chooses, so a limit would change the
        # measurement.
        if provider == CUDA and (size := self._device_memory_left()) is not None:
            options.setdefault("gpu_mem_limit", str(max(1, size)))
        return options | {"device_id": str(self.ordinal), "user_compute_stream": str(self.gpu.stream.value)}
