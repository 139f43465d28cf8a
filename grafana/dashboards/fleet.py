"""Dashboard *Fleet*: changed services, and current problems.

Each value of a service appears once, even if the service runs on several hosts. A chosen host limits the view
to services that run on it.
"""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import NONE, About, Panel, Query
from grafana.dashboards.promql import (
    change,
    how_many,
    level,
    services,
    signed,
)
from grafana.dashboards.tables import Column, lower_case, rows, tiles
from grafana.dashboards.variables import SERVICES
from infercanary.exporter.tags import IMAGE_ID, MOVING_TAG

_HERE = "and on (namespace, service) RUNNING"
_VERDICT = f'service_canary_verdict:infercanary_verdict:max{{{{SERVICE, verdict=~"{{}}"}}}} == 1 {_HERE}'
_TO_SERVICE = link("service", "namespace", "service")


def board() -> Board:
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
        [marks.upgrades(f"{marks.UPGRADE}{{SERVICE}} HERE")],
        [
            Row("Which service changed", [*_tiles(), _services()]),
            Row("Alerts and latency", [_alerts(), _latency()]),
            Row("Inventory", [_inventory()], collapsed=True),
        ],
    )


def _tiles() -> list[Panel]:
    verdicts = {
        "regressed": "regressed",
        "unconfirmed": "unconfirmed",
        "inconclusive": "inconclusive",
        "fine": "equivalent|improved",
        "not judged": "no_baseline|settling",
    }
    chosen = "${instance:queryparam}&${namespace:queryparam}&${service:queryparam}"
    broken = {
        "exporters down": "SCRAPED == 0",
        "probes down": "RUNNING == 0",
        "canaries failing": "instance_service_container_canary_state:infercanary_canary_state:holds"
        '{HOST, SERVICE, state=~"failing|out_of_memory"}',
        "fell back to CPU": f"max by (BY) (service_canary:infercanary_cpu_fallback:holds{{SERVICE}} {_HERE} or "
        "infercanary_cuda_missing{HOST, SERVICE} == 1)",
        "answers changed": "service_canary:infercanary_upgrade_output_error_ratio:max{SERVICE} > "
        f"scalar(infercanary:threshold:output_error_ratio) {_HERE}",
    }
    # The count gets the labels of one counted series, for links.
    count = "0 * topk(1, {0}) + on () group_left () count({0}) or on () 0 * count(SCRAPED)".format
    to_service = link("service", "namespace", "service", "canary").replace("__data.fields", "__field.labels")
    return [
        tiles(
            About(
                "Verdicts",
                "Services and canaries by the verdict on their last image. Fine is equivalent or improved. Not "
                "judged is a first image, or an image that is warming up. Unconfirmed and inconclusive need more "
                "runs.",
                "Click a count: the table below shows these services.",
                "none",
                height=4,
            ),
            *(Query(how_many(_VERDICT.format(names), "RUNNING"), tile) for tile, names in verdicts.items()),
            named={tile: colours.VERDICTS[names.split("|")[0]] for tile, names in verdicts.items()},
            links={
                tile: link("fleet", also="&var-verdict=".join([chosen, *names.split("|")]))
                for tile, names in verdicts.items()
            },
        ),
        tiles(
            About(
                "Broken now",
                "Exporters that Prometheus does not reach (nothing is known about their hosts), probes that do not "
                "answer, canaries that fail, canaries on the CPU that should be on a GPU, and upgrades that changed "
                "the answers.",
                "Click a number: it leads to *InferCanary itself*, or to one of these services.",
                "none",
                height=4,
            ),
            *(Query(count(expression), tile) for tile, expression in broken.items()),
            links=dict.fromkeys(broken, to_service)
            | dict.fromkeys(["exporters down", "probes down"], link("self")),
            bad_from=1,
        ),
    ]


def _services() -> Panel:
    recorded = "service_canary:infercanary_{}{{SERVICE}}".format
    upgraded = recorded("upgrade_timestamp_seconds:max")
    queries = [
        recorded("verdict:number"),
        signed(recorded("shift_ratio:max"), "change"),
        recorded("baseline_seconds:max"),
        recorded("current_seconds:max"),
        "service_canary_cause:infercanary_shift_cause:max{SERVICE} == 1",
        f"1000 * {upgraded}",
        f"1000 * ({upgraded} - 3600 or 0 * service_canary:infercanary_verdict:number{{SERVICE}} + time() - 21600)",
        "label_replace(infercanary_upgrade_info{SERVICE} and on (instance, BY) "
        'instance_service_canary:infercanary_verdict:worst{SERVICE}, "image", "$1$2", "candidate_image", "IMAGE_NAME")',
    ]
    words = {str(i): (colours.word(name), hue) for i, (name, hue) in enumerate(colours.VERDICTS.items(), 1)}
    return rows(
        About(
            "Services: last upgrade",
            "Change is the new latency divided by the old latency, minus 1: +5 % is slower. The most urgent verdicts "
            "come first. If several exporters judge a service, each for its hosts, the worst verdict is shown.",
            "Click the service: *Service* has the judge's sentence, the evidence, and what to do.",
            "none",
            width=24,
            height=16,
        ),
        [
            Column(
                "service", "Service", link=link("service", "namespace", "service", "canary", since="Value #G")
            ),
            Column("Value #A", "Verdict", words=words, width=115),
            Column("change", "Change", width=90),
            Column("Value #C", "Old latency", "s", width=100),
            Column("Value #D", "New latency", "s", width=100),
            Column("cause", "Cause", width=90),
            Column("Value #F", "Upgraded", "dateTimeFromNow", width=140),
            Column("image", "Judged image", least=200),
            Column("canary", "Canary", width=120),
            Column("Value #G", "From", hidden=True),
        ],
        *(
            Query(f"max by (BY, change, cause, image) ({query} and on (BY) {_VERDICT.format('$verdict')})")
            for query in queries
        ),
        sort=("-Verdict", "-Change"),
    )


