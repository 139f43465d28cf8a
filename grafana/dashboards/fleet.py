"""*Fleet*: which service changed. Counts first, then the worst, then what is in trouble, then all latencies.

Its queries read what the rules record and nothing else, so that they are as cheap with thousands of containers, and run
where only that is kept of a whole fleet. What is about a service is said once, on however many hosts it runs; a host
that is chosen leaves the services that run there.
"""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables, verdicts
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import lines, timeline
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    RUNNING,
    SCRAPED,
    TOP,
    ever,
    how_many,
    on_hosts,
    rounded,
    series,
    services,
    states,
    worst,
)
from grafana.dashboards.tables import Column, rows, tiles
from grafana.dashboards.variables import INSTANCE, JUDGED, SERVICES
from grafana.dashboards.verdicts import BY
from infercanary.exporter.tags import IMAGE_ID, MOVING_TAG

_OTHER = "scalar(infercanary:threshold:output_error_ratio)"
_VERDICT = "service_canary_verdict:infercanary_verdict:max"
_NUMBER = "service_canary:infercanary_verdict:number"
_LATENCY = "service_canary:infercanary_run_median_seconds:p50"
_HOSTS = "service:infercanary_up:hosts"
_ON_HOST = f"{INSTANCE}, {JUDGED}"
_FAILING = series(
    "instance_service_container_canary_state:infercanary_canary_state:holds",
    _ON_HOST,
    'state=~"failing|out_of_memory"',
)


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "fleet",
        "Fleet",
        "Which service changed with its last image, by how much, and why.",
        [
            variables.datasource(),
            variables.instance(),
            variables.namespace(),
            variables.service(),
            variables.judged(),
            variables.verdict(),
        ],
        [marks.upgrades(), marks.images()],
        [
            Row("Which service changed", [_counts(), _troubles(), _table()]),
            Row("In trouble now", [_alerts(), _containers(), _moving_tags()]),
            Row("Where services run", [_hardware()]),
            Row("Over time", [_verdicts(), _latency()]),
        ],
    )


def _counts() -> Panel:
    about = About(
        "Verdicts",
        "Services and canaries by the verdict on their last image, the worst first. Equivalent is as good as "
        "improved. Confirming, inconclusive and settling need more runs. No baseline means that only one image has "
        "run so far.",
        "Click on a count: the table below shows those services.",
        "none",
        width=14,
        height=4,
    )
    words = {name: name.replace("_", " ") for name in reversed(colours.VERDICTS)}
    chosen = "&".join(f"${{{name}:queryparam}}" for name in ("instance", "service", "canary"))

    def count(verdict: str) -> str:
        selected = series(_VERDICT, JUDGED, f'verdict="{verdict}"')
        return how_many(on_hosts(f"{selected} == 1"), RUNNING)

    return tiles(
        about,
        *(Query(count(name), word) for name, word in words.items()),
        named={word: colours.VERDICTS[name] for name, word in words.items()},
        links={word: link("fleet", also=f"{chosen}&var-verdict={name}") for name, word in words.items()},
    )


def _troubles() -> Panel:
    about = About(
        "In trouble now",
        "Exporters that cannot be scraped (nothing is known about their hosts), probes that do not answer (their "
        "values are missing during that time), canaries that fail, GPU models that run on the CPU since an upgrade, "
        "and upgrades that changed the answers.",
        "The row *In trouble now* shows which containers, and docs/runbooks.md explains each alert. For exporters, "
        "click the number.",
        "none",
        width=10,
        height=4,
    )
    failing = f"count by (instance, namespace, service, pod, container, canary) ({_FAILING})"
    fallback = on_hosts(series("service_canary:infercanary_cpu_fallback:holds", JUDGED))
    error = series("service_canary:infercanary_upgrade_output_error_ratio:max", JUDGED)
    other = on_hosts(f"{error} > {_OTHER}")
    return tiles(
        about,
        Query(how_many(f"{SCRAPED} == 0", SCRAPED), "exporters down"),
        Query(how_many(f"{RUNNING} == 0", RUNNING), "probes down"),
        Query(how_many(failing, RUNNING), "canaries failing"),
        Query(how_many(fallback, RUNNING), "on the CPU"),
        Query(how_many(other, RUNNING), "other answers"),
        links={"exporters down": link("self")},
        bad_from=1,
    )


