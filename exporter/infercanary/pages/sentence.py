"""The one sentence of a result, built from phrases. A phrase that does not fit is a fact of the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import NamedTuple

from infercanary.contract.bottleneck import Limit
from infercanary.contract.measures import measure_of
from infercanary.contract.text import REPLACEMENT, printable, shortened
from infercanary.contract.vocabulary import known_component
from infercanary.judge import origin
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Changed
from infercanary.judge.operators import Operators, short_name
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import Causes, Change, Part, Result
from infercanary.judge.shift import CHANGED
from infercanary.render.units import count, interval, percent, short, when

SENTENCE_BYTES = 300
"""Length of a sentence in UTF-8 at most: it is a label's value, and people read it on a phone."""
_COMPONENTS = 4  # of the environment are named in a sentence; the rest is counted
_VALUE = 40  # characters of a name or of a setting
_UPGRADED: Mapping[Changed, str] = {"image": "image", "model": "model", "both": "image and model"}


class Phrase(NamedTuple):
    """A statement: a fact, and a part of the sentence, which has it as a whole or not at all."""

    label: str
    value: str
    """Empty if there is nothing to say."""
    template: str = "{0.label} {0.value}"
    """Of the part of the sentence."""
    is_alarm: bool = False
    """True: short, and in every sentence."""


def sentence(result: Result, policy: Policy = LIVE, subject: str = "image", also: Sequence[str] = ()) -> str:
    """Say what the judge found: ``regressed +178 % [+116, +259] (57.5 → 160 ms): image; torch 2.7.0 → 2.13.0``.

    It changes with the finding alone; :func:`progress` says how far the judge has come.

    Args:
        result: Of an upgrade, of two files or of an experiment.
        policy: Says where the restart variance comes from.
        subject: Difference of the two sides besides the host; empty if it is not known.
        also: Other findings on the same canary, such as :func:`measure_words`.

    Returns:
        One line of at most :data:`SENTENCE_BYTES` bytes without a full stop. What does not fit is left out, the last
        phrases first.
    """
    causes, is_change = result.causes, result.state in CHANGED
    changes = [Phrase("", listed([change])) for change in sorted(causes.changes, key=is_variable)]
    first = min(_COMPONENTS, sum(not is_variable(change) for change in causes.changes))
    subject = _UPGRADED[result.changed] if subject == "image" else subject
    is_subject = is_change and causes.cause not in ("host", "load")
    statements = [
        Phrase("", _cause(causes, subject) if is_change and subject else ""),
        *alarms(causes),
        *(Phrase("", text) for text in also),
        *changes[:first],
        *(explanations(causes) if is_change else ()),
        *cold_starts(causes),
        *conditions(result, policy),
        Phrase("", origin.changed(*result.origins) if is_subject else ""),
        *changes[first:],
        Phrase("", origin.link(*result.origins) if is_subject else ""),
    ]
    return _fitted(_leads(result), [phrase for phrase in statements if phrase.value])


def progress(result: Result) -> str:
    """Say how far the judge has come on an upgrade that is still open; empty if it has answered."""
    if result.looks.next is None or result.state not in ("settling", "inconclusive", "unconfirmed"):
        return ""
    if result.shift is None:
        return f"collecting: {result.runs} of {result.looks.next} runs"
    return f"next look at {result.looks.next} runs"


def measure_words(name: str, verdict: MeasureVerdict) -> str:
    """Say what a measure did: ``host memory regressed +31.0 % [+28.0, +34.0]``."""
    measure = measure_of(name)
    words = measure.words if measure else shortened(name, _VALUE)
    return f"{words} {verdict.state} {measure_change(verdict)}".rstrip()


def measure_change(verdict: MeasureVerdict) -> str:
    """Write the shift of a measure with its interval; empty if too few values are known."""
    if verdict.shift is None or verdict.low is None or verdict.high is None:
        return ""
    return interval(verdict.shift, verdict.low, verdict.high)


def listed(changes: Sequence[Change], most: int = _COMPONENTS) -> str:
    """Name changed components: ``torch 2.7.0 → 2.13.0, CPU quota 4 → 2, 3 more components``; empty for none.

    Args:
        changes: Components of the environment, by interest. Variables are named last.
        most: Number of components that are named; the rest is counted.
    """
    named = []
    for change in sorted(changes, key=is_variable)[:most]:
        known = known_component(change.component)
        title = known.title if known else shortened(change.component, _VALUE)
        named.append(f"{title} {' → '.join(distinct(change.before, change.after))}")
    more = [count(len(changes) - most, "more component")] if len(changes) > most else []
    return ", ".join([*named, *more])


