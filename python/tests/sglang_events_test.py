# SPDX-License-Identifier: Apache-2.0
"""Events of the tiers below SGLang, without SGLang: its hashes and its events of the device are stand-ins for those of
SGLang 0.5.23. tests/engines/sglang/run.sh runs the same with SGLang itself."""
from __future__ import annotations

import dataclasses
import hashlib
import importlib
import pathlib
import random
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport.errors import InvalidArgument

pytest.importorskip("msgspec")

PAGE = 2
MEDIA = {"CPU_PINNED": "host", "DISK": "file"}
Prompt = tuple[int, ...]  # a page is named by one number


# ---- SGLang's side

def of_pages(tokens: Sequence[int], before: str | None, size: int) -> list[str]:
    hashes, last = [], bytes.fromhex(before) if before else b""
    for at in range(0, len(tokens), size):
        last = hashlib.sha256(last + np.array(tokens[at:at + size], np.int64).tobytes()).digest()
        hashes.append(last.hex())
    return hashes


def seed_of(extra_key: str | None, salt: str | None) -> str | None:
    return None if extra_key is None and salt is None else hashlib.sha256(repr((extra_key, salt)).encode()).hexdigest()


def as_int64(text: str) -> int:
    return int(np.array(int(text[:16], 16), np.uint64).astype(np.int64))


def in_dynamo_format(said: int, salt: str) -> int:
    return as_int64(hashlib.sha256(f"{said} {salt}".encode()).hexdigest())


@dataclasses.dataclass
class BlockStored:
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class BlockRemoved:
    pass


class AllBlocksCleared:
    pass


def tokens_of(prompt: Prompt) -> list[int]:
    return [10 * page + i for page in prompt for i in range(PAGE)]


def names(prompt: Prompt, salt: str | None = None, extra_key: str | None = None) -> list[str]:
    """Of pages in tiers."""
    return of_pages(tokens_of(prompt), seed_of(extra_key, salt), PAGE)


def said(prompt: Prompt, salt: str | None = None, dynamo: bool = False) -> list[int]:
    """Hashes in events. An extra key does not enter them."""
    seed = None if salt is None else hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).hexdigest()
    plain = [as_int64(name) for name in of_pages(tokens_of(prompt), seed, PAGE)]
    return [in_dynamo_format(value, salt) for value in plain] if dynamo and salt is not None else plain


def stored(prompt: Prompt, first: int = 0, salt: str | None = None, dynamo: bool = False, **more: Any) -> BlockStored:
    """The event of the pages from `first` on."""
    hashes = said(prompt, salt, dynamo)
    return BlockStored(hashes[first:], hashes[first - 1] if first else None, tokens_of(prompt)[first * PAGE:], PAGE,
                       salt, **more)


# ---- ours

@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Modules of the adapter that need no SGLang. Their package does."""
    package = types.ModuleType("stateport.sglang")
    package.__path__ = [str(pathlib.Path(sp.__file__).parent / "sglang")]
    for name in [name for name in sys.modules if name.startswith("stateport.sglang")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stateport.sglang", package)
    yield types.SimpleNamespace(**{name: importlib.import_module(f"stateport.sglang.{name}")
                                   for name in ("_events", "_files", "_keys", "_metrics", "_mover", "_options")})
    for name in [name for name in sys.modules if name.startswith("stateport.sglang")]:
        monkeypatch.delitem(sys.modules, name)


class Router:
    """Components by hash and medium, by the events."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, str], list[str]] = {}
        self.tokens: dict[int, tuple[int | None, list[int]]] = {}
        self.heard: list[dict[str, Any]] = []

    def hear(self, events: list[dict[str, Any]]) -> None:
        self.heard += events
        for event in events:
            medium = MEDIA[event["medium"]]
            if event["type"] == "BlockRemoved":
                for name in event["block_hashes"]:
                    del self.held[name, medium]  # it was announced
                continue
            parent = event["parent_block_hash"]
            assert len(event["token_ids"]) == PAGE * len(event["block_hashes"])
            for i, name in enumerate(event["block_hashes"]):
                assert parent is None or any((parent, other) in self.held for other in MEDIA.values())
                self.held[name, medium] = event["component_types"]
                self.tokens[name] = parent, event["token_ids"][PAGE * i:PAGE * (i + 1)]
                parent = name


def open_events(adapter: Any, router: Router | None = None, groups: int = 1, hash_seed: int = 0,
                pages_max: int = 1000) -> Any:
    hashes = adapter._events.Hashes(of_pages, seed_of, as_int64, in_dynamo_format,
                                    lambda seed: hashlib.sha256(seed).hexdigest())
    events = adapter._events.TierEvents(PAGE, groups, pages_max, hash_seed, hashes)
    if router is not None:
        events.begin(router.hear)
    return events


