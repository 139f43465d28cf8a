"""Step of action.yml that writes a comment on the pull request, or replaces the comment of an earlier run.

Environment variables: ANSWER, NAME, NUMBER, TOKEN; GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_SERVER_URL,
GITHUB_RUN_ID.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from os import environ
from pathlib import Path
from typing import Any

MOST = 60_000  # largest length in characters; GitHub's limit is 65,536

MARKER = f"<!-- infercanary: {re.sub('[^A-Za-z0-9 ._/-]', '?', environ['NAME'])[:80]} -->"
ISSUES = f"{environ['GITHUB_API_URL']}/repos/{environ['GITHUB_REPOSITORY']}/issues"
JOB = f"{environ['GITHUB_SERVER_URL']}/{environ['GITHUB_REPOSITORY']}/actions/runs/{environ['GITHUB_RUN_ID']}"


def ask(method: str, url: str, body: object = None) -> tuple[Any, str]:
    """Return GitHub's answer, and the URL of the next page (empty if there is none)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)  # noqa: S310 - GitHub's own address
    request.add_header("Authorization", f"Bearer {environ['TOKEN']}")
    request.add_header("Accept", "application/vnd.github+json")
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        following = re.search('<([^>]+)>; rel="next"', response.headers.get("Link", ""))
        return json.load(response), following[1] if following else ""


def earlier() -> int | None:
    """Return the id of an earlier run's comment, or None."""
    page = f"{ISSUES}/{environ['NUMBER']}/comments?per_page=100"
    while page:
        found, page = ask("GET", page)
        for each in found:
            if (each["body"] or "").startswith(MARKER):
                return int(each["id"])
    return None


def comment() -> None:
    text = Path(environ["ANSWER"]).read_text(encoding="utf-8")
    if len(text) > MOST:
        text = text[: text.rindex("\n", 0, MOST)] + "\n\n…\n"
    body = {"body": f"{MARKER}\n{text}\n[The job]({JOB})\n"}
    known = earlier()
    if known is None:
        ask("POST", f"{ISSUES}/{environ['NUMBER']}/comments", body)
    else:
        ask("PATCH", f"{ISSUES}/comments/{known}", body)


try:
    comment()
except (OSError, ValueError) as error:
    # A fork's token may not write comments. The job's summary also has the answer, and the exit code depends
    # only on the answer.
    print(f"::warning::no comment on the pull request ({error}): the job needs `pull-requests: write`")
    sys.exit(0)