def _alerts() -> Panel:
    query = (
        "label_replace(1000 * max by (alertname, alert, severity, replica, CONTAINER, canary) "
        "(label_replace(label_join(label_replace("
        'ALERTS_FOR_STATE{alertname=~"InferCanary.*", namespace=~"$namespace|", service=~"$service|"} '
        'and ignoring (alertstate) ALERTS{alertstate="firing", service=~"$service|"}, '
        '"alert", "$1", "alertname", "InferCanary(.*)"), '
        '"replica", "/", "pod", "container"), "replica", "$1", "replica", "/(.*)")) '
        '* on () group_left (runbooks) (topk(1, infercanary:links:info{runbooks!=""}) ^ 0 or on () vector(1)), '
        '"runbook", "open", "runbooks", ".+")'
    )
    table = rows(
        About(
            "Firing alerts",
            "InferCanary's alerts for these services, and its alerts about itself. Critical ones are first.",
            "The runbook of an alert explains the alert, and has the actions.",
            "none",
            width=24,
            height=18,
            empty=NONE,
        ),
        [
            Column("alert", "Alert", least=175),
            Column("severity", "Severity", named=colours.SEVERITIES, width=80),
            Column("service", "Service", link=_TO_SERVICE, least=85),
            Column(
                "replica",
                "Replica",
                link=link("host", "instance", "namespace", "service", "container"),
                least=170,
            ),
            Column("canary", "Canary", width=120),
            Column("instance", "Host", link=link("self", "instance"), width=140),
            Column("Value", "Since", "dateTimeFromNow", width=140),
            Column(
                "runbook", "Runbook", link="${__data.fields.runbooks}#${__data.fields.alertname}", width=90
            ),
            *(Column(name, name, hidden=True) for name in ("runbooks", "alertname", "container")),
        ],
        Query(query),
        sort=("Severity", "-Since"),
    )
    return lower_case(table, "alertname")  # anchors of the runbooks are in lower case


def _latency() -> Panel:
    latency = change("service_canary:infercanary_run_median_seconds:p50{SERVICE}", level(SERVICES))
    # Rounded to 10 %, so that noise rarely changes the ten lines.
    worst = f"topk(10, round(abs({latency}), 0.1) HERE)"
    query = services(f"({latency}) and on (BY) {worst}")
    return lines(
        About(
            "Latency change since the upgrade",
            "Change from the level before the last upgrade: 0 is no change. A service with one image is compared with "
            "the judged level of that image. The ten services furthest from 0 at each moment are shown.",
            "If several services changed at the same time, see *Host*. If one service changed, see *Service*.",
            "percentunit",
            width=24,
        ),
        Query(query, "{{named}} {{canary}}"),
        centred=True,
        calm=0.1,
        right=True,
    )


def _inventory() -> Panel:
    # Replicas on a host whose exporter is down still count.
    unknown = "last_over_time(RUNNING[1h]) and on (instance) SCRAPED == 0"
    replicas = f"count by (namespace, service) (RUNNING or {unknown})"
    each = (
        "0 * max by (namespace, service, hardware) (service_hardware:infercanary_environment_info:replicas{SERVICE} "
        f"or on (namespace, service) {replicas}) + on (namespace, service) group_left"
    )
    queries = [
        f"() {replicas}",
        f"() sum by (namespace, service) (RUNNING or 0 * ({unknown}))",
        f"() count by (namespace, service) (count by (instance, namespace, service) (RUNNING or {unknown}))",
        "(image) topk by (namespace, service) (1, service_image:infercanary_container_info:replicas{SERVICE, "
        f'image=~"{MOVING_TAG}", image!~"{IMAGE_ID}"}})',
    ]
    return rows(
        About(
            "Inventory",
            "Replicas that should run, replicas that answer, their hosts, and their hardware. An image tag without a "
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
            Column("image", "Unpinned image tag", least=180),
        ],
        *(Query(f"{each} {query}") for query in queries),
        sort=("Service",),
    )
