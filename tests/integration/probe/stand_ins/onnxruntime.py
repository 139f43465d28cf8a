"""A stand-in for ONNX Runtime on CUDA: a model is JSON, and copies its first input to its first output on the
device.

The stand-in has no CPU part, because tests on the CPU use the real ONNX Runtime. It checks bound memory as
strictly as the real library, and uses the given stream.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy
from device_work import Copy, held, library

__version__ = "1.31.1"
cuda_version = "12.8"

TYPES = {"tensor(float)": 4, "tensor(bfloat16)": 2, "tensor(int64)": 8}
ORDER = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]

ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL=0, ORT_PARALLEL=1)
GraphOptimizationLevel = SimpleNamespace(
    ORT_DISABLE_ALL=0, ORT_ENABLE_BASIC=1, ORT_ENABLE_EXTENDED=2, ORT_ENABLE_ALL=99
)

dropped: list[tuple[str, int]] = []
"""Released objects, each with the number of current contexts at that time."""


preloaded = 0


def preload_dlls():
    global preloaded
    preloaded += 1
    print("as the real one, it prints")


def get_available_providers():
    return ORDER


def get_build_info():
    return (
        "ORT Build Info: git-branch=main, git-commit-id=0123456789, build type=Release, cmake cxx flags: none"
    )


class SessionOptions:
    intra_op_num_threads = inter_op_num_threads = 0

    def __init__(self):
        self.config = {}

    def add_session_config_entry(self, key, value):
        self.config[key] = value


class RunOptions:
    def __init__(self):
        self.config = {}

    def add_run_config_entry(self, key, value):
        self.config[key] = value


class Part(SimpleNamespace):
    def get_nodes(self):
        return [SimpleNamespace(op_type=f"Operator{i % 2}") for i in range(self.nodes)]


class InferenceSession:
    def __init__(self, path, sess_options, providers, enable_fallback):
        assert enable_fallback == 0, "the fallback would print, and hide the error"
        assert held("pushed") == 1, "the session is made inside the context"
        with open(path) as file:
            self._model = json.load(file)
        self._options = sess_options
        self._given = dict(providers)
        self._copy = Copy()
        unloadable = self._model.get("unloadable", ())
        self._registered = [
            name for name in ORDER if name in [*self._given, ORDER[-1]] and name not in unloadable
        ]

    def get_providers(self):
        return self._registered

    def get_provider_options(self):
        takes = not self._model.get("no_stream")
        return {
            name: {
                "has_user_compute_stream": str(
                    int(takes and "user_compute_stream" in self._given.get(name, {}))
                )
            }
            for name in self._registered
        }

    def get_provider_graph_assignment_info(self):
        assert self._options.config["session.record_ep_graph_assignment_info"] == "1"
        nodes = self._model.get("nodes", {self._registered[0]: 3})
        return [Part(ep_name=name, nodes=count) for name, count in nodes.items()]

    def get_session_options(self):
        return self._options

    def get_modelmeta(self):
        return SimpleNamespace(producer_name="stand-in")

    def get_inputs(self):
        return [SimpleNamespace(**each) for each in self._model["inputs"]]

    def get_outputs(self):
        return [SimpleNamespace(**each) for each in self._model["outputs"]]

    def io_binding(self):
        return IOBinding(self)

    def run_with_iobinding(self, binding, options=None):
        name = next(name for name in ORDER if "user_compute_stream" in self._given.get(name, {}))
        stream = int(self._given[name]["user_compute_stream"])
        source, target = self._model["inputs"][0], self._model["outputs"][0]
        _, shape, address = binding.inputs[source["name"]]
        size = math.prod(shape) * TYPES[source["type"]]
        to = binding.outputs[target["name"]]
        if to is None:  # allocated by the library's own allocator
            binding.allocated = numpy.zeros(1)
            binding.found = shape
        else:
            assert to[1] == shape
            self._copy.enqueue(stream, to[2], address, size)
        if options is None or options.config.get("disable_synchronize_execution_providers") != "1":
            assert library.cuStreamSynchronize(stream) == 0

    def __del__(self):
        dropped.append(("session", held("pushed")))
        self._copy.free()


class IOBinding:
    def __init__(self, session):
        self._session = session
        self.inputs, self.outputs = {}, {}
        self.found = None

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        assert (device_type, device_id) == ("cuda", 0)
        self.inputs[name] = element_type, shape, buffer_ptr

    def bind_output(
        self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None
    ):
        if device_type == "cpu":
            return
        assert device_id == 0
        self.outputs[name] = None if buffer_ptr is None else (element_type, shape, buffer_ptr)

    def get_outputs(self):
        return [SimpleNamespace(shape=lambda: self.found) for _ in self._session.get_outputs()]
