"""How often `report --hosts` gives a share to a component that does not matter, in simulated fleets.

Run ``python benchmarks/hosts.py`` (about 5 minutes of CPU).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from infercanary.compare.shares import Share, shares_of

_EFFECT, _NOISE = 0.3, 0.05  # logarithms
_COMPONENTS = 6


def levels(kind: str, hosts: int, rng: np.random.Generator) -> np.ndarray:
    """Return the logarithm of the latency of hosts without a recorded cause."""
    if kind == "heavy tails":
        return 0.03 * rng.standard_t(2, hosts)
    noise = rng.normal(0, 0.02 if kind != "normal" else _NOISE, hosts)
    if kind == "two levels":
        return noise + 1.25 * rng.integers(2, size=hosts)
    if kind == "one slow host":
        noise[rng.integers(hosts)] += 1.25
    return noise


def numbered(values: Sequence[int]) -> tuple[int, ...]:
    """Replace each value by a number, in the order of first occurrence."""
    return tuple(map([*dict.fromkeys(values)].index, values))


def fleet(
    hosts: int, components: int, kind: str, cause: bool, rng: np.random.Generator
) -> tuple[Share | None, int]:
    """Return the share of the true cause, and the number of other components with a share.

    With a cause and several components, one component agrees with the cause on all but an eighth of the hosts.
    """
    features = [numbered(rng.integers(rng.integers(2, 4), size=hosts).tolist()) for _ in range(components)]
    latencies = levels(kind, hosts, rng)
    guilty: tuple[int, ...] = ()
    if cause:
        split = rng.permutation(np.arange(hosts) % 2)
        latencies = latencies + _EFFECT * split
        features[0] = guilty = numbered(split.tolist())
        if components > 1:
            split[rng.choice(hosts, hosts // 8, replace=False)] ^= 1
            features[1] = numbered(split.tolist())
    groups = [codes for codes in dict.fromkeys(features) if max(codes)]
    shares = dict(zip(groups, shares_of(latencies.tolist(), groups), strict=True))
    named = {codes: share for codes, share in shares.items() if share.share is not None}
    found = named.pop(guilty, None)
    return found, len(named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=1000)
    fleets = parser.parse_args().fleets
    print("| hosts | no component matters | a share |\n|---|---|---|")
    for hosts in (8, 12, 20):
        for kind in ("normal", "heavy tails", "two levels", "one slow host"):
            rng = np.random.default_rng(hosts)
            wrong = sum(fleet(hosts, _COMPONENTS, kind, False, rng)[1] > 0 for _ in range(fleets))
            print(f"| {hosts} | {kind} | {100 * wrong / fleets:.1f} % |", flush=True)
    print(
        "\n| hosts | components | cause named | another named | true share in the interval |\n|---|---|---|---|---|"
    )
    true = _EFFECT**2 / 4 / (_EFFECT**2 / 4 + _NOISE**2)
    for hosts in (8, 12, 20):
        for components in (1, _COMPONENTS):
            rng = np.random.default_rng(hosts)
            results = [fleet(hosts, components, "normal", True, rng) for _ in range(fleets)]
            found = [share for share, _ in results if share]
            inside = sum((share.low or 0) <= true <= (share.high or 0) for share in found)
            wrong = sum(others > 0 for _, others in results)
            print(
                f"| {hosts} | {components} | {100 * len(found) / fleets:.1f} % | {100 * wrong / fleets:.1f} % "
                f"| {100 * inside / max(1, len(found)):.1f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
