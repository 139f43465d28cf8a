"""Sentence: the one-line summary of a result, built from phrases. Phrases that do not fit appear only as facts of the
document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from os.path import commonprefix

from infercanary.contract.measures import measure_of
from infercanary.contract.text import REPLACEMENT, printable, shortened
from infercanary.contract.vocabulary import known_component
from infercanary.judge import origin
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Changed
from infercanary.judge.operators import Operators, short_name
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Causes, Change, Part, Result
from infercanary.judge.shift import CHANGED
from infercanary.render.document import Fact
from infercanary.render.units import count, interval, percent, short, when

SENTENCE_BYTES = 300
"""Maximum length of a sentence in UTF-8. The limit is low, because a sentence is a label value and is read on phones.
"""
_COMPONENTS = 4  # maximum number of environment components in a sentence
_VALUE = 40  # maximum number of characters of a name or of a setting
_DAY = "%Y-%m-%d"
_OPEN = ("inconclusive", "unconfirmed")
_UPGRADED: Mapping[Changed, str] = {"image": "image", "model": "model", "both": "image and model"}


class Phrase(Fact, frozen=True):
    """A fact that is also a phrase of the sentence. The sentence never cuts a phrase, and omits a phrase without a
    value.
    """

    words: str = ""
    """Text of the phrase in the sentence."""
    is_alarm: bool = False
    """True for a short phrase that every sentence must contain."""


def sentence(result: Result, subject: str = "image", also: Sequence[str] = ()) -> str:
    """Return a result in words: ``regressed +178 % [+116, +259] (57.5 → 160 ms): image; torch 2.7.0 → 2.13.0``.

    The sentence changes only with the finding. The judge's progress is in :func:`progress`.

    Args:
        result: Result for an upgrade, for two files or for an experiment.
        subject: Name of the difference between the sides other than the host; empty if unknown.
        also: Other findings on the same canary, such as :func:`measure_words`.

    Returns:
        One line of at most :data:`SENTENCE_BYTES` bytes without a full stop. Phrases are in order of importance; the
        first phrase that does not fit ends the sentence. Alarms are always included.
    """
    causes, is_change = result.causes, result.state in CHANGED
    versions, variables = (
        [listed([change]) for change in causes.changes if is_variable(change) is technical]
        for technical in (False, True)
    )
    subject = _UPGRADED[result.changed] if subject == "image" else subject
    commits = origin.changed(*result.origins) if causes.cause not in ("host", "load") else ""
    statements = [
        *_plain(_cause(causes, subject) if is_change and subject else ""),
        *alarms(causes),
        *_plain(*also, *versions[:_COMPONENTS]),
        *(shares(causes) + evidence(causes) if is_change else ()),
        *cold_starts(causes),
        *conditions(result),
        *_plain(commits if is_change else "", *variables),
    ]
    return _fitted(_lead(result), result.state, [phrase for phrase in statements if phrase.value])


def progress(result: Result) -> str:
    """Return the judge's progress on an open upgrade in words; empty if the verdict is final."""
    if result.looks.next is None or result.state not in ("settling", *_OPEN):
        return ""
    if result.shift is None:
        return f"collecting: {result.runs} of {result.looks.next} runs"
    return f"next look at {result.looks.next} runs"


def measure_words(name: str, verdict: MeasureVerdict) -> str:
    """Return the verdict on a measure in words: ``host memory regressed +31.0 % [+28.0, +34.0]``."""
    measure = measure_of(name)
    words = measure.words if measure else shortened(name, _VALUE)
    return f"{words} {verdict.state} {shift_words(verdict)}".rstrip()


def benchmark_words(result: Result) -> str:
    """Return the benchmark of the running image in words; empty without a benchmark.

    For example ``before the deploy: equivalent +0.4 % on another host (ab, 2026-11-28); now +12.0 %; conditions
    differ: CPU quota 8 → 4``. A label with an age would be a new series every day, so the text has a date.
    """
    benchmark = result.benchmark
    if benchmark is None or not benchmark.command:
        return ""
    is_before = result.upgraded_at is None or benchmark.at < result.upgraded_at
    verdict, place = benchmark.verdict or "not compared", " on another host" * benchmark.is_other_host
    if benchmark.is_other_hardware:  # only facts: a verdict holds for one class of hardware
        verdict, place = "", "on other hardware"
    size = "" if benchmark.shift is None else percent(benchmark.shift)
    words = " ".join(filter(None, (verdict, size, place.strip())))
    text = f"{'before' if is_before else 'after'} the deploy: {words} ({benchmark.command}, {when(benchmark.at, _DAY)})"
    now = "" if result.shift is None else f"now {percent(result.shift)}"
    differ = f"conditions differ: {listed(benchmark.changes)}" if benchmark.changes else ""
    return "; ".join(filter(None, (text, now, differ)))


