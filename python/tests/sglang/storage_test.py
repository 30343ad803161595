# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage interface over stateport's files, with SGLang's own host pools."""

from __future__ import annotations

import hashlib
import pathlib
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("sglang.srt.mem_cache", reason="tests/engines/sglang/run.sh installs SGLang")

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang_engine import LAYERS, Shape, bytes_of, make_pools

import stateport as sp
from conftest import open_images
from stateport.sglang import StateportStorage

PAGE = 4
MEBIBYTE = 1 << 20
LAYOUTS = ("page_first", "page_first_direct", "layer_first")


class Pools:
    """SGLang's host pools of KV and of states over its device pools."""

    def __init__(self, layout: str = "page_first", tokens: int = 256):
        requests, kv = make_pools(Shape(PAGE, tokens, 12, PAGE), LAYERS)
        device = kv.get_kvcache().full_kv_pool
        common = {"pin_memory": False, "device": "cpu"}
        self.kv = MHATokenToKVPoolHost(device._mha_buffer_info(), 2.0, 0, PAGE, layout, start_layer=0,
                                       end_layer=LAYERS, device_capacity_tokens=tokens, **common)
        [info] = requests.mamba_pool.get_device_pool_infos()
        self.states = MambaPoolHost(info.buffer_info, 4.0, 0, device_capacity=12,
                                    layout="page_first" if layout == "layer_first" else layout, **common)
        self.by_name = {PoolName.KV: self.kv, PoolName.MAMBA: self.states}

    def write(self, name: PoolName, index: int, seed: object) -> None:
        pool = self.by_name[name]
        dummy = pool.get_dummy_flat_data_page()
        pool.set_from_flat_data_page(index, bytes_of((seed, str(name)), dummy.shape, dummy.dtype))

    def holds(self, name: PoolName, index: int, seed: object) -> bool:
        pool = self.by_name[name]
        page = pool.get_data_page(index, flat=True).contiguous().view(torch.uint8)
        dummy = pool.get_dummy_flat_data_page()
        return torch.equal(page, bytes_of((seed, str(name)), dummy.shape, dummy.dtype).view(torch.uint8))


def storage_config(folder: pathlib.Path, room: int = 64 * MEBIBYTE, revision: str = "r1",
                   options: dict[str, Any] | None = None, **more: Any) -> HiCacheStorageConfig:
    named = {"model_name": "a model", "tp_rank": 0, "tp_size": 1, "is_mla_model": False, **more}
    return HiCacheStorageConfig(
        pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, enable_storage_metrics=False, is_page_first_layout=True,
        extra_config={"backend_name": "stateport", "module_path": "stateport.sglang", "interface_v1": 1,
                      "class_name": "StateportStorage",
                      "stateport": {"folder": str(folder / "images"), "file_bytes": room, "revision": revision,
                                    **(options or {})}},
        **named)


def open_storage(folder: pathlib.Path, pools: Pools, **more: Any) -> StateportStorage:
    """As SGLang's controller does it."""
    storage = StorageBackendFactory.create_backend("dynamic", storage_config(folder, **more), pools.kv)
    storage.register_mem_pool_host(pools.kv)
    for name, pool in pools.by_name.items():
        storage.register_mem_host_pool_v2(pool, name)
    storage.on_host_pools_registered()
    return storage


def hashes_of(*pages: int) -> list[str]:
    return [hashlib.sha256(str(page).encode()).hexdigest() for page in pages]


def kv(pages: Sequence[int], first: int = 0) -> PoolTransfer:
    """Pages `first`, `first` + 1, … of the host pool."""
    return PoolTransfer(PoolName.KV, torch.arange(first * PAGE, (first + len(pages)) * PAGE), keys=hashes_of(*pages))


def state(page: int, slot: int = 0) -> PoolTransfer:
    return PoolTransfer(PoolName.MAMBA, torch.tensor([slot]), keys=hashes_of(page),
                        hit_policy=PoolHitPolicy.TRAILING_PAGES)


def store(storage: StateportStorage, pools: Pools, pages: Sequence[int], states: Sequence[int] = ()) -> None:
    for i, page in enumerate(pages):
        pools.write(PoolName.KV, i * PAGE, page)
    assert storage.batch_set_v2([kv(pages)]) == {PoolName.KV: [True] * len(pages)}
    for page in states:
        pools.write(PoolName.MAMBA, 0, page)
        assert storage.batch_set_v2([state(page)]) == {PoolName.MAMBA: [True]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_and_states_come_back_as_they_were(tmp_path: pathlib.Path, layout: str) -> None:
    pools = Pools(layout)
    storage = open_storage(tmp_path, pools)
    store(storage, pools, range(20), [7, 19])
    storage.close()
    pools = Pools(layout)
    storage = open_storage(tmp_path, pools)
    answers = storage.batch_get_v2([kv(range(20), first=30), state(7, slot=3), state(8, slot=4)])
    assert answers == {PoolName.KV: [True] * 20, PoolName.MAMBA: [False]}
    assert all(pools.holds(PoolName.KV, (30 + i) * PAGE, i) for i in range(20))
    assert storage.batch_get_v2([state(7, slot=3)]) == {PoolName.MAMBA: [True]} and pools.holds(PoolName.MAMBA, 3, 7)
    storage.close()


SEED = "STATEPORT_SEED_OF_A_TEST"


@pytest.mark.parametrize(("first", "second", "shares"), [
    ("", "", True), ("7", "7", True), ("7", "8", False), ("", "7", False), ("7", "", False)])
def test_processes_share_files_if_they_have_one_seed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                     first: str, second: str, shares: bool) -> None:
    pools = Pools()
    for seed, held in ((first, False), (second, shares)):
        monkeypatch.setenv(SEED, seed)
        storage = open_storage(tmp_path, pools, options={"hash_seed_variable": SEED if seed else ""})
        assert storage.exists(hashes_of(0)[0]) == held
        store(storage, pools, range(3), [2])
        storage.close()


