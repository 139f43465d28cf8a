"""What the thread that stores and judges shows of itself."""

from __future__ import annotations

from infercanary.contract.report import Family, Metric
from infercanary.judge.priors import Prior
from infercanary.store.base import Store

STORE_UP = Metric(
    "infercanary_store_up",
    "gauge",
    "1 if the judge's store took what was last given to it, else 0.",
    reading="0 is an alert: verdicts stand still. The exporter's log says why (a full disk, rights, another exporter "
    "on the same file). What came meanwhile is kept in memory, as far as it fits, and stored later.",
)
STORE_TOOK = Metric(
    "infercanary_store_success_timestamp_seconds",
    "gauge",
    "When the judge's store last took what was given to it, Unix time.",
    reading="While `infercanary_store_up` is 0, it fails since then. Missing before the first time.",
)
JUDGED_SERVICES = Metric(
    "infercanary_judged_services",
    "gauge",
    "Services that this exporter judges, of those that exporters with a shared store judge.",
    reading="`sum(infercanary_judged_services)` is how many services the fleet has: each is judged by one exporter. "
    "Missing where the store is a file: its one exporter judges all that is in it.",
)
STORE_ERRORS = Metric(
    "infercanary_store_errors_total",
    "counter",
    "Failures to read or write the judge's store.",
    reading="`increase(…[15m]) > 0` with `infercanary_store_up` at 1 again: it recovered by itself.",
)
STORE_BYTES = Metric(
    "infercanary_store_bytes",
    "gauge",
    "Size of the judge's store.",
    reading="Bounded by what is kept of each container; runs older than a day are thinned.",
)
STORE_SET_ASIDE = Metric(
    "infercanary_store_set_aside_timestamp_seconds",
    "gauge",
    "When the judge's store was last found corrupt, set aside under another name, and begun anew.",
    reading="Missing is healthy. It is an alert: baselines and earlier verdicts are lost. The file is beside the "
    "store, with `.corrupt-` and that time in its name; once it is removed, the exporter's next start knows of none.",
)
STORE_UNREADABLE = Metric(
    "infercanary_store_unreadable_rows_total",
    "counter",
    "Rows of the judge's store that could not be read, each time that they were to be.",
    reading="Healthy is 0. Verdicts do without them; the disk fails, or another program wrote to the file.",
)
STORE_REFUSED = Metric(
    "infercanary_store_refused_runs_total",
    "counter",
    "Runs that were not stored, because their container has more than 32 canaries.",
    reading="Healthy is 0. A canary beyond the first 32 has no verdicts: give the container fewer.",
)
STORED = Metric(
    "infercanary_stored_runs_total",
    "counter",
    "Runs that the judge's store took, each once, whatever was delivered twice.",
    reading="Its `rate` is that of `infercanary_runs_total` over all containers.",
)
DROPPED = Metric(
    "infercanary_unjudged_runs_total",
    "counter",
    "Runs that were dropped before they were stored, because the store failed for too long.",
    reading="Healthy is no increase. Verdicts rest on fewer runs, no more.",
)
SECONDS = Metric(
    "infercanary_judge_seconds_total",
    "counter",
    "CPU time of the judge's thread: storing and judging.",
    reading="`rate(…[5m])` is in cores: a small fraction of one.",
)
LEFT_OUT = Metric(
    "infercanary_judge_left_out_canaries",
    "gauge",
    "Canaries without a verdict, because what is known of their service takes more than its share of the memory.",
    reading="Healthy is 0. The log names the services: give the exporter more memory, or them fewer canaries.",
)
PRIOR = Metric(
    "infercanary_restart_prior_info",
    "gauge",
    "Always 1; the number of the prior that a new upgrade is judged by: how much starts of one image are thought to "
    "differ before a service's own restarts show it.",
    ("number", "source"),
    reading="`learned`: from the services of this store, and kept in it under that number, which is counted up from 1. "
    "`assumed`: number 0, the fallback, until eight services were restarted. An earlier upgrade keeps the prior of its "
    "time: `infercanary_verdict_prior`.",
)
PRIOR_SD = Metric(
    "infercanary_restart_prior_deviation_ratio",
    "gauge",
    "SD of that prior: by how much two starts of one image differ, typically.",
    reading="0.01 is 1 %. With one replica, no restart of its own and 3 degrees of freedom a change is called from "
    "about 15 times as much on.",
)
PRIOR_DF = Metric(
    "infercanary_restart_prior_freedom",
    "gauge",
    "Degrees of freedom of that prior: how many restarts of a service's own outweigh it.",
    reading="From 2 to 4: services differ, so its tail is heavy.",
)
PRIOR_SERVICES = Metric(
    "infercanary_restart_prior_services",
    "gauge",
    "Services that it was learned from; 0 for the one that is assumed.",
    reading="More make it surer. Each counts once, however often it was restarted.",
)
METRICS = (
    *(
        STORE_UP,
        STORE_TOOK,
        JUDGED_SERVICES,
        STORE_ERRORS,
        STORE_BYTES,
        STORE_SET_ASIDE,
        STORE_UNREADABLE,
        STORE_REFUSED,
    ),
    *(STORED, DROPPED, SECONDS, LEFT_OUT, PRIOR, PRIOR_SD, PRIOR_DF, PRIOR_SERVICES),
)


def of_store(store: Store | None) -> list[Family]:
    """What a store counts itself.

    Args:
        store: None before it was opened.

    Returns:
        Families without labels.
    """
    set_aside_at = store.set_aside_at if store else None
    return [
        STORE_SET_ASIDE.family({} if set_aside_at is None else set_aside_at),
        STORE_UNREADABLE.family(float(store.unreadable if store else 0)),
        STORE_REFUSED.family(float(store.refused if store else 0)),
    ]


def of_prior(prior: Prior) -> list[Family]:
    """The newest prior.

    Args:
        prior: That a new upgrade is judged by.

    Returns:
        Families of it.
    """
    return [
        PRIOR.family({(str(prior.number), "learned" if prior.number else "assumed"): 1.0}),
        PRIOR_SD.family(prior.sd),
        PRIOR_DF.family(prior.df),
        PRIOR_SERVICES.family(float(prior.services)),
    ]