def shift_words(part: Part | MeasureVerdict | Result | None) -> str:
    """Return a shift with its interval; empty if the shift or the interval is unknown."""
    if part is None or part.shift is None or part.low is None or part.high is None:
        return ""
    return interval(part.shift, part.low, part.high)


def listed(changes: Sequence[Change], most: int = _COMPONENTS) -> str:
    """Return changed components in words; empty for none.

    For example ``torch 2.7.0 → 2.13.0, CPU quota 4 → 2, 3 more components``.

    Args:
        changes: Components of the environment, most important first. Environment variables are moved to the end.
        most: Number of named components; the rest is counted.
    """
    named = []
    for change in sorted(changes, key=is_variable)[:most]:
        known = known_component(change.component)
        title = known.title if known else shortened(change.component, _VALUE)
        named.append(f"{title} {' → '.join(distinct(change.before, change.after))}")
    if len(changes) > most:
        named.append(count(len(changes) - most, "more component"))
    return ", ".join(named)


def is_variable(change: Change) -> bool:
    """True if a component is an environment variable. Such a name is technical."""
    return change.component.startswith("env_")


def distinct(before: str | None, after: str | None) -> tuple[str, str]:
    """Shorten both values of a component. Long lists lose the first entries that both values share."""
    old, new = ("none" if value is None else value for value in (before, after))
    head = commonprefix((old, new)).rpartition(", ")[0]  # noqa: RUF071 - of texts
    if head and max(len(old), len(new)) > _VALUE:
        old, new = f"…{old.removeprefix(head)}", f"…{new.removeprefix(head)}"
    return shortened(old, _VALUE), shortened(new, _VALUE)


def milliseconds(*seconds: float) -> str:
    """Return times in words: ``9.8 → 31.2 ms``."""
    return " → ".join(short(1e3 * each, 3) for each in seconds) + " ms"


def alarms(causes: Causes) -> list[Phrase]:
    """Return phrases that matter for any latency: memory kills, CPU fallback, changed output."""
    old, new = causes.memory_kills
    values = {
        "killed for memory": f"{old} → {new} times" if new > old else "",
        "CPU fallback:": "it ran on a GPU before" if causes.cpu_fallback else "",
        "output changed": f"(relative error {causes.output_error:.2g})" if causes.output_changed else "",
        "output tokens": _both(causes.output_tokens, "g"),
    }
    return phrases(values, is_alarm=True)


def cold_starts(causes: Causes) -> list[Phrase]:
    """Return the cold-start steps that became slower."""
    steps = causes.cold_start.items()
    return phrases(
        {f"cold start, {step.replace('_', ' ')}:": f"{_both(both, '.1f')} s" for step, both in steps}
    )


def shares(causes: Causes) -> list[Phrase]:
    """Return the shares of the change by resource, phase and operator."""
    resources, phase = causes.bottlenecks, " and ".join(causes.phases)
    known = max((share for limit, share in resources.items() if limit != "unknown"), default=0.0)
    # A share can exceed 100 % if another resource takes less time than before.
    parts = (f"{limit} {100 * min(share, 1):.0f} %" for limit, share in resources.items() if share > 0)
    bottleneck = f"{', '.join(parts)} of the change" if known >= LIVE.attribute.phase_share else ""
    if bottleneck and phase == "compute":
        phase = ""  # on a CPU, leave out the phase: the resource is more informative
    words = next(iter(resources)) if known >= LIVE.attribute.whole_share else bottleneck
    operator = operators_words(causes.operators)
    return [
        Phrase("bottleneck", bottleneck, words=words),
        Phrase("phase", phase, words=f"{phase} phase"),
        Phrase("operators", operator, words=operator),
    ]


def evidence(causes: Causes) -> list[Phrase]:
    """Return further evidence, changed or not: other processes, controls, siblings, clock, tags."""
    controls = ", ".join(f"{name} {percent(shift)}" for name, shift in causes.controls.items())
    values = {
        "cores used by other processes in its container": _both(causes.inside, ".2f"),
        "controls": controls or ("flat" if causes.has_controls else ""),
    }
    for label, part in (("siblings", causes.siblings), ("SM clock explains", causes.clock)):
        if part and abs(part.shift) >= LIVE.decide.clear_zone:
            values[label] = percent(part.shift)
    for tag, (old, new) in causes.tags.items():
        values[tag] = f"in {100 * old:.0f} → {100 * new:.0f} % of runs"
    return phrases(values)


