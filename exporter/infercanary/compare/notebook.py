"""The judge's answer on two results of a notebook: its sentence, and the report's pictures."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from infercanary.command.settings import UsageError
from infercanary.compare import page
from infercanary.compare.comparison import ComparisonResult, compare_runs, judged
from infercanary.compare.read import pick, read
from infercanary.judge.policy import FILES


@dataclass(frozen=True)
class ComparedResults:
    """A verdict. As text it is the sentence, in a notebook the report of ``infercanary compare``.

    Args:
        result: All of it.
        document: The report, a whole HTML page.
    """

    result: ComparisonResult
    document: str

    @property
    def verdict(self) -> str:
        """``regressed``, ``improved``, ``equivalent`` or ``inconclusive``."""
        return self.result.verdict

    @property
    def sentence(self) -> str:
        """The judge's words."""
        return self.result.sentence

    def __str__(self) -> str:
        return self.result.sentence

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # In a frame of its own: its style is a page's, and must not reach the notebook.
        return (
            f'<iframe title="InferCanary: {html.escape(self.verdict)}" sandbox style="width: 100%; height: 40rem; '
            f'border: 0" srcdoc="{html.escape(self.document)}"></iframe>'
        )


def answer(
    old: Path, new: Path, canaries: tuple[str, str], restart_sd: float | None, subject: str
) -> ComparedResults:
    """Compare two journals.

    Args:
        old: Of the baseline.
        new: Of the candidate.
        canaries: The name of each side's canary.
        restart_sd: How much starts differ, as a ratio; None to estimate it.
        subject: What the two differ in, as the sentence names it.

    Returns:
        The answer.

    Raises:
        UsageError: The names differ, or both have the same starts.
    """
    if canaries[0] != canaries[1]:
        raise UsageError(
            f"compare: `{canaries[0]}` and `{canaries[1]}` are two canaries; time both with one name (name=…)"
        )
    sides = [pick(read([str(path)]), canaries[0])[canaries[0]] for path in (old, new)]
    result = compare_runs(canaries[0], *sides, restart_sd=restart_sd, subject=subject)
    article = page.comparison(result, *map(judged, sides))
    return ComparedResults(result, page.page(f"{canaries[0]}: before and after", [article], (), FILES))
