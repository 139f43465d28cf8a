"""Dashboard *InferCanary itself*: its health, its cost, and its wrong verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from grafana.dashboards import colours, variables
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import plot
from grafana.dashboards.panels import NONE, About, Panel, Query
from grafana.dashboards.promql import replicas
from grafana.dashboards.tables import Column, rows, tiles
from grafana.dashboards.variables import INSTANCE

_PROBES = f"instance_service_container:infercanary_up:max{{{INSTANCE}}}"
_STATES = {
    "-1": ("exporter down", colours.TROUBLE),
    "0": ("down", colours.TROUBLE),
    "1": ("up", colours.WELL),
}


def board() -> Board:
    return Board(
        "self",
        "InferCanary itself",
        "Is InferCanary healthy: its exporters and probes, its errors, its cost, and its false alarms.",
        [variables.datasource(), variables.instance()],
        [],
        [
            Row("Problems", [_problems(), _exporters(), _probes()]),
            Row("Errors and runs", _events()),
            Row("Cost", _cost()),
            Row("Wrong verdicts", [_false_alarms()]),
        ],
        refresh="5m",
    )


def _kinds(expressions: Mapping[str, str]) -> str:
    """Join several queries into one query. The label `kind` of a series is the name of the original query.

    `$1` in a name is the value of the label `why`.
    """
    each = (f'label_replace({text}, "kind", "{name}", "why", "(.*)")' for name, text in expressions.items())
    return " or ".join(each)


def _problems() -> Panel:
    count = "(count({} == 0) or 0 * count(SCRAPED))".format
    problems = {
        "exporters down": count("SCRAPED"),
        "probes down": count(_PROBES),
        "over the container limit": "sum(infercanary_refused_containers{HOST})",
        "Docker API not answering": count("infercanary_discovery_up{HOST}"),
        "stores down": count("infercanary_store_up{HOST}"),
        "configs refused": count("infercanary_config_last_reload_successful{HOST}"),
        "workers restarted": "(sum(infercanary_worker_failures_total{HOST}) or 0 * count(SCRAPED))",
    }
    return tiles(
        About(
            "Problems now",
            "Number of exporters that Prometheus does not reach; of probes that do not answer; of hosts whose Docker "
            "API or Kubernetes does not answer, whose store fails, or whose config was refused; of containers above "
            "the limit of an exporter; and of workers that an exporter restarted after a fault.",
            "The tables below list them. The exporter's log and status page have the reason.",
            "none",
            width=24,
            height=4,
        ),
        Query(_kinds(problems), "{{kind}}"),
        bad_from=1,
    )


def _exporters() -> Panel:
    queries = [
        "SCRAPED",
        "infercanary_discovered_containers{HOST}",
        f"sum by (instance) ({_PROBES})",
        "infercanary_store_bytes{HOST}",
        "infercanary_build_info{HOST}",
    ]
    return rows(
        About(
            "Exporters",
            "All exporters, one for each host, including those that are down: containers with a probe, probes that "
            "answer, size of the judge's store, and version.",
            "If fewer probes answer than were found, see the table of probes. If versions differ, finish the rollout.",
            "none",
            width=10,
            height=14,
        ),
        [
            Column("instance", "Host"),
            Column("Value #A", "Exporter", words=_STATES, width=80),
            Column("Value #B", "Containers found", "none"),
            Column("Value #C", "Probes up", "none"),
            Column("Value #D", "Store", "bytes"),
            Column("version", "Version", width=75),
        ],
        *(Query(f"max by (instance, version) ({query})") for query in queries),
        sort=("Exporter", "Host"),
    )


def _probes() -> Panel:
    unknown = f"last_over_time({_PROBES}[1h]) and on (instance) SCRAPED == 0"
    probes = replicas(f"{_PROBES} or 0 * ({unknown}) - 1")
    queries = [
        "infercanary_report_age_seconds{HOST}",
        "infercanary_lateness_seconds{HOST}",
        "infercanary_interval_seconds{HOST}",
        "60 * rate(infercanary_missed_slots_total{HOST}[5m])",
        "count without (sampler) (infercanary_sampler_success{HOST} == 0)",
    ]
    return rows(
        About(
            "Probes",
            "All probes; probes that are down, or whose exporter is down, are first. Age of the last report, delay of "
            "the last round (healthy is milliseconds), time between runs, rounds missed over the last five minutes, "
            "and failing samplers.",
            "Down: the status page has the reason. Late or missed rounds: too little CPU, see *Host*. A long "
            "interval: "
            "raise duty_cap, or use a smaller input. A failing sampler: the probe's log.",
            "none",
            width=14,
            height=14,
        ),
        [
            Column(
                "replica",
                "Probe",
                link=link("host", "instance", "namespace", "service", "container"),
                least=150,
            ),
            Column("Value #A", "State", words=_STATES, width=120),
            Column("Value #B", "Last report", "s", width=90),
            Column("Value #C", "Late", "s", width=90),
            Column("Value #D", "Interval", "s", width=90),
            Column("Value #E", "Missed", "/min", width=80),
            Column("Value #F", "Samplers failing", "none", width=80),
            *(Column(name, name, hidden=True) for name in ("instance", "namespace", "service", "container")),
        ],
        Query(f"max by (CONTAINER, replica) ({probes})"),
        # The rate of a removed container lasts for some more minutes.
        *(Query(f"max by (CONTAINER) ({query} and on (CONTAINER) {_PROBES})") for query in queries),
        sort=("State", "-Late"),
    )


def _events() -> list[Panel]:
    growth = (
        '60 * sum by (why) (label_replace(rate(infercanary_{}_total{{HOST}}[$__rate_interval]), "why", "$1", "{}", '
        '"(.*)"))'
    ).format
    errors = {
        "poll: $1": growth("poll_failures", "reason"),
        "refused input: $1": growth("rejected", "reason"),
        "budget exceeded: $1": growth("budget_exceeded", "budget"),
        "connection refused: $1": growth("connections_refused", "reason"),
        "store": growth("store_errors", ""),
        "journal": growth("journal_errors", ""),
    }
    runs = {
        "collected": growth("runs_collected", ""),
        "stored": growth("stored_runs", ""),
        "lost": growth("runs_lost", ""),
        "left out": growth("runs_left_out", ""),
        "dropped": growth("unjudged_runs", ""),
    }
    hues = (colours.BLUE, colours.SKY, colours.VERMILLION, colours.OLIVE, colours.ORANGE)
    return [
        plot(
            "Errors by kind",
            "Polls without a valid report, parts of reports that were refused, budgets that a probe exceeded, "
            "connections that were closed, and failures to write the judge's store or a probe's journal.",
            "Poll unreachable: not started, or no common network; timeout: too little CPU. Refused input: a limit of "
            "the exporter, or a probe of another version. Store, journal: a full disk. Logs name the container.",
            "/min",
            (f"({_kinds(errors)}) > 0", "{{kind}}"),
            empty=NONE,
            minimum=0,
        ),
        plot(
            "Runs collected, lost, left out, stored, dropped",
            "Runs collected from probes, and runs stored by the judge. Lost: a probe dropped the runs before an "
            "exporter collected them. Left out: the exporter did not see their start, so their image is unknown. "
            "Dropped: the store failed.",
            "Lost or left out: the exporter was down. Dropped: the exporter's log has the reason. Verdicts "
            "then use fewer runs.",
            "runs/min",
            (f"({_kinds(runs)}) > 0", "{{kind}}"),
            minimum=0,
            named=dict(zip(runs, hues, strict=True)),
        ),
    ]


def _highest_and_median(each: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Return the highest line and the median line over all hosts, because nobody can read hundreds of lines."""
    return (f"max({each})", "highest", colours.BLUE), (f"quantile(0.5, {each})", "median", colours.GREY)


