"""Metrics of the judge's store and thread."""

from __future__ import annotations

from infercanary.contract.report import Metric

STORE_UP = Metric(
    "infercanary_store_up",
    "gauge",
    "1 if the judge's store accepted the last data, else 0.",
    reading="0 is an alert: verdicts are not updated, and new runs wait in memory. The exporter's log has the reason.",
)
STORE_ERRORS = Metric(
    "infercanary_store_errors_total",
    "counter",
    "Failures to read or write the judge's store.",
    reading="After an increase, `infercanary_store_up` is 1 again if the store recovered by itself.",
)
STORE_BYTES = Metric(
    "infercanary_store_bytes",
    "gauge",
    "Size of the judge's store.",
    reading="The size is limited: older runs are merged.",
)
STORE_SET_ASIDE = Metric(
    "infercanary_store_set_aside_timestamp_seconds",
    "gauge",
    "Unix time at which the judge's store was last found corrupt and renamed; a new store was created then.",
    reading="An alert: baselines and earlier verdicts are lost. Remove the `.corrupt-` file beside the store, and "
    "restart.",
)
STORED = Metric(
    "infercanary_stored_runs_total",
    "counter",
    "Runs that the judge's store accepted. Each run counts once.",
    reading="Should grow as fast as the sum of `infercanary_runs_total` over all containers.",
)
DROPPED = Metric(
    "infercanary_unjudged_runs_total",
    "counter",
    "Runs that were dropped because the store failed for too long.",
    reading="Healthy is no increase. Dropped runs are missing in verdicts.",
)
LEFT_OUT = Metric(
    "infercanary_runs_left_out_total",
    "counter",
    "Runs of earlier starts that are not judged: no poll saw these starts, so their image is unknown.",
    reading="Increases if a container started more than once while the exporter was away.",
)
SECONDS = Metric(
    "infercanary_judge_seconds_total",
    "counter",
    "CPU time of the judge's thread.",
    reading="The rate is the number of cores in use; a small fraction of 1 is healthy.",
)
METRICS = (STORE_UP, STORE_ERRORS, STORE_BYTES, STORE_SET_ASIDE, STORED, DROPPED, LEFT_OUT, SECONDS)
