"""What the discovery of pods shows of its own work."""

from __future__ import annotations

from typing import Literal

from infercanary.contract.report import Metric

Reason = Literal[
    "in_time",
    "expired",
    "silent",
    "closed",
    "unreachable",
    "refused",
    "no_credentials",
    "untrusted",
    "error",
    "malformed",
    "internal",
]
"""Why a request to the API server, or to the kubelet, ended."""

PODS = Metric(
    "infercanary_kubernetes_pods",
    "gauge",
    "Pods of this node that ask to be monitored with `infercanary.io/enable`, including those that do not run yet.",
    reading="If it is more than 0 while `infercanary_discovered_containers` is 0, none of these pods runs, or they "
    "have no container with a probe. Missing before the first list.",
)
EVENTS = Metric(
    "infercanary_kubernetes_events_total",
    "counter",
    "Events of the API server's watch, for all pods of the node.",
    ("type",),
    reading="There are none if the kubelet is asked. `bookmark` comes once a minute if nothing happens. `error` is "
    "mostly a resource version that is too old; the pods are then listed again.",
)
LISTS = Metric(
    "infercanary_kubernetes_lists_total",
    "counter",
    "Times that the exporter listed all pods of this node.",
    reading="It is 1 after the start. It grows by one each time that a watch could not continue where it ended: see "
    "`infercanary_kubernetes_watches_ended_total`. If the kubelet is asked, each of its answers counts.",
)
ENDED = Metric(
    "infercanary_kubernetes_watches_ended_total",
    "counter",
    "Requests to the API server that ended, by reason. For a kubelet, only requests that failed.",
    ("reason",),
    reading="`in_time` is healthy, every few minutes. `expired`: the resource version is too old, and the pods are "
    "listed again. `silent`: nothing came for a long time, not even a bookmark. `closed`: the connection was cut in "
    "between. `unreachable`: no API server. `refused`: an HTTP status. `no_credentials`: no token or CA. "
    "`untrusted`: its certificate. For these three, the log has the fix. `error` and `malformed`: no answer of an "
    "API server or a kubelet.",
)
LEFT_OUT = Metric(
    "infercanary_kubernetes_left_out_total",
    "counter",
    "Pods and events that the exporter did not accept, by reason.",
    ("reason",),
    reading="Healthy is no increase. `too_large` and `too_many` are limits of the exporter. `malformed` is a pod "
    "that it cannot read. Such a pod is not polled, or the exporter uses an earlier state of it.",
)
METRICS = (PODS, EVENTS, LISTS, ENDED, LEFT_OUT)
