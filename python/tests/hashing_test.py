# SPDX-License-Identifier: Apache-2.0
"""Hashes of blocks."""
from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport.hashing import random_seed, seed_of_variable


def test_hashes_of_pieces_are_those_of_the_whole() -> None:
    for seed in seeds(200):
        print("seed", seed)
        draw = random.Random(seed)
        size, name = draw.choice([1, 4, 16]), draw.choice([None, sp.Namespace(salt=b"tenant", extra_key=b"a")])
        fast = draw.random() < 0.5
        tokens = [draw.randint(0, 2) for _ in range(draw.randint(0, 150))]
        keys, prefixes = sp.hash_blocks(tokens, size, namespace=name, fast=fast)
        with sp.Hasher(size, namespace=name, fast=fast) as hasher:
            found = []
            while tokens:
                count = draw.randint(0, 40)
                found.append(hasher.append(tokens[:count]))
                tokens = tokens[count:]
        assert np.array_equal(np.concatenate([np.empty(0, np.int64), *(row[0] for row in found)]), keys)
        assert np.array_equal(np.concatenate([np.empty((0, 2), np.uint64), *(row[1] for row in found)]), prefixes)


def test_names_and_media_keep_blocks_apart() -> None:
    tokens = list(range(32))
    keys = [tuple(sp.hash_blocks(tokens, 16, namespace=name)[0]) for name in
            (None, sp.Namespace(salt=b""), sp.Namespace(salt=b"x"), sp.Namespace(extra_key=b"x"))]
    for position in (3, 20):
        with sp.Hasher(16) as hasher:
            keys.append(tuple(hasher.append(tokens, [sp.MediaKey(b"picture", position)])[0]))
    assert len(set(keys)) == 6
    assert keys[0][0] == keys[5][0], "a picture in the second block leaves the first one as it is"


def test_seeds_keep_blocks_apart_and_stay_secret() -> None:
    for fast in (False, True):
        prefixes = set()
        for seed in (0, 1, 2**63, 2**64 - 1):
            whole = sp.hash_blocks(range(16), 16, fast=fast, seed=seed)[1]
            assert np.array_equal(sp.Hasher(16, fast=fast, seed=seed).append(range(16))[1], whole)
            prefixes.add(tuple(whole[0]))
        assert len(prefixes) == 4
    secret = 1234567890123456789
    options = sp.CacheOptions("tree", max_requests=1, max_request_tokens=16, kv_tokens=64, hash_seed=secret)
    assert str(secret) not in repr(options)
    for bad in (-secret, 16 * secret):
        with pytest.raises(sp.InvalidArgument, match="hash_seed must be") as reported:
            dataclasses.replace(options, hash_seed=bad).struct()
        assert str(secret) not in str(reported.value)
    with pytest.raises(sp.InvalidArgument, match="seed must be"):
        sp.hash_blocks(range(16), 16, seed=-1)


def test_bad_hashes_are_refused() -> None:
    with pytest.raises(sp.InvalidArgument, match="block_size_tokens = 0"):
        sp.Hasher(0)
    hasher = sp.Hasher(4)
    with pytest.raises(sp.InvalidArgument, match="first_token = 9"):
        hasher.append([1, 2, 3, 4], [sp.MediaKey(b"x", 9)])
    assert len(hasher.append([1, 2, 3])[0]) == 0
    assert list(hasher.append([4])[0]) == list(sp.hash_blocks([1, 2, 3, 4], 4)[0])


def test_a_seed_comes_from_the_environment_and_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seed in (("71", 71), ("0x1F", 31), (" 5 ", 5), (str(2**64 - 1), 2**64 - 1)):
        monkeypatch.setenv("STATEPORT_SEED_OF_A_TEST", text)
        assert seed_of_variable("a.b", "STATEPORT_SEED_OF_A_TEST") == seed
    for text in ("", "0", "-71", str(2**64), "71x", "7.1"):
        monkeypatch.setenv("STATEPORT_SEED_OF_A_TEST", text)
        with pytest.raises(sp.InvalidArgument, match="^a.b is 'STATEPORT_SEED_OF_A_TEST', whose value") as refused:
            seed_of_variable("a.b", "STATEPORT_SEED_OF_A_TEST")
        assert refused.value.__context__ is None and (not text or text not in str(refused.value))
    monkeypatch.delenv("STATEPORT_SEED_OF_A_TEST")
    with pytest.raises(sp.InvalidArgument, match="no environment variable"):
        seed_of_variable("a.b", "STATEPORT_SEED_OF_A_TEST")


def test_a_cache_without_a_seed_draws_one_unless_it_lasts() -> None:
    assert random_seed(lasts=True) == 0
    drawn = {random_seed(lasts=False) for _ in range(20)}
    assert len(drawn) == 20 and 0 not in drawn and max(drawn) < 1 << 64
