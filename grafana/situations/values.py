"""Value of each metric of a probe, for a healthy server and for a server in trouble."""

from __future__ import annotations

import math
import re
import zlib
from functools import cache

from grafana.situations.moments import INTERVAL, TROUBLE, Moment
from infercanary.contract.report import Metric

_TABLE = """
bottleneck_ratio.*,compute                 0.9
bottleneck_ratio.*,scheduling              0.1
bottleneck_ratio                           0
busy_seconds_total                         0.006
canary_failure_info                        -         failing 1
canary_state.*,failing                     0         failing 1
canary_state.*,steady                      1         failing 0
canary_state                               0
cgroup_cpu_periods_total                   10
cgroup_cpu_throttled_periods_total         0         throttled 4
cgroup_cpu_throttled_seconds_total         0         throttled 0.6
cgroup_memory_limit_bytes                  1e9
cgroup_memory_limit_hits_total             0         memory 0.1
cgroup_memory_working_set_bytes            ~6.4e8    memory ~9.9e8
cgroup_oom_kills_total                     0         memory 0.01
cgroup_pressure_stalled_seconds_total      0.0005
cgroup_pressure_waiting_seconds_total      0.002     shared 0.3
cold_start_seconds.*,load                  ~0.4
cold_start_seconds.*,first_run             ~0.3
cold_start_seconds.*,time_to_steady        ~6
cold_start_seconds.*,warm_up               ~2
context_switches_total                     1
control_seconds                            ~0.0004   host ~0.0005
cpu_seconds_total,process                  0.8
cpu_seconds_total,canary                   0.006
cpu_seconds_total,beside                   -
cuda_missing.*,cpu_only_build              -         gpu - hot 1
cuda_missing                               -         gpu - hot 0
duty_cap_ratio                             0.01
eligible_ratio                             0.97      throttled 0.3
first_token_seconds                        -         streams 0.2L
between_tokens_seconds                     -         streams 0.01L
gc_pause_seconds_total                     0.0004
gpu_clock_event_seconds_total.*,sw_thermal -         gpu 0 hot 0.3
gpu_ecc_errors_total.*,uncorrected         -         gpu 0 hot 0.001
gpu_energy_joules_total                    -         gpu 320
gpu_memory_clock_hertz                     -         gpu 2.619e9
gpu_memory_size_bytes                      -         gpu 8.55e10
gpu_memory_used_bytes                      -         gpu ~1.06e9
gpu_numa_node                              -         gpu 0
gpu_pcie_bytes_total                       -         gpu 2e9
gpu_pcie_link_ratio                        -         gpu 1
gpu_power_limit_watts                      -         gpu 700
gpu_recovery_action                        -         gpu 0
gpu_row_remap                              -         gpu 0
gpu_sm_clock_hertz                         -         gpu 1.98e9 hot 1.19e9
gpu_sm_clock_max_hertz                     -         gpu 1.98e9
gpu_temperature_celsius                    -         gpu ~42 hot ~88
gpu_utilization_ratio                      -         gpu ~0.79
gpu_xid_errors_total                       -         gpu 0 hot 0.003
gpu_xid_events_total                       -         gpu 0 hot 0.003
gpu_.*_total                               -         gpu 0
gpu_.*                                     -         gpu 1
inference_bytes                            2e8
inference_flops                            3.6e9
interval_seconds                           10
journal_errors_total                       0         journal 0.02
lateness_seconds                           ~0.002    late ~0.8
matmul_.*                                  -
migrations_total                           0.2
missed_slots_total                         0         late 0.05
nvml_state.*,no_driver                     1         gpu 0
nvml_state.*,ok                            0         gpu 1
nvml_state                                 0
off_node_threads                           -         gpu 0
output_error_ratio                         0         wrong 0.2
probe_cpu_seconds_total                    0.01
process_granted_cpus|allowed_cpus          4
process_pinned_threads                     0
resident_memory_bytes,process              ~5.6e8
resident_memory_bytes,(canary|beside)      -
run_energy_joules                          -         gpu ~12
run_failures_total.*,raised                0         failing 0.05
run_iqr_seconds                            0.01L
run_median_seconds                         1L
run_memory_peak_bytes                      ~6e8
run_queue_seconds_total                    0.002     shared 0.4
runs_total.*,ok                            0.1       failing -0.05
runs_total.*,raised                        0         failing 0.05
sampler_success.*network                   1         journal 0
server_seconds                             -
stalled_seconds_total                      0         late 0.05
tagged_runs_total.*,cgroup_throttled       0         throttled 0.06
tagged_runs_total.*,cpu_wait_outside       0.003     shared 0.06
tagged_runs_total.*,memory_limit           0         memory 0.06
tagged_runs_total.*,stalled                0         late 0.06
sweep_latency_seconds                      -         sweeps ~0.09
sweep_peak_memory_bytes                    -         sweeps ~1e8
sweep_samples_per_second                   -         sweeps ~24
sweep_.*                                   -         sweeps 1800
tcp_received_segments_total                20
thread_oversubscription_ratio              0.5       throttled 4
[^,]*_total                                0
[^,]*_ratio                                0.05
[^,]*_seconds                              0.002
.*                                         1
"""
"""Columns: metric and label values (regular expression for their beginning), usual value, and pairs of a word of
:class:`.Moment` and the value while the word holds; the last matching word counts. For a counter, the value is the
increase in a second. `-` is a missing value, `~` varies by 2 % over time, `L` multiplies the latency of the last
run.
"""
_LINES = [
    (re.compile(rf"(?:{columns[0]})(?:,|$)"), columns[1:])
    for columns in map(str.split, _TABLE.strip().split("\n"))
]


def value(now: Moment, metric: Metric, stem: str, labels: tuple[str, ...]) -> float | None:
    """Return the value of a metric in a probe's report, or None if it is missing.

    Args:
        now: State of the server.
        metric: Declaration of the metric.
        stem: Name of the metric without the prefix.
        labels: Label values.
    """
    words = now.words
    if stem in ("probe_start_timestamp_seconds", "sweep_timestamp_seconds"):
        return now.started if stem.startswith("probe_") or "sweeps" in words else None
    if stem == "run_samples_per_second":
        return 8 / now.latency(int(now.passed / INTERVAL))
    key = ",".join((stem, *labels))
    usual, *others = _line(key)
    special = [amount for word, amount in zip(others[::2], others[1::2], strict=True) if word in words]
    if metric.kind != "counter":
        return _amount(special[-1] if special else usual, now, key)
    if (special or [usual])[-1] == "-":
        return None
    rates = [float(each) if each != "-" else 0.0 for each in (usual, *special[-1:])]
    grown = rates[0] * now.passed + sum(rates[1:]) * max(0.0, now.passed - TROUBLE)
    return grown if re.search("seconds|joules|bytes", stem) else float(int(grown))


@cache
def _line(key: str) -> list[str]:
    return next(columns for pattern, columns in _LINES if pattern.match(key))


def _amount(amount: str, now: Moment, key: str) -> float | None:
    if amount == "-":
        return None
    if amount[0] == "~":
        return float(amount[1:]) * (1 + 0.02 * math.sin(now.passed / 300 + zlib.crc32(key.encode()) % 7))
    return (
        float(amount[:-1]) * now.latency(int(now.passed / INTERVAL)) if amount[-1] == "L" else float(amount)
    )
