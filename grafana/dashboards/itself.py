"""*InferCanary itself*: what it costs, how fresh its numbers are, what it refused, and how often it was wrong."""

from __future__ import annotations

from grafana.dashboards import marks, variables
from grafana.dashboards.board import Board, Row
from grafana.dashboards.panels import About, Column, Panel, Query, lines, rows, tiles
from grafana.dashboards.promql import SCRAPED, how_many, increase, rate, series
from grafana.dashboards.variables import INSTANCE

CONTAINERS = f"{INSTANCE}, {variables.CONTAINERS}"
EXPORTERS = f'job="infercanary", {INSTANCE}'
"""For metrics that every process has: rules know the exporter by this name too."""
NO_PROBE = "No probe reports"
NO_EXPORTER = "No exporter is scraped"
HOST = "{{instance}}"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "self",
        "InferCanary itself",
        "What InferCanary costs, how fresh its numbers are, what it refused, and how often it was wrong.",
        [
            variables.datasource(),
            variables.instance(),
            variables.service(INSTANCE),
            variables.container(INSTANCE),
        ],
        [marks.upgrades(f"{INSTANCE}, {variables.SERVICES}"), marks.images(CONTAINERS)],
        [
            Row("Is it well", [_health(), _exporters()]),
            Row("What probes cost", [_duty(), _interval(), _probe_cpu(), _samplers()]),
            Row("How fresh it is", [_age(), _poll(), _failures(), _lateness(), _missed(), _collected()]),
            Row("What was refused", [_rejected(), _journal()]),
            Row("The judge", [_store(), _judge_cpu(), _false_alarms(), _stored()]),
            Row("The exporter", [_lag(), _cpu(), _memory(), _scrape()]),
        ],
    )


def _health() -> Panel:
    about = About(
        "Healthy",
        "Probes that answer and those that do not, hosts whose Docker does not answer, whose judge's store fails, or "
        "whose config was refused; exporters that cannot be scraped.",
        "none",
        width=9,
        height=5,
        empty=NO_EXPORTER,
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
        Column("instance", "instance"),
        Column("version", "Version"),
        Column("python", "Python"),
        Column("Value #B", "Found"),
        Column("Value #C", "Up"),
        Column("Value #D", "Store", "bytes"),
        Column("Value #E", "Config read", "dateTimeFromNow"),
    ]
    about = About(
        "Exporters",
        "One on each host: its version, the containers that Docker listed with a probe, probes that answer, the size "
        "of the judge's store, and when its config was last read.",
        "short",
        width=15,
        height=5,
        empty=NO_EXPORTER,
    )
    return rows(about, columns, *queries)


def _duty() -> Panel:
    about = About(
        "Duty",
        "Share of the time that runs and their controls take now, and the cap that they are held under. Not far below "
        "it is by design: repeats fill it. Up to four times the cap after a start is the burst, which is paid back "
        "within the hour.",
        "percentunit",
        empty=NO_PROBE,
    )
    return lines(
        about,
        Query(rate("infercanary_busy_seconds_total", CONTAINERS), "{{container}}"),
        Query(
            f"max by (container) ({series('infercanary_duty_cap_ratio', CONTAINERS)})", "{{container}} cap"
        ),
        minimum=0,
    )


def _interval() -> Panel:
    about = About(
        "Time between runs",
        "As configured; shorter for some minutes after a start, then longer until that is paid back; or longer where "
        "the duty cap needs it: a change is then noticed later.",
        "s",
        empty=NO_PROBE,
    )
    query = series("infercanary_interval_seconds", CONTAINERS)
    return lines(about, Query(query, "{{container}}"), minimum=0, steps=True)


def _probe_cpu() -> Panel:
    about = About(
        "CPU of the probes",
        "Cores that the probe itself takes (its loop, samplers and server), without the canaries' own work.",
        "percentunit",
        empty=NO_PROBE,
    )
    return lines(
        about, Query(rate("infercanary_probe_cpu_seconds_total", CONTAINERS), "{{container}}"), minimum=0
    )


def _samplers() -> Panel:
    about = About(
        "Samplers",
        "Time that each sampler's last sample took, the slowest container. A run waits for 0.1 s at most. Those that "
        "failed are missing from the metrics, and counted here.",
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
    )


def _age() -> Panel:
    about = About(
        "Age of the last report",
        "Seconds since each probe's last valid report: a few, while it is up.",
        "s",
        empty=NO_PROBE,
    )
    return lines(
        about, Query(series("infercanary_report_age_seconds", CONTAINERS), "{{container}}"), minimum=0
    )


def _poll() -> Panel:
    about = About(
        "Time that a poll takes",
        "From connecting to the whole body: milliseconds. Near the time-out the host or the container is starved.",
        "s",
        empty=NO_PROBE,
    )
    return lines(
        about, Query(series("infercanary_poll_duration_seconds", CONTAINERS), "{{container}}"), minimum=0
    )


def _failures() -> Panel:
    about = About(
        "Polls that failed, by reason",
        "unreachable: not started, or no common network; timeout: starved or hung; malformed, too_large: not a probe, "
        "or a limit; internal: a fault of the exporter. Those between two scrapes are in it.",
        "short",
        empty="No poll failed",
    )
    failed = increase("infercanary_poll_failures_total", CONTAINERS)
    return lines(about, Query(f"sum by (reason) ({failed}) > 0", "{{reason}}"), minimum=0)