@pytest.mark.parametrize("scrub", [False, True])
def test_what_was_stored_is_left_neither_in_files_that_go_nor_in_memory(tmp_path: pathlib.Path, scrub: bool) -> None:
    pools = Pools()
    storage = open_storage(tmp_path, pools, options={"scrub": scrub})
    store(storage, pools, range(3), [2])
    assert bool(storage._room.images.any()) != scrub
    assert storage.batch_get_v2([kv(range(3), first=9)]) == {PoolName.KV: [True] * 3}
    assert bool(storage._room.images.any()) != scrub
    with open_images(tmp_path / "images") as hold_bytes:
        storage.clear()
        storage.close()
        assert not list((tmp_path / "images").glob("*.img"))
        assert any(hold_bytes()) != scrub


def test_a_prefix_ends_at_the_last_state(tmp_path: pathlib.Path) -> None:
    pools = Pools()
    storage = open_storage(tmp_path, pools)
    store(storage, pools, range(8), [2, 5])
    keys = hashes_of(*range(8), 99)
    found = storage.batch_exists_v2(keys, [state(8)])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (6, [3, 6])
    assert found.extra_pool_hit_pages == {PoolName.KV: 8, PoolName.MAMBA: 6}
    assert storage.batch_exists(keys) == 8 and storage.exists(keys[0]) and not storage.exists(keys[8])
    assert storage.batch_exists_v2(hashes_of(99, 0), [state(0)]).kv_hit_pages == 0
    wanted = PoolTransfer(PoolName.MAMBA, keys=hashes_of(4, 5), hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert storage.batch_exists_v2(keys, [wanted]).kv_hit_pages == 0  # two states in a row are nowhere
    everywhere = PoolTransfer(PoolName.MAMBA, keys=keys, hit_policy=PoolHitPolicy.ALL_PAGES)
    assert storage.batch_exists_v2(keys[2:4], [everywhere]).kv_hit_pages == 1
    with pytest.raises(ValueError, match="not known"):
        storage.batch_exists_v2(keys, [PoolTransfer(PoolName.MAMBA, keys=keys,
                                                    hit_policy=PoolHitPolicy.BLOCK_GROUPS)])
    storage.close()


def test_the_older_calls_of_kv_alone(tmp_path: pathlib.Path) -> None:
    pools = Pools()
    storage = open_storage(tmp_path, pools)
    pages = [pools.kv.get_dummy_flat_data_page() for _ in range(3)]
    values = [bytes_of(i, pages[0].shape, pages[0].dtype) for i in range(3)]
    assert storage.batch_set(hashes_of(0, 1), values[:2]) and storage.set(hashes_of(2)[0], values[2])
    got = storage.batch_get(hashes_of(0, 5, 2), pages)
    assert got[1] is None and all(torch.equal(got[i].view(torch.uint8), values[i].view(torch.uint8)) for i in (0, 2))
    assert storage.get(hashes_of(5)[0], pages[0]) is None
    pools.write(PoolName.KV, 0, "a")
    assert storage.batch_set_v1(hashes_of(8), torch.arange(PAGE)) == [True]
    assert storage.batch_get_v1(hashes_of(8, 9), torch.arange(PAGE * 4, PAGE * 6)) == [True, False]
    assert pools.holds(PoolName.KV, PAGE * 4, "a")
    storage.clear()
    assert storage.batch_exists(hashes_of(0)) == 0
    storage.close()


@pytest.mark.parametrize("more", [{"model_name": "another"}, {"tp_rank": 1}, {"revision": "r2"}])
def test_another_model_or_rank_finds_nothing(tmp_path: pathlib.Path, more: dict[str, Any]) -> None:
    pools = Pools()
    first = open_storage(tmp_path, pools, tp_size=2)
    store(first, pools, range(3), [2])
    other = open_storage(tmp_path, pools, tp_size=2, **more)
    assert other.batch_exists(hashes_of(0)) == 0 and other.files.tier.info()["foreign_images"] == 4
    assert open_storage(tmp_path, Pools("layer_first"), tp_size=2).batch_exists(hashes_of(0)) == 0
    assert open_storage(tmp_path, pools, tp_size=2).batch_exists(hashes_of(0)) == 1


def test_weights_of_which_nothing_is_known_are_not_written_to_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(sp.InvalidArgument, match="revision is empty, and must name the weights of 'a model'"):
        open_storage(tmp_path, Pools(), revision="")


def test_a_damaged_page_is_missing(tmp_path: pathlib.Path) -> None:
    pools = Pools()
    storage = open_storage(tmp_path, pools)
    store(storage, pools, [1])
    [file] = (tmp_path / "images").glob("*.img")
    data = bytearray(file.read_bytes())
    data[4096 + 9] ^= 64
    file.write_bytes(data)
    assert storage.batch_get_v2([kv([1])]) == {PoolName.KV: [False]}
    assert not storage.exists(hashes_of(1)[0])
    store(storage, pools, [1])
    assert storage.batch_get_v2([kv([1], first=9)]) == {PoolName.KV: [True]}
    assert pools.holds(PoolName.KV, 9 * PAGE, 1)
    storage.close()


def test_a_full_folder_gives_up_the_longest_unused(tmp_path: pathlib.Path) -> None:
    pools = Pools()
    storage = open_storage(tmp_path, pools, room=16 * 2 * 4096)  # 16 pages
    for first in (0, 8):
        store(storage, pools, range(first, first + 8))
    assert storage.batch_exists(hashes_of(*range(8))) == 8  # used again
    store(storage, pools, range(20, 26))
    assert storage.batch_exists(hashes_of(*range(8))) == 8
    # At least six had to go, and with them headers that stay as long as their file does.
    assert not any(storage.exists(page) for page in hashes_of(*range(10, 16)))
    assert storage.batch_exists(hashes_of(*range(20, 26))) == 6
    assert storage.files.tier.info()["file_bytes"] <= 16 * 2 * 4096
    storage.close()


def test_threads_of_write_back_and_prefetch(tmp_path: pathlib.Path) -> None:
    pools = Pools(tokens=1024)
    storage = open_storage(tmp_path, pools, room=60 * 2 * 4096)
    wrong: list[str] = []
    done = threading.Event()

    def write_back(area: int) -> None:
        rng = random.Random(area)
        for _ in range(60):
            pages = rng.sample(range(40), 5)
            for i, page in enumerate(pages):
                pools.write(PoolName.KV, (area + i) * PAGE, page)
            storage.batch_set_v2([kv(pages, first=area)])

    def prefetch(area: int) -> None:
        rng = random.Random(area)
        while not done.is_set():
            pages = rng.sample(range(40), 4)
            storage.batch_exists_v2(hashes_of(*pages), [])
            for i, good in enumerate(storage.batch_get_v2([kv(pages, first=area)])[PoolName.KV]):
                if good and not pools.holds(PoolName.KV, (area + i) * PAGE, pages[i]):
                    wrong.append(f"page {pages[i]}")

    writers = [threading.Thread(target=write_back, args=(area,)) for area in (0, 40)]
    readers = [threading.Thread(target=prefetch, args=(area,)) for area in (80, 120)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert not wrong
    storage.files.tier.check_invariants()
    assert storage.batch_get_v2([kv(range(40))])[PoolName.KV].count(True) > 20
    storage.close()


def test_mistakes(tmp_path: pathlib.Path) -> None:
    pools = Pools()
    with pytest.raises(sp.InvalidArgument, match="MLA"):
        StateportStorage(storage_config(tmp_path, is_mla_model=True, tp_size=2))
    config = storage_config(tmp_path)
    config.extra_config = {"stateport": {"folder": "x", "file_bytes": 1 << 20, "host_bytes": 5}}
    with pytest.raises(sp.InvalidArgument, match="host_bytes"):
        StateportStorage(config)
    config.extra_config = {"stateport": {"folder": "x", "file_bytes": 1 << 20, "hash_seed": 7113}}
    with pytest.raises(sp.InvalidArgument, match="hash_seed_variable") as refused:
        StateportStorage(config)
    assert "7113" not in str(refused.value)
    config.extra_config = {}
    with pytest.raises(sp.InvalidArgument, match="folder"):
        StateportStorage(config)
    with pytest.raises(sp.InvalidArgument, match="no host pool"):
        StateportStorage(storage_config(tmp_path)).clear()
    storage = open_storage(tmp_path, pools)
    with pytest.raises(sp.InvalidArgument, match="keys has the element"):
        storage.exists("abc")
    assert storage.batch_set_v2([PoolTransfer(PoolName.SWA, torch.arange(PAGE), keys=hashes_of(1))]) == {
        PoolName.SWA: [False]}
    assert storage.batch_set_v2([PoolTransfer(PoolName.KV, torch.arange(PAGE - 1), keys=hashes_of(1))]) == {
        PoolName.KV: [False]}
    storage.close()
