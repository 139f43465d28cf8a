"""Client of Prometheus: another server, or a refused query, gives an error of one line."""

import pytest
from answers import answering

from grafana.prometheus import Prometheus, Refused
from infercanary.command.settings import UsageError
from tests.scenarios import cases


def test_a_query_that_is_refused():
    refusal = 400, b'{"status": "error", "error": "parse error"}'
    with answering(lambda *_: refusal) as url, pytest.raises(Refused, match=r"^parse error$"):
        Prometheus(url).at("x{", 0)


@cases(
    [
        (200, b"<html>"),
        (404, b"not here"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b"\xff"),
        (200, b'{"status": "success"}'),
    ],
)
def test_a_server_that_is_not_prometheus(status, body):
    line = "the answer is not in Prometheus' format; check the address"
    with answering(lambda *_: (status, body)) as url, pytest.raises(UsageError, match=f"^{url}: {line}$"):
        Prometheus(f"{url}/").at("x", 0)


@cases(["", "127.0.0.1:9090", "ftp://127.0.0.1", "http//x"])
def test_invalid_addresses(url):
    with pytest.raises(UsageError, match=r"not a web address; write it like http://127\.0\.0\.1:9090"):
        Prometheus(url)
