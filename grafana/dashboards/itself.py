"""*InferCanary itself*: is it well, what does it cost, and how often was it wrong."""

from __future__ import annotations

from collections.abc import Mapping

from grafana.dashboards import colours, variables
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import NONE, About, Panel, Query
from grafana.dashboards.promql import CONTAINER, SCRAPED, how_many, rate, replicas, series
from grafana.dashboards.tables import Column, rows, tiles
from grafana.dashboards.variables import INSTANCE, UP

_EXPORTERS = f'job="infercanary", {INSTANCE}'
"""For metrics that every process has."""
_PROBES = series(UP, INSTANCE)
_STATES = {
    "-1": ("exporter down", colours.TROUBLE),
    "0": ("down", colours.TROUBLE),
    "1": ("up", colours.WELL),
}


def board() -> Board:
    """The dashboard."""
    return Board(
        "self",
        "InferCanary itself",
        "Is InferCanary well: its exporters and probes, its errors, its cost, and its false alarms.",
        [variables.datasource(), variables.instance()],
        [],
        [
            Row("Problems", [_problems(), _exporters(), _probes()]),
            Row("Errors and runs", [_errors(), _runs()]),
            Row("Cost", [_probe_time(), _exporter_cpu(), _memory(), _lag()]),
            Row("Wrong verdicts", [_false_alarms()]),
        ],
        refresh="5m",
    )


def _own(name: str) -> str:
    return series(f"infercanary_{name}", INSTANCE)


def _kinds(expressions: Mapping[str, tuple[str, str]]) -> Query:
    """One query for several: name of the kind → an expression, and the label that is `$1` in the name."""
    each = (
        f'label_replace({x}, "kind", "{kind}", "{label}", "(.*)")' for kind, (x, label) in expressions.items()
    )
    return Query(" or ".join(each), "{{kind}}")


def _per_minute(name: str, by: str = "") -> str:
    return f"60 * sum by ({by}) ({rate(f'infercanary_{name}_total', INSTANCE)})"


def _highest(each: str, name: str = "highest", hue: str = colours.BLUE) -> Query:
    return Query(f"max({each})", name, hue, ())


def _middle(each: str) -> Query:
    return Query(f"quantile(0.5, {each})", "median", colours.GREY, ())


def _problems() -> Panel:
    down = {
        "exporters down": SCRAPED,
        "probes down": _PROBES,
        "Docker API not answering": _own("discovery_up"),
        "stores down": _own("store_up"),
        "configs refused": _own("config_last_reload_successful"),
    }
    sums = {"over the container limit": "refused_containers", "workers restarted": "worker_failures_total"}
    counts = {kind: how_many(f"{up} == 0", SCRAPED) for kind, up in down.items()}
    counts |= {kind: f"sum({_own(name)}) or 0 * count({SCRAPED})" for kind, name in sums.items()}
    return tiles(
        About(
            "Problems now",
            "Exporters that Prometheus does not reach, probes that do not answer; hosts whose Docker API or Kubernetes "
            "does not answer, whose store fails, or whose config was refused; containers for which an exporter has no "
            "room; workers of exporters that ended by a fault since the exporter's start.",
            "The tables below say which. The exporter's log and status page say why.",
            "none",
            width=24,
            height=4,
        ),
        _kinds({kind: (f"({count})", "job") for kind, count in counts.items()}),
        bad_from=1,
    )


def _exporters() -> Panel:
    by_host = "max by (instance) ({})".format
    return rows(
        About(
            "Exporters",
            "One on each host, those that are down too: the containers with a probe that it found, the probes that "
            "answer, the size of the judge's store, and its version.",
            "If fewer answer than were found, see the probes beside. If versions differ, finish the rollout.",
            "none",
            height=12,
        ),
        [
            Column("instance", "Host"),
            Column("Value #A", "Exporter", words=_STATES, width=90),
            Column("Value #B", "Containers found", "none", width=100),
            Column("Value #C", "Probes up", "none", width=80),
            Column("Value #D", "Store", "bytes", width=90),
            Column("version", "Version", width=90),
        ],
        Query(by_host(SCRAPED)),
        Query(by_host(_own("discovered_containers"))),
        Query(f"sum by (instance) ({_PROBES})"),
        Query(by_host(_own("store_bytes"))),
        Query(f"max by (instance, version) ({_own('build_info')})"),
        sort=("Exporter", "Host"),
    )


def _probes() -> Panel:
    unknown = f"last_over_time({_PROBES}[1h]) and on (instance) {SCRAPED} == 0"
    gauges = {"Last report": "report_age_seconds", "Late": "lateness_seconds", "Interval": "interval_seconds"}
    of_probe = f"max by ({CONTAINER}) ({{}})".format
    return rows(
        About(
            "Probes",
            "Those that are down are first, also where the exporter is down: age of the last report, delay of the last "
            "round (healthy is milliseconds), time between runs, rounds that were missed over the last five minutes, "
            "and samplers that fail.",
            "Down: the status page has the reason. Late or missed rounds: too little CPU, see *Host*. A long interval: "
            "raise duty_cap, or use a smaller input. A failing sampler: the probe's log.",
            "none",
            height=12,
        ),
        [
            Column("replica", "Probe", link=link("host", "instance", "namespace", "service", "container")),
            Column("Value #A", "State", words=_STATES, width=120),
            *(
                Column(f"Value #{letter}", heading, "s", width=90)
                for letter, heading in zip("BCD", gauges, strict=True)
            ),
            Column("Value #E", "Missed", "/min", width=80),
            Column("Value #F", "Samplers failing", "none", width=80),
            *(Column(name, name, hidden=True) for name in ("instance", "namespace", "service", "container")),
        ],
        Query(replicas(of_probe(f"{_PROBES} or 0 * ({unknown}) - 1"))),
        *(Query(of_probe(_own(name))) for name in gauges.values()),
        Query(of_probe(f"60 * rate({_own('missed_slots_total')}[5m])")),
        Query(f"count by ({CONTAINER}) ({_own('sampler_success')} == 0)"),
        sort=("State", "-Late"),
    )


