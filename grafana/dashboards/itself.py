"""*InferCanary itself*: whether it is well, what it costs, how fresh its numbers are, what it refused, and how often it
was wrong."""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    SCRAPED,
    how_many,
    increase,
    rate,
    series,
)
from grafana.dashboards.tables import Column, rows, tiles
from grafana.dashboards.variables import CONTAINERS, INSTANCE

EXPORTERS = f'job="infercanary", {INSTANCE}'
"""For metrics that every process has: rules know the exporter by this name too."""
NO_PROBE = "No probe reports"
NO_EXPORTER = "No exporter is scraped"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "self",
        "InferCanary itself",
        "Is InferCanary healthy: its cost, how fresh its numbers are, what it refused, and how often it was wrong.",
        [
            variables.datasource(),
            variables.instance(),
            variables.namespace(INSTANCE),
            variables.service(INSTANCE),
            variables.pod(INSTANCE),
            variables.container(INSTANCE),
        ],
        [marks.upgrades(with_canary=False), marks.images()],
        [
            Row("Health", [_health(), _false_alarms(), _exporters()]),
            Row("Cost of the probes", [_duty(), _interval(), _probe_cpu(), _samplers()]),
            Row(
                "Freshness of the data",
                [_probes(), _age(), _poll(), _failures(), _lateness(), _missed(), _collected()],
            ),
            Row("Refused input", [_rejected(), _budgets(), _journal()]),
            Row("The exporter and its judge", [_lag(), _cpu(), _memory(), _scrape(), _store(), _stored()]),
        ],
    )


def _health() -> Panel:
    about = About(
        "Healthy",
        "Exporters that cannot be scraped, probes that do not answer, containers that are not polled because no more "
        "fit into an exporter's memory. Also hosts whose Docker does not answer, whose judge's store fails, or whose "
        "config was refused. Healthy is 0.",
        "The exporter's log and its status page say which and why.",
        "none",
        width=14,
        height=4,
    )
    up = series("infercanary_up", CONTAINERS)
    exporters = series("infercanary_build_info", INSTANCE)
    bad = {
        "Docker silent": "infercanary_discovery_up",
        "store fails": "infercanary_store_up",
        "config refused": "infercanary_config_last_reload_successful",
    }
    return tiles(
        about,
        Query(how_many(f"{SCRAPED} == 0", SCRAPED), "exporters down"),
        Query(how_many(f"{up} == 0", exporters), "probes down"),
        Query(f"sum({series('infercanary_refused_containers', INSTANCE)})", "not polled"),
        *(Query(how_many(f"{series(name, INSTANCE)} == 0", exporters), text) for text, name in bad.items()),
        bad_from=1,
    )


def _exporters() -> Panel:
    by = "instance"
    queries = [
        Query(f"max by ({by}, version, python) ({series('infercanary_build_info', INSTANCE)})"),
        Query(f"max by ({by}) ({series('infercanary_discovered_containers', INSTANCE)})"),
        Query(f"count by ({by}) ({series('infercanary_up', INSTANCE)} == 1)"),
        Query(f"max by ({by}) ({series('infercanary_store_bytes', INSTANCE)})"),
        Query(
            f"max by ({by}) ({series('infercanary_config_last_reload_success_timestamp_seconds', INSTANCE)}) * 1000"
        ),
    ]
    columns = [
        Column("instance", "Host"),
        Column("Value #B", "Found", "none", width=80),
        Column("Value #C", "Up", "none", width=80),
        Column("version", "Version", width=100),
        Column("Value #D", "Store", "bytes", width=100),
        Column("Value #E", "Config read", "dateTimeFromNow", width=140),
        Column("python", "Python", width=100),
    ]
    about = About(
        "Exporters",
        "There is one on each host. The table shows the containers that Docker listed with a probe, the probes that "
        "answer, the exporter's version, the size of the judge's store, and when the config was last read.",
        "If fewer are up than found, the status page has the reason for each. If versions differ, finish the "
        "rollout.",
        "none",
        width=24,
        height=7,
        empty=NO_EXPORTER,
    )
    return rows(about, columns, *queries, sort=("Host",), paged=True)


