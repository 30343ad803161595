# SPDX-License-Identifier: Apache-2.0
"""Contents of the tiers below SGLang as events, under the hashes that SGLang's own events give the same pages."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stateport import _c
from stateport._arrays import CACHE_EVENT, Records
from stateport.kv_events import KvEventEncoder
from stateport.sglang._keys import page_keys

logger = logging.getLogger(__name__)

_WAITING_MAX = 100_000  # as SGLang's publisher has it
_SALT_TAG = b"sglang-cache-salt-v1\0"  # of the seed of hashes in SGLang's events, not of its names in tiers
_ANSWER_S = 0.05  # how long wait() sleeps before it looks whether the thread still runs
Key = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Hashes:
    """SGLang's functions: sglang.srt.mem_cache.utils, sglang.srt.disaggregation.kv_events."""

    of_pages: Callable[[Sequence[int], str | None, int], list[str]]
    namespace_seed: Callable[[str | None, str | None], str | None]
    as_int64: Callable[[str], int]
    in_dynamo_format: Callable[[int, str], int]  # of a hash and the salt
    salt_seed: Callable[[bytes], str]


@dataclasses.dataclass(frozen=True)
class _Page:
    """A page that SGLang announced. name, event_name: its hash in tiers and in events, which differ behind a salt.
    end: pages from the start of the prompt."""

    name: str
    event_name: str
    key: Key
    end: int


