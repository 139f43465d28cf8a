"""Metrics with three kinds of scopes: the probe's process, a canary's thread, and other processes of the container.

The label ``scope`` names the owner of the value; a label that does not apply is empty. A canary's thread is part of
the process, so a maximum over scopes has a meaning, but a sum does not.
"""

from __future__ import annotations

from infercanary.contract.report import Metric

PROCESS = "process"
CANARY = "canary"
BESIDE = "beside"
SCOPES = (PROCESS, CANARY, BESIDE)

OF_PROCESS = (PROCESS, "")
"""Values of the labels ``scope`` and ``canary`` for the process."""

_LABELS = ("scope", "canary")
CPU = Metric(
    "infercanary_cpu_seconds_total",
    "counter",
    "CPU time of the probe's process, of a canary's thread during repeats, and of the container's other commands.",
    (*_LABELS, "command"),
    reading="`rate(…[5m])` is in cores. If `beside` or `process` rose after an upgrade, the image does more work "
    "besides the canary.",
)
SWITCHES = Metric(
    "infercanary_context_switches_total",
    "counter",
    "Context switches: voluntary (the thread waited) and involuntary (the thread lost its CPU). For a canary: "
    "during repeats.",
    (*_LABELS, "kind"),
    reading="If `involuntary` rises, other threads want the CPU. If `voluntary` rises, threads wait more often for "
    "locks, helper threads or the device.",
)
MIGRATIONS = Metric(
    "infercanary_migrations_total",
    "counter",
    "Moves of threads from one CPU to another; missing if not counted by the kernel. For a canary: during repeats.",
    _LABELS,
    reading="A few per run are normal without pinning. A rise means more runnable threads than CPUs, and cold caches.",
)
RUN_QUEUE = Metric(
    "infercanary_run_queue_seconds_total",
    "counter",
    "CPU wait: time in which threads were runnable without a CPU, throttling included. For a canary: during repeats.",
    _LABELS,
    reading="Near 0 is healthy. Otherwise see `infercanary_thread_oversubscription_ratio` and "
    "`infercanary_container_shared_cpus`.",
)
ALLOWED = Metric(
    "infercanary_allowed_cpus",
    "gauge",
    "CPUs that affinity masks allow to the process, and to the thread of each canary's last run.",
    _LABELS,
    reading="A canary with fewer CPUs than `process` is pinned. A process with fewer CPUs than its cpuset is "
    "pinned by the image (`taskset`, `OMP_PROC_BIND`).",
)
OFF_NODE = Metric(
    "infercanary_off_node_threads",
    "gauge",
    "Threads that last ran off the GPU's NUMA node; for a canary 0 or 1. Missing if the node is unknown.",
    _LABELS,
    reading="If `launch`, `h2d` or `d2h` grow with this number, give the container the CPUs of the GPU's node "
    "(`--cpuset-cpus`).",
)
RESIDENT = Metric(
    "infercanary_resident_memory_bytes",
    "gauge",
    "Resident memory of the probe's process and, by command, of the container's other processes.",
    ("scope", "command"),
    reading="Endless growth is a leak. A new level after an upgrade is due to the image. Look first at the largest "
    "`command`.",
)
