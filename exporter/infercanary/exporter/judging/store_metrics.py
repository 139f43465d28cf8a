"""What the thread that stores and judges shows of itself."""

from __future__ import annotations

from infercanary.contract.report import Family, Metric
from infercanary.judge.priors import Prior
from infercanary.store.base import Store

STORE_UP = Metric(
    "infercanary_store_up",
    "gauge",
    "1 if the judge's store accepted the data that it was last given, else 0.",
    reading="0 is an alert: verdicts no longer change. The exporter's log says why (a full disk, permissions, "
    "another exporter on the same file, a fault of the exporter). The exporter keeps new data in memory, as far as it "
    "fits, and stores it later.",
)
STORE_TOOK = Metric(
    "infercanary_store_success_timestamp_seconds",
    "gauge",
    "When the judge's store last accepted the data that it was given, Unix time.",
    reading="While `infercanary_store_up` is 0, the store has failed since this time. Missing before the first "
    "success.",
)
JUDGED_SERVICES = Metric(
    "infercanary_judged_services",
    "gauge",
    "Services that this exporter judges. Exporters with a shared store divide the services among themselves.",
    reading="`sum(infercanary_judged_services)` is the number of services in the fleet, because one exporter judges "
    "each service. Missing if the store is a file: its one exporter judges everything in it.",
)
STORE_ERRORS = Metric(
    "infercanary_store_errors_total",
    "counter",
    "Failures to read or write the judge's store.",
    reading="If `increase(…[15m]) > 0` and `infercanary_store_up` is 1 again, the store recovered by itself.",
)
STORE_BYTES = Metric(
    "infercanary_store_bytes",
    "gauge",
    "Size of the judge's store.",
    reading="The size has a limit, because the store keeps a limited amount of data for each container. Runs older "
    "than a day are thinned out.",
)
STORE_SET_ASIDE = Metric(
    "infercanary_store_set_aside_timestamp_seconds",
    "gauge",
    "When the judge's store was last found corrupt. It was then renamed, and a new store was started.",
    reading="Healthy is that it is missing. If it is there, it is an alert: baselines and earlier verdicts are lost. "
    "The corrupt file is next to the store, with `.corrupt-` and that time in its name. If you remove this file, the "
    "metric is missing after the exporter's next start.",
)
STORE_UNREADABLE = Metric(
    "infercanary_store_unreadable_rows_total",
    "counter",
    "Rows of the judge's store that could not be read, counted at each attempt.",
    reading="Healthy is 0. Verdicts do not use these rows. The disk fails, or another program wrote to the file.",
)
STORE_REFUSED = Metric(
    "infercanary_store_refused_runs_total",
    "counter",
    "Runs that were not stored because their container has more than 32 canaries.",
    reading="Healthy is 0. A canary beyond the first 32 has no verdicts: give the container fewer canaries.",
)
STORED = Metric(
    "infercanary_stored_runs_total",
    "counter",
    "Runs that the judge's store accepted. A run that was delivered twice counts once.",
    reading="Its `rate` is the rate of `infercanary_runs_total` over all containers.",
)
DROPPED = Metric(
    "infercanary_unjudged_runs_total",
    "counter",
    "Runs that were dropped before they were stored, because the store failed for too long.",
    reading="Healthy is no increase. Verdicts then rest on fewer runs. Nothing else is lost.",
)
SECONDS = Metric(
    "infercanary_judge_seconds_total",
    "counter",
    "CPU time of the judge's thread: storing and judging.",
    reading="`rate(…[5m])` is in cores, and is a small fraction of one core.",
)
LEFT_OUT = Metric(
    "infercanary_judge_left_out_canaries",
    "gauge",
    "Canaries without a verdict, because the data of their service takes more than its share of the memory.",
    reading="Healthy is 0. The log names the services: give the exporter more memory, or give these services fewer "
    "canaries.",
)
PRIOR = Metric(
    "infercanary_restart_prior_info",
    "gauge",
    "Always 1; the number of the prior for new upgrades. The prior is the difference that is expected between starts "
    "of one image, before a service's own restarts show it.",
    ("number", "source"),
    reading="`learned`: it comes from the services of this store. The store keeps it under that number, which counts "
    "up from 1. `assumed`: number 0, the fallback, until eight services were restarted. An earlier upgrade keeps the "
    "prior of its time: `infercanary_verdict_prior`.",
)
PRIOR_SD = Metric(
    "infercanary_restart_prior_deviation_ratio",
    "gauge",
    "SD of the prior for new upgrades: by how much two starts of one image typically differ.",
    reading="0.01 is 1 %. With one replica, no restart of its own and 3 degrees of freedom, the judge calls a change "
    "from about 15 times this value on.",
)
PRIOR_DF = Metric(
    "infercanary_restart_prior_freedom",
    "gauge",
    "Degrees of freedom of the prior for new upgrades: how many of a service's own restarts outweigh the prior.",
    reading="It is from 2 to 4. Services differ, so the prior has a heavy tail.",
)
PRIOR_SERVICES = Metric(
    "infercanary_restart_prior_services",
    "gauge",
    "Services that the prior for new upgrades was learned from; 0 for the assumed prior.",
    reading="More services make it more reliable. Each service counts once, no matter how often it was restarted.",
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
