"""Compare hosts that run one canary in one image: differing environments, and each component's share of the spread.

The unit of analysis is a host, because all starts on a host share one environment.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations

import msgspec

from infercanary.compare import stores
from infercanary.compare.journal import recording
from infercanary.compare.overview import OverviewRow, kind, overview_document, ranked, summary
from infercanary.compare.read import journal_lines
from infercanary.compare.recording import listed, shown
from infercanary.compare.shares import MOST_CHANCE, Share, shares_of
from infercanary.contract.vocabulary import MODEL, known_component, of_canary, order_of_interest
from infercanary.judge.causes import Attribution
from infercanary.judge.differences import changes
from infercanary.judge.evidence import tag_shares
from infercanary.judge.identity import identified, redrawn
from infercanary.judge.model import Pair, Start
from infercanary.judge.policy import FILES
from infercanary.judge.pooling import shift_of_starts
from infercanary.pages.sentence import evidence
from infercanary.render.document import Document, Table
from infercanary.render.units import count, percent, value


class Difference(Share, frozen=True, kw_only=True):
    """Components of the environment that always vary together."""

    hosts: Sequence[Sequence[str]]
    """Hosts with the same values, the fastest first."""
    components: Mapping[str, Sequence[str]]
    """Value of each group of hosts, by component."""


class HostComparison(msgspec.Struct, frozen=True):
    """One canary with the same image, model and settings."""

    hosts: Sequence[OverviewRow]
    """The fastest host first. Only starts with the environment of the host's newest start count."""
    conditions: Mapping[str, Sequence[str]]
    """Conditions by host: left-out starts, frequent tags, and controls and clock compared with the fastest host."""
    differences: Sequence[Difference]
    """Differences between hosts, the best fit first."""


def compare_hosts(
    files: Mapping[str, str], journals: Mapping[str, bytes], canary: str, service: str, notes: list[str]
) -> list[HostComparison]:
    """Return a comparison for each canary: of the image on the most hosts, or the newest of several such images.

    Args:
        files: Stores and journals, by host.
        journals: Contents of the journals, by host. Their images are unknown, and count as the same.
        canary: Pattern (fnmatch) of canary names.
        service: Pattern of service names.
        notes: List that gets remarks on the files.

    Raises:
        UsageError: A file cannot be read.
    """
    of_canaries: defaultdict[str, list[tuple[str, Start]]] = defaultdict(list)
    for name, path in files.items():
        for host, start in _starts(name, path, journals.get(name), canary, service, notes):
            if fnmatchcase(start.canary_name, canary) and len(start.samples) >= FILES.pool.fewest_runs:
                of_canaries[start.canary_name].append((host, start))
    return [_compare(name, _of_one_image(starts)) for name, starts in sorted(of_canaries.items())]


def _starts(
    host: str, path: str, journal: bytes | None, canary: str, service: str, notes: list[str]
) -> Iterator[tuple[str, Start]]:
    if journal is None:
        for where, _, generation, samples in stores.starts({host: path}, canary, service, recorded=False):
            yield where, Start.of(generation, samples)
    else:
        lines = journal_lines({path: journal}, (), notes)
        for runs in recording([path], lines, notes).canaries.values():
            yield from ((host, start) for start in runs.starts)


def _of_one_image(found: list[tuple[str, Start]]) -> Mapping[str, list[Start]]:
    """Return the starts of one image by host, in order of time."""
    found.sort(key=lambda pair: pair[1].generation.started_at)
    starts = identified([start for _, start in found])
    is_redrawn = redrawn(starts)
    images: defaultdict[tuple[str, ...], dict[str, list[Start]]] = defaultdict(dict)
    for (host, _), start in zip(found, starts, strict=True):
        image = start.generation.image_key * start.generation.is_known
        of_host = images[image, start.model * (not is_redrawn), start.settings]
        of_host.setdefault(host, []).append(start)
    return max(reversed(images.values()), key=len)


