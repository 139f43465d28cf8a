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
    "Pods of this node that ask for it by `infercanary.io/enable`, also those that do not run yet.",
    reading="More than 0 while `infercanary_discovered_containers` is 0: none of them runs, or they have no container "
    "with a probe. Missing before the first list.",
)
EVENTS = Metric(
    "infercanary_kubernetes_events_total",
    "counter",
    "Events of the API server's watch, of all pods of the node.",
    ("type",),
    reading="None where the kubelet is asked. `bookmark` comes once a minute where nothing happens. `error` is mostly "
    "a resource version that is too old, and the pods are listed again.",
)
LISTS = Metric(
    "infercanary_kubernetes_lists_total",
    "counter",
    "Times that the pods of this node were listed as a whole.",
    reading="1 after the start. One more for each time that a watch could not go on where it ended: see "
    "`infercanary_kubernetes_watches_ended_total`. Where the kubelet is asked, each of its answers is one.",
)
ENDED = Metric(
    "infercanary_kubernetes_watches_ended_total",
    "counter",
    "Requests to the API server that ended, by reason; of those to a kubelet, the ones that failed.",
    ("reason",),
    reading="`in_time` is healthy, every few minutes. `expired`: a resource version too old, listed again; `silent`: "
    "nothing came for long, not even a bookmark; `closed`: cut off in between; `unreachable`: no API server; "
    "`refused`: an HTTP status, `no_credentials`: no token or CA, and `untrusted`: its certificate, of which the "
    "log has the fix; `error` and `malformed`: no answer of an API server or a kubelet.",
)
LEFT_OUT = Metric(
    "infercanary_kubernetes_left_out_total",
    "counter",
    "Pods and events that were not taken, by reason.",
    ("reason",),
    reading="Healthy is no increase. `too_large` and `too_many` are bounds of the exporter; `malformed` is a pod that "
    "it cannot read. Such a pod is not polled, or not as it is now.",
)
METRICS = (PODS, EVENTS, LISTS, ENDED, LEFT_OUT)