def _overall(each: str) -> list[Query]:
    """All probes, or all exporters: one line for each of hundreds could not be read. The tables say which it is."""
    return [
        Query(f"max({each})", "highest", colours.BLUE, ()),
        Query(f"quantile(0.5, {each})", "median", colours.GREY, ()),
    ]


def _probes() -> Panel:
    by = "instance, namespace, pod, container"
    gauges = {
        "Age": "infercanary_report_age_seconds",
        "Poll": "infercanary_poll_duration_seconds",
        "Late": "infercanary_lateness_seconds",
        "Interval": "infercanary_interval_seconds",
    }
    about = About(
        "Probes",
        "For each probe: the age of its last report, the time of a poll, the delay of its last round, and the time "
        "between its runs. Also the share of the time that runs take, and the cores that the probe itself takes.",
        "Sort by a column. A probe with an extreme value has too little CPU, hangs, or is too expensive.",
        "none",
        width=24,
        empty=NO_PROBE,
    )
    queries = [Query(f"max by ({by}) ({series(name, CONTAINERS)})") for name in gauges.values()]
    rates = {"Duty": "infercanary_busy_seconds_total", "CPU": "infercanary_probe_cpu_seconds_total"}
    queries += [Query(f"max by ({by}) ({rate(name, CONTAINERS)})") for name in rates.values()]
    columns = [
        Column("container", "Container", link=link("gpu-host", "instance", "container")),
        *(
            Column(f"Value #{letter}", name, "s", width=90)
            for letter, name in zip("ABCD", gauges, strict=True)
        ),
        *(
            Column(f"Value #{letter}", name, "percentunit", width=90, decimals=2)
            for letter, name in zip("EF", rates, strict=True)
        ),
        Column("instance", "Host"),
    ]
    return rows(about, columns, *queries, sort=("-Age",), paged=True)


def _duty() -> Panel:
    about = About(
        "Duty",
        "Share of the time that runs and their controls take now. The dotted line is the highest cap for them. A "
        "value not far below the cap is by design: repeats fill it. After a start, up to four times the cap is the "
        "burst, which is paid back within the hour.",
        "If it costs too much, lower duty_cap in the probe's settings.",
        "percentunit",
        empty=NO_PROBE,
    )
    cap = Query(f"max({series('infercanary_duty_cap_ratio', CONTAINERS)})", "cap", colours.GREY)
    return lines(about, *_overall(rate("infercanary_busy_seconds_total", CONTAINERS)), cap, minimum=0)


def _interval() -> Panel:
    about = About(
        "Time between runs",
        "As configured. It is shorter for some minutes after a start, and then longer until that is paid back. It is "
        "also longer if the duty cap requires it. A change is then noticed later.",
        "If it is too long, raise duty_cap, or give the canary a smaller input.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_interval_seconds", CONTAINERS)), minimum=0, steps=True)


def _probe_cpu() -> Panel:
    about = About(
        "CPU of the probes",
        "Cores that the probe itself takes (its loop, samplers and server), without the canaries' own work.",
        "If it is above a few percent, a sampler of your own may be slow: see the samplers.",
        "percentunit",
        empty=NO_PROBE,
    )
    return lines(
        about, *_overall(rate("infercanary_probe_cpu_seconds_total", CONTAINERS)), minimum=0, decimals=2
    )


def _samplers() -> Panel:
    about = About(
        "Samplers",
        "Time of each sampler's last sample, for the slowest container. A run waits for 0.1 s at most. Samplers that "
        "failed are missing from the metrics, and are counted here.",
        "Fails: the probe's log says why once. Slow: the driver or the kernel is slow, or the sampler does too much.",
        "s",
        empty=NO_PROBE,
    )
    took = series("infercanary_sampler_duration_seconds", CONTAINERS)
    failed = series("infercanary_sampler_success", CONTAINERS)
    return lines(
        about,
        Query(f"max by (sampler) ({took})", "{{sampler}}"),
        Query(f"count by (sampler) ({failed} == 0)", "{{sampler}} fails, containers"),
        minimum=0,
        wide=0.01,
    )


