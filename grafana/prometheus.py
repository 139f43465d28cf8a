"""Client of Prometheus' HTTP API, with the queries that Grafana makes."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from infercanary.command.settings import UsageError

TIMEOUT_SECONDS = 30
MAX_BYTES = 64 << 20


class Result(NamedTuple):
    """A series. In the answer to an instant query, a series has one point."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """Unix time and value."""


class Answer(NamedTuple):
    """Results of a query, and Prometheus' warnings and infos, for example on the rate of a gauge."""

    results: Sequence[Result]
    remarks: Sequence[str]


class Refused(Exception):
    """Prometheus refused a query; the message is Prometheus' own."""


class Prometheus:
    """A Prometheus server. Without an answer in Prometheus' format, a method raises :class:`UsageError`.

    Args:
        url: ``http://…`` or ``https://…``.

    Raises:
        UsageError: ``url`` is not such an address.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"{url}: not a web address; write it like http://127.0.0.1:9090")

    def at(self, expression: str, time: float) -> Answer:
        """Run an instant query.

        Args:
            expression: PromQL.
            time: Unix seconds.

        Returns:
            Series with one point each, and Prometheus' remarks.
        """
        return self._query("query", query=expression, time=time)

    def over(self, expression: str, start: float, end: float, step: float) -> Answer:
        """Run a range query, which includes both ends of the range.

        Args:
            expression: PromQL.
            start: Unix seconds.
            end: Unix seconds.
            step: Seconds.

        Returns:
            Series with a point for each step that has a value, and Prometheus' remarks.
        """
        return self._query("query_range", query=expression, start=start, end=end, step=step)

    def rules(self) -> Sequence[Mapping[str, Any]]:
        """Return all rules that Prometheus evaluates, in their current state: alerts and recordings.

        Returns:
            Rules as in Prometheus' API.
        """
        data, _ = self._ask("rules", {})
        return [rule for group in data["groups"] for rule in group["rules"]]

    def data(self, path: str, **asked: object) -> dict[str, Any]:
        """Return the unchanged data of an answer; Grafana makes its data frames from these data.

        Args:
            path: ``query`` or ``query_range``.
            asked: Parameters of the request.

        Returns:
            ``resultType`` and ``result``.
        """
        return self._ask(path, asked)[0]

    def _query(self, path: str, **asked: object) -> Answer:
        data, remarks = self._ask(path, asked)
        results = [
            Result(
                item["metric"],
                [(float(t), float(v)) for t, v in item.get("values") or [item["value"]]],
            )
            for item in data["result"]
        ]
        return Answer(results, remarks)

    def _ask(self, path: str, asked: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
        # Send a POST request, because a query may be too long for a URL.
        body = urllib.parse.urlencode(asked).encode() if asked else None
        try:
            try:
                with urllib.request.urlopen(  # noqa: S310
                    f"{self.url}/api/v1/{path}", body, timeout=TIMEOUT_SECONDS
                ) as response:
                    text = response.read(MAX_BYTES + 1)
            except urllib.error.HTTPError as error:
                text = error.read(MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                raise UsageError(
                    f"{self.url}: the answer exceeds {MAX_BYTES >> 20} MiB; query a shorter time range"
                )
            answer = json.loads(text)
            if answer["status"] != "success":
                raise Refused(str(answer.get("error")))
            return dict(answer["data"]), [*answer.get("warnings", ()), *answer.get("infos", ())]
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise UsageError(f"{self.url}: does not answer ({why}); check the address") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UsageError(
                f"{self.url}: the answer is not in Prometheus' format; check the address"
            ) from None
