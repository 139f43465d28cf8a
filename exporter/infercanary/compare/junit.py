"""The answer as JUnit XML, which CI systems show beside their tests: a test case for each canary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.compare.comparison import ComparisonResult
from infercanary.contract.text import printable

NAME = "infercanary"


def document(results: Iterable[ComparisonResult]) -> str:
    """Write the results as XML: regressed is a failure, inconclusive is skipped.

    Args:
        results: On each canary.

    Returns:
        A whole document. A claim that was refuted is a failure, too: what counts is the exit code.
    """
    cases, failures, skipped = [], 0, 0
    for each in results:
        words = printable(each.claim.sentence if each.claim else each.sentence)
        inside = ""
        if each.exit_code == ExitCode.REGRESSED:
            failures += 1
            inside = f"<failure type={quoteattr(each.verdict)} message={quoteattr(words)}/>"
        elif each.exit_code == ExitCode.INCONCLUSIVE:
            skipped += 1
            inside = f"<skipped message={quoteattr(words)}/>"
        name = quoteattr(printable(each.canary or "latency"))
        cases.append(
            f'    <testcase classname="{NAME}" name={name}>{inside}<system-out>{escape(words)}</system-out></testcase>'
        )
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skipped}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites {counts}>',
        f'  <testsuite name="{NAME}" {counts}>',
        *cases,
        "  </testsuite>",
        "</testsuites>",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def write(path: str, results: Iterable[ComparisonResult]) -> None:
    """Write the document to a file.

    Args:
        path: It is replaced where it is there.
        results: On each canary.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        Path(path).write_text(document(results), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--junit {path}: cannot be written ({error.strerror}); give another file") from None
