"""Profiles are kept with their start in each kind of store, also where an exporter adds some later, or knows none."""

from __future__ import annotations

from infercanary.contract.profile import Profile
from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.judge.profiles import FIRST, KEPT, Packed, pack, unpacked
from infercanary.store.store import Store

SEARCH = ServiceKey("", "search")


def packed(*times: float) -> Packed:
    profiles = (Profile(at, "torch", "ok", (0.1,), (0.1,), (0.0,), ()) for at in times)
    return {"resnet18": tuple(map(pack, profiles))}


def take(store: Store, sequence: int, profiles: Packed) -> None:
    start = Generation(
        service="search",
        container="search-1",
        boot_id="boot",
        started_at=1.0,
        image_id="sha256:1",
        profiles=profiles,
    )
    store.take(start, [Sample(sequence, "resnet18", 10.0 * sequence, "ok", 0.01)])


def times(store: Store) -> list[float]:
    [(start, _)] = store.generations(SEARCH, "resnet18")
    return [profile.taken_at for profile in unpacked(start.profiles.get("resnet18", ()))]


def test_the_first_and_the_last_profiles_of_a_start_stay(store: Store) -> None:
    take(store, 1, packed(1.0))
    take(store, 2, packed(1.0, 2.0))
    assert times(store) == [1.0, 2.0]
    take(store, 3, {})  # as of an exporter that was started since
    take(store, 4, packed(3.0))
    assert times(store) == [1.0, 2.0, 3.0]
    take(store, 5, packed(4.0, 5.0, 6.0, 7.0))
    assert times(store) == [1.0, 2.0, 4.0, 5.0, 6.0, 7.0] and (FIRST, KEPT) == (2, 4)
