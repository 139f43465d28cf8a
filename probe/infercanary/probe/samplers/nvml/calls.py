"""Calls to pynvml, and the meaning of their errors: not supported, not available, GPU gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeAlias

import pynvml

from infercanary.contract.report import Metric

Found: TypeAlias = "dict[Metric, dict[tuple[str, ...], float]]"
"""Values read from NVML: metric → label values → value."""


class Gpu(NamedTuple):
    """One GPU, or one MIG device of a GPU."""

    label: str
    """Index; for a MIG device ``<gpu>:<index>``, as in ``docker run --gpus device=0:1``."""
    handle: Any
    is_mig: bool = False
    is_split: bool = False
    """True for a GPU in MIG mode. Some values then exist only for its MIG devices, or not at all."""


GPU_GONE = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Error codes that make all other answers about the GPU unreliable."""

_NOT_OFFERED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        26,  # NVML_ERROR_DEPRECATED, which older releases of pynvml do not define
    }
)

# NVML_VALUE_NOT_AVAILABLE is -1, so an unsigned number with all bits set is a missing value.
_NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1})

_MEMBERS = {  # nvmlValueType_t → member of the union nvmlValue_t
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    5: "siVal",
    6: "usVal",
}


class Nvml:
    """All functions of pynvml, with the same names.

    A missing function, or the answer "value not available", counts as not supported.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(pynvml, name, None)

        def call(*arguments: Any) -> Any:
            if function is None:  # an older pynvml counts as an older driver
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            answer = function(*arguments)
            if type(answer) is int and answer in _NOT_AVAILABLE:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer

        setattr(self, name, call)
        return call

    def field_values(self, handle: Any, fields: Collection[int]) -> dict[int, float]:
        """Read fields in one call. Unsupported fields are left out.

        Each field has its own error code, because a field may fail in a successful call.

        Args:
            handle: The GPU's handle.
            fields: Field ids.

        Returns:
            Field id → value, in the unit that NVML documents.

        Raises:
            pynvml.NVMLError: The GPU is gone, or the whole call failed.
        """
        found = {}
        for each in self.nvmlDeviceGetFieldValues(handle, list(fields)):
            if each.nvmlReturn in GPU_GONE:
                raise pynvml.NVMLError(each.nvmlReturn)
            if each.nvmlReturn != pynvml.NVML_SUCCESS or each.valueType not in _MEMBERS:
                continue
            value = getattr(each.value, _MEMBERS[each.valueType])
            if value not in _NOT_AVAILABLE:
                found[each.fieldId] = value
        return found


Reading: TypeAlias = "Callable[[Nvml, Gpu], Found]"
"""Function that reads one or several metrics of a GPU."""


def value(metric: Metric, function: Callable[[Nvml, Any], float]) -> Reading:
    """Make a reading that calls one NVML function with the GPU's handle."""
    return lambda nvml, gpu: {metric: {(gpu.label,): function(nvml, gpu.handle)}}


def read(nvml: Nvml, gpu: Gpu, readings: Iterable[Reading]) -> Found:
    """Take several readings of a GPU. Unsupported readings are left out; points of the same metric are merged.

    Raises:
        pynvml.NVMLError: The GPU is gone, according to the error code, or every call failed.
    """
    found: Found = {}
    failure = None
    for reading in readings:
        try:
            for metric, points in reading(nvml, gpu).items():
                found.setdefault(metric, {}).update(points)
        except pynvml.NVMLError as error:
            if error.value in GPU_GONE:
                raise
            if error.value not in _NOT_OFFERED:
                failure = failure or error
    if failure and not found:
        raise failure
    return found


def text(value: str | bytes) -> str:
    """Return a string of pynvml as text. Some versions of pynvml return UTF-8 bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