class TierEvents:
    """Contents of the tiers, told to routers beside SGLang's own events of the device.

    SGLang names a page in tiers by the SHA-256 that begins its int64 in events, but tells the tiers neither tokens nor
    the page before. Both are in its events of the device, where each page is before a tier can have it. So contents
    are announced once SGLang has announced the same page, those from before a restart when they are used again.

    A namespace enters the two hashes in different ways, and events tell its salt alone. So pages behind a salt are
    announced, and pages behind an extra key or an adapter are not: events do not tell how tiers name them.

    One thread names, encodes and publishes, in the order of the calls; all others only queue. A full queue loses
    names, which costs hints, or changes, after which all contents are announced as removed."""

    def __init__(self, page_tokens: int, state_groups: int, pages_max: int, hash_seed: int, hashes: Hashes) -> None:
        """pages_max: that SGLang has on the device."""
        self._page, self._hashes, self._seed = page_tokens, hashes, hash_seed
        self._known_max = 2 * pages_max
        self._new_encoder = functools.partial(
            KvEventEncoder, "sglang", block_size_tokens=page_tokens, shared=True,
            state_groups=range(1, state_groups + 1), idle_names_max=self._known_max)
        self._encoder = self._new_encoder()
        self._pages: collections.OrderedDict[int, _Page] = collections.OrderedDict()  # by hash in events
        self._sequence = 0
        self._order = threading.Lock()  # of sequence numbers in the queue
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(_WAITING_MAX)
        self._has_lost = self._has_ended = False
        self._thread: threading.Thread | None = None
        self._publish: Callable[[list[dict[str, Any]]], None] = lambda _: None

    # ---- of any thread

    def begin(self, publish: Callable[[list[dict[str, Any]]], None]) -> None:
        """Publishes from now on, contents from before among them."""
        self._publish = publish
        self._thread = threading.Thread(target=self._run, name="stateport-tier-events", daemon=True)
        self._thread.start()

    def stored(self, keys: Records, medium: int) -> None:
        self._change(_c.EVENT_STORED, keys, medium)

    def removed(self, keys: Records, medium: int) -> None:
        self._change(_c.EVENT_REMOVED, keys, medium)

    def clear(self) -> None:
        """All contents are forgotten."""
        self._change(_c.EVENT_CLEARED, np.zeros(1, CACHE_EVENT), 0)

    def reset(self, hash_seed: int) -> None:
        """All contents are forgotten; names are hashed with this secret from now on."""
        self.clear()
        self._put(lambda: self._forget(hash_seed))

    def heard(self, events: Sequence[Any]) -> None:
        """SGLang publishes these events."""
        self._put(lambda: self._learn(events))

    def wait(self) -> None:
        """Until all is published that was queued."""
        done = threading.Event()
        self._put(done.set)
        while self._thread is not None and self._thread.is_alive() and not done.wait(_ANSWER_S):
            pass

    def close(self) -> None:
        """Publishes the queue, and that all contents are gone: a storage may be detached from an engine that goes on.
        What comes later is ignored. Closing it twice is fine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.clear()
            self._put(None)
            thread.join()
        self._has_ended = True

    def _change(self, kind: int, keys: Records, medium: int) -> None:
        events = np.zeros(len(keys), CACHE_EVENT)
        events["size"], events["kind"], events["medium"] = CACHE_EVENT.itemsize, kind, medium
        if kind != _c.EVENT_CLEARED:
            for name in ("content", "group", "prefix"):
                events[name] = keys[name]
        with self._order:
            events["sequence"] = np.arange(self._sequence + 1, self._sequence + 1 + len(keys))
            self._sequence += len(keys)
            self._put(lambda: self._encoder.add(events))  # a gap of numbers, if that is lost

    def _put(self, step: Callable[[], None] | None) -> None:
        """step: None: the last one, for which there is always room."""
        if self._has_ended:
            return
        try:
            self._queue.put(step, block=step is None)
        except queue.Full:
            if not self._has_lost:
                logger.warning("stateport: more than %d events of tiers wait: some are lost", _WAITING_MAX)
            self._has_lost = True

    # ---- of the thread

    def _run(self) -> None:
        try:
            while (step := self._queue.get()) is not None:
                step()
                if events := self._encoder.take_events():
                    self._publish(events)
        except Exception:
            logger.exception("stateport: contents of tiers are announced no more")
            self._has_ended = True
            with contextlib.suppress(queue.Empty):  # nobody waits for room
                while True:
                    self._queue.get_nowait()

    def _forget(self, hash_seed: int) -> None:
        """Images that are still on their way under old names come to an encoder that does not know them."""
        self._pages.clear()
        self._seed, self._encoder = hash_seed, self._new_encoder()

    def _learn(self, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event).__name__
            if kind == "BlockStored":
                self._name(event)
            elif kind == "AllBlocksCleared":
                self._encoder.tell_again(are_cleared=True)

    def _name(self, event: Any) -> None:
        """Of pages that follow one another, whole ones, of tokens (EAGLE's pages are of pairs)."""
        names, tokens, size = event.block_hashes, event.token_ids, self._page
        if not names or event.block_size != size or len(tokens) != len(names) * size or not isinstance(tokens[0], int):
            return
        salt, parent = event.cache_salt, event.parent_block_hash
        before = None if parent is None else self._pages.get(parent)
        if before is not None:
            self._pages.move_to_end(parent)  # a prefix of many prompts stays known
        elif parent is not None:
            return
        last, last_event = (before.name, before.event_name) if before else (
            self._hashes.namespace_seed(None, salt),
            None if salt is None else self._hashes.salt_seed(_SALT_TAG + salt.encode()))
        hashed = self._hashes.of_pages(tokens, last, size)
        in_events = hashed if salt is None else self._hashes.of_pages(tokens, last_event, size)
        if names[0] not in self._said(in_events[0], salt):  # of another namespace
            return
        keys = [tuple(key) for key in page_keys(hashed, "kv_block", seed=self._seed)["prefix"].tolist()]
        end = before.end if before else 0
        self._encoder.name(np.array(keys, np.uint64), tokens, hashes=names, lora_name=event.lora_name, salt=salt,
                           session_id=event.session_id, behind=before.key if before else None, blocks_before=end)
        for i, said in enumerate(names):
            self._pages[said] = _Page(hashed[i], in_events[i], keys[i], end + i + 1)
            self._pages.move_to_end(said)
        while len(self._pages) > self._known_max:
            self._pages.popitem(last=False)

    def _said(self, event_name: str, salt: str | None) -> set[int]:
        """The hashes that SGLang may give the page in its events: of its own format, and of Dynamo's."""
        plain = self._hashes.as_int64(event_name)
        return {plain} if salt is None else {plain, self._hashes.in_dynamo_format(plain, salt)}

