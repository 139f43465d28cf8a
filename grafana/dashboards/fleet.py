"""*Fleet*: which service changed, and what is broken now.

Values of a service are shown once, on however many hosts it runs; a chosen host leaves the services that run there.
"""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import NONE, About, Panel, Query
from grafana.dashboards.promql import (
    BY,
    CONTAINER,
    RUNNING,
    SCRAPED,
    change,
    how_many,
    level,
    on_hosts,
    series,
    services,
    signed,
)
from grafana.dashboards.tables import Column, rows, tiles
from grafana.dashboards.variables import INSTANCE, SERVICES
from infercanary.exporter.tags import IMAGE_ID, MOVING_TAG

_WORDS = {str(i): (colours.word(name), hue) for i, (name, hue) in enumerate(colours.VERDICTS.items(), 1)}
_TO_SERVICE = link("service", "namespace", "service")


def _of_service(name: str) -> str:
    return series(f"service_canary:infercanary_{name}", SERVICES)


def _verdict(names: str) -> str:
    verdict = f'verdict=~"{names}"'
    return f"{series('service_canary_verdict:infercanary_verdict:max', SERVICES, verdict)} == 1"


def board() -> Board:
    """The dashboard."""
    return Board(
        "fleet",
        "Fleet",
        "Which service changed with its last image, by how much and why, and what is broken now.",
        [
            variables.datasource(),
            variables.instance(),
            variables.namespace(),
            variables.service(),
            variables.verdict(),
        ],
        [marks.upgrades(on_hosts(series(marks.UPGRADE, SERVICES)))],
        [
            Row("Which service changed", [_counts(), _broken(), _table()]),
            Row("Alerts and latency", [_alerts(), _latency()]),
            Row("Inventory", [_inventory()], collapsed=True),
        ],
    )


def _counts() -> Panel:
    verdicts = {
        "regressed": (colours.VERMILLION, "regressed"),
        "unconfirmed": (colours.ORANGE, "unconfirmed"),
        "inconclusive": (colours.OLIVE, "inconclusive"),
        "fine": (colours.BLUE, "equivalent|improved"),
        "not judged": (colours.GREY, "no_baseline|settling"),
    }
    chosen = "&".join(f"${{{name}:queryparam}}" for name in ("instance", "namespace", "service"))
    return tiles(
        About(
            "Verdicts",
            "Services and canaries by the verdict on their last image. Fine is equivalent or improved. Not judged is a "
            "first image, or one that is warming up. Unconfirmed and inconclusive need more runs.",
            "Click a count: the table below shows these services.",
            "none",
            height=4,
        ),
        *(Query(how_many(on_hosts(_verdict(names)), RUNNING), tile) for tile, (_, names) in verdicts.items()),
        named={tile: hue for tile, (hue, _) in verdicts.items()},
        links={
            tile: link("fleet", also="&var-verdict=".join([chosen, *names.split("|")]))
            for tile, (_, names) in verdicts.items()
        },
    )


def _broken() -> Panel:
    state = "instance_service_container_canary_state:infercanary_canary_state:holds"
    error = (
        f"{_of_service('upgrade_output_error_ratio:max')} > scalar(infercanary:threshold:output_error_ratio)"
    )
    missing = f"{series('infercanary_cuda_missing', INSTANCE, SERVICES)} == 1"
    canaries = {
        "canaries failing": series(state, INSTANCE, SERVICES, 'state=~"failing|out_of_memory"'),
        "fell back to CPU": f"{on_hosts(_of_service('cpu_fallback:holds'))} or {missing}",
        "answers changed": on_hosts(error),
    }
    found = {tile: f"max by ({BY}) ({expression})" for tile, expression in canaries.items()}
    exporters = {"exporters down": SCRAPED, "probes down": RUNNING}
    # A count has the labels of one of the services.
    to_service = link("service", "namespace", "service", "canary").replace("__data.fields", "__field.labels")
    return tiles(
        About(
            "Broken now",
            "Exporters that Prometheus does not reach (nothing is known about their hosts), probes that do not answer, "
            "canaries that fail, canaries on the CPU that should be on a GPU, and upgrades that changed the answers.",
            "Click a number: it leads to *InferCanary itself*, or to one of these services.",
            "none",
            height=4,
        ),
        *(Query(how_many(f"{up} == 0", up), tile) for tile, up in exporters.items()),
        *(
            Query(
                f"0 * topk(1, {each}) + on () group_left () count({each}) or on () 0 * count({RUNNING})", tile
            )
            for tile, each in found.items()
        ),
        links={tile: link("self") for tile in exporters} | dict.fromkeys(found, to_service),
        bad_from=1,
    )


