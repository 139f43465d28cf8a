"""Documents as JUnit XML, which CI systems show beside their tests: a test case for each document."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from infercanary.command.exit_codes import ExitCode
from infercanary.contract.text import printable
from infercanary.pages.safe_text import fact_text
from infercanary.render.document import Document

_NAME = "infercanary"


def render_junit(documents: Iterable[Document]) -> str:
    """Return the documents as XML; the exit code decides: regressed is a failure, inconclusive is skipped.

    Args:
        documents: In their order.
    """
    cases, failures, skipped = [], 0, 0
    for document in documents:
        message = quoteattr(printable(document.sentence))
        outcome = ""
        if document.exit_code == ExitCode.REGRESSED:
            failures += 1
            outcome = f"<failure type={quoteattr(printable(document.verdict))} message={message}/>"
        elif document.exit_code == ExitCode.INCONCLUSIVE:
            skipped += 1
            outcome = f"<skipped message={message}/>"
        facts = (f"{fact.label}: {text}" for fact in document.facts if (text := fact_text(fact)))
        lines = "\n".join(map(printable, [document.sentence, *facts]))
        name = quoteattr(printable(document.name or "latency"))
        cases.append(
            f'    <testcase classname="{_NAME}" name={name}>{outcome}<system-out>{escape(lines)}</system-out></testcase>'
        )
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skipped}"'
    lines_of_xml = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites {counts}>',
        f'  <testsuite name="{_NAME}" {counts}>',
        *cases,
        "  </testsuite>",
        "</testsuites>",
    ]  # fmt: skip
    return "\n".join(lines_of_xml) + "\n"