def _age() -> Panel:
    about = About(
        "Age of the last report",
        "Seconds since each probe's last valid report. A few seconds is normal while it is up.",
        "If it grows, the probe does not answer: see the polls that failed.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_report_age_seconds", CONTAINERS)), minimum=0)


def _poll() -> Panel:
    about = About(
        "Duration of a poll",
        "Time from connecting to the whole body. Healthy is milliseconds.",
        "Near the time-out, the host or the container has too little CPU: see the CPU quota on *GPU and host*.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_poll_duration_seconds", CONTAINERS)), minimum=0)


def _counted(about: About, counter: str, label: str) -> Panel:
    """How much a counter of containers grew in each step, by one of its labels; those that did not are left out."""
    grown = increase(counter, CONTAINERS)
    return lines(about, Query(f"sum by ({label}) ({grown}) > 0", f"{{{{{label}}}}}"), minimum=0)


def _failures() -> Panel:
    about = About(
        "Polls that failed, by reason",
        "In each step. Failures between two scrapes are included.",
        "unreachable: not started, or no common network. timeout: it has too little CPU or hangs. malformed, "
        "too_large: not a probe, or a limit. internal: a fault of the exporter.",
        "short",
        empty="No poll failed",
    )
    return _counted(about, "infercanary_poll_failures_total", "reason")


def _lateness() -> Panel:
    about = About(
        "Lateness of rounds",
        "Delay of the last round: its actual start minus its intended start. Healthy is milliseconds. Above 0.25 s "
        "the run is tagged late.",
        "The process has too little CPU, or something holds the interpreter's lock: see *GPU and host*.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_lateness_seconds", CONTAINERS)), minimum=0, wide=0.01)


def _missed() -> Panel:
    about = About(
        "Rounds that were missed",
        "In each second. The round before was still running, or it had used up the duty cap.",
        "If the number is steady, rounds take longer than the interval: make the interval longer, or the canary "
        "shorter.",
        "ops",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(rate("infercanary_missed_slots_total", CONTAINERS)), minimum=0)


def _collected() -> Panel:
    about = About(
        "Runs collected and lost",
        "Runs that the exporters took, for each second, and runs that left a probe's ring before the exporters "
        "collected them. Healthy is that none are lost: the ring holds hours of runs.",
        "Lost: the exporter was away for hours. Verdicts rest on fewer runs.",
        "ops",
        empty=NO_PROBE,
    )
    return lines(
        about,
        *(
            Query(f"sum({rate(f'infercanary_runs_{what}_total', CONTAINERS)})", what, hue)
            for what, hue in (("collected", colours.WELL), ("lost", colours.TROUBLE))
        ),
        minimum=0,
    )


def _rejected() -> Panel:
    about = About(
        "Input that was refused",
        "Parts of reports that were left out, by reason.",
        "too_many is one of the exporter's limits. The other reasons come from a probe of another version, from "
        "unusual names in a sampler or target of your own, or from a program that pretends to be a probe. The "
        "exporter's log names the container.",
        "short",
        empty="Nothing was refused",
        width=8,
    )
    return _counted(about, "infercanary_rejected_total", "reason")


def _budgets() -> Panel:
    about = About(
        "Budgets that were exceeded",
        "How often a probe exceeded a budget, by budget.",
        "`topk(5, increase(infercanary_budget_exceeded_total[1h]))` names the container. The cause is a crash loop, "
        "labels that never repeat, or an image that you do not trust. Only this container loses data.",
        "short",
        empty="No probe costs too much",
        width=8,
    )
    return _counted(about, "infercanary_budget_exceeded_total", "budget")


