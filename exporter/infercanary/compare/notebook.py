"""Comparison of two results in a notebook: a sentence and a page with charts."""

from __future__ import annotations

import html
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare.comparison import compare_runs, judged
from infercanary.compare.document import comparison_document
from infercanary.compare.read import pick, read
from infercanary.pages.html import render_page
from infercanary.render.document import Document


class ComparedResults(Document, frozen=True):
    """Result of a comparison. Its text form is the sentence. A notebook displays the page of ``infercanary compare
    --html``.
    """

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        # The frame keeps the page's styles out of the notebook.
        page = html.escape(render_page(f"{self.name}: before and after", [self]))
        return (
            f'<iframe title="InferCanary: {self.verdict}" sandbox style="width: 100%; height: 40rem; border: 0" '
            f'srcdoc="{page}"></iframe>'
        )


def answer(
    old: Path, new: Path, canaries: tuple[str, str], restart_sd: float | None, subject: str
) -> ComparedResults:
    """Compare two journals.

    Args:
        old: Journal of the baseline.
        new: Journal of the candidate.
        canaries: Name of the canary on each side.
        restart_sd: Restart SD, as a ratio; None to estimate it.
        subject: Word for the difference between the sides in the sentence, such as "image".

    Raises:
        UsageError: The names differ, or both journals have the same starts.
    """
    name, other = canaries
    if name != other:
        raise UsageError(
            f"compare: `{name}` and `{other}` are two canaries; time both under the same name (name=…)"
        )
    baseline, candidate = (pick(read([str(path)]), name)[name] for path in (old, new))
    result = compare_runs(name, baseline, candidate, restart_sd=restart_sd, subject=subject)
    document = comparison_document(result, judged(baseline), judged(candidate))
    return ComparedResults(**msgspec.structs.asdict(document))
