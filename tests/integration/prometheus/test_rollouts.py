"""Templates of deploy/ for rollout controllers: schema, queries, and PromQL checked by promtool."""

import json
import os
import re
import shutil
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from infercanary.exporter import api
from infercanary.exporter.judging.families import METRICS
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.probe_state import INFO
from infercanary.exporter.rollout import ABORTS, PROMOTES, WORST_FIRST, Question, ServiceState
from infercanary.judge.policy import LIVE
from infercanary.judge.result import STATES
from tests.programs import ROOT, ended

DEPLOY = ROOT / "deploy"
CHECK = DEPLOY / "check"
ARGO = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((DEPLOY / "argo-rollouts").iterdir())}
FLAGGER = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((DEPLOY / "flagger").iterdir())}
ARGUMENTS = {
    "service": "search", "namespace": "ml", "image": "registry.example.com/search:v2", "canary": "",
    "exporter": "http://infercanary.infercanary:9797", "prometheus": "http://prometheus:9090",
}  # fmt: skip
RUN_SECONDS = 10  # default interval of a canary's runs
WAIT_SECONDS = 3600  # equal to the templates
ARGO_ERROR_SECONDS = 10  # time until Argo measures again after an error


def metric(name):
    [found] = ARGO[name]["spec"]["metrics"]
    assert isinstance(found, dict)
    return found


def filled(text, values=ARGUMENTS, form=r"\{\{args\.(\w+)\}\}"):
    return re.sub(form, lambda match: values[match[1]], text)


def faults(objects):
    missing = not shutil.which("node") or not (CHECK / "node_modules").is_dir()
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "npm ci --prefix deploy/check (apt-get install npm)"
        )
    return ended("node", CHECK / "check.mjs", input=json.dumps(objects)).stdout.splitlines()


def test_argos_objects_are_by_its_schema():
    assert faults([*ARGO.values()]) == []
    wrong = {"kind": "AnalysisTemplate", "apiVersion": "argoproj.io/v1alpha1", "metadata": {"name": "x"}}
    [*found] = faults(
        [{**wrong, "spec": {"metrics": [{"nmae": "m", "interval": 5, "provider": {"web": {}}}]}}]
    )
    assert len({*found}) == 4, found


@pytest.mark.parametrize("name", ARGO)
def test_argo_waits_for_an_hour_and_no_longer(name):
    found = metric(name)
    seconds = int(found["interval"].removesuffix("s"))
    # the wait must be longer than the judge needs
    assert LIVE.decide.looks[-1] * RUN_SECONDS < WAIT_SECONDS
    assert found["inconclusiveLimit"] * seconds == WAIT_SECONDS
    assert found["consecutiveErrorLimit"] * ARGO_ERROR_SECONDS == WAIT_SECONDS
    assert (found["failureLimit"], found["consecutiveSuccessLimit"]) == (0, 1)
    # Argo requires a `count`, and succeeds after this number of measurements. So the inconclusive limit must
    # come first.
    assert found["count"] > 2 * found["inconclusiveLimit"]


def test_argo_asks_the_api():
    found = metric("analysis-template")
    url = urlsplit(filled(found["provider"]["web"]["url"]))
    assert ("get", url.path) in {(route.method.lower(), route.path) for route in served()}
    asked = api.parse(dict(parse_qsl(url.query, keep_blank_values=True)))
    assert asked == Question(service="search", namespace="ml", image=ARGUMENTS["image"])
    assert found["provider"]["web"]["jsonPath"] == "{$.verdict}"
    passes, fails = found["successCondition"], found["failureCondition"]
    assert {word for word in WORST_FIRST if f'"{word}"' in passes} == PROMOTES
    assert {word for word in WORST_FIRST if f'"{word}"' in fails} == ABORTS


def test_flagger_asks_the_api():
    hooks = {each["type"]: each for each in FLAGGER["canary"]["spec"]["analysis"]["webhooks"]}
    paths = {kind: urlsplit(hook["url"]).path for kind, hook in hooks.items()}
    assert paths == {"rollback": "/api/v1/rollback", "confirm-promotion": "/api/v1/gate"}
    assert {("post", path) for path in paths.values()} < {(r.method.lower(), r.path) for r in served()}
    for hook in hooks.values():
        asked = api.parse({"namespace": "ml", **hook["metadata"]})
        assert (asked.namespace, asked.service) == ("ml", "search")
    assert '"infercanary.io/service": "search"' in (DEPLOY / "flagger/canary.yaml").read_text()


def served():
    return api.routes(lambda _: ServiceState(NOTHING, ()))


# PromQL -----------------------------------------------------------------------------------------------------------

VERDICT, UPGRADE = (
    next(metric for metric in METRICS if metric.name == f"infercanary_{name}")
    for name in ("verdict", "upgrade_info")
)
V1, V2, V3 = (f"registry.example.com/search:v{number} (12345678901{number})" for number in (1, 2, 3))


def lines(family, container, labels):
    at = {"namespace": "ml", "service": "search", "pod": container, "container": "server", "instance": "node"}
    found = []
    for point in family.points:
        names = {**at, **labels, **dict(zip(family.labels, point.labels, strict=True))}
        text = ",".join(f'{name}="{value}"' for name, value in names.items())
        found.append({"series": f"{family.name}{{{text}}}", "values": f"{point.value:g}x2"})
    return found


def service(verdicts, candidate, *images):
    found = []
    for number, image in enumerate(images):
        name = f"search-{number}"
        found += lines(INFO.family({(image, image[-13:-1], "", name): 1.0}), name, {})
        for canary, verdict in verdicts.items():
            found += lines(
                VERDICT.family({(canary, "latency", s): float(s == verdict) for s in STATES}), name, {}
            )
            found += lines(UPGRADE.family({(canary, V1, candidate, "image", name): 1.0}), name, {})
            found += lines(
                VERDICT.family({(canary, "energy", s): float(s == "regressed") for s in STATES}), name, {}
            )
    return found


CASES = {
    "nothing is known": ([], None, 0),
    **{
        f"one canary is {state}": (
            service({"c": state}, V2, V1, V2),
            1 if state in PROMOTES else -1 if state in ABORTS else 0,
            1 if state in ABORTS else 0,
        )
        for state in STATES
    },
    "the worst of two counts": (service({"c": "improved", "d": "regressed"}, V2, V1, V2), -1, 1),
    "one of two waits": (service({"c": "equivalent", "d": "unconfirmed"}, V2, V1, V2), 0, 0),
    "the last upgrade was equivalent": (service({"c": "equivalent"}, V2, V2, V2), 0, 0),
    "the last upgrade regressed": (service({"c": "regressed"}, V2, V2, V2), 0, 0),
    "another image is judged": (service({"c": "equivalent"}, V3, V1, V2), 0, 0),
}


def test_the_promql_forms_answer_as_the_verdicts_say(tmp_path, tool):
    values = {**ARGUMENTS, "canary": ".+"}
    argo = filled(metric("analysis-template-prometheus")["provider"]["prometheus"]["query"], values)
    words = {"namespace": "ml", "target": "search"}
    flagger = filled(FLAGGER["metric-template"]["spec"]["query"], words, r"\{\{ (\w+) \}\}")
    assert "{{" not in argo + flagger
    tests = [
        {
            "interval": "15s",
            "name": name,
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": expression, "eval_time": "30s",
                    "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
                }
                for expression, value in ((argo, of_argo), (flagger, of_flagger))
            ],
        }
        for name, (series, of_argo, of_flagger) in CASES.items()
    ]  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    tool("promtool", "test", "rules", str(tmp_path / "test.yml"))
