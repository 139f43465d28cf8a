"""The metrics of the container's cgroup."""

from __future__ import annotations

from infercanary.contract.report import Metric

RESOURCES = ("cpu", "io", "memory")
"""Those that the kernel keeps pressure of."""

QUOTA = Metric(
    "infercanary_cgroup_cpu_quota_cores",
    "gauge",
    "CPU quota in cores, the tightest of the container's and its visible ancestors'; missing where there is no limit.",
    reading="A change here is a change of limits, not of the image. Fewer than the threads that compute: "
    "expect throttling.",
)
WEIGHT = Metric(
    "infercanary_cgroup_cpu_weight_ratio",
    "gauge",
    "CPU weight over the default one: the share of busy CPUs that the container gets beside its neighbours.",
    reading="1 is the default. It matters only while the CPUs are all busy: then a neighbour of a higher "
    "weight gets more.",
)
PERIODS = Metric(
    "infercanary_cgroup_cpu_periods_total",
    "counter",
    "Enforcement periods of the container's CPU quota and of its visible ancestors', while there was something to run.",
    reading="The denominator for `infercanary_cgroup_cpu_throttled_periods_total`; it does not grow without a "
    "quota.",
)
THROTTLED = Metric(
    "infercanary_cgroup_cpu_throttled_periods_total",
    "counter",
    "Periods that used up the CPU quota, the container's or that of a visible ancestor.",
    reading="Its `rate` over that of `infercanary_cgroup_cpu_periods_total` is the share of periods that ran "
    "out of quota, of all its quotas together. Above a few percent latencies jump by up to a period (100 ms): "
    "fewer threads, or more quota.",
)
THROTTLED_SECONDS = Metric(
    "infercanary_cgroup_cpu_throttled_seconds_total",
    "counter",
    "Time that threads were held back by the container's CPU quota and by its visible ancestors'.",
    reading="Summed over CPUs, so that it may grow faster than time; an ancestor's (a pod's) holds back all "
    "that is in it. A run in which it grew is tagged `cgroup_throttled`; throttled in every run since an "
    "upgrade, the image uses more threads.",
)
CPU = Metric(
    "infercanary_cgroup_cpu_seconds_total",
    "counter",
    "CPU time of the container, that of all its processes. Missing where the process is in no cgroup of its own (the "
    "root of the host's).",
    reading="`rate(…[5m])` is the cores in use. Less `infercanary_process_cpu_seconds_total` it is what other "
    "processes of the container take; while a canary runs it is `infercanary_canary_inside_cpu_seconds_total`.",
)
CPUSET = Metric(
    "infercanary_cgroup_cpuset_cpus",
    "gauge",
    "CPUs in the container's effective cpuset.",
    reading="A change while the container runs is someone's (an orchestrator, `docker update`); all later runs "
    "are tagged `cpuset_changed`.",
)
CPUSET_INFO = Metric(
    "infercanary_cgroup_cpuset_info",
    "gauge",
    "1, with the CPUs of the container's effective cpuset as the kernel lists them, such as 0-3,8.",
    ("cpus",),
    reading="The exporter compares it between containers: `infercanary_container_shared_cpus`. A list of more "
    "than 256 characters is left out.",
)
MEMORY = Metric(
    "infercanary_cgroup_memory_bytes",
    "gauge",
    "Memory that the container uses, page cache included.",
    reading="Near the limit is normal, since page cache fills what is free: judge by "
    "`infercanary_cgroup_memory_working_set_bytes`.",
)
WORKING_SET = Metric(
    "infercanary_cgroup_memory_working_set_bytes",
    "gauge",
    "Memory that the container uses less page cache not used lately (inactive_file): what is hard to reclaim.",
    reading="Over `infercanary_cgroup_memory_limit_bytes`: from about 0.9 on reclaim slows allocations, and "
    "near 1 the kernel kills.",
)
MEMORY_PEAK = Metric(
    "infercanary_cgroup_memory_peak_bytes",
    "gauge",
    "Most memory that the container ever used.",
    reading="Since the container started: what a limit must leave room for, loading included. Missing on "
    "kernels before 5.19 (with cgroup v2).",
)
MEMORY_LIMIT = Metric(
    "infercanary_cgroup_memory_limit_bytes",
    "gauge",
    "Memory limit, the tightest of the container's and its visible ancestors'; missing where there is none.",
    reading="The denominator for `infercanary_cgroup_memory_working_set_bytes`. A change is a change of "
    "limits, not of the image.",
)
LIMIT_HITS = Metric(
    "infercanary_cgroup_memory_limit_hits_total",
    "counter",
    "Times that the container's memory limit, or that of a visible ancestor, was about to be exceeded, and memory was "
    "reclaimed.",
    reading="Each is a moment in which an allocation waited; steady growth is a limit that is too low. Runs "
    "meanwhile are tagged `memory_limit`.",
)
OOM_KILLS = Metric(
    "infercanary_cgroup_oom_kills_total",
    "counter",
    "Processes of the container killed for memory.",
    reading="`increase(infercanary_cgroup_oom_kills_total[1h]) > 0` is an alert, also where the server looks "
    "well: a worker or a child was killed. Runs meanwhile are tagged `oom_kill`.",
)
MAJOR_FAULTS = Metric(
    "infercanary_cgroup_major_page_faults_total",
    "counter",
    "Page faults of the container that waited for a disk.",
    reading="Normal while loading. While serving, pages of the model or of libraries were dropped and are read "
    "again: memory is short.",
)
SWAP = Metric(
    "infercanary_cgroup_swap_bytes",
    "gauge",
    "Swap that the container uses.",
    reading="0 is healthy. What is swapped out makes the first requests after a pause slow.",
)
WAITING = Metric(
    "infercanary_cgroup_pressure_waiting_seconds_total",
    "counter",
    "Time in which at least some task of the container waited for the resource (PSI `some`).",
    ("resource",),
    reading="`rate(…[5m])` is a share of the time, 0 to 1. `cpu`: too few CPUs; `memory`: near the limit; "
    "`io`: disk. A run with more than 5 % of `io` is tagged `io_pressure`.",
)
STALLED = Metric(
    "infercanary_cgroup_pressure_stalled_seconds_total",
    "counter",
    "Time in which all tasks of the container that were not idle waited for the resource (PSI `full`).",
    ("resource",),
    reading="`rate(…[5m])` is a share of the time in which nothing went on at all: more than a percent is felt "
    "in latency.",
)
PIDS = Metric(
    "infercanary_cgroup_pids",
    "gauge",
    "Processes and threads of the container.",
    reading="Near `infercanary_cgroup_pids_limit` new threads fail (`can't start new thread`), the probe's "
    "among them.",
)
PIDS_LIMIT = Metric(
    "infercanary_cgroup_pids_limit",
    "gauge",
    "Limit on processes and threads, the tightest of the container's and its visible ancestors'; missing without one.",
    reading="The denominator for `infercanary_cgroup_pids`.",
)
