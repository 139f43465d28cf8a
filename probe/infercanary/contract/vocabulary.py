"""Vocabulary: all names that probe and exporter share, with their meaning for the judge.

A new tag, control or component is one entry in this module. The probe asserts that each name in its reports has an
entry. Names are plain strings in JSON, because an exporter must read the reports of newer probes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeVar, get_args

ENABLE_LABEL = "infercanary.enable"
SERVICE_LABEL = "infercanary.service"
PORT_LABEL = "infercanary.port"
SOCKET_LABEL = "infercanary.socket"
WATCHES_LABEL = "infercanary.watches"
WATCHED_BY_LABEL = "infercanary.watched-by"

Outcome = Literal["ok", "raised", "timed_out", "not_finite", "busy"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Outcomes of a run; only ``ok`` is judged."""

CanaryState = Literal["opening", "warming", "steady", "failing", "out_of_memory", "busy"]
CANARY_STATES: tuple[CanaryState, ...] = get_args(CanaryState)

Bottleneck = Literal["compute", "memory", "io", "scheduling"]
"""Resource that a control's time depends on."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Word = TypeVar("_Word", bound=_Named)


def _table(words: Iterable[_Word]) -> Mapping[str, _Word]:
    listed = list(words)
    table = {word.name: word for word in listed}
    assert len(table) == len(listed), "a name occurs twice"
    return MappingProxyType(table)


@dataclass(frozen=True)
class PhaseKind:
    """A phase of a repeat, as built-in targets time it. Custom targets may use other phases."""

    name: str
    is_waiting: bool = False
    """True for a phase without own work: the host enqueues work, or another process uses the device."""
    of_server: bool = False
    """True for a phase of a request to a server, measured by the client."""
    is_transfer: bool = False
    """True if the phase moves bytes over a bus or through a socket."""


PHASES: Mapping[str, PhaseKind] = _table(
    (
        PhaseKind("h2d", is_transfer=True),
        PhaseKind("compute"),
        PhaseKind("d2h", is_transfer=True),
        PhaseKind("launch", is_waiting=True),
        PhaseKind("queue", is_waiting=True),
        PhaseKind("connect", of_server=True, is_transfer=True),
        PhaseKind("send", of_server=True, is_transfer=True),
        PhaseKind("wait", of_server=True),
        PhaseKind("receive", of_server=True, is_transfer=True),
        PhaseKind("first_token", of_server=True),
        PhaseKind("tokens", of_server=True),
    )
)


OF_SERVER: frozenset[str] = frozenset(phase.name for phase in PHASES.values() if phase.of_server)
"""Phases of a request. A canary with such a phase waits for a server, which does the work in its own threads."""


@dataclass(frozen=True)
class Tag:
    """A named condition of a run, such as CPU wait."""

    name: str
    meaning: str
    """Meaning of the tag, and the next action."""
    is_judged: bool = True
    """True if the judge counts runs with this tag. Runs with most tags count, because the image may cause the
    condition.
    """
    by_others: bool = False
    """True if other processes on the host cause the condition. ``ab`` may exclude runs with such a tag."""
    by_itself: bool = False
    """True if the container itself causes the condition, by its limits or its processes. Other containers are not
    affected.
    """


WARMING: Final = "warming"
FAILING: Final = "failing"
BESIDE_CANARY: Final = "beside_canary"
STALLED: Final = "stalled"
CPU_WAIT_OUTSIDE: Final = "cpu_wait_outside"
CPU_WAIT_INSIDE: Final = "cpu_wait_inside"
THROTTLED: Final = "cgroup_throttled"
MEMORY_LIMIT: Final = "memory_limit"
GPU_CLOCK_LIMITED: Final = "gpu_clock_limited"
GPU_BUSY: Final = "gpu_busy"


TAGS: Mapping[str, Tag] = _table(
    (
        Tag(
            WARMING,
            "latency not steady yet; repeat the run before comparing",
            is_judged=False,
        ),
        Tag(
            FAILING,
            "the run failed, ran out of memory, or found the device busy; fix the error above first",
            is_judged=False,
        ),
        Tag(
            BESIDE_CANARY,
            "another canary was loading, or a sweep or profile was running; repeat the run after that",
            is_judged=False,
        ),
        Tag(
            STALLED,
            "the run started over 0.25 s late, or the process was stopped; give the probe more CPU, or look "
            "for a paused container",
            by_others=True,
        ),
        Tag(
            CPU_WAIT_OUTSIDE,
            "the run waited for a CPU used outside its container; use fewer threads, or move the other "
            "container away",
            by_others=True,
        ),
        Tag(
            CPU_WAIT_INSIDE,
            "the run waited for a CPU used by another process or thread of its container; look for work beside "
            "the server",
            by_itself=True,
        ),
        Tag(
            THROTTLED,
            "the CPU quota throttled the run; raise the quota (--cpus), or use fewer threads",
            by_itself=True,
        ),
        Tag(
            "cpuset_changed",
            "the container's set of CPUs changed; compare only runs on the same CPUs",
            by_itself=True,
        ),
        Tag(
            MEMORY_LIMIT,
            "the container reached its memory limit, or the kernel killed a process; raise the limit "
            "(--memory)",
            by_itself=True,
        ),
        Tag(
            "io_pressure", "the container waited for a disk; look for swapping or for a model that is loading"
        ),
        Tag("gc", "Python collected garbage during the run; call gc.freeze() after loading the model"),
        Tag(
            GPU_CLOCK_LIMITED,
            "the driver limited the GPU's clock; see the reason: power, heat or a clock lock",
        ),
        Tag(
            GPU_BUSY,
            "another process used the GPU right before the run; repeat the run without that load",
            by_others=True,
        ),
        Tag("output_changed", "the output differs from the first steady run; look for random layers"),
    )
)
"""Tags in the order in which a run lists them."""

NOT_JUDGED: frozenset[str] = frozenset(tag.name for tag in TAGS.values() if not tag.is_judged)
"""Tags of runs that the judge leaves out."""

BY_ITSELF: frozenset[str] = frozenset(tag.name for tag in TAGS.values() if tag.by_itself)
"""Tags of runs slowed by their own container."""

BY_OTHERS: frozenset[str] = frozenset(tag.name for tag in TAGS.values() if tag.by_others)
"""Tags of runs contended by other processes on the host. A container's own limits and heat are not included."""

