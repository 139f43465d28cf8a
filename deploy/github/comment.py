"""The step of action.yml that comments on the pull request, or replaces its comment of an earlier run.

From: ANSWER, NAME, NUMBER, TOKEN; GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_SERVER_URL, GITHUB_RUN_ID.
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

MOST = 60_000  # characters; GitHub takes 65,536

MARKER = f"<!-- infercanary: {re.sub('[^A-Za-z0-9 ._/-]', '?', environ['NAME'])[:80]} -->"
ISSUES = f"{environ['GITHUB_API_URL']}/repos/{environ['GITHUB_REPOSITORY']}/issues"
JOB = f"{environ['GITHUB_SERVER_URL']}/{environ['GITHUB_REPOSITORY']}/actions/runs/{environ['GITHUB_RUN_ID']}"


def ask(method: str, url: str, body: object = None) -> tuple[Any, str]:
    """The answer, and where its next page is."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)  # noqa: S310 - GitHub's own address
    request.add_header("Authorization", f"Bearer {environ['TOKEN']}")
    request.add_header("Accept", "application/vnd.github+json")
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        following = re.search('<([^>]+)>; rel="next"', response.headers.get("Link", ""))
        return json.load(response), following[1] if following else ""


def earlier() -> int | None:
    """The id of the comment of an earlier run; None where there is none."""
    page = f"{ISSUES}/{environ['NUMBER']}/comments?per_page=100"
    while page:
        found, page = ask("GET", page)
        for each in found:
            if (each["body"] or "").startswith(MARKER):
                return int(each["id"])
    return None


def comment() -> None:
    """Write it."""
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
    # A fork's token may not write. The answer is in the job's summary, and the exit code is about that alone.
    print(f"::warning::no comment on the pull request ({error}): the job needs `pull-requests: write`")
    sys.exit(0)
