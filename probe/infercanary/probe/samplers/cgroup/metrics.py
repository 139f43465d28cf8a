"""The metrics of the container's cgroup."""

from __future__ import annotations

from infercanary.contract.report import Metric

RESOURCES = ("cpu", "io", "memory")
"""Those that the kernel keeps pressure of."""

QUOTA = Metric(
    "infercanary_cgroup_cpu_quota_cores",
    "gauge",
    "CPU quota in cores: the lowest quota of the container and of its visible ancestors; missing if there is no "
    "limit.",
    reading="If it changes, the limits changed, not the image. If it is below the number of computing threads, "
    "expect throttling.",
)
WEIGHT = Metric(
    "infercanary_cgroup_cpu_weight_ratio",
    "gauge",
    "CPU weight divided by the default weight. The weight decides which share of busy CPUs the container gets next "
    "to its neighbours.",
    reading="1 is the default. It matters only while all CPUs are busy: then a neighbour with a higher weight gets "
    "more.",
)
PERIODS = Metric(
    "infercanary_cgroup_cpu_periods_total",
    "counter",
    "Enforcement periods of the CPU quotas of the container and of its visible ancestors, while there was something "
    "to run.",
    reading="The denominator for `infercanary_cgroup_cpu_throttled_periods_total`; it does not grow without a "
    "quota.",
)
THROTTLED = Metric(
    "infercanary_cgroup_cpu_throttled_periods_total",
    "counter",
    "Periods in which the CPU quota of the container or of a visible ancestor was used up.",
    reading="Its `rate` divided by the rate of `infercanary_cgroup_cpu_periods_total` is the share of periods that "
    "ran out of quota, over all its quotas. Above a few percent, latencies jump by up to a period (100 ms): use "
    "fewer threads, or more quota.",
)
THROTTLED_SECONDS = Metric(
    "infercanary_cgroup_cpu_throttled_seconds_total",
    "counter",
    "Time in which the CPU quotas of the container and of its visible ancestors held threads back.",
    reading="It is summed over CPUs, so it may grow faster than time. The quota of an ancestor (a pod) holds back "
    "everything in that ancestor. A run in which it grew is tagged `cgroup_throttled`. If every run since an upgrade "
    "is throttled, the image uses more threads.",
)
CPU = Metric(
    "infercanary_cgroup_cpu_seconds_total",
    "counter",
    "CPU time of all processes in the container. Missing if the process is in no cgroup of its own (it is in the "
    "root of the host's cgroups).",
    reading="`rate(…[5m])` is the number of cores in use. Subtract `infercanary_process_cpu_seconds_total` to get "
    "the CPU time of the other processes in the container. For the time while a canary runs, see "
    "`infercanary_canary_inside_cpu_seconds_total`.",
)
CPUSET = Metric(
    "infercanary_cgroup_cpuset_cpus",
    "gauge",
    "CPUs in the container's effective cpuset.",
    reading="If it changes while the container runs, someone changed it (an orchestrator, `docker update`). All "
    "later runs are tagged `cpuset_changed`.",
)
CPUSET_INFO = Metric(
    "infercanary_cgroup_cpuset_info",
    "gauge",
    "1, with the CPUs of the container's effective cpuset as the kernel lists them, for example 0-3,8.",
    ("cpus",),
    reading="The exporter compares it between containers: `infercanary_container_shared_cpus`. A list of more "
    "than 256 characters is left out.",
)
MEMORY = Metric(
    "infercanary_cgroup_memory_bytes",
    "gauge",
    "Memory that the container uses, page cache included.",
    reading="A value near the limit is normal, because page cache fills the free memory. Judge by "
    "`infercanary_cgroup_memory_working_set_bytes`.",
)
WORKING_SET = Metric(
    "infercanary_cgroup_memory_working_set_bytes",
    "gauge",
    "Memory that the container uses, minus page cache that was not used recently (inactive_file). This is the memory "
    "that is hard to reclaim.",
    reading="Divide it by `infercanary_cgroup_memory_limit_bytes`. From about 0.9 on, reclaim slows allocations. "
    "Near 1, the kernel kills processes.",
)
MEMORY_PEAK = Metric(
    "infercanary_cgroup_memory_peak_bytes",
    "gauge",
    "Most memory that the container ever used.",
    reading="It is the peak since the container started. A limit must leave room for it, including loading. Missing "
    "on kernels before 5.19 (with cgroup v2).",
)
MEMORY_LIMIT = Metric(
    "infercanary_cgroup_memory_limit_bytes",
    "gauge",
    "Memory limit: the lowest limit of the container and of its visible ancestors; missing if there is none.",
    reading="The denominator for `infercanary_cgroup_memory_working_set_bytes`. If it changes, the limits changed, "
    "not the image.",
)
LIMIT_HITS = Metric(
    "infercanary_cgroup_memory_limit_hits_total",
    "counter",
    "Times that memory was reclaimed because the memory limit of the container, or of a visible ancestor, was about "
    "to be exceeded.",
    reading="Each is a moment in which an allocation waited. Steady growth means that the limit is too low. Runs "
    "during that time are tagged `memory_limit`.",
)
OOM_KILLS = Metric(
    "infercanary_cgroup_oom_kills_total",
    "counter",
    "Processes of the container that the kernel killed because of memory.",
    reading="`increase(infercanary_cgroup_oom_kills_total[1h]) > 0` is an alert, even if the server looks healthy: a "
    "worker or a child was killed. Runs during that time are tagged `memory_limit`.",
)
MAJOR_FAULTS = Metric(
    "infercanary_cgroup_major_page_faults_total",
    "counter",
    "Page faults of the container that waited for a disk.",
    reading="They are normal while loading. If they happen while serving, pages of the model or of libraries were "
    "dropped and are read again: memory is short.",
)
SWAP = Metric(
    "infercanary_cgroup_swap_bytes",
    "gauge",
    "Swap that the container uses.",
    reading="0 is healthy. If memory is swapped out, the first requests after a pause are slow.",
)
WAITING = Metric(
    "infercanary_cgroup_pressure_waiting_seconds_total",
    "counter",
    "Time in which at least one task of the container waited for the resource (PSI `some`).",
    ("resource",),
    reading="`rate(…[5m])` is a share of the time, 0 to 1. `cpu`: too few CPUs. `memory`: near the limit. `io`: "
    "disk. A run with more than 5 % of `io` is tagged `io_pressure`.",
)
STALLED = Metric(
    "infercanary_cgroup_pressure_stalled_seconds_total",
    "counter",
    "Time in which all non-idle tasks of the container waited for the resource (PSI `full`).",
    ("resource",),
    reading="`rate(…[5m])` is the share of the time in which no task made progress. If it is more than one percent, "
    "latency is affected.",
)
PIDS = Metric(
    "infercanary_cgroup_pids",
    "gauge",
    "Processes and threads of the container.",
    reading="Near `infercanary_cgroup_pids_limit`, new threads fail (`can't start new thread`), including the "
    "probe's threads.",
)
PIDS_LIMIT = Metric(
    "infercanary_cgroup_pids_limit",
    "gauge",
    "Limit on processes and threads: the lowest limit of the container and of its visible ancestors; missing if "
    "there is none.",
    reading="The denominator for `infercanary_cgroup_pids`.",
)