def _cost() -> list[Panel]:
    share = "rate(infercanary_busy_seconds_total{HOST}[$__rate_interval]) / infercanary_duty_cap_ratio{HOST}"
    cpu = 'rate(process_cpu_seconds_total{job="infercanary", HOST}[$__rate_interval])'
    memory = 'process_resident_memory_bytes{job="infercanary", HOST}'
    return [
        plot(
            "Probe time as a share of its cap",
            "Time of runs and reference work as a share of duty_cap, and the CPU of the probe itself. Near 100 % "
            "is normal, because repeats fill the cap. After a start, the share may be up to 400 % for 15 minutes, "
            "within the budget of the first hour.",
            "If the probe costs too much, lower duty_cap. CPU above a few percent: one of your own samplers is slow.",
            "percentunit",
            *_highest_and_median(share),
            (
                "max(rate(infercanary_probe_cpu_seconds_total{HOST}[$__rate_interval]))",
                "probe's CPU, of a core",
                colours.ORANGE,
            ),
            minimum=0,
        ),
        plot(
            "Exporter's CPU",
            "Share of a core that the exporter's process takes, and the part for storing and judging.",
            "CPU use grows with the number of containers: give the exporter a core, or poll less often.",
            "percentunit",
            *_highest_and_median(cpu),
            (
                "max(rate(infercanary_judge_seconds_total{HOST}[$__rate_interval]))",
                "judge, highest",
                colours.ORANGE,
            ),
            minimum=0,
        ),
        plot(
            "Exporter's memory",
            "Resident memory. Memory grows with the number of containers, not with time.",
            "If memory grows with time, report that, with the number of containers and the version.",
            "bytes",
            *_highest_and_median(memory),
            minimum=0,
        ),
        plot(
            "Loop lag and scrape time",
            "The highest of the exporters that are up: longest delay of the event loop over 30 s (healthy is below "
            "0.1 s), a poll of a probe, and the time that Prometheus takes for a scrape.",
            "Lag near the time-out of polls: give the exporter more CPU. A slow scrape: raise its time-out.",
            "s",
            ("max(infercanary_event_loop_lag_seconds{HOST})", "loop lag", colours.BLUE),
            ("max(infercanary_poll_duration_seconds{HOST})", "poll of a probe", colours.GREY),
            (
                'max(scrape_duration_seconds{job="infercanary", HOST} and on (instance) SCRAPED == 1)',
                "scrape",
                colours.ORANGE,
            ),
            minimum=0,
        ),
    ]


def _false_alarms() -> Panel:
    # The maximum over containers, because each container of a service has the service's numbers.
    count = "sum(max by (instance, BY) (infercanary_judge_aa_{}{{HOST}}))".format
    tests, alarms = count("tests"), count("alarms")
    return tiles(
        About(
            "A/A test: false alarms on restarts",
            "The judge tests each restart of an unchanged image as if it were an upgrade: restarts tested, those "
            "called a change, and their share. Healthy is about 1 % or less.",
            "If the share is higher, container starts differ by more than the judge assumes: see *Service*.",
            "none",
            height=4,
        ),
        Query(tests, "restarts tested"),
        Query(alarms, "called a change"),
        Query(f"{alarms} / ({tests} > 0)", "share"),
        units={"share": "percentunit"},
    )
