"""A stand-in for TensorRT's Python module: engines are JSON, and copy their first input to their first output.

Like the real module, it logs errors and returns None or False instead of raising them. It sends work through
the driver to the device, on the given stream.
"""

from __future__ import annotations

import json
import math
from ctypes import c_void_p
from enum import Enum

from device_work import Copy, check, held, library

__version__ = "10.3.0.26"
HEAD = 28

DataType = Enum("DataType", "FLOAT HALF BF16 INT8 INT32 INT64 BOOL UINT8 FP8")
TensorIOMode = Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = Enum("TensorLocation", "DEVICE HOST")
TensorFormat = Enum("TensorFormat", "LINEAR CHW4")
ITEM = {"FLOAT": 4, "HALF": 2, "BF16": 2, "INT8": 1, "INT32": 4, "INT64": 8, "BOOL": 1, "UINT8": 1}

dropped: list[tuple[str, int]] = []
"""Released objects, each with the number of current contexts at that time."""


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class IProfiler:
    def __init__(self):
        pass


def init_libnvinfer_plugins(logger, namespace):
    return True


class Runtime:
    def __init__(self, logger):
        self._logger = logger

    def deserialize_cuda_engine(self, plan):
        declared = json.loads(plan[HEAD:]) if plan[:4] == b"ftrt" else {"says": ["Magic tag does not match"]}
        for text in declared.get("says", ()):
            self._logger.log(ILogger.ERROR, text)
        return None if "says" in declared else Engine(self._logger, declared)

    def __del__(self):
        dropped.append(("runtime", held("pushed")))


class Engine:
    num_aux_streams = 0
    contexts = 0

    def __init__(self, logger, declared):
        self._logger, self._declared = logger, declared
        self.tensors = {tensor["name"]: tensor for tensor in declared["tensors"]}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = declared.get("profiles", 1)
        self.device_memory_size_v2 = declared.get("device_memory", 0)

    def create_execution_context(self):
        if self._declared.get("full") or self.contexts >= self._declared.get("contexts", 2):
            self._logger.log(ILogger.ERROR, "OutOfMemory: 99 bytes")
            return None
        return Context(self._logger, self)

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode[self.tensors[name].get("mode", "INPUT")]

    def get_tensor_dtype(self, name):
        return DataType[self.tensors[name].get("dtype", "FLOAT")]

    def get_tensor_format(self, name):
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def get_tensor_location(self, name):
        return TensorLocation[self.tensors[name].get("location", "DEVICE")]

    def get_tensor_shape(self, name):
        return tuple(self.tensors[name]["shape"])

    def get_tensor_profile_shape(self, name, profile):
        return [tuple(shape) for shape in self.tensors[name]["range"][profile]]

    def __del__(self):
        dropped.append(("engine", held("pushed")))


class Context:
    profiler = None

    def __init__(self, logger, engine):
        self._logger, self._engine = logger, engine
        engine.contexts += 1
        self._copy = Copy()
        self._profile = 0
        self._shapes, self._addresses = {}, {}

    def set_optimization_profile_async(self, profile, stream):
        self._profile = profile
        return True

    def set_input_shape(self, name, shape):
        self._shapes[name] = tuple(shape)
        ranges = self._engine.tensors[name].get("range")
        least, _, most = ranges[self._profile] if ranges else (shape, shape, shape)
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def infer_shapes(self):
        return [name for name in self._engine.tensors if self._inputs(name) and name not in self._shapes]

    def get_tensor_shape(self, name):
        shape = self._engine.get_tensor_shape(name)
        if self._engine.tensors[name].get("data_dependent"):
            return shape
        batch = next(iter(self._shapes.values()))[0]
        return tuple(batch if size < 0 else size for size in shape)

    def set_tensor_address(self, name, address):
        if name not in self._engine.tensors or address % 256:
            return False
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        names = list(self._engine.tensors)
        if missing := [name for name in names if name not in self._addresses]:
            self._logger.log(ILogger.ERROR, f"Address is not set for {missing[0]}")
            return False
        if self._engine._declared.get("breaks"):
            self._logger.log(ILogger.ERROR, "Cask convolution execution")
            return False
        source = next(name for name in names if self._inputs(name))
        target = next(name for name in names if not self._inputs(name))
        size = math.prod(self._shapes[source]) * ITEM[self._engine.get_tensor_dtype(source).name]
        self._copy.enqueue(stream, self._addresses[target], self._addresses[source], size)
        if self.profiler is not None:  # Like the real library, report the layers before this call returns.
            check(library.cuStreamSynchronize(c_void_p(stream)))
            for name, ms in self._engine._declared["layers"].items():
                self.profiler.report_layer_time(name, ms)
        return True

    def _inputs(self, name):
        return self._engine.get_tensor_mode(name) is TensorIOMode.INPUT

    def __del__(self):
        dropped.append(("context", held("pushed")))
        self._copy.free()
