from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from infercanary.command.settings import UsageError
from infercanary.exporter.config import ExporterConfig, check, file_type, listen_address
from infercanary.judge.policy import LIVE


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_text("")
    assert asdict(check(path)) == asdict(file_type()())


def test_a_full_file(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_text(
        """
listen: "[::1]:9000"
poll_seconds: 10
timeout_seconds: 2.5
docker: {enabled: false, url: "tcp://socket-proxy:2375", relist_seconds: 60}
probes:
  - {url: "http://10.0.0.7:9798", service: resnet, container: resnet-1}
  - {url: "unix:///run/probe.sock", service: resnet, container: resnet-2}
limits: {report_bytes: 1000000, probes: 10}
"""
    )
    config: Any = check(path)
    assert config.poll_seconds == 10
    assert config.docker.url == "tcp://socket-proxy:2375"
    assert [probe.container for probe in config.probes] == ["resnet-1", "resnet-2"]
    assert config.limits.probes == 10


def test_the_documented_file_is_the_defaults(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "exporter.md").read_text(encoding="utf-8")
    path = tmp_path / "exporter.yaml"
    path.write_text(page.partition("```yaml\n# exporter.yaml")[2].partition("```")[0].partition("\n")[2])
    assert {**asdict(check(path)), "probes": ()} == asdict(file_type()())


def test_the_judge_decides_by_what_the_file_sets(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_text(
        "judge: {smallest_effect: 0.02, clear_zone: 0, confidence: 0.99, "
        "false_calls: 0.001, looks: [10, 20], history: 3}"
    )
    policy = check(path).judge.policy()
    assert (policy.decide.smallest_effect, policy.decide.clear_zone, policy.decide.confidence) == (
        0.02,
        0.0,
        0.99,
    )
    assert (policy.decide.false_calls, policy.decide.looks, policy.pool.history) == (0.001, (10, 20), 3)
    path.write_text("")
    assert check(path).judge.policy() == LIVE


PROBE = "probes: [{{url: {}, service: s, container: c}}]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "poll_secs: 5",
            "unknown key `poll_secs`; did you mean `poll_seconds`? known keys: listen, poll_seconds",
        ),
        ("poll_seconds: 0", "poll_seconds: expected"),
        ("poll_seconds: soon", "poll_seconds: expected"),
        ("timeout_seconds: -1", "timeout_seconds: expected"),
        ("limits: {families: 0}", "limits.families: expected"),
        ("docker: {socket: x}", "docker: unknown key `socket`; known keys: enabled, url, relist_seconds"),
        ("listen: true", "listen: expected text or a whole number, got true or false"),
        ("listen: 99999", "listen: '99999' is not HOST:PORT"),
        (
            "probes: [http://h:1]",
            "probes[0]: expected a mapping, got text; its keys: url, service, container",
        ),
        ("listen: localhost", "listen: 'localhost' is not HOST:PORT; write for example [::]:9797"),
        ("listen: '::1:9797'", "listen: '::1:9797' is not HOST:PORT"),
        ("listen: 'localhost:99999'", "listen: 'localhost:99999' is not HOST:PORT"),
        (
            "probes: [{url: http://h:1, service: s}]",
            "probes[0]: the required key `container` is missing",
        ),
        (
            PROBE.format("h:9798"),
            "probes[0].url: 'h:9798' has no scheme that is known; write http://host:9798 or",
        ),
        (PROBE.format("http://:9798"), "probes[0].url: 'http://:9798' names no host"),
        (PROBE.format("http://h:99999"), "probes[0].url: 'http://h:99999' is not a URL"),
        (PROBE.format("'http://h/?a=b'"), "probes[0].url: 'http://h/?a=b' has a query"),
        (
            PROBE.format("http://h:9798/report"),
            "probes[0].url: 'http://h:9798/report' ends with /report, which the exporter adds; leave it out",
        ),
        (PROBE.format("'http://h h'"), "probes[0].url: 'http://h h' has blanks"),
        (
            PROBE.format("unix://run/probe.sock"),
            "probes[0].url: 'unix://run/probe.sock' needs an absolute path",
        ),
        (
            "probes: [{url: http://h, service: '', container: c}]",
            "probes[0].service: must be 1 to 256 bytes of printable text",
        ),
        (
            'probes: [{url: http://h, service: s, container: "a\\nb"}]',
            "probes[0].container: must be 1 to 256 bytes of printable text",
        ),
        (
            "probes: [{url: http://h, service: s, container: c}, {url: http://i, service: s, container: c}]",
            "probes[1]: same service and container as probes[0]; give one of them another container",
        ),
        ("store: sqlite:///tmp", "store: /tmp: is a folder or a device; name a file"),
        ("store: /dev/null", "store: /dev/null: is a folder or a device"),
        (
            "store: nosuch://host/db",
            "the location is no name of a file; begin a URL with postgresql:// or sqlite://",
        ),
        (
            "judge: {smallest: 0.02}",
            "judge: unknown key `smallest`; did you mean `smallest_effect`? known keys: smallest_effect, clear_zone",
        ),
        ("judge: {smallest_effect: 0}", "judge.smallest_effect: expected a number > 0"),
        ("judge: {smallest_effect: 3}", "judge.smallest_effect: expected a number < 1.0; 0.03 is 3 %"),
        ("judge: {clear_zone: 0.03}", "judge: clear_zone 0.03: must be below smallest_effect"),
        ("judge: {clear_zone: -0.01}", "judge.clear_zone: expected a number >= 0"),
        ("judge: {confidence: 95}", "judge.confidence: expected a number < 1.0"),
        ("judge: {confidence: 0.4}", "judge.confidence: expected a number >= 0.5"),
        ("judge: {false_calls: 0.2}", "judge.false_calls: expected a number <= 0.05"),
        ("judge: {looks: []}", "judge.looks: expected a list with at least 1 in it"),
        ("judge: {looks: [4, 24]}", "judge.looks[0]: expected a whole number >= 5"),
        ("judge: {looks: [24, 24]}", "judge: looks [24, 24]: must rise, such as"),
        ("judge: {looks: [12.5]}", "judge.looks[0]: expected a whole number"),
        ("judge: {history: 0}", "judge.history: expected a whole number >= 1"),
        (
            "links: {grafana: grafana.example}",
            "links.grafana: 'grafana.example' has no scheme that is known; write http://host:port",
        ),
        (
            "links: {alertmanager: 'ftp://alerts'}",
            "links.alertmanager: 'ftp://alerts' has no scheme that is known",
        ),
        (
            "links: {runbook: x}",
            "links: unknown key `runbook`; did you mean `runbooks`? known keys: alertmanager, grafana, runbooks",
        ),
        ("probes: [", "not YAML"),
        ("[]", "expected"),
    ],
)
def test_a_mistake_is_one_line_with_the_place_and_the_fix(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        check(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert line in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:9797", ("0.0.0.0", 9797)),
        ("9797", ("::", 9797)),
        (9797, ("::", 9797)),
        ("[::]:1", ("::", 1)),
        (ExporterConfig().listen, ("::", 9797)),
        (":80", ("::", 80)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_listen_addresses(text: str | int, address: tuple[str, int]) -> None:
    assert listen_address(text, "--listen") == address
