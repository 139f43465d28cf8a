"""Documents as JUnit XML for the test results of a CI system: one test case for each document."""

from __future__ import annotations

from collections.abc import Sequence

from infercanary.command.exit_codes import ExitCode
from infercanary.pages.html import environment
from infercanary.render.document import Document


def render_junit(documents: Sequence[Document]) -> str:
    """Return the documents as JUnit XML.

    Exit codes become outcomes of test cases: regressed is a failure, inconclusive is skipped.

    Args:
        documents: In order of output.
    """
    codes = [document.exit_code for document in documents]
    return (
        environment()
        .get_template("junit.xml")
        .render(
            documents=documents,
            failures=codes.count(ExitCode.REGRESSED),
            skipped=codes.count(ExitCode.INCONCLUSIVE),
            code=ExitCode,
        )
    )