def is_variable(change: Change) -> bool:
    """Whether a component is an environment variable, with a technical name."""
    return change.component.startswith("env_")


def distinct(before: str | None, after: str | None) -> tuple[str, str]:
    """Shorten both values of a component; of two long lists that begin alike, to what comes after that."""
    if before is not None and after is not None and max(len(before), len(after)) > _VALUE:
        sides = before.split(", "), after.split(", ")
        if same := len(commonprefix(sides)):  # noqa: RUF071 - of lists
            before, after = (", ".join(["…", *side[same:]]) for side in sides)
    old, new = ("none" if value is None else shortened(value, _VALUE) for value in (before, after))
    return old, new


def milliseconds(*seconds: float) -> str:
    """Write times: ``9.8 → 31.2 ms``."""
    return " → ".join(short(1e3 * each, 3) for each in seconds) + " ms"


def part_interval(part: Part | None) -> str:
    """Write a part of a shift with its interval; empty if it is not known."""
    return interval(part.shift, part.low, part.high) if part else ""


def alarms(causes: Causes) -> list[Phrase]:
    """Return what matters whatever the latency does: memory kills, CPU fallback, another output."""
    old, new = causes.memory_kills
    values = {
        "killed for memory": f"{old} → {new} times" if new > old else "",
        "CPU fallback:": "it ran on a GPU before" if causes.cpu_fallback else "",
        "output changed": f"(relative error {causes.output_error:.2g})" if causes.output_changed else "",
        "output tokens": _both(causes.output_tokens, "g"),
    }
    return phrases(values, is_alarm=True)


def cold_starts(causes: Causes) -> list[Phrase]:
    """Return the steps of the cold start that became slower."""
    steps = causes.cold_start.items()
    return phrases(
        {f"cold start, {step.replace('_', ' ')}:": f"{_both(both, '.1f')} s" for step, both in steps}
    )


def explanations(causes: Causes) -> list[Phrase]:
    """Return what explains a change: bottleneck, phases, operators, other processes, controls, siblings, tags."""
    bottleneck, phase = _bottleneck(causes.bottlenecks), " and ".join(causes.phases)
    if bottleneck.value and phase == "compute":
        phase = ""  # the one phase of a CPU says less than its resource
    controls = ", ".join(f"{name} {percent(shift)}" for name, shift in causes.controls.items())
    parts = {"siblings": causes.siblings, "SM clock explains": causes.clock}
    values = {
        "cores used by other processes in its container": _both(causes.inside, ".2f"),
        "controls": controls or ("flat" if causes.has_controls else ""),
        **{
            label: percent(part.shift)
            for label, part in parts.items()
            if part and abs(part.shift) >= LIVE.decide.clear_zone
        },
        **{tag: f"in {100 * old:.0f} → {100 * new:.0f} % of runs" for tag, (old, new) in causes.tags.items()},
    }
    operator = Phrase("operators", operators_words(causes.operators), "{0.value}")
    return [bottleneck, Phrase("phase", phase, "{0.value} phase"), operator, *phrases(values)]


def conditions(result: Result, policy: Policy = LIVE) -> list[Phrase]:
    """Return the conditions of a verdict: weights, concurrent baseline, adjustments, restart variance, hosts."""
    if result.shift is None:
        return []
    is_open, redrawn = result.state in ("inconclusive", "unconfirmed"), result.doubts.redrawn
    is_assumed = is_open and result.restart.df <= policy.pool.restart_df
    restarts = "estimated from other services" if policy.pool.prior else "assumed: no restart observed yet"
    replicas = (
        f"{count(result.concurrent, 'replica')} on the old {_UPGRADED[result.changed]} over the same period"
    )
    if result.concurrent_shift is not None:
        replicas += f" ({percent(result.concurrent_shift)})"
    by_name = "compared by name: their digests are not comparable"
    values = {
        "needs": "more restarts or replicas" if is_open and result.looks.needs_starts else "",
        "compared with its own history": part_interval(result.own),
        "images": by_name if result.doubts.is_by_reference else "",
        "compared with": replicas if result.concurrent else "",
        "adjusted": "after subtracting CPU wait" if result.is_unwaited else "",
        "restart variance": restarts if is_assumed else "",
        count(result.contended, "contended start"): "excluded" if result.contended else "",
        "compared on": count(result.hosts, "host") if result.hosts else "",
    }
    weights = {"other weights": f"in each of {redrawn} starts" if redrawn else ""}
    return [*phrases(weights, is_alarm=True), *phrases(values)]


def phrases(values: Mapping[str, str], *, is_alarm: bool = False) -> list[Phrase]:
    """Return a phrase for each label and value; a value that is empty has none."""
    return [Phrase(label, value, is_alarm=is_alarm) for label, value in values.items() if value]


