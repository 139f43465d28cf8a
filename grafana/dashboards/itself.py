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
        "Is InferCanary well: what it costs, how fresh its numbers are, what it refused, and how often it was wrong.",
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
            Row("Is it well", [_health(), _false_alarms(), _exporters()]),
            Row("What probes cost", [_duty(), _interval(), _probe_cpu(), _samplers()]),
            Row(
                "How fresh it is",
                [_probes(), _age(), _poll(), _failures(), _lateness(), _missed(), _collected()],
            ),
            Row("What was refused", [_rejected(), _budgets(), _journal()]),
            Row("The exporter and its judge", [_lag(), _cpu(), _memory(), _scrape(), _store(), _stored()]),
        ],
    )


def _health() -> Panel:
    about = About(
        "Healthy",
        "Exporters that cannot be scraped, probes that do not answer, containers that are not polled since no more fit "
        "into an exporter's memory, hosts whose Docker does not answer, whose judge's store fails, or whose config was "
        "refused. Healthy is 0.",
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
        "One on each host: the containers that Docker listed with a probe, probes that answer, its version, the size "
        "of the judge's store, and when its config was last read.",
        "Fewer up than found: the status page has the reason for each. Versions that differ: finish the rollout.",
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
        "Each probe: the age of its last report, how long a poll takes, how late its last round started, and the time "
        "between its runs; the share of the time that runs take, and the cores that the probe itself takes.",
        "Sort by a column: a probe that stands out in one is starved, hung, or too expensive.",
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
        "Share of the time that runs and their controls take now, and in strokes the highest cap that they are held "
        "under. Not far below it is by design: repeats fill it. Up to four times the cap after a start is the burst, "
        "which is paid back within the hour.",
        "It costs too much: lower duty_cap in the probe's settings.",
        "percentunit",
        empty=NO_PROBE,
    )
    cap = Query(f"max({series('infercanary_duty_cap_ratio', CONTAINERS)})", "cap", colours.GREY)
    return lines(about, *_overall(rate("infercanary_busy_seconds_total", CONTAINERS)), cap, minimum=0)


def _interval() -> Panel:
    about = About(
        "Time between runs",
        "As configured; shorter for some minutes after a start, then longer until that is paid back; or longer where "
        "the duty cap needs it: a change is then noticed later.",
        "Too long: raise duty_cap, or give the canary a smaller input.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_interval_seconds", CONTAINERS)), minimum=0, steps=True)


def _probe_cpu() -> Panel:
    about = About(
        "CPU of the probes",
        "Cores that the probe itself takes (its loop, samplers and server), without the canaries' own work.",
        "Above a few percent: a sampler of your own is slow, see the samplers.",
        "percentunit",
        empty=NO_PROBE,
    )
    return lines(
        about, *_overall(rate("infercanary_probe_cpu_seconds_total", CONTAINERS)), minimum=0, decimals=2
    )


def _samplers() -> Panel:
    about = About(
        "Samplers",
        "Time that each sampler's last sample took, the slowest container. A run waits for 0.1 s at most. Those that "
        "failed are missing from the metrics, and counted here.",
        "Fails: the probe's log says why once. Slow: the driver or the kernel is, or the sampler does too much.",
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
        "Seconds since each probe's last valid report: a few, while it is up.",
        "It grows: the probe does not answer, see the polls that failed.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_report_age_seconds", CONTAINERS)), minimum=0)


def _poll() -> Panel:
    about = About(
        "Time that a poll takes",
        "From connecting to the whole body: milliseconds.",
        "Near the time-out the host or the container is starved: see the CPU quota on *GPU and host*.",
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
        "In each step; those between two scrapes are in it.",
        "unreachable: not started, or no common network. timeout: starved or hung. malformed, too_large: not a probe, "
        "or a limit. internal: a fault of the exporter.",
        "short",
        empty="No poll failed",
    )
    return _counted(about, "infercanary_poll_failures_total", "reason")


