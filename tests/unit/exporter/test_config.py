"""Settings of the exporter: a mistake gives one line with the place and the fix."""

import pytest
from msgspec.structs import replace

from infercanary.command.settings import UsageError
from infercanary.exporter.app import Exporter
from infercanary.exporter.config import ExporterConfig, check
from infercanary.judge.policy import LIVE
from tests.programs import ROOT
from tests.scenarios import cases, scenarios


def read(folder, text):
    path = folder / "exporter.yaml"
    path.write_text(text)
    return check(path)


def test_the_documented_file_and_an_empty_one_are_the_defaults(tmp_path):
    page = (ROOT / "docs" / "exporter.md").read_text()
    documented = page.partition("```yaml\n# exporter.yaml")[2].partition("```")[0].partition("\n")[2]
    assert replace(read(tmp_path, documented), probes=()) == read(tmp_path, "") == ExporterConfig()
    assert ExporterConfig().judge.policy() == LIVE


def test_the_judge_decides_by_what_the_file_sets(tmp_path):
    decide = read(tmp_path, "judge: {smallest_effect: 0.003, false_calls: 0.001}").judge.policy().decide
    assert (decide.smallest_effect, decide.false_calls, decide.clear_zone) == (0.003, 0.001, 0.001)


def test_a_source_that_is_off_is_not_followed():
    sources = [
        [each.source.name for each in Exporter(ExporterConfig(discovery=name)).discoveries]
        for name in ("none", "docker")
    ]
    assert sources == [[], ["Docker"]]


PROBE = "probes: [{{url: '{}', service: s, container: c}}]"
MISTAKES = scenarios("""
poll_secs: 5                                           | unknown key `poll_secs`; did you mean `poll_seconds`? known keys: listen, poll_seconds
poll_seconds: 0                                        | poll_seconds: expected
docker: {enabled: false}                               | unknown key `docker`; known keys: listen
discovery: podman                                      | discovery: `podman` is none of docker, kubernetes, none
listen: true                                           | listen: expected text, got true or false
listen: localhost                                      | listen: 'localhost' is not HOST:PORT; write for example [::]:9797
listen: '[::1'                                         | listen: '[::1' is not HOST:PORT
listen: 'http://localhost:80'                          | listen: 'http://localhost:80' is not HOST:PORT
listen: 'localhost:99999'                              | listen: 'localhost:99999' is not HOST:PORT
probes: [http://h:1]                                   | probes[0]: expected a mapping, got text; its keys: url, service, container
probes: [{url: http://h:1, service: s}]                | probes[0]: the required key `container` is missing
h:9798                                                 | probes[0].url: 'h:9798' is not a probe's address; write http://host:9798 or
http://:9798                                           | probes[0].url: 'http://:9798' is not a probe's address
http://[h                                              | probes[0].url: 'http://[h' is not a probe's address
http://h/?a=b                                          | probes[0].url: 'http://h/?a=b' is not a probe's address
http://h:9798/report                                   | 'http://h:9798/report' is not a probe's address
http://h h                                             | probes[0].url: 'http://h h' is not a probe's address
unix://run/probe.sock                                  | probes[0].url: 'unix://run/probe.sock' is not a probe's address
probes: [{url: http://h, service: '', container: c}]   | probes[0].service: expected text of length 1 or more
probes: [&a {url: http://h, service: s, container: c}, *a] | probes[1]: another entry has this service and container; give one of
store: /no/such/folder/judge.sqlite                    | store: there is no folder /no/such/folder; create it
store: /dev/null                                       | store: /dev/null: is a folder or a device
store: nosuch://host/db                                | a URL that begins with postgresql://
judge: {smallest: 0.02}                                | did you mean `smallest_effect`? known keys: smallest_effect, false_calls
judge: {smallest_effect: 0}                            | judge.smallest_effect: expected a number > 0
judge: {smallest_effect: 3}                            | judge.smallest_effect: expected a number < 1.0; 0.03 is 3 %
links: {grafana: grafana.example}                      | links.grafana: expected text matching regex '^(https?://[^@]+)?$'
links: {grafana: 'https://me:secret@grafana.example'}  | links.grafana: expected text matching regex
probes: [                                              | not YAML
[]                                                     | expected
""")  # noqa: E501
"""Settings, or a probe's address, and the message."""


@cases(MISTAKES)
def test_a_mistake_is_one_line_with_the_place_and_the_fix(text, line, tmp_path):
    if "is not a probe's address" in line:
        text = PROBE.format(text)
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/exporter.yaml:")
    assert line in message
    assert "\n" not in message
