"""*Fleet*: which service changed. Verdicts first, then what is in trouble, then all latencies."""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables, verdicts
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.panels import About, Column, Panel, Query, lines, rows, tiles
from grafana.dashboards.promql import increase, series
from grafana.dashboards.variables import SERVICES
from grafana.dashboards.verdicts import BY, CANARY

WELL = "none"
_FAILING = 'state="failing"'
_OTHER = "scalar(infercanary:threshold:output_error_ratio)"
_NVML = 'state!~"ok|no_driver"'


def board() -> Board:
    """The dashboard."""
    return Board(
        "fleet",
        "Fleet",
        "Which service changed with its last image, by how much, and why.",
        [variables.datasource(), variables.service(), variables.canary()],
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


def _one_if(selector: str, by: str) -> str:
    return f"count(max by ({by}) ({selector}) == 1) or vector(0)"


def _troubles() -> Panel:
    about = About(
        "In trouble now",
        "Probes that do not answer (what they say is missing meanwhile), canaries that fail, GPU models that run on "
        "the CPU since an upgrade, and upgrades that changed the answers.",
        "none",
        width=10,
        height=4,
        empty=WELL,
    )
    each = "instance, service, container, canary"
    down = f"count({series('infercanary_up', SERVICES)} == 0) or vector(0)"
    failing = series("infercanary_canary_state", CANARY, _FAILING)
    other = f"count({verdicts.of('infercanary_upgrade_output_error_ratio')} > {_OTHER}) or vector(0)"
    return tiles(
        about,
        Query(down, "probes down"),
        Query(_one_if(failing, each), "canaries failing"),
        Query(_one_if(series("infercanary_cpu_fallback", CANARY), BY), "CPU fallback"),
        Query(other, "other answers"),
        bad_from=1,
    )


def _latency() -> Panel:
    about = About(
        "Latency of each service",
        "Median over a service's containers of the last run's median: exact, where a histogram would interpolate.",
        "s",
        empty="No canary has run in this time range",
    )
    query = f"quantile by ({BY}) (0.5, {series('infercanary_run_median_seconds', CANARY)})"
    return lines(about, Query(query, "{{service}} {{canary}}"))


def _shift() -> Panel:
    about = About(
        "Shift of each service's last upgrade",
        "New latency over old, minus 1, at the judge's last look. What is within ±3 % is not a change.",
        "percentunit",
        empty=verdicts.NO_VERDICT,
    )
    return lines(about, Query(verdicts.of("infercanary_shift_ratio"), "{{service}} {{canary}}"), steps=True)


def _relative() -> Panel:
    about = About(
        "Latency of each service, over its own mean",
        "1 is the mean of the time range shown. Services that move together at one moment share a host, and the host "
        "is then the suspect; one that moves alone has an image of its own to ask.",
        "percentunit",
        empty="No canary has run in this time range",
    )
    median = series("infercanary_run_median_seconds", CANARY)
    mean = f"quantile by ({BY}) (0.5, avg_over_time({median}[$__range] @ end()))"
    query = f"quantile by ({BY}) (0.5, {median}) / {mean}"
    return lines(about, Query(query, "{{service}} {{canary}}"))


def _drift() -> Panel:
    about = About(
        "Drift without an upgrade",
        "Latency now over that of the image's first day in the container, minus 1, where it has left it; else 0. The "
        "worst container of each service.",
        "percentunit",
        empty="Nothing is judged yet",
    )
    return lines(about, Query(verdicts.of("infercanary_drift_ratio"), "{{service}} {{canary}}"), steps=True)


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
        Column("service", "service", link=link("service", "service")),
        Column("container", "container", link=link("gpu-host", "service", "container")),
        Column("canary", "canary"),
        Column("trouble", "Trouble"),
        Column("Value", "Value", "short"),
    ]
    return rows(about, columns, Query(f"max by (service, container, canary, trouble) ({query})"))


def _alerts() -> Panel:
    about = About(
        "Alerts that fire",
        "InferCanary's alerts of these services, and those of no service (the exporter's own). What each means and "
        "what to do is in docs/runbooks.md.",
        "none",
        empty="No alert fires",
    )
    query = 'max by (alertname, severity, service, container, canary) (ALERTS{alertname=~"InferCanary.*", '
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