def _both(pair: tuple[float, float] | None, form: str) -> str:
    return " → ".join(f"{number:{form}}" for number in pair or ())


def _fitted(leads: Sequence[str], statements: Sequence[Phrase]) -> str:
    """Join the longest lead that fits, all alarms, and the first of the other phrases."""
    chosen = [phrase for phrase in statements if phrase.is_alarm]

    def joined(lead: str, *chosen: Phrase) -> str:
        parts = "; ".join(p.template.format(p).strip() for p in statements if p in chosen)
        text = f"{lead}{'; ' if ':' in lead else ': '}{parts}" if parts else lead
        return printable(text, replacement=REPLACEMENT)

    def fits(text: str) -> bool:
        return len(text.encode()) <= SENTENCE_BYTES

    lead = next((lead for lead in leads if fits(joined(lead, *chosen))), leads[-1])
    for phrase in statements:
        if fits(joined(lead, *chosen, phrase)):
            chosen.append(phrase)
    return joined(lead, *chosen)


def _leads(result: Result) -> Sequence[str]:
    """Return the verdict, its size, and both medians; then shorter leads."""
    new = f"the new {_UPGRADED[result.changed]}"
    if result.state == "no_baseline":
        return _no_baseline(result), "no baseline"
    if result.shift is None or result.low is None or result.high is None:
        return (f"{result.state}: too few runs of {new} yet",)
    if result.only is not None:
        return f"{result.state}: all values are {milliseconds(result.only)}", result.state
    size = lead = f"{result.state} {interval(result.shift, result.low, result.high)}"
    if result.baseline is not None and result.current is not None:
        lead += f" ({milliseconds(result.baseline, result.current)})"
    lead += f" with {new}" if result.changed != "image" else ""
    return lead + (" after a rollback" if result.rollback else ""), size, result.state


def _no_baseline(result: Result) -> str:
    """Return why there is nothing to compare with."""
    image, hardware = result.rolled_back_image, " on this hardware" if result.hosts else ""
    if result.settings_changed_at is not None:
        at = when(result.settings_changed_at)
        return f"no baseline yet: the canary's settings changed ({at}), and runs before are not comparable"
    if result.upgraded_at is not None:
        return f"no upgrade yet: the image before has too few runs{hardware}"
    if image:
        return f"nothing to judge: {'the new model in ' if image == result.candidate_image else ''}{image} was stopped"
    return "no upgrade yet: no earlier image has enough runs"


def _cause(causes: Causes, subject: str) -> str:
    host, image = causes.host, causes.image
    unknown = f"host or {subject}, not known which"
    if host and image and host.low * host.high > 0 and abs(host.shift) > abs(image.shift):
        unknown = f"mostly host; {subject} {part_interval(image)} not excluded"
    if causes.unknown_load or causes.load:
        unknown = f"load or {subject}, not known which"
    if causes.unknown_waiting:
        unknown = "CPU wait caused by other processes, in its container or on the host"
    if causes.unknown_siblings:
        unknown = f"host or {subject}: siblings not compared yet"
    words = {
        "image": subject,
        "both": f"host {part_interval(host)}, {subject} {part_interval(image)}",
        "load": "load, with more or fewer requests than before",
        "unknown": unknown,
    }
    return words.get(causes.cause, causes.cause)


def _bottleneck(shares: Mapping[Limit, float]) -> Phrase:
    """Name the resource that nearly all of a change went to, or the shares of all."""
    known = max((share for limit, share in shares.items() if limit != "unknown"), default=0.0)
    # Where another resource takes less now, one has more than all of the change.
    words = ", ".join(f"{limit} {100 * min(share, 1):.0f} %" for limit, share in shares.items() if share > 0)
    template = next(iter(shares)) if known >= LIVE.attribute.whole_share else "{0.value}"
    return Phrase(
        "bottleneck", f"{words} of the change" if known >= LIVE.attribute.phase_share else "", template
    )


def operators_words(operators: Operators | None) -> str:
    """Name the largest operator of a change: ``conv2d 9.8 → 31.2 ms (84 % of the change)``."""
    if operators is None:
        return ""
    if operators.state != "explained" or not operators.shifts:
        return (
            "no operator explains it" if operators.state == "outside" else "the profile does not explain it"
        )
    shift = operators.shifts[0]
    name, times = shortened(short_name(shift.operator), _VALUE), milliseconds(shift.before, shift.after)
    detail = f", {shortened(shift.detail, 80)}" if shift.detail else ""
    return f"{name} {times} ({100 * shift.share:.0f} % of the change{detail})"