def _lateness() -> Panel:
    about = About(
        "Lateness of rounds",
        "How much later than intended the last round started: milliseconds. Above 0.25 s the run is tagged late.",
        "The process has too little CPU, or something holds the interpreter's lock: see *GPU and host*.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(series("infercanary_lateness_seconds", CONTAINERS)), minimum=0, wide=0.01)


def _missed() -> Panel:
    about = About(
        "Rounds that were missed",
        "In each second: the one before was still going, or had used up the duty cap.",
        "A steady number: rounds take longer than the interval. Lengthen it, or shorten the canary.",
        "ops",
        empty=NO_PROBE,
    )
    return lines(about, *_overall(rate("infercanary_missed_slots_total", CONTAINERS)), minimum=0)


def _collected() -> Panel:
    about = About(
        "Runs collected and lost",
        "Runs that the exporters took, for each second, and those that left a probe's ring before they came. Healthy "
        "is none lost: the ring holds hours.",
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
        "too_many is one of the exporter's limits. Others are a probe of another version, odd names in a sampler or "
        "target of your own, or an impostor: the exporter's log names the container.",
        "short",
        empty="Nothing was refused",
        width=8,
    )
    return _counted(about, "infercanary_rejected_total", "reason")


def _budgets() -> Panel:
    about = About(
        "Budgets that were exceeded",
        "How often a probe wanted more than one may cost, by what it had too much of.",
        "`topk(5, increase(infercanary_budget_exceeded_total[1h]))` names the container: a crash loop, labels that "
        "never repeat, or an image that you do not trust. It alone loses data.",
        "short",
        empty="No probe costs too much",
        width=8,
    )
    return _counted(about, "infercanary_budget_exceeded_total", "budget")


def _journal() -> Panel:
    about = About(
        "Journals that fail",
        "Runs that could not be written to a probe's journal. They are collected all the same.",
        "The disk is full, gone, or hangs.",
        "ops",
        empty="No probe keeps a journal",
        width=8,
    )
    return lines(about, *_overall(rate("infercanary_journal_errors_total", CONTAINERS)), minimum=0)


def _store() -> Panel:
    about = About(
        "The judge's store",
        "Its size. Bounded by what is kept of each container; runs older than a day are thinned.",
        "It fills the disk: move it, or give the judge fewer canaries.",
        "bytes",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("infercanary_store_bytes", INSTANCE)), minimum=0)


def _false_alarms() -> Panel:
    about = About(
        "False alarms, by its own trial",
        "Each restart of an unchanged image is tried as if it were an upgrade: those tried, those that the judge would "
        "have called a change, and the share of them. About 1 % or less is well.",
        "More: starts differ by more than is assumed. See what they rest on, on *Service*.",
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
        "Runs that the stores took, for each second, runs that were dropped because one failed for too long, and its "
        "failures. Healthy is none of the last two.",
        "The exporter's log says why: a full disk, rights, another exporter on the same file.",
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
        "Longest time over the last 30 s by which the exporter's event loop was late. Below 0.1 s is well.",
        "Near the polls' time-out they fail through the exporter's own fault: give it more CPU.",
        "s",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("infercanary_event_loop_lag_seconds", INSTANCE)), minimum=0)


def _cpu() -> Panel:
    about = About(
        "CPU of the exporter",
        "Cores that the exporter's process takes, and in strokes storing and judging in it.",
        "It grows with the containers: give it a core, or poll less often.",
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
        "Resident memory of the exporter's process. It grows with the containers, not with time.",
        "It grows with time: report it, with the number of containers and the version.",
        "bytes",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("process_resident_memory_bytes", EXPORTERS)), minimum=0)


def _scrape() -> Panel:
    about = About(
        "Scrapes",
        "Time that Prometheus takes to scrape each exporter: it joins bytes that are already rendered.",
        "Near the scrape's time-out: raise it, or split the host's containers.",
        "s",
        empty=NO_EXPORTER,
    )
    return lines(about, *_overall(series("scrape_duration_seconds", EXPORTERS)), minimum=0)