def keys_of(adapter: Any, prompt: Prompt, content: str = "kv_block", salt: str | None = None, seed: int = 0,
            extra_key: str | None = None) -> Any:
    return adapter._keys.page_keys(names(prompt, salt, extra_key), content, seed=seed)


def show(adapter: Any, events: Any, prompt: Prompt, medium: int = 2, **more: Any) -> None:
    """All pages come to a tier, with a state at the end."""
    events.stored(keys_of(adapter, prompt, **more), medium)
    events.stored(keys_of(adapter, prompt, "state", **more)[-1:], medium)


def announced(adapter: Any, seed: int = 0) -> tuple[Router, Any]:
    """Files have two pages that SGLang announced."""
    router = Router()
    events = open_events(adapter, router, hash_seed=seed)
    events.heard([stored((1, 2))])
    show(adapter, events, (1, 2), seed=seed)
    events.wait()
    assert len(router.held) == 2
    return router, events


def test_events_to_the_letter(adapter: Any) -> None:
    router = Router()
    events = open_events(adapter, router)
    events.heard([stored((1, 2, 3), session_id="s")])
    show(adapter, events, (1, 2))
    events.wait()
    common = {"type": "BlockStored", "block_size": PAGE, "lora_id": None, "lora_name": None, "medium": "DISK",
              "session_id": "s", "cache_salt": None}
    hashes = said((1, 2, 3))
    assert router.heard == [
        {**common, "block_hashes": hashes[:1], "parent_block_hash": None, "token_ids": [10, 11],
         "component_types": ["FULL"]},
        {**common, "block_hashes": hashes[1:2], "parent_block_hash": hashes[0], "token_ids": [20, 21],
         "component_types": ["FULL", "MAMBA"], "state_tokens": 2 * PAGE}]
    del router.heard[:]
    events.removed(keys_of(adapter, (1, 2), "state")[-1:], 2)
    events.wait()
    assert router.heard == [{"type": "BlockRemoved", "block_hashes": hashes[1::-1], "medium": "DISK"}]
    events.close()
    events.close()


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("salt", [None, "tenant"])
def test_pages_are_announced_under_the_hashes_of_sglangs_events(adapter: Any, salt: str | None, dynamo: bool) -> None:
    router = Router()
    events = open_events(adapter, router)
    show(adapter, events, (1, 2, 3), salt=salt)  # before SGLang has told their tokens
    events.heard([stored((1, 2), salt=salt, dynamo=dynamo), stored((1, 2, 3), 2, salt=salt, dynamo=dynamo)])
    events.wait()
    assert {name for name, _ in router.held} == set(said((1, 2, 3), salt, dynamo))
    assert {event["cache_salt"] for event in router.heard} == {salt}
    events.close()


def test_what_cannot_be_joined_is_not_announced(adapter: Any) -> None:
    router = Router()
    events = open_events(adapter, router)
    other = stored((1, 2))
    other.block_hashes = [value + 1 for value in other.block_hashes]  # an adapter's, or an extra key's
    pairs = stored((1, 2))
    pairs.token_ids = [(token, token + 1) for token in pairs.token_ids]
    parts = stored((1, 2))
    parts.block_size = PAGE - 1
    events.heard([other, pairs, parts, BlockStored([], None, [], PAGE), stored((1, 2, 3), 2), BlockRemoved()])
    show(adapter, events, (1, 2))
    show(adapter, events, (1, 2), extra_key="key")
    events.wait()
    assert router.heard == []
    events.heard([stored((1, 2))])
    events.wait()
    assert {name for name, _ in router.held} == set(said((1, 2)))
    events.close()


def test_contents_that_outlive_a_flush_are_announced_again(adapter: Any) -> None:
    router, events = announced(adapter)
    held = dict(router.held)
    router.held.clear()
    events.heard([AllBlocksCleared()])
    events.wait()
    assert router.held == held and not any(event["type"] == "AllBlocksCleared" for event in router.heard)
    events.close()


def test_a_reset_removes_all_and_begins_with_new_names(adapter: Any) -> None:
    router, events = announced(adapter, seed=5)
    events.reset(6)
    events.heard([AllBlocksCleared(), stored((1, 2))])
    show(adapter, events, (1, 2), seed=5)  # that was on its way
    events.wait()
    assert router.held == {}
    show(adapter, events, (1, 2), seed=6)
    events.wait()
    assert len(router.held) == 2
    events.close()


def test_a_model_without_states_announces_pages_alone(adapter: Any) -> None:
    router = Router()
    events = open_events(adapter, router, groups=0)
    events.heard([stored((1, 2, 3))])
    events.stored(keys_of(adapter, (1, 2, 3))[[0, 2]], 1)
    events.wait()
    assert router.held == {(said((1,))[0], "host"): ["FULL"]}  # the third is behind a gap
    events.close()


