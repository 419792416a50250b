import hashlib

import numpy as np
import pytest

from prefill_router.activations import KeyIndex, key_digests, shard

KEYS = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(300)]
OTHERS = ["", "a", "b" * 64, "a" * 64, KEYS[0].upper(), " " + KEYS[1][1:], "\ud800", "é" * 64]


@pytest.mark.parametrize("at_once", [1 << 20, 7])
def test_it_finds_what_a_dictionary_finds(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_AT_ONCE", at_once)
    random = np.random.default_rng(0)
    held_keys = [KEYS[i] for i in random.integers(0, 200, 250)] + OTHERS
    place = {key: i for i, key in enumerate(held_keys)}
    index = KeyIndex(key_digests(held_keys))
    assert len(index) == len(place)
    asked_keys = [*KEYS, *OTHERS, "absent"]
    places = index.find(key_digests(asked_keys))
    assert places.tolist() == [place.get(key, -1) for key in asked_keys]
    assert index.holds(key_digests(asked_keys)).tolist() == [key in place for key in asked_keys]


def test_a_key_has_one_digest_whatever_it_is_asked_with() -> None:
    together = key_digests([*KEYS[:5], *OTHERS])
    alone = [key_digests([key])[0] for key in (*KEYS[:5], *OTHERS)]
    assert together.tolist() == [digest.item() for digest in alone]
    assert len(set(together.tolist())) == len(together)


def test_digests_sort_like_their_keys() -> None:
    order = np.argsort(key_digests(KEYS))
    assert [KEYS[i] for i in order] == sorted(KEYS)


def test_an_empty_index_holds_nothing() -> None:
    index = KeyIndex(key_digests([]))
    assert len(index) == 0
    assert index.find(key_digests(KEYS[:2])).tolist() == [-1, -1]
