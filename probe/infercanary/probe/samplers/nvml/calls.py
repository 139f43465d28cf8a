"""Calls of pynvml, timed; and how to read its answers: not offered, not available, gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from time import perf_counter
from typing import Any, TypeAlias

import pynvml

from infercanary.contract.report import Metric

Found: TypeAlias = "dict[Metric, dict[tuple[str, ...], float]]"
"""What was read: metric → label values → value."""

CALL_SECONDS = Metric(
    "infercanary_nvml_call_seconds",
    "gauge",
    "Time that this NVML call took in the last sample that made it, over all GPUs.",
    ("call",),
    reading="Healthy is below a few milliseconds. A call that takes much longer waits for a lock in the driver: "
    "another process asks too often, or the GPU will soon be lost.",
)
FIELD_SECONDS = Metric(
    "infercanary_nvml_field_seconds",
    "gauge",
    "Time to read the field values of the last sample, as the driver reports it, over all GPUs.",
    reading='Compare it with `infercanary_nvml_call_seconds{call="nvmlDeviceGetFieldValues"}`. If that is far more, '
    "most of the time was waiting for the driver.",
)

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
    """Every function of pynvml by its own name; the time of each is kept until the next sample that calls it."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._field_microseconds = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        function = getattr(pynvml, name, None)

        def timed(*arguments: Any) -> Any:
            if function is None:  # an older pynvml, which is treated as an older driver
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            begin = perf_counter()
            try:
                answer = function(*arguments)
            finally:
                self._spent[name] = self._spent.get(name, 0.0) + perf_counter() - begin
            if type(answer) is int and answer in _NOT_AVAILABLE:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer

        setattr(self, name, timed)
        return timed

    def field_values(self, handle: Any, fields: Collection[int]) -> dict[int, float]:
        """Read fields in one call; those that the GPU does not offer are missing.

        The call may succeed and a field in it fail: each has its own code, and its own time.

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
            self._field_microseconds += max(0, each.latencyUsec)
            value = getattr(each.value, _MEMBERS[each.valueType])
            if value not in _NOT_AVAILABLE:
                found[each.fieldId] = value
        return found

    def begin(self) -> None:
        """Begin a sample."""
        self._spent = {}
        self._field_microseconds = 0

    def cost(self) -> Found:
        """What the calls of this sample took so far, and what those took last that it did not make.

        Returns:
            ``CALL_SECONDS`` by function, and ``FIELD_SECONDS``, which only grows.
        """
        self._seconds |= self._spent
        return {
            CALL_SECONDS: {(call,): seconds for call, seconds in self._seconds.items()},
            FIELD_SECONDS: {(): self._field_microseconds / 1e6},
        }


def read(readings: Iterable[Callable[[], Found]]) -> Found:
    """Take several readings of a GPU together; those that it does not offer are left out.

    Args:
        readings: Each takes one or a few metrics of the GPU.

    Returns:
        All that was read; of a metric in two readings, the later one.

    Raises:
        pynvml.NVMLError: The GPU is gone: an answer says so, or every answer is an error.
    """
    found: Found = {}
    refusals = []
    for reading in readings:
        try:
            found |= reading()
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