def test_names_are_bounded_and_a_full_queue_loses_hints_alone(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router()
    events = open_events(adapter, router, pages_max=4)
    events.heard([stored((page,)) for page in range(100)])
    events.wait()
    assert len(events._pages) == 8
    events.close()
    monkeypatch.setattr(adapter._events, "_WAITING_MAX", 3)
    router, events = Router(), open_events(adapter)
    events.heard([stored((1, 2))])
    for _ in range(3):
        show(adapter, events, (1, 2))
    events.begin(router.hear)
    events.wait()
    show(adapter, events, (1, 2))  # behind a gap: all before is forgotten
    events.wait()
    assert len(router.held) == 2
    events.close()


def test_a_prefix_of_many_prompts_stays_known(adapter: Any) -> None:
    router = Router()
    events = open_events(adapter, router, pages_max=4)
    events.heard([stored((1, 2))])
    show(adapter, events, (1, 2))
    for page in range(10, 30):
        events.heard([stored((1, 2, page), 2)])
    show(adapter, events, (1, 2, 29))
    events.wait()
    assert len(events._pages) == 8 and {name for name, _ in router.held} == set(said((1, 2, 29)))
    events.close()


def test_tiers_that_are_closed_announce_that_all_is_gone_and_hear_no_more(adapter: Any) -> None:
    router, events = announced(adapter)
    events.close()
    assert router.held == {}
    events.heard([stored((1, 2, 3), 2)])
    assert events._queue.qsize() == 0


def test_a_publisher_that_fails_stops_nobody(adapter: Any, caplog: pytest.LogCaptureFixture) -> None:
    events = open_events(adapter)
    events.begin(lambda _: 1 // 0)  # type: ignore[arg-type, return-value]
    events.heard([stored((1, 2))])
    show(adapter, events, (1, 2))
    events.wait()
    show(adapter, events, (1, 2))
    events.close()
    assert "announced no more" in caplog.text


def test_a_storage_that_is_attached_anew_is_published(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sent:
        def __init__(self, rank: int) -> None:
            self.router = Router()

        def publish(self, batch: Any) -> None:
            self.router.hear([event for event in batch.events if isinstance(event, dict)])

        def shutdown(self) -> None:
            pass

    none = types.SimpleNamespace
    for name, module in {
            "disaggregation.kv_events": none(
                EventPublisherFactory=none(register_publisher=lambda name, publisher: None), ZmqEventPublisher=Sent,
                KVEventBatch=none, KVEventsConfig=none(from_cli=lambda text: none(publisher=text)),
                is_kv_publisher_rank=bool, kv_event_namespace_seed=None, namespaced_block_hash=None),
            "mem_cache.utils": none(get_hash_str=lambda tokens, before, page_size: of_pages(tokens, before, page_size),
                                    hash_str_to_int64=as_int64, storage_namespace_seed=seed_of),
            "runtime_context": none(get_observability=lambda: none(kv_events_config="stateport"))}.items():
        monkeypatch.setitem(sys.modules, f"sglang.srt.{name}", module)
    ours = importlib.import_module("stateport.sglang._publisher")
    first = ours.open_events(PAGE, 1, 1000, 0)
    publisher = ours.StateportPublisher(0)
    for tiers in (first, None):
        if tiers is None:
            tiers = ours.open_events(PAGE, 1, 1000, 0)
        publisher.publish(none(events=[stored((1, 2))]))
        show(adapter, tiers, (1, 2))
        tiers.wait()
        assert len(publisher.router.held) == 2
        tiers.close()
        assert publisher.router.held == {}
    publisher.shutdown()


def test_the_option_is_true_or_false(adapter: Any) -> None:
    assert adapter._options.Options.read("extra", {"kv_events": True}).kv_events
    with pytest.raises(InvalidArgument, match="kv_events is 1"):
        adapter._options.Options.read("extra", {"kv_events": 1})


# ---- over the tiers themselves

class Files:
    """The storage's files."""

    media = ("file",)

    def __init__(self, adapter: Any, folder: pathlib.Path, events: Any) -> None:
        spec = sp.StateSpec([sp.TensorSpec("recurrent", "int8", (64,))])
        self.tier = sp.FileTier(folder / "images", states=[spec], kv=spec, model="m", file_bytes=1 << 16)
        self.size = self.tier.layout("kv_block").image_bytes
        cache = sp.ImageCache(file_bytes=12 * self.size, kv_image_bytes=self.size, state_image_bytes=[self.size])
        self.files = adapter._files.WaitingFiles(self.tier, cache, None, events)
        self.adapter = adapter

    def put(self, keys: Any) -> None:
        self.files.write(keys, [self.tier.layout("kv_block").new_images(1)[0] for _ in keys])

    def get(self, keys: Any) -> None:
        self.files.read(keys, [self.tier.layout("kv_block").new_images(1)[0] for _ in keys])

    def keys(self, medium: str) -> Any:
        return self.tier.keys()

    def close(self) -> None:
        self.files.close()


class Linked:
    """The linker's mover."""

    media = ("host", "file")

    def __init__(self, adapter: Any, folder: pathlib.Path, events: Any) -> None:
        torch = pytest.importorskip("torch")
        spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (16,))])
        self.memory = [torch.zeros(8, 16) for _ in range(2)]
        stores = [sp.StateStore.view(spec, [memory]) for memory in self.memory]
        size = spec.image_bytes
        self.tiers = sp.StateTiers(states=stores[:1], kv=stores[1], model="m", host_bytes=8 * size,
                                   folder=folder / "images", file_bytes=1 << 16)
        self.cache = sp.ImageCache(host_bytes=8 * size, file_bytes=12 * size, kv_image_bytes=size,
                                   state_image_bytes=[size], write_through=True)
        found = self.tiers.keys("file")
        events.stored(found[self.cache.attach("file", found)], 2)
        self.mover, self.job = adapter._mover.Mover(self.tiers, self.cache, torch.device("cpu"), None, events), \
            adapter._mover.Job

    def _move(self, store: bool, keys: Any) -> None:
        self.mover.start(self.job(store, lambda: (keys, np.arange(len(keys), dtype=np.int32)), lambda good: None))
        self.mover.wait()

    def put(self, keys: Any) -> None:
        self._move(True, keys)

    def get(self, keys: Any) -> None:
        self._move(False, keys)

    def keys(self, medium: str) -> Any:
        self.mover.wait_for_files()
        return self.tiers.keys(medium)

    def close(self) -> None:
        self.mover.close()