def _compare(canary: str, every: Mapping[str, Sequence[Start]]) -> HostComparison:
    def changed(before: Start, after: Start) -> set[str]:
        both = changes(before.generation.environment, after.generation.environment, canary)
        return {change.component for change in both} - {of_canary(MODEL, canary)}

    of_host = {host: [s for s in starts if not changed(s, starts[-1])] for host, starts in every.items()}
    summaries = []
    for host, starts in of_host.items():
        last = starts[-1].generation
        image, engine, device = kind(last)
        work = engine, device, starts[-1].model, starts[-1].settings
        summaries.append(summary((canary, host, str(last.key), image * last.is_known, *work), starts, None))
    rows = ranked(summaries)
    newest = {row.host: of_host[row.host][-1].generation.environment for row in rows}
    features: defaultdict[tuple[int, ...], dict[str, list[str]]] = defaultdict(dict)
    pairs = combinations([starts[-1] for starts in of_host.values()], 2)
    for name in sorted({name for pair in pairs for name in changed(*pair)}, key=order_of_interest):
        values = [environment.get(name, "unknown") for environment in newest.values()]
        different = [*dict.fromkeys(values)]
        features[tuple(map(different.index, values))][name] = different
    shares = [Share()] * len(features)
    if rows[-1].latency_above_fastest_ratio >= FILES.decide.smallest_effect:
        shares = shares_of([math.log(row.latency_median_seconds) for row in rows], [*features])
    differences = [
        Difference(
            **msgspec.structs.asdict(share),
            hosts=[
                [host for host, i in zip(newest, codes, strict=True) if i == group]
                for group in range(max(codes) + 1)
            ],
            components=components,
        )
        for share, (codes, components) in zip(shares, features.items(), strict=True)
    ]
    return HostComparison(
        rows,
        {host: _conditions(canary, of_host[rows[0].host], of_host[host], every[host]) for host in newest},
        sorted(differences, key=lambda each: 2.0 if each.chance is None else each.chance),
    )


def _conditions(
    canary: str, fastest: Sequence[Start], starts: Sequence[Start], every: Sequence[Start]
) -> list[str]:
    words = [
        f"{tag} in {100 * share:.0f} % of runs"
        for tag, share in tag_shares(starts).items()
        if share >= FILES.attribute.tag_share
    ]
    if starts is not fastest:
        shift = shift_of_starts([s.series for s in fastest], [s.series for s in starts], pool=FILES.pool)
        causes = Attribution(FILES).explain(shift, [Pair(fastest, starts)], canary)
        words += [each.words for each in evidence(msgspec.structs.replace(causes, tags={})) if each.value]
    if earlier := len(every) - len(starts):
        words.append(f"{count(earlier, 'start')} with an earlier environment left out")
    return words


def hosts_document(result: HostComparison) -> Document:
    """Return the document of a comparison: latencies, conditions and differences."""
    document = overview_document(result.hosts)
    seconds = {row.host: row.latency_median_seconds for row in result.hosts}
    (fast, least), *_, (slow, most) = [*seconds.items()] * 2
    rows, explained = [], []
    for each in result.differences:
        titles = [known.title if (known := known_component(name)) else name for name in each.components]
        values = zip(titles, each.components.values(), strict=True)
        hosts = (
            f"{listed(hosts, 4)} ({value(seconds[hosts[len(hosts) // 2]], 's')})" for hosts in each.hosts
        )
        texts = [
            *(f"{title} {' | '.join(map(shown, texts))}" for title, texts in values),
            f"on {' | '.join(hosts)}",
        ]
        rows.append((_share(each), "; ".join(texts)))
        if each.share:
            explained.append(f"{listed(titles, 4)}: {_share(each)} of the spread")
    conclusion = " and ".join(explained) or "causes cannot be separated" if rows else "no known difference"
    return msgspec.structs.replace(
        document,
        name=result.hosts[0].canary,
        sentence=f"{value(least, 's')} on {fast} to {value(most, 's')} on {slow} ({percent(most / least - 1)}, "
        f"{count(len(seconds), 'host')}); {conclusion}",
        tables=[
            document.tables[0],
            Table(
                "conditions, compared with the fastest host",
                ("host", ""),
                [(host, "; ".join(words)) for host, words in result.conditions.items() if words],
            ),
            Table("differences", ("of the spread", "values, and median of their hosts"), rows),
        ],
    )


def _share(each: Difference) -> str:
    if each.share is not None and each.low is not None and each.high is not None:
        return f"{100 * each.share:.0f} % [{100 * each.low:.0f}, {100 * each.high:.0f}]"
    if each.chance is None:
        return "not tested"
    return "overlaps another row" if each.chance <= MOST_CHANCE else f"unproven, p = {each.chance:.2g}"
