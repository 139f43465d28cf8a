"""Metrics of the container's cgroup."""

from __future__ import annotations

from infercanary.contract.report import Metric

RESOURCES = ("cpu", "io", "memory")
"""Resources whose pressure (PSI) the kernel measures."""

PERIODS = Metric(
    "infercanary_cgroup_cpu_periods_total",
    "counter",
    "Enforcement periods of the CPU quotas of the container and its visible ancestors.",
    reading="The denominator for `infercanary_cgroup_cpu_throttled_periods_total`. Without a quota, this counter does "
    "not grow.",
)
THROTTLED = Metric(
    "infercanary_cgroup_cpu_throttled_periods_total",
    "counter",
    "Periods in which the CPU quota of the container or of a visible ancestor was used up.",
    reading="Above a few percent of the periods, latencies jump by up to 100 ms: use fewer threads, or a higher "
    "quota.",
)
THROTTLED_SECONDS = Metric(
    "infercanary_cgroup_cpu_throttled_seconds_total",
    "counter",
    "Time in which CPU quotas throttled threads, summed over CPUs; visible ancestors included.",
    reading="Throttled runs are tagged `cgroup_throttled`. If all runs since an upgrade have this tag, the image uses "
    "more threads.",
)
CPUSET = Metric(
    "infercanary_cgroup_cpuset_cpus",
    "gauge",
    "CPUs in the container's effective cpuset.",
    reading="A change while the container runs comes from an orchestrator or from `docker update`.",
)
CPUSET_INFO = Metric(
    "infercanary_cgroup_cpuset_info",
    "gauge",
    "1, with the CPUs of the container's effective cpuset as the kernel lists them, for example 0-3,8.",
    ("cpus",),
    reading="The exporter compares these CPUs between containers: see `infercanary_container_shared_cpus`.",
)
WORKING_SET = Metric(
    "infercanary_cgroup_memory_working_set_bytes",
    "gauge",
    "Memory of the container that is hard to reclaim: usage minus inactive page cache.",
    reading="Divide by `infercanary_cgroup_memory_limit_bytes`. Above about 0.9, allocations slow down; "
    "near 1, processes are killed.",
)
MEMORY_LIMIT = Metric(
    "infercanary_cgroup_memory_limit_bytes",
    "gauge",
    "Memory limit: the lowest of the container and its visible ancestors; missing without a limit.",
    reading="The denominator for `infercanary_cgroup_memory_working_set_bytes`.",
)
LIMIT_HITS = Metric(
    "infercanary_cgroup_memory_limit_hits_total",
    "counter",
    "Number of times that memory was reclaimed because a memory limit was about to be exceeded.",
    reading="An allocation waited each time. A steady increase means that the limit is too low. Affected runs are "
    "tagged `memory_limit`.",
)
OOM_KILLS = Metric(
    "infercanary_cgroup_oom_kills_total",
    "counter",
    "Processes of the container that the kernel killed for lack of memory.",
    reading="Any increase is an alert, even if the server looks healthy: a worker or a child was killed.",
)
MAJOR_FAULTS = Metric(
    "infercanary_cgroup_major_page_faults_total",
    "counter",
    "Page faults of the container that waited for a disk.",
    reading="Normal while loading. While serving, an increase means that memory is short: the model is read again.",
)
WAITING = Metric(
    "infercanary_cgroup_pressure_waiting_seconds_total",
    "counter",
    "Time in which at least one task of the container waited for the resource (PSI `some`).",
    ("resource",),
    reading="`rate(…[5m])` is a share of the time. A run with more than 5 % of `io` is tagged `io_pressure`.",
)
STALLED = Metric(
    "infercanary_cgroup_pressure_stalled_seconds_total",
    "counter",
    "Time in which all non-idle tasks of the container waited for the resource (PSI `full`).",
    ("resource",),
    reading="`rate(…[5m])` is the share of the time without progress. Above one percent, latency is "
    "affected.",
)