LOW_CLOCK: Final = "low_clock"
"""Reported reason for a low clock if the driver gives no reason, for example because the clock is locked."""

_OLD_TAGS: Mapping[str, tuple[str, str]] = {
    "busy": (FAILING, ""),
    "beside_opening": (BESIDE_CANARY, ""),
    "beside_sweep": (BESIDE_CANARY, ""),
    "late": (STALLED, ""),
    "preempted": (CPU_WAIT_OUTSIDE, ""),
    "crowded_inside": (CPU_WAIT_INSIDE, ""),
    "oom_kill": (MEMORY_LIMIT, ""),
    "gpu_power_cap": (GPU_CLOCK_LIMITED, "sw_power_cap"),
    "gpu_sync_boost": (GPU_CLOCK_LIMITED, "sync_boost"),
    "gpu_sw_thermal": (GPU_CLOCK_LIMITED, "sw_thermal"),
    "gpu_hw_thermal": (GPU_CLOCK_LIMITED, "hw_thermal"),
    "gpu_power_brake": (GPU_CLOCK_LIMITED, "hw_power_brake"),
    "gpu_clock_low": (GPU_CLOCK_LIMITED, LOW_CLOCK),
    "gpu_xid": ("", ""),
}
"""Current name (empty if the tag was removed) and clock reason, by tag of version 0.1.0."""