def _lateness() -> Panel:
    about = About(
        "Lateness of rounds",
        "How much later than intended the last round started: milliseconds. Above 0.25 s the run is tagged late.",
        "s",
        empty=NO_PROBE,
    )
    return lines(about, Query(series("infercanary_lateness_seconds", CONTAINERS), "{{container}}"), minimum=0)


def _missed() -> Panel:
    about = About(
        "Rounds that were missed",
        "The one before was still going, or had used up the duty cap. A steady number: rounds take longer than the "
        "interval.",
        "short",
        empty=NO_PROBE,
    )
    return lines(
        about, Query(increase("infercanary_missed_slots_total", CONTAINERS), "{{container}}"), minimum=0
    )


def _collected() -> Panel:
    about = About(
        "Runs collected and lost",
        "Runs that the exporter took, for each second, and those that left a probe's ring before it came. Healthy is "
        "none lost: the ring holds hours.",
        "ops",
        empty=NO_PROBE,
    )
    return lines(
        about,
        Query(
            f"sum by (instance) ({rate('infercanary_runs_collected_total', CONTAINERS)})", f"{HOST} collected"
        ),
        Query(f"sum by (instance) ({rate('infercanary_runs_lost_total', CONTAINERS)})", f"{HOST} lost"),
        minimum=0,
    )


def _rejected() -> Panel:
    about = About(
        "Input that was refused",
        "Parts of reports that were left out, by reason. too_many is one of the exporter's limits; the others are a "
        "probe of another version, odd names in a sampler or target of your own, or an impostor.",
        "short",
        empty="Nothing was refused",
    )
    refused = increase("infercanary_rejected_total", CONTAINERS)
    query = f"sum by (container, reason) ({refused}) > 0"
    return lines(about, Query(query, "{{container}} {{reason}}"), minimum=0)


def _journal() -> Panel:
    about = About(
        "Journals that fail",
        "Runs that could not be written to a probe's journal: the disk is full, gone, or hangs. They are collected "
        "all the same.",
        "short",
        empty="No probe keeps a journal",
    )
    query = increase("infercanary_journal_errors_total", CONTAINERS)
    return lines(about, Query(query, "{{container}}"), minimum=0)


def _store() -> Panel:
    about = About(
        "The judge's store",
        "Its size. Bounded by what is kept of each container; runs older than a day are thinned.",
        "bytes",
        empty=NO_EXPORTER,
    )
    return lines(about, Query(series("infercanary_store_bytes", INSTANCE), HOST), minimum=0)


def _judge_cpu() -> Panel:
    about = About(
        "CPU of the judge",
        "Cores that storing and judging take: a small fraction of one.",
        "percentunit",
        empty=NO_EXPORTER,
    )
    return lines(about, Query(rate("infercanary_judge_seconds_total", INSTANCE), HOST), minimum=0)


def _false_alarms() -> Panel:
    about = About(
        "False alarms, by its own trial",
        "Each restart of an unchanged image is tried as if it were an upgrade: those tried, those that the judge would "
        "have called a change, and the share of them. About 1 % or less is well.",
        "short",
        height=8,
        empty="Nothing is judged yet",
    )
    # They are the service's, and published with each of its containers.
    alarms, tests = (
        f"sum(max by (instance, service, canary) ({series(f'infercanary_judge_aa_{what}', INSTANCE)}))"
        for what in ("alarms", "tests")
    )
    return tiles(
        about,
        Query(tests, "restarts tried"),
        Query(alarms, "called a change"),
        Query(f"100 * {alarms} / ({tests} > 0)", "share, %"),
    )


def _stored() -> Panel:
    about = About(
        "Runs stored, dropped, and errors",
        "Runs that the store took, for each second, runs that were dropped because it failed for too long, and its "
        "failures. Healthy is none of the last two.",
        "ops",
        empty=NO_EXPORTER,
    )
    return lines(
        about,
        Query(rate("infercanary_stored_runs_total", INSTANCE), f"{HOST} stored"),
        Query(rate("infercanary_unjudged_runs_total", INSTANCE), f"{HOST} dropped"),
        Query(rate("infercanary_store_errors_total", INSTANCE), f"{HOST} errors"),
        minimum=0,
    )


def _lag() -> Panel:
    about = About(
        "Event loop lag",
        "Longest time over the last 30 s by which the exporter's event loop was late. Below 0.1 s; near the polls' "
        "time-out they fail through the exporter's own fault.",
        "s",
        empty=NO_EXPORTER,
    )
    return lines(about, Query(series("infercanary_event_loop_lag_seconds", INSTANCE), HOST), minimum=0)


def _cpu() -> Panel:
    about = About(
        "CPU of the exporter", "Cores that the exporter's process takes.", "percentunit", empty=NO_EXPORTER
    )
    return lines(about, Query(rate("process_cpu_seconds_total", EXPORTERS), HOST), minimum=0)


def _memory() -> Panel:
    about = About(
        "Memory of the exporter",
        "Resident memory of the exporter's process. It grows with the containers, not with time.",
        "bytes",
        empty=NO_EXPORTER,
    )
    return lines(about, Query(series("process_resident_memory_bytes", EXPORTERS), HOST), minimum=0)


def _scrape() -> Panel:
    about = About(
        "Scrapes",
        "Time that Prometheus takes to scrape each exporter: it joins bytes that are already rendered.",
        "s",
        empty=NO_EXPORTER,
    )
    return lines(about, Query(series("scrape_duration_seconds", EXPORTERS), HOST), minimum=0)