def _table() -> Panel:
    about = About(
        "What the last upgrade did",
        "New latency divided by old latency, minus 1, with its interval: +5 % is slower. A shift within "
        f"±{verdicts.EFFECT} is not a change. The worst verdict is first. If several exporters judge a service, each "
        "for its host, the worst of their verdicts is shown. Latency is the median over its hosts. Drift is a change "
        "without an upgrade. The image is that of the newest start: point at it to see its whole name and id.",
        "Click the verdict to see the two images side by side, and the service to see its replicas.",
        "short",
        width=24,
        height=10,
        empty="No verdict yet. Check that a container has the label infercanary.enable=true, and that the exporter "
        "is up.",
    )
    verdicts_chosen = series(_VERDICT, JUDGED, 'verdict=~"$verdict"')
    chosen = on_hosts(f"and on ({BY}) ({verdicts_chosen} == 1)")

    def recorded(name: str, factor: str = "") -> Query:
        number = verdicts.recorded(name)
        return Query(f"{rounded(number) if '_ratio' in name else number}{factor} {chosen}")

    starts = series("service_image:infercanary_probe_start_timestamp_seconds:max", SERVICES)
    each = f"0 * {verdicts.recorded(_NUMBER)} + on (namespace, service)"
    image = f"{each} group_left (image, image_id) topk by (namespace, service) (1, {starts})"
    # The last part of the name, and all of it with its id, so that a column shows what differs.
    named = f'label_replace({image}, "tag", "$1", "image", "(?:.*/)?([^/@]+)(?:@.*)?")'
    whole = f'label_join({named}, "whole", "  ", "image", "image_id")'
    queries = [
        recorded(_NUMBER),
        *(recorded(f"service_canary:infercanary_shift_{end}ratio:max") for end in ("", "low_", "high_")),
        Query(f"max by ({BY}, cause) ({series(_CAUSE, JUDGED)} == 1) {chosen}"),
        recorded(_LATENCY),
        recorded("service_canary:infercanary_drift_ratio:max"),
        recorded("service_canary:infercanary_upgrade_timestamp_seconds:max", " * 1000"),
        Query(f"max by ({BY}, tag, whole) ({whole}) {chosen}"),
        Query(f"{each} group_left () {series(_HOSTS, SERVICES)} {chosen}"),
    ]
    to_service, to_upgrade = (link(board, "service", "canary") for board in ("service", "upgrade"))
    words = {str(i): (name, hue) for i, (name, hue) in enumerate(colours.VERDICTS.items(), 1)}
    columns = [
        Column("service", "Service", link=to_service),
        Column("Value #A", "Verdict", words=words, link=to_upgrade, width=115),
        Column("Value #B", "Shift", "percentunit", width=78),
        Column("Value #C", "At least", "percentunit", width=78),
        Column("Value #D", "At most", "percentunit", width=78),
        Column("cause", "Cause", width=80),
        Column("Value #F", "Latency", "s", width=82),
        Column("Value #G", "Drift", "percentunit", width=70),
        Column("Value #H", "Upgraded", "dateTimeFromNow", width=140),
        Column("tag", "Image", tip="Whole image"),
        Column("canary", "Canary", width=110),
        Column("Value #J", "Hosts", "none", width=60),
        Column("whole", "Whole image", hidden=True),
    ]
    return rows(about, columns, *queries, sort=("-Verdict", "-Shift"), paged=True)


_CAUSE = "service_canary_cause:infercanary_shift_cause:max"


def _alerts() -> Panel:
    about = About(
        "Alerts that fire",
        "InferCanary's alerts for these services, and alerts without a service (the exporter's own).",
        "docs/runbooks.md has a heading for each alert: what it means, and what to do. The exporter shows that page "
        "too.",
        "none",
        width=24,
        height=6,
        empty="No alert fires",
    )
    by = "alertname, severity, instance, namespace, service, pod, container, canary"
    chosen = 'namespace=~"$namespace|", service=~"$service|"'
    firing = f'ALERTS{{{{alertname=~"InferCanary.*", alertstate="firing", severity="{{}}", {chosen}}}}}'
    queries = [
        Query(f"max by ({by}) ({firing.format(severity)})") for severity in reversed(colours.SEVERITIES)
    ]
    columns = [
        Column("alertname", "Alert"),
        Column("severity", "Severity", named=colours.SEVERITIES, width=90),
        Column("service", "Service", link=link("service", "service", "canary")),
        Column("container", "Container", link=link("gpu-host", "instance", "service", "container")),
        Column("canary", "Canary", width=120),
        Column("instance", "Host", width=140),
    ]
    return rows(about, columns, *queries, paged=True)


def _containers() -> Panel:
    about = About(
        "Containers in trouble",
        "A row for each trouble of each container, while it lasts. The number shows how large the trouble is: a "
        "share, or a count.",
        "Click the container to see what it runs on. If it has few clean runs, its tags on *Service* show what "
        "disturbs them.",
        "none",
        width=24,
        empty="No container is in trouble",
    )
    of_canary = "instance_service_container_canary:infercanary_{}".format
    starts = series("instance_service_container:infercanary_probe_starts:changes1h", INSTANCE, SERVICES)
    kinds = {
        "probe does not answer": f"{RUNNING} == 0",
        "canary fails": _FAILING,
        "runs fail": f"{series(of_canary('failed_runs:ratio_rate30m'), _ON_HOST)} > 0",
        "other output than at first": f"{series(of_canary('output_error_ratio:max'), _ON_HOST)} > {_OTHER}",
        "no CUDA": series(
            "instance_service_container_canary_reason:infercanary_cuda_missing:holds", _ON_HOST
        ),
        "NVML in trouble": series(
            "instance_service_container_state:infercanary_nvml_state:holds", INSTANCE, SERVICES
        ),
        "starts again and again": f"{starts} > 2",
        "few clean runs": f"{series(of_canary('eligible_ratio:max5m'), _ON_HOST)} < 0.5",
    }
    query = " or ".join(
        f'label_replace({selector}, "trouble", "{kind}", "", "")' for kind, selector in kinds.items()
    )
    columns = [
        Column("service", "Service", link=link("service", "service", "canary")),
        Column("trouble", "Trouble"),
        Column("container", "Container", link=link("gpu-host", "instance", "service", "container")),
        Column("Value", "Number", "short", width=90),
        Column("canary", "Canary", width=120),
        Column("instance", "Host", width=140),
    ]
    by = "instance, namespace, service, pod, container, canary, trouble"
    return rows(about, columns, Query(f"max by ({by}) ({query})"), sort=("Service",), paged=True)