def _journal() -> Panel:
    about = About(
        "Journals that fail",
        "Runs that could not be written to a probe's journal. The exporter still collects these runs.",
        "The disk is full, is gone, or hangs.",
        "ops",
        empty="No probe keeps a journal",
        width=8,
    )
    return lines(about, *_overall(rate("infercanary_journal_errors_total", CONTAINERS)), minimum=0)


def _store() -> Panel:
    about = About(
        "The judge's store",
        "Its size. The data that is kept for each container has a limit. Runs older than a day are thinned out.",
        "If it fills the disk, move it, or give the judge fewer canaries.",
        "bytes",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("infercanary_store_bytes", INSTANCE)), minimum=0)


def _false_alarms() -> Panel:
    about = About(
        "False alarms in the judge's own trial",
        "The judge tests each restart of an unchanged image as if it were an upgrade. The panel shows the restarts "
        "that were tested, those that the judge would have called a change, and their share. Healthy is about 1 % or "
        "less.",
        "If it is more, starts differ by more than the judge assumes. See what the verdicts rest on, on *Service*.",
        "short",
        width=10,
        height=4,
    )
    # They are the service's, and published with each of its containers.
    alarms, tests = (
        f"sum(max by (instance, namespace, service, canary) ({series(f'infercanary_judge_aa_{what}', INSTANCE)}))"
        for what in ("alarms", "tests")
    )
    return tiles(
        about,
        Query(tests, "restarts tried"),
        Query(alarms, "called a change"),
        Query(f"{alarms} / ({tests} > 0)", "share"),
        units={"share": "percentunit"},
    )


def _stored() -> Panel:
    about = About(
        "Runs stored, dropped, and errors",
        "Runs that the stores took, for each second, runs that were dropped because a store failed for too long, and "
        "the failures of the stores. Healthy is none of the last two.",
        "The exporter's log says why: a full disk, permissions, another exporter on the same file.",
        "ops",
        empty=NO_EXPORTER,
    )
    kinds = {
        "stored": ("infercanary_stored_runs_total", colours.WELL),
        "dropped": ("infercanary_unjudged_runs_total", colours.TROUBLE),
        "errors": ("infercanary_store_errors_total", colours.DOUBT),
    }
    return lines(
        about,
        *(Query(f"sum({rate(name, INSTANCE)})", legend, hue) for legend, (name, hue) in kinds.items()),
        minimum=0,
    )


def _lag() -> Panel:
    about = About(
        "Event loop lag",
        "Longest delay of the exporter's event loop over the last 30 s. Healthy is below 0.1 s.",
        "Near the time-out of the polls, they fail because of the exporter itself: give it more CPU.",
        "s",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("infercanary_event_loop_lag_seconds", INSTANCE)), minimum=0)


def _cpu() -> Panel:
    about = About(
        "CPU of the exporter",
        "Cores that the exporter's process takes. The orange line is the part for storing and judging.",
        "It grows with the number of containers: give the exporter a core, or poll less often.",
        "percentunit",
        empty=NO_EXPORTER,
    )
    return lines(
        about,
        *_overall(rate("process_cpu_seconds_total", EXPORTERS)),
        Query(
            f"max({rate('infercanary_judge_seconds_total', INSTANCE)})", "judge, highest", colours.ORANGE, ()
        ),
        minimum=0,
        decimals=2,
    )


def _memory() -> Panel:
    about = About(
        "Memory of the exporter",
        "Resident memory of the exporter's process. It grows with the number of containers. It does not grow with "
        "time.",
        "If it grows with time, report it, with the number of containers and the version.",
        "bytes",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("process_resident_memory_bytes", EXPORTERS)), minimum=0)


def _scrape() -> Panel:
    about = About(
        "Scrapes",
        "Time that Prometheus takes to scrape each exporter. The exporter only joins bytes that it has rendered "
        "before.",
        "Near the time-out of the scrape, raise the time-out, or split the host's containers.",
        "s",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("scrape_duration_seconds", EXPORTERS)), minimum=0)