def expected(contents: dict[str, set[Any]], known: set[Prompt], adapter: Any) -> dict[tuple[int, str], list[str]]:
    """Announcements of these keys by medium: pages that SGLang has announced, up to the deepest state that can be
    restored."""
    def media(prompt: Prompt, content: str) -> set[str]:
        key = keys_of(adapter, prompt, content)[-1].tobytes()
        return {medium for medium, keys in contents.items() if key in keys}

    usable: set[Prompt] = set()
    for prompt in known:
        paths = [prompt[:i + 1] for i in range(len(prompt))]
        if media(prompt, "state") and all(media(path, "kv_block") and path in known for path in paths):
            usable.update(paths)
    return {(said(prompt)[-1], medium): ["FULL"] * (medium in media(prompt, "kv_block")) + ["MAMBA"] * (
        medium in media(prompt, "state")) for prompt in usable
            for medium in media(prompt, "kv_block") | media(prompt, "state")}


@pytest.mark.parametrize("kind", [Files, Linked])
def test_routers_hear_what_the_tiers_have(adapter: Any, tmp_path: pathlib.Path, kind: Any) -> None:
    for seed in seeds(6):
        print("seed", seed)
        draw, router, known = random.Random(seed), Router(), set()
        removed = 0
        for process in range(2):  # the second one finds the files of the first
            events = open_events(adapter, router)
            known.clear()
            router.held.clear()
            router.tokens.clear()
            (tmp_path / str(seed)).mkdir(exist_ok=True)
            tiers = kind(adapter, tmp_path / str(seed), events)
            for _ in range(40):
                prompt = tuple(draw.randrange(2) for _ in range(draw.randint(1, 4)))
                first = next((i for i in range(len(prompt)) if prompt[:i + 1] not in known), len(prompt))
                if first < len(prompt):
                    events.heard([stored(prompt, first)])
                    known |= {prompt[:i + 1] for i in range(len(prompt))}
                keys = np.concatenate([keys_of(adapter, prompt), keys_of(adapter, prompt, "state")[-1:]])
                if draw.random() < 0.3:
                    tiers.get(keys[:draw.randint(1, len(keys))])
                else:
                    tiers.put(keys)
                if draw.random() < 0.2:
                    contents = {medium: {key.tobytes() for key in tiers.keys(medium)} for medium in kind.media}
                    events.wait()
                    assert router.held == expected(contents, known, adapter), f"seed {seed}, process {process}"
            paths = {said(path)[-1]: ((None, *said(path))[-2], tokens_of(path)[-PAGE:]) for path in known}
            assert router.tokens.items() <= paths.items()
            removed = sum(event["type"] == "BlockRemoved" for event in router.heard)
            tiers.close()
        assert removed > 0