def _moving_tags() -> Panel:
    about = About(
        "Tags with more than one image",
        "Services whose image has no version in its name, or whose image name meant several images in this time "
        "range, and the number of these images.",
        "Start the service with a version or a digest. Until then, each restart may be an upgrade that nobody "
        "ordered, and replicas may differ.",
        "none",
        width=24,
        height=6,
        empty="Each image has a version, and kept it",
    )
    by = "namespace, service, image"

    def named(*matchers: str) -> str:
        info = series(_REPLICAS, SERVICES, *matchers)
        return f"count by ({by}) (last_over_time({info}[$__range]))"

    without_version = named(f'image=~"{MOVING_TAG}"', f'image!~"{IMAGE_ID}"')
    images = f"({named()} > 1 or {without_version})"
    containers = f"sum by ({by}) ({series(_REPLICAS, SERVICES)})"
    columns = [
        Column("service", "Service"),
        Column("image", "Image"),
        Column("Value #A", "Images", "none", width=90),
        Column("Value #B", "Containers now", "none", width=140),
    ]
    return rows(
        about,
        columns,
        Query(on_hosts(images)),
        Query(on_hosts(f"{containers} and {images}")),
        sort=("-Images",),
        paged=True,
    )


_REPLICAS = "service_image:infercanary_container_info:replicas"


def _hardware() -> Panel:
    about = About(
        "Hosts and hardware",
        "What each service runs on: its replicas by their GPU model, or by their CPU, and the number of all its "
        "hosts. Up is the share of its probes that answer. Latencies are compared only within one kind of hardware.",
        "A service on two kinds of hardware has two latencies: compare each of them only with itself, on *Service*.",
        "none",
        width=24,
        height=7,
        empty="No container reports",
    )
    by_hardware = series("service_hardware:infercanary_environment_info:replicas", SERVICES)
    replicas = (
        f"{by_hardware} or on (namespace, service) {series('service:infercanary_up:replicas', SERVICES)}"
    )
    replicas = f"max by (namespace, service, hardware) ({on_hosts(f'({replicas})')})"
    joined = f"0 * {replicas} + on (namespace, service) group_left ()"
    columns = [
        Column("service", "Service"),
        Column("Value #A", "Replicas", "none", width=90),
        Column("Value #B", "Hosts", "none", width=80),
        Column("Value #C", "Up", "percentunit", decimals=0, width=80),
        Column("hardware", "Hardware"),
    ]
    return rows(
        about,
        columns,
        Query(replicas),
        *(Query(f"{joined} {series(name, SERVICES)}") for name in (_HOSTS, "service:infercanary_up:avg")),
        sort=("Service",),
        paged=True,
    )


def _verdicts() -> Panel:
    about = About(
        "Verdicts over time",
        f"The verdict at each moment, for services that had an upgrade in this time range (the worst {TOP}). It "
        "returns to settling when an image changes.",
        "If a service had a verdict and is now inconclusive again, it has a new image: see the table.",
        "none",
        width=24,
        height=7,
        empty="No service was upgraded in this time range",
    )
    number = series(_NUMBER, JUDGED)
    most = f"max_over_time({number}[$__range] @ end())"
    upgraded = f"{number} and topk({TOP}, {on_hosts(f'{most} > 1')})"
    query = states(services(upgraded), ever(number, "> 1"), "named")
    return timeline(about, Query(query, "{{named}} {{canary}}"), colours.VERDICTS)


def _latency() -> Panel:
    about = About(
        "Latency of each service, relative to its mean",
        f"1 is the mean of the time range that is shown. The panel shows the {TOP} services that changed most. If "
        "services change together at one moment, they share a host. If only one changes, look at its own image.",
        "If they changed together, see *GPU and host*. If only one changed, see *Upgrade*, or *Service* if there was "
        "no upgrade.",
        "percentunit",
        width=24,
        height=10,
        empty="No canary has run in this time range",
    )
    number = series(_LATENCY, JUDGED)
    mean = f"avg_over_time({number}[$__range] @ end())"
    moved = f"stddev_over_time({number}[$__range] @ end()) / {mean}"
    return lines(
        about,
        Query(services(worst(f"{number} / {mean}", BY, on_hosts(moved))), "{{named}} {{canary}}"),
        doubling=True,
    )
