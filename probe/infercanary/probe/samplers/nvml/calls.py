"""Calls of pynvml, and how to read its answers: not offered, not available, gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias

import pynvml

from infercanary.contract.report import Metric

Found: TypeAlias = "dict[Metric, dict[tuple[str, ...], float]]"
"""What was read: metric → label values → value."""


LIBRARY_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Codes that stand for all GPUs: NVML has to be initialised again."""

GPU_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}) | LIBRARY_GONE
"""Codes after which no other answer about that GPU can be trusted."""

_NOT_OFFERED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        26,  # NVML_ERROR_DEPRECATED, which older releases of pynvml do not name
    }
)

# NVML_VALUE_NOT_AVAILABLE is -1; a counter or a size that is all ones is that, and not a measurement.
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
    """Every function of pynvml by its own name; one that this pynvml lacks, or that has no answer, is not supported."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        function = getattr(pynvml, name, None)

        def call(*arguments: Any) -> Any:
            if function is None:  # an older pynvml, which is treated as an older driver
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            answer = function(*arguments)
            if type(answer) is int and answer in _NOT_AVAILABLE:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer

        setattr(self, name, call)
        return call

    def field_values(self, handle: Any, fields: Collection[int]) -> dict[int, float]:
        """Read fields in one call; those that the GPU does not offer are missing.

        The call may succeed and a field in it fail: each has its own code.

        Args:
            handle: Of the GPU, from NVML.
            fields: Field ids.

        Returns:
            Field id → value, in the unit that NVML documents for it.

        Raises:
            pynvml.NVMLError: The GPU is gone, or the call failed as a whole.
        """
        found: dict[int, float] = {}
        for each in self.nvmlDeviceGetFieldValues(handle, list(fields)):
            if each.nvmlReturn in GPU_GONE:
                raise pynvml.NVMLError(each.nvmlReturn)
            if each.nvmlReturn != pynvml.NVML_SUCCESS or each.valueType not in _MEMBERS:
                continue
            value = getattr(each.value, _MEMBERS[each.valueType])
            if value not in _NOT_AVAILABLE:
                found[each.fieldId] = value
        return found


def read(readings: Iterable[Callable[[], Found]]) -> Found:
    """Take several readings of a GPU together; those that it does not offer are left out.

    Args:
        readings: Each takes one or a few metrics of the GPU.

    Returns:
        All that was read; a metric in two readings has the points of both.

    Raises:
        pynvml.NVMLError: The GPU is gone: an answer says so, or every answer is an error.
    """
    found: Found = {}
    refusals = []
    for reading in readings:
        try:
            for metric, points in reading().items():
                found.setdefault(metric, {}).update(points)
        except pynvml.NVMLError as error:
            if error.value in GPU_GONE:
                raise
            refusals.append(error)
    failures = [refusal for refusal in refusals if refusal.value not in _NOT_OFFERED]
    if failures and not found:
        raise failures[0]
    return found


def text(value: str | bytes) -> str:
    """A string of pynvml, which decodes some and leaves others as bytes.

    Args:
        value: UTF-8, if it is bytes.
    """
    return value.decode(errors="replace") if isinstance(value, bytes) else value
