"""Document of a bisection: the components that explain the change, and each experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infercanary.bisect.search import Finding, Part, Search
from infercanary.bisect.state import State
from infercanary.command.exit_codes import OF_VERDICT
from infercanary.render.document import Document, Table
from infercanary.render.json import plain_values
from infercanary.render.units import percent


def bisect_document(state: State, texts: Mapping[str, str], search: Search, finding: Finding) -> Document:
    """Return the document of a bisection.

    Args:
        state: State with the finished experiments.
        texts: Displayed text by component.
        finding: Decision of the search.
    """

    def plain(part: Part) -> dict[str, Any]:
        low, high = part.share - part.half(), part.share + part.half()
        return {
            "components": [texts.get(key, key) for key in sorted(part.components)],
            "share": part.share,
            "low": low,
            "high": high,
        }

    verdict, explained = "inconclusive", [*map(plain, finding.parts)]
    who, total = " and ".join(texts[key] for key in sorted(finding.named)), percent(state.shift)
    text = f"{total} comes from {who}, not separated further"
    if explained:
        verdict, (whole, *alone) = state.verdict, map(_share, explained)
        rest = f"; alone {' and '.join(alone)}" if alone else ""
        text = f"{who} explain{'s' * (' and ' not in who)} {whole} of {total}{rest}{'; interaction' * finding.interact}"
        if finding.between:
            text += f"; change between {' and '.join(finding.between)}"
    experiments = [
        {**plain(mixture), "pairs": len(outcome.pairs), "reason": outcome.reason}
        for mixture, outcome in zip(search.mixtures(state.outcomes), state.outcomes, strict=True)
    ]
    rows = [(f"{'; '.join(x['components'])}: {x['reason'] or _share(x)}",) for x in experiments]
    result: dict[str, Any] = {
        "verdict": verdict,
        "exit_code": OF_VERDICT[verdict],
        "sentence": f"{verdict}: {text}",
    }
    data = {
        "canary": state.canary,
        **result,
        "shift": state.shift,
        "components": [*texts.values()],
        "explained": explained,
        "interact": finding.interact,
        "between": finding.between,
        "experiments": experiments,
    }
    table = Table("experiments", ("A with these components of B: share of the change",), rows)
    return Document(name=state.canary, tables=[table], data=plain_values(data), **result)


def _share(part: dict[str, Any]) -> str:
    """Return a share with its interval, such as ``94 % [81, 107]``."""
    share, low, high = (round(100 * part[key]) for key in ("share", "low", "high"))
    return f"{share} % [{low}, {high}]"