def current_tags(tags: tuple[str, ...], clock_reason: str = "") -> tuple[tuple[str, ...], str]:
    """Return tags and clock reason under their current names.

    Args:
        tags: Tags written by version 0.1.0 or later; unknown tags are kept.
        clock_reason: Clock reason as written.
    """
    if _OLD_TAGS.keys().isdisjoint(tags):
        return tags, clock_reason
    read = [_OLD_TAGS.get(tag, (tag, "")) for tag in tags]
    reasons = (reason for _, reason in read if reason)
    return tuple(dict.fromkeys(tag for tag, _ in read if tag)), clock_reason or next(reasons, "")


def labelled_tags(tags: tuple[str, ...], clock_reason: str) -> tuple[str, ...]:
    """Return tags for display, with the clock reason in parentheses: ``gpu_clock_limited (sw_thermal)``."""
    if not clock_reason:
        return tags
    return tuple(f"{tag} ({clock_reason})" if tag == GPU_CLOCK_LIMITED else tag for tag in tags)


Cause = Literal["image", "host", "both", "load", "unknown"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""Causes of a shift. ``both`` means image and host; ``load`` means more or fewer requests than before."""


@dataclass(frozen=True)
class ControlKind:
    """A control: a short piece of reference work that is the same in every image."""

    name: str
    bottleneck: Bottleneck
    in_step: bool
    """True if a canary slows down by the same ratio as the control. Then the control's shift counts as the host's part
    of the canary's shift. False for controls that do I/O, wake a thread, launch a kernel or copy to the GPU: such work
    takes an unknown share of a run, so these shifts are shown, but not attributed to the host.
    """


CONTROLS: Mapping[str, ControlKind] = _table(
    (
        ControlKind("cpu_spin", "compute", in_step=True),
        ControlKind("memory_copy", "memory", in_step=True),
        ControlKind("page_io", "io", in_step=False),
        ControlKind("thread_wake", "scheduling", in_step=False),
        ControlKind("gpu_fma", "compute", in_step=True),
        ControlKind("gpu_copy", "memory", in_step=True),
        ControlKind("gpu_transfer", "io", in_step=False),
        ControlKind("gpu_launch", "scheduling", in_step=False),
    )
)


@dataclass(frozen=True)
class Component:
    """A component of the environment with known properties. Other components, such as libraries, have only a name."""

    name: str
    title: str
    """Name of the component in sentences."""
    is_first: bool = True
    """True if lists begin with this component, in the order of this table. Other components follow, sorted by name."""
    names_device: bool = False
    """True if the value is the device of a canary, such as ``cuda:0``."""
    is_given: bool = False
    """True if the component comes from outside the image. A change of such a component does not mean another image,
    even if an image is identified only by its environment.
    """
    is_setting: bool = False
    """True if the canary's settings alone determine the value. With equal settings, a changed value comes from another
    canary.
    """


MODEL: Final = "model"
SETTINGS: Final = "settings"
GPU_SHARED_WITH: Final = "gpu_shared_with"
"""Component added by the exporter: the other containers on the container's GPUs, or ``NOBODY``."""
NOBODY: Final = "nobody"
CONTROLS_MADE_OF: Final = "controls_made_of"
"""Component with the versions of Python and libc, if the controls do not run as machine code; otherwise missing.
Controls of starts with different values are not compared.
"""


def of_canary(component: str, canary: str) -> str:
    """Return the name of a canary's own component, such as ``model:resnet18``.

    Args:
        component: ``MODEL`` or ``SETTINGS``.
    """
    return f"{component}:{canary}"


COMPONENTS: Mapping[str, Component] = _table(
    (
        Component(MODEL, "model", is_given=True),
        Component(SETTINGS, "canary's settings", is_given=True),
        Component("torch_device", "device", names_device=True),
        Component("torch_cuda_device", "GPU"),
        Component(GPU_SHARED_WITH, "GPU shared with", is_given=True),
        Component("torch", "torch"),
        Component("torch_cuda", "CUDA"),
        Component("torch_cudnn", "cuDNN"),
        Component("torch_driver_cuda", "driver's CUDA", is_first=False),
        Component("torch_mode", "mode", is_setting=True),
        Component("torch_compile_mode", "compile mode", is_setting=True),
        Component("torch_autocast", "autocast", is_setting=True),
        Component("onnx_device", "device", names_device=True),
        Component("onnx_provider", "provider"),
        Component("onnx_on_cpu", "operators left to the CPU"),
        Component("onnx_cuda_device", "GPU"),
        Component("onnxruntime", "ONNX Runtime"),
        Component("onnxruntime-gpu", "onnxruntime-gpu", is_first=False),
        Component("tensorrt_device", "tensorrt_device", is_first=False),
        Component("tensorrt_cuda_device", "GPU"),
        Component("tensorrt", "TensorRT"),
        Component("openai_prompt", "prompt", is_setting=True),
        Component("nvidia_driver", "NVIDIA driver"),
        Component("openvino", "openvino", is_first=False),
        Component("torch_intra_op_threads", "intra-op threads"),
        Component("torch_inter_op_threads", "inter-op threads"),
        Component("onnx_intra_op_threads", "intra-op threads"),
        Component("onnx_inter_op_threads", "inter-op threads", is_first=False),
        Component("cpu_quota", "CPU quota", is_given=True),
        Component("cpuset_cpus", "CPUs", is_given=True),
        Component("memory_limit", "memory limit", is_given=True),
        Component("numa_nodes", "NUMA nodes", is_given=True),
        Component("cpu_governor", "CPU clock policy", is_given=True),
        Component(CONTROLS_MADE_OF, "controls made of", is_first=False, is_given=True),
        Component("kserve_server", "inference server"),
        Component("kserve_instances", "server's instances", is_given=True),
        Component("kserve_max_batch_size", "server's largest batch", is_given=True),
        Component("kserve_batching", "server's batching", is_given=True),
        Component("python", "python"),
        Component("numpy", "numpy"),
        Component("cpu_model", "CPU", is_first=False),
        Component("onnx_execution_mode", "execution mode", is_first=False, is_setting=True),
        Component("onnx_graph_optimization", "graph optimization", is_first=False, is_setting=True),
        Component("onnx_session_config", "session's configuration", is_first=False, is_setting=True),
        Component("matmul_size", "size of the product", is_first=False, is_setting=True),
        Component("matmul_precision", "precision of the product", is_first=False, is_setting=True),
    )
)

DEVICE_COMPONENTS: tuple[str, ...] = tuple(c.name for c in COMPONENTS.values() if c.names_device)
COMPUTE_THREADS: tuple[str, ...] = ("torch_intra_op_threads", "onnx_intra_op_threads")
"""Components with the number of an engine's compute threads."""


def known_component(name: str) -> Component | None:
    """Return the properties of a component; None for a component that has only a name."""
    return COMPONENTS.get(name) or COMPONENTS.get(name.partition(":")[0])


def is_of_canary(name: str) -> bool:
    return name.partition(":")[0] in (MODEL, SETTINGS)


def is_given(name: str) -> bool:
    known = known_component(name)
    return known is not None and known.is_given


def is_setting(name: str) -> bool:
    known = known_component(name)
    return known is not None and known.is_setting


_RANKS = {name: i for i, name in enumerate(c.name for c in COMPONENTS.values() if c.is_first)}


def order_of_interest(component: str) -> tuple[int, str]:
    """Return a sort key that puts the most interesting components first.

    Args:
        component: Name of a component; all unknown components have the last rank.
    """
    known = known_component(component)
    return _RANKS.get(component if known is None else known.name, len(_RANKS)), component


COLD_START_METRIC: Final = "infercanary_cold_start_seconds"
"""Gauge of the probe's cold start, with the labels ``canary`` and ``step``."""
COLD_START: tuple[str, ...] = ("load", "first_run", "time_to_steady")
"""Compared steps of a canary's cold start."""