def conditions(result: Result) -> list[Phrase]:
    """Return the conditions of a verdict: weights, concurrent baseline, adjustments, restart variance, hosts."""
    if result.shift is None:
        return []
    is_open, redrawn, (sd, df) = result.state in _OPEN, result.doubts.redrawn, result.restart
    # Before the first restart, the SD is the policy's assumption.
    is_policys = math.isclose(sd, LIVE.pool.restart_sd)
    source = "assumed: no restart observed yet" if is_policys else "estimated from other services"
    replicas = (
        f"{count(result.concurrent, 'replica')} on the old {_UPGRADED[result.changed]} over the same period"
    )
    if result.concurrent_shift is not None:
        replicas += f" ({percent(result.concurrent_shift)})"
    values = {
        "needs": "more restarts or replicas" if is_open and result.looks.needs_starts else "",
        "compared with its own history": shift_words(result.own),
        "images": "compared by name: their digests are not comparable"
        if result.doubts.is_by_reference
        else "",
        "compared with": replicas if result.concurrent else "",
        "after subtracting": "CPU wait" if result.is_unwaited else "",
        "restart variance": source if is_open and df <= LIVE.pool.restart_df else "",
        count(result.contended, "contended start"): "excluded" if result.contended else "",
        "compared on": count(result.hosts, "host") if result.hosts else "",
    }
    weights = {"other weights": f"in each of {redrawn} starts" if redrawn else ""}
    return [*phrases(weights, is_alarm=True), *phrases(values)]


def phrases(values: Mapping[str, str], *, is_alarm: bool = False) -> list[Phrase]:
    """Return a phrase for each label and value. A colon at the end of a label appears only in the sentence."""
    return [
        Phrase(label.rstrip(":"), value, words=f"{label} {value}", is_alarm=is_alarm)
        for label, value in values.items()
    ]


def operators_words(operators: Operators | None) -> str:
    """Return the largest operator of a change in words: ``conv2d 9.8 → 31.2 ms (84 % of the change)``."""
    if operators is None:
        return ""
    if operators.state != "explained":
        return {"outside": "no operator explains the change"}.get(
            operators.state, "the profile does not explain the change"
        )
    shift = operators.shifts[0]
    name, times = shortened(short_name(shift.operator), _VALUE), milliseconds(shift.before, shift.after)
    detail = f", {shortened(shift.detail, 80)}" if shift.detail else ""
    return f"{name} {times} ({100 * shift.share:.0f} % of the change{detail})"


def _plain(*texts: str) -> list[Phrase]:
    return [Phrase("", text, words=text) for text in texts]


def _both(pair: tuple[float, float] | None, form: str) -> str:
    return " → ".join(f"{number:{form}}" for number in pair or ())


def _fitted(lead: str, state: str, statements: Sequence[Phrase]) -> str:
    """Join the lead, the first phrases and all alarms.

    If the lead is too long for the alarms, use the state as the lead.
    """
    leads = lead, state.replace("_", " ")
    for lead, most in product(leads, range(len(statements), -1, -1)):
        texts = [phrase.words for place, phrase in enumerate(statements) if place < most or phrase.is_alarm]
        joint = "; " if ":" in lead else ": "
        text = printable(joint.join(filter(None, (lead, "; ".join(texts)))), replacement=REPLACEMENT)
        if len(text.encode()) <= SENTENCE_BYTES:
            break
    return text


def _lead(result: Result) -> str:
    """Return the verdict, its size, and both medians; without a baseline, the reason why there is none."""
    new = f"the new {_UPGRADED[result.changed]}"
    if result.state == "no_baseline":
        if result.settings_changed_at is not None:
            at = when(result.settings_changed_at)
            return (
                f"no baseline yet: the canary's settings changed ({at}), and runs before are not comparable"
            )
        if result.upgraded_at is not None:
            return "no upgrade yet: the old image has too few runs"
        if not (image := result.rolled_back_image):
            return "no upgrade yet: no earlier image has enough runs"
        stopped = f"the new model in {image}" if image == result.candidate_image else image
        return f"nothing to judge: {stopped} was stopped"
    if not (size := shift_words(result)):
        return f"{result.state}: too few runs of {new} yet"
    if result.only is not None:
        return f"{result.state}: all values are {milliseconds(result.only)}"
    lead = f"{result.state} {size}"
    if result.baseline is not None and result.current is not None:
        lead += f" ({milliseconds(result.baseline, result.current)})"
    lead += f" with {new}" if result.changed != "image" else ""
    return lead + (" after a rollback" if result.rollback else "")


def _cause(causes: Causes, subject: str) -> str:
    known = {
        "image": subject,
        "host": "host",
        "load": "load, with more or fewer requests than before",
        "both": f"host {shift_words(causes.host)}, {subject} {shift_words(causes.image)}",
    }
    if causes.cause != "unknown":
        return known[causes.cause]
    if causes.unknown_siblings:
        return f"host or {subject}: siblings not compared yet"
    if causes.unknown_waiting:
        return "CPU wait caused by other processes, in its container or on the host"
    return f"{'load' if causes.unknown_load or causes.load else 'host'} or {subject}, not known which"