def _table() -> Panel:
    chosen = on_hosts(f"and on ({BY}) {_verdict('$verdict')}")

    def recorded(name: str) -> Query:
        return Query(f"max by ({BY}) ({_of_service(name)}) {chosen}")

    cause = series("service_canary_cause:infercanary_shift_cause:max", SERVICES)
    worst = series("instance_service_canary:infercanary_verdict:worst", SERVICES)
    judged = f"{series('infercanary_upgrade_info', SERVICES)} and on (instance, {BY}) {worst}"
    # Without registry and digest; the image's id follows.
    image = (
        f'label_replace({judged}, "image", "$1$2", "candidate_image", "(?:.*/)?([^/@]+)(?:@[^ ]*)?( .*)?")'
    )
    number, upgraded = _of_service("verdict:number"), _of_service("upgrade_timestamp_seconds:max")
    return rows(
        About(
            "Services: last upgrade",
            "Change is the new latency divided by the old one, minus 1: +5 % is slower. Services that need a look are "
            "first. If several exporters judge a service, each for its hosts, the worst of their verdicts is shown.",
            "Click the service: *Service* has the judge's sentence, the evidence, and what to do.",
            "none",
            width=24,
            height=16,
        ),
        [
            Column(
                "service", "Service", link=link("service", "namespace", "service", "canary", since="Value #G")
            ),
            Column("Value #A", "Verdict", words=_WORDS, width=115),
            Column("change", "Change", width=90),
            Column("Value #C", "Old latency", "s", width=100),
            Column("Value #D", "New latency", "s", width=100),
            Column("cause", "Cause", width=90),
            Column("Value #F", "Upgraded", "dateTimeFromNow", width=140),
            Column("image", "Judged image", least=200),
            Column("canary", "Canary", width=120),
            Column("Value #G", "From", hidden=True),
        ],
        recorded("verdict:number"),
        Query(f"{signed(_of_service('shift_ratio:max'), 'change')} {chosen}"),
        recorded("baseline_seconds:max"),
        recorded("current_seconds:max"),
        Query(f"max by ({BY}, cause) ({cause} == 1) {chosen}"),
        Query(f"1000 * {upgraded} {chosen}"),
        Query(f"1000 * ({upgraded} - 3600 or 0 * {number} + time() - 21600) {chosen}"),
        Query(f"max by ({BY}, image) ({image}) {chosen}"),
        sort=("-Verdict", "-Change"),
    )


def _alerts() -> Panel:
    about = 'alertname=~"InferCanary.*", namespace=~"$namespace|", service=~"$service|"'
    firing = f'ALERTS_FOR_STATE{{{about}}} and ignoring (alertstate) ALERTS{{{about}, alertstate="firing"}}'
    named = f'label_replace({firing}, "alert", "$1", "alertname", "InferCanary(.*)")'
    joined = f'label_join({named}, "replica", "/", "pod", "container")'
    of_replica = f'label_replace({joined}, "replica", "$1", "replica", "/(.*)")'
    by = f"alertname, alert, severity, replica, {CONTAINER}, canary"
    links = 'topk(1, infercanary:links:info{runbooks!=""}) ^ 0 or on () vector(1)'
    linked = f"1000 * max by ({by}) ({of_replica}) * on () group_left (runbooks) ({links})"
    return rows(
        About(
            "Firing alerts",
            "InferCanary's alerts for these services, and its alerts about itself. Critical ones are first.",
            "The runbook of an alert says what it means and what to do.",
            "none",
            width=24,
            height=10,
            empty=NONE,
        ),
        [
            Column("alert", "Alert"),
            Column("severity", "Severity", named=colours.SEVERITIES, width=90),
            Column("service", "Service", link=_TO_SERVICE),
            Column("replica", "Replica", link=link("host", "instance", "namespace", "service", "container")),
            Column("canary", "Canary", width=120),
            Column("instance", "Host", link=link("self", "instance"), width=140),
            Column("Value", "Since", "dateTimeFromNow", width=140),
            Column(
                "runbook", "Runbook", link="${__data.fields.runbooks}#${__data.fields.alertname}", width=90
            ),
            Column("runbooks", "Runbooks", hidden=True),
            Column("alertname", "Anchor", hidden=True),
            Column("container", "Container", hidden=True),
        ],
        Query(f'label_replace({linked}, "runbook", "open", "runbooks", ".+")'),
        sort=("Severity", "-Since"),
    )


def _latency() -> Panel:
    now = _of_service("run_median_seconds:p50")
    end = change(f"{now} @ end()", level(SERVICES))
    worst = f"topk(10, {on_hosts(f'abs({end})')} @ end())"
    return lines(
        About(
            "Latency against before the upgrade",
            "Change from the level before the last upgrade: 0 is as before. A service with one image is compared with "
            "the judged level of that image. Shown are the ten services that are furthest from 0 at the end.",
            "If several changed at one moment, see *Host*. If one changed, see *Service*.",
            "percentunit",
            width=24,
        ),
        Query(services(f"({change(now, level(SERVICES))}) and on ({BY}) {worst}"), "{{named}} {{canary}}"),
        centred=True,
        calm=0.1,
    )


def _inventory() -> Panel:
    by = "namespace, service"
    # A host whose exporter is down keeps its replicas.
    unknown = f"last_over_time({RUNNING}[1h]) and on (instance) {SCRAPED} == 0"
    replicas = f"count by ({by}) ({RUNNING} or {unknown})"
    hardware = series("service_hardware:infercanary_environment_info:replicas", SERVICES)
    each = f"0 * max by ({by}, hardware) ({hardware} or on ({by}) {replicas}) + on ({by}) group_left"
    image = series(
        "service_image:infercanary_container_info:replicas",
        SERVICES,
        f'image=~"{MOVING_TAG}", image!~"{IMAGE_ID}"',
    )
    return rows(
        About(
            "Inventory",
            "Replicas that should run and those that answer, their hosts, and their hardware. An image tag without a "
            "version or a digest may be another image after a restart.",
            "A service on two kinds of hardware has two latencies. Give an unpinned image a version or a digest.",
            "none",
            width=24,
            height=12,
        ),
        [
            Column("service", "Service", link=_TO_SERVICE),
            Column("Value #A", "Replicas", "none", width=90),
            Column("Value #B", "Up", "none", width=80),
            Column("Value #C", "Hosts", "none", width=80),
            Column("hardware", "Hardware"),
            Column("image", "Unpinned image tag"),
        ],
        Query(f"{each} () {replicas}"),
        Query(f"{each} () sum by ({by}) ({RUNNING} or 0 * ({unknown}))"),
        Query(f"{each} () count by ({by}) (count by (instance, {by}) ({RUNNING} or {unknown}))"),
        Query(f"{each} (image) topk by ({by}) (1, {image})"),
        sort=("Service",),
    )
