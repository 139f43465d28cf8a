"""*Fleet*: which service changed. Verdicts first, then what is in trouble, then all latencies."""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables, verdicts
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.panels import About, Column, Panel, Query, lines, rows, tiles
from grafana.dashboards.promql import SCRAPED, how_many, increase, series
from grafana.dashboards.variables import INSTANCE, SERVICES
from grafana.dashboards.verdicts import CANARY

UP = f"infercanary_up{{{INSTANCE}, {SERVICES}}}"
SERVICE = "service, canary"  # over its hosts
EACH = "{{service}} {{canary}}"
_FAILING = 'state=~"failing|out_of_memory"'
_OTHER = "scalar(infercanary:threshold:output_error_ratio)"
_NVML = 'state!~"ok|no_driver"'


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "fleet",
        "Fleet",
        "Which service changed with its last image, by how much, and why.",
        [variables.datasource(), variables.instance(), variables.service(), variables.canary()],
        [marks.upgrades(CANARY), marks.images(SERVICES)],
        [
            Row(
                "Which service changed",
                [verdicts.count(), _troubles(), verdicts.table(), verdicts.over_time()],
            ),
            Row("Latency of all services", [_latency(), _shift(), _relative(), _drift()]),
            Row("Trouble", [_containers(), _alerts(), _failures(), _starts()]),
        ],
    )


def _troubles() -> Panel:
    about = About(
        "In trouble now",
        "Probes that do not answer (what they say is missing meanwhile), canaries that fail, GPU models that run on "
        "the CPU since an upgrade, upgrades that changed the answers; and exporters that cannot be scraped, of whose "
        "hosts nothing is known.",
        "none",
        width=10,
        height=4,
        empty="No exporter is scraped",
    )
    each = "instance, service, container, canary"
    failing = f"max by ({each}) ({series('infercanary_canary_state', CANARY, _FAILING)}) == 1"
    fallback = f"{verdicts.of('infercanary_cpu_fallback')} == 1"
    other = f"{verdicts.of('infercanary_upgrade_output_error_ratio')} > {_OTHER}"
    return tiles(
        about,
        Query(how_many(f"{SCRAPED} == 0", SCRAPED), "exporters down"),
        Query(how_many(f"{UP} == 0", UP), "probes down"),
        Query(how_many(failing, UP), "canaries failing"),
        Query(how_many(fallback, UP), "CPU fallback"),
        Query(how_many(other, UP), "other answers"),
        bad_from=1,
    )


def _latency() -> Panel:
    about = About(
        "Latency of each service",
        "Median over a service's containers of the last run's median: exact, where a histogram would interpolate.",
        "s",
        empty="No canary has run in this time range",
    )
    query = f"quantile by ({SERVICE}) (0.5, {series('infercanary_run_median_seconds', CANARY)})"
    return lines(about, Query(query, EACH))


def _shift() -> Panel:
    about = About(
        "Shift of each service's last upgrade",
        "New latency over old, minus 1, at the judge's last look; of several hosts the worst. What is within "
        f"±{verdicts.EFFECT} is not a change.",
        "percentunit",
        empty=verdicts.NO_VERDICT,
    )
    return lines(about, Query(verdicts.of("infercanary_shift_ratio", SERVICE), EACH), steps=True)


def _relative() -> Panel:
    about = About(
        "Latency of each service, over its own mean",
        "1 is the mean of the time range shown. Services that move together at one moment share a host, and the host "
        "is then the suspect; one that moves alone has an image of its own to ask.",
        "percentunit",
        empty="No canary has run in this time range",
    )
    median = series("infercanary_run_median_seconds", CANARY)
    mean = f"quantile by ({SERVICE}) (0.5, avg_over_time({median}[$__range] @ end()))"
    query = f"quantile by ({SERVICE}) (0.5, {median}) / {mean}"
    return lines(about, Query(query, EACH))


def _drift() -> Panel:
    about = About(
        "Drift without an upgrade",
        "Latency now over that of the image's first day in the container, minus 1, where it has left it; else 0. The "
        "worst container of each service.",
        "percentunit",
        empty="Nothing is judged yet",
    )
    return lines(about, Query(verdicts.of("infercanary_drift_ratio", SERVICE), EACH), steps=True)


def _containers() -> Panel:
    about = About(
        "Containers in trouble",
        "A row for each trouble of each container, while it lasts.",
        "none",
        empty="No container is in trouble",
    )
    clean = series("infercanary_eligible_ratio", CANARY)
    kinds = {
        "probe does not answer": f"{series('infercanary_up', SERVICES)} == 0",
        "canary fails": f"{series('infercanary_canary_state', CANARY, _FAILING)} == 1",
        "other output than at first": f"{series('infercanary_output_error_ratio', CANARY)} > {_OTHER}",
        "no CUDA": f"{series('infercanary_cuda_missing', CANARY)} == 1",
        "NVML in trouble": f"{series('infercanary_nvml_state', SERVICES, _NVML)} == 1",
        # None is clean right after a start.
        "few clean runs": f"max_over_time({clean}[5m]) < 0.5 and {clean}",
    }
    query = " or ".join(
        f'label_replace({selector}, "trouble", "{kind}", "", "")' for kind, selector in kinds.items()
    )
    columns = [
        Column("service", "service", link=link("service", "service", "instance")),
        Column("container", "container", link=link("gpu-host", "instance", "service", "container")),
        Column("canary", "canary"),
        Column("trouble", "Trouble"),
        Column("Value", "Value", "short"),
        Column("instance", "Host"),
    ]
    return rows(about, columns, Query(f"max by (instance, service, container, canary, trouble) ({query})"))


def _alerts() -> Panel:
    about = About(
        "Alerts that fire",
        "InferCanary's alerts of these services, and those of no service (the exporter's own). What each means and "
        "what to do is in docs/runbooks.md.",
        "none",
        empty="No alert fires",
    )
    query = 'max by (alertname, severity, instance, service, container, canary) (ALERTS{alertname=~"InferCanary.*", '
    query += 'alertstate="firing", service=~"$service|"})'
    columns = [
        Column("alertname", "Alert"),
        Column(
            "severity",
            "Severity",
            named={"critical": colours.VERMILLION, "warning": colours.ORANGE, "info": colours.SKY},
        ),
        Column("service", "service", link=link("service", "service")),
        Column("container", "container"),
        Column("canary", "canary"),
        Column("instance", "Host"),
    ]
    return rows(about, columns, Query(query))


def _failures() -> Panel:
    about = About(
        "Runs that failed",
        "Runs that raised, hung or returned NaN. Healthy is none; the probe's log has the reason.",
        "short",
        empty="No run failed",
    )
    failed = increase("infercanary_runs_total", CANARY, 'outcome!~"ok|busy"')
    return lines(
        about, Query(f"sum by (service, outcome) ({failed}) > 0", "{{service}} {{outcome}}"), minimum=0
    )


def _starts() -> Panel:
    about = About(
        "Starts of containers",
        "How often each service's probes started: after each start counters begin anew, and the judge has one "
        "replicate more.",
        "short",
        empty="No container started",
    )
    starts = series("infercanary_probe_start_timestamp_seconds", SERVICES)
    query = f"sum by (service) (changes({starts}[$__rate_interval]))"
    return lines(about, Query(query, "{{service}}"), minimum=0, steps=True)