def _errors() -> Panel:
    kinds = {
        "poll: $1": ("poll_failures", "reason"),
        "refused input: $1": ("rejected", "reason"),
        "budget exceeded: $1": ("budget_exceeded", "budget"),
        "connection refused: $1": ("connections_refused", "reason"),
        "store": ("store_errors", "job"),
        "journal": ("journal_errors", "job"),
    }
    return lines(
        About(
            "Errors by kind",
            "Polls without a valid report, parts of reports that were refused, budgets that a probe exceeded, "
            "connections that were closed, and failures to write the judge's store or a probe's journal.",
            "Poll unreachable: not started, or no common network; timeout: too little CPU. Refused input: a limit of "
            "the exporter, or a probe of another version. Store, journal: a full disk. Logs name the container.",
            "/min",
            empty=NONE,
        ),
        _kinds({kind: (f"{_per_minute(name, by)} > 0", by) for kind, (name, by) in kinds.items()}),
        minimum=0,
    )


def _runs() -> Panel:
    kinds = {
        "collected": ("runs_collected", colours.BLUE),
        "stored": ("stored_runs", colours.SKY),
        "lost": ("runs_lost", colours.VERMILLION),
        "left out": ("runs_left_out", colours.OLIVE),
        "dropped": ("unjudged_runs", colours.ORANGE),
    }
    return lines(
        About(
            "Runs collected, lost, left out, stored, dropped",
            "Runs that exporters took from probes and that the judge's stores accepted. Lost: they left a probe's ring "
            "before. Left out: their start was not seen, so their image is not known. Dropped: the store failed.",
            "Lost or left out: the exporter was away. Dropped: its log says why. Verdicts rest on fewer runs.",
            "runs/min",
        ),
        _kinds({kind: (_per_minute(name), "job") for kind, (name, _) in kinds.items()}),
        minimum=0,
        named={kind: hue for kind, (_, hue) in kinds.items()},
    )


def _probe_time() -> Panel:
    share = f"{rate('infercanary_busy_seconds_total', INSTANCE)} / {_own('duty_cap_ratio')}"
    return lines(
        About(
            "Probe time against its cap",
            "Time of runs and reference work as a share of duty_cap. Near 100 % is by design: repeats fill it. After a "
            "start it may be four times as much, which is paid back within the hour. Also the CPU of the probe itself.",
            "If it costs too much, lower duty_cap. CPU above a few percent: a sampler of your own is slow.",
            "percentunit",
        ),
        _highest(share),
        _middle(share),
        _highest(
            rate("infercanary_probe_cpu_seconds_total", INSTANCE), "probe's CPU, of a core", colours.ORANGE
        ),
        minimum=0,
    )


def _exporter_cpu() -> Panel:
    each = rate("process_cpu_seconds_total", _EXPORTERS)
    return lines(
        About(
            "Exporter's CPU",
            "Share of a core that the exporter's process takes, and the part for storing and judging.",
            "It grows with the number of containers: give the exporter a core, or poll less often.",
            "percentunit",
        ),
        _highest(each),
        _middle(each),
        _highest(rate("infercanary_judge_seconds_total", INSTANCE), "judge, highest", colours.ORANGE),
        minimum=0,
    )


def _memory() -> Panel:
    each = series("process_resident_memory_bytes", _EXPORTERS)
    return lines(
        About(
            "Exporter's memory",
            "Resident memory. It grows with the number of containers, not with time.",
            "If it grows with time, report it, with the number of containers and the version.",
            "bytes",
        ),
        _highest(each),
        _middle(each),
        minimum=0,
    )


def _lag() -> Panel:
    return lines(
        About(
            "Loop lag and scrape time",
            "The highest of all exporters: longest delay of the event loop over 30 s (healthy is below 0.1 s), and the "
            "time that Prometheus takes for a scrape.",
            "Lag near the time-out of polls: give the exporter more CPU. A slow scrape: raise its time-out.",
            "s",
        ),
        _highest(_own("event_loop_lag_seconds"), "loop lag"),
        _highest(series("scrape_duration_seconds", _EXPORTERS), "scrape", colours.ORANGE),
        minimum=0,
    )


def _false_alarms() -> Panel:
    # They are the service's, and published with each of its containers.
    tests, alarms = (
        f"sum(max by (instance, namespace, service, canary) ({_own(f'judge_aa_{what}')}))"
        for what in ("tests", "alarms")
    )
    return tiles(
        About(
            "A/A test: false alarms on restarts",
            "The judge tests each restart of an unchanged image as if it were an upgrade: restarts tested, those "
            "called a change, and their share. Healthy is about 1 % or less.",
            "If it is more, container starts differ by more than the judge assumes: see *Service*.",
            "none",
            height=4,
        ),
        Query(tests, "restarts tested"),
        Query(alarms, "called a change"),
        Query(f"{alarms} / ({tests} > 0)", "share"),
        units={"share": "percentunit"},
    )
