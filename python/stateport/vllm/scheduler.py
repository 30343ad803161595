# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: the contents of the pools on the host, the prefix that a prompt reuses, and the states that a
step keeps.

The pools of the workers are the "device" of a RequestCache: KV blocks and checkpoints in a store of their own; files
and a store that engines share lie below. vLLM's own cache lies above, and its pages take the place of live states."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stateport._arrays import Int32s, Records
from stateport.cache_options import PrefixOptions, SessionOptions, SlotLayout, StartedRequest
from stateport.errors import Error, InvalidArgument
from stateport.eviction import Eviction
from stateport.record.options import open_recorder
from stateport.request_cache import RequestCache
from stateport.tier_options import TierOptions
from stateport.vllm.device_kv import DeviceCopies, DeviceKv, Span, written_blocks
from stateport.vllm.events import PoolEvents
from stateport.vllm.hints import Hints, read_hints
from stateport.vllm.layout import STATE, PageLayout
from stateport.vllm.loads import Load, Loads
from stateport.vllm.metadata import ResultCount, StepBuilder, StepPlan, WorkerInfo, agreed_images
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.prompts import media_of, namespace_of, tokens_of
from stateport.vllm.recording import Traffic
from stateport.vllm.statistics import Counters
from stateport.vllm.watch import CacheWatch

logger = logging.getLogger(__name__)

NULL_BLOCK = 0  # vLLM's: of tokens whose block is not kept
Offers = Mapping[str, Sequence[tuple[int, int, int]]]  # request: (group, vLLM's block, tokens)
BlockIds = Callable[[str], Sequence[Sequence[int]] | None]
_PINS_MAX, _PREFETCHES_MAX = 1024, 16  # at a time
_PREFETCHED_PART = 8  # of host_bytes, that loads of prefetches take together
HANG_S = 1.0  # a prompt that ends after it waited so long shows that no other one should wait


@dataclasses.dataclass
class Held:
    """A prompt of vLLM that is a request of the cache, from its look-up to the end of its prefill.

    reused: tokens whose KV (kv: places on the host) and state (slot) can be restored. local: tokens of vLLM's own hit.
    junction: where vLLM wants to stop, 0: nowhere. branch: where the prompt leaves a prefix whose KV is cached.
    waits_since_s: for files or the shared store, None: it does not. load: the result of that. known: reused, slot and
    kv are set. admitted: vLLM has blocks for it. restored: the workers copy its pages."""

    number: int
    prompt_tokens: int
    lost: str
    branch: int
    waits_since_s: float | None = None
    load: Load | None = None
    medium: str = "host"
    reused: int = 0
    slot: int = -1
    kv: Int32s = dataclasses.field(default_factory=lambda: np.empty(0, np.int32))
    local: int = 0
    junction: int = 0
    known: bool = False
    admitted: bool = False
    restored: bool = False
    hints: Hints = dataclasses.field(default_factory=Hints)


class SchedulerSide:
    """Decides for all workers, which carry out the same steps.

        match → admit, for each prompt that vLLM schedules
        plan_step, once a step → the workers → answered"""

    def __init__(self, layout: PageLayout, options: ConnectorOptions, *, max_requests: int, max_request_tokens: int,
                 model: str = "", version: str = "") -> None:
        """model, version: of vLLM, for the header of a trace."""
        self.layout, self.options = layout, options
        self._about = {"model": options.model or model, "version": version}
        self._traffic: Traffic | None = None
        self._hash_seed = options.hash_seed()
        self.counters = Counters()
        self._block = layout.block_size_tokens
        self._grid, self._decode_grid = (-(-tokens // self._block) * self._block for tokens in (
            options.checkpoint_tokens, 0 if layout.speculative else options.decode_checkpoint_tokens))
        self._max_requests, self._max_request_tokens = max_requests, max_request_tokens
        self._held: dict[str, Held] = {}
        self._loads = Loads(max_requests)
        self._wait_s = options.load_wait_s or math.inf
        self._waiting, self._waiting_max = 0, max(max_requests // 3, 1)  # prompts that wait for files or the store
        self._stale: set[str] = set()  # prompts of vLLM that began before a reset
        self._step = StepBuilder()
        self._resets = 0
        self._hints: dict[str, Hints] = {}  # of vLLM's requests that were looked up
        self.device_kv = DeviceKv(self._block)
        self._events = PoolEvents(layout, self._hash_seed) if options.kv_events else None
        self._clock = time.monotonic()
        self._cache: RequestCache | None = None
        self._watch: CacheWatch | None = None
        self._pools: list[tuple[int, ...]] = []  # of the workers

    # --- The workers -------------------------------------------------------------------------------------------------

    def open(self, infos: Sequence[WorkerInfo]) -> None:
        """The workers have made their pools. vLLM says so again when it wakes up, which changes nothing. Raises
        InvalidArgument if they cannot serve one cache, and for other pools than the first time."""
        if not infos:
            raise InvalidArgument("no worker has reported its pools: the connector needs them before the first step")
        pools = [info.pools for info in infos]
        if self._cache is not None:
            if pools != self._pools:
                raise InvalidArgument(f"the workers have the pools {pools} now, and had {self._pools}: a cache stays "
                                      "with the pools that it began with")
            return
        first = infos[0]
        # One block of the pools is the cache's own.
        blocks, states = min(info.kv_blocks for info in infos) - 1, min(info.states for info in infos)
        tiers = None
        if self.options.has_tiers:
            tiers = TierOptions(file_bytes=self.options.file_bytes, write_through=True,
                                remote_bytes=self.options.remote_bytes if self.options.remote is not None else 0,
                                state_image_bytes=max(info.state_image_bytes for info in infos),
                                kv_image_bytes=max(info.kv_image_bytes for info in infos))
        self._max_request_tokens = min(self._max_request_tokens, blocks * self._block)
        prefixes = PrefixOptions(pins=_PINS_MAX if self.options.pinned_bytes else 0,
                                 pinned_bytes=self.options.pinned_bytes,
                                 prefetches=_PREFETCHES_MAX if tiers is not None else 0,
                                 prefetched_bytes=self.options.host_bytes // _PREFETCHED_PART)
        cache = RequestCache(
            "hash", SlotLayout(first.fingerprint, states, separate_checkpoints=True, scan_alignment_tokens=-1,
                               placement="every"),
            max_requests=self._max_requests, max_request_tokens=self._max_request_tokens,
            block_size_tokens=self._block, kv_tokens=blocks * self._block, tiers=tiers,
            eviction=Eviction(self.options.eviction, state_bytes=first.state_bytes,
                              kv_bytes_per_token=-(-first.kv_block_bytes // self._block)),
            prefixes=prefixes if prefixes.pins or prefixes.prefetches else None,
            sessions=SessionOptions(self.options.sessions) if self.options.sessions else None,
            hash_seed=self._hash_seed, scrub=self.options.scrub, events=self.options.kv_events)
        if self.options.record is not None:
            self._traffic = Traffic(open_recorder(
                self.options.record, "vllm", **self._about, state_bytes=max(info.state_bytes for info in infos),
                kv_bytes_per_token=max(-(-info.kv_block_bytes // self._block) for info in infos)))
        self._cache, self._pools = cache, pools
        self._results = ResultCount(len(infos))
        self._bytes = first.kv_block_bytes, first.state_bytes
        windows = dict(zip(self.layout.windows, first.window_block_bytes, strict=True))
        self._lone_bytes = first.state_bytes - sum(group.blocks * size for group, size in windows.items())
        self._span_bytes: dict[tuple[int, ...], int] = {(group.number,): size for group, size in windows.items()}
        self._span_bytes[self.layout.kv_groups] = first.kv_block_bytes
        self._watch = CacheWatch(cache, kv_bytes=self._bytes[0], state_bytes=self._bytes[1], kv_blocks=blocks,
                                 states=states, capacity={} if tiers is None else {
                                     "file": tiers.file_bytes, "remote": tiers.remote_bytes})
        self._image_bytes = first.kv_image_bytes, first.state_image_bytes
        if self.options.folder is not None:
            self._attach(infos)

    def _attach(self, infos: Sequence[WorkerInfo]) -> None:
        images, removed = agreed_images(infos, self._block)
        kept = self.cache.attach("file", images)
        self._step.removed = np.concatenate([images[~kept], removed])
        logger.info("stateport: %d images found in files, %d of them are used", len(images) + len(removed),
                    int(kept.sum()))

    @property
    def cache(self) -> RequestCache:
        """Raises InvalidArgument before `open`."""
        if self._cache is None:
            raise InvalidArgument("the workers have not reported their pools yet")
        return self._cache

    def answered(self, results: Records) -> None:
        """Takes the workers' results of transfers: TRANSFER_RESULT [n]."""
        complete = self._results.add(results)
        if len(complete):
            answers = self._loads.answered(complete)
            self.counters.add("asked_images", answers.asked)
            self.counters.add("found_images", answers.found)
            self.counters.add("failed_transfers", answers.failed)
            for kind, medium, seconds in answers.seconds:
                if kind == "load":
                    self.counters.observe("load_seconds", seconds, medium)
                else:
                    self.counters.observe("find_seconds", seconds)
            self._begin(self.cache.settle(complete).transfers)

    def _begin_rest(self) -> None:
        """Transfers of calls whose answers name none."""
        if self.options.has_tiers:
            self._begin(self.cache.settle().transfers)

    def _begin(self, transfers: Records) -> None:
        for medium, kv_blocks, states in self._loads.begin(transfers):
            size = kv_blocks * self._image_bytes[0] + states * self._image_bytes[1]
            self.counters.add("loaded_bytes", size, medium)
        self._step.transfer(transfers)

    # --- Prompts -----------------------------------------------------------------------------------------------------

    def match(self, request: Any, local_tokens: int) -> int | None:
        """How many tokens behind vLLM's own hit can be restored; None: ask again in the next step."""
        held = self._held.get(request.request_id)
        if held is None:
            search = "device" if request.skip_reading_prefix_cache else self._loads.search
            if self._is_crowded(search):
                return None
            held = self._look_up(request, search, self._take_hints(request))
        elif held.waits_since_s is not None:
            if self._waits(held) and not self._is_late(held):
                return None
            held = self._look_up_again(request, held)
        if held is None:
            return 0
        if held.waits_since_s is not None:
            return None
        if held.known:
            self._refresh(held)
        if not held.known:
            self._find_places(held)
        held.local, held.junction = local_tokens, int(request.shared_prefix_boundary)
        usable = 0 if request.skip_reading_prefix_cache else held.reused
        request.shared_prefix_boundary = self._next_stop(held, max(local_tokens, usable))
        self.device_kv.keep(request, self._spans(held, local_tokens, usable))
        return max(usable - local_tokens, 0)

    def _is_crowded(self, search: str) -> bool:
        """Whether this prompt is looked up later, because too many prompts wait or have numbers of the cache. One
        number is for states of decoding."""
        return bool(self._held) and (self.cache.running_requests >= self._max_requests - 1 or
                                     (search != "device" and self._waiting >= self._waiting_max))

    def _take_hints(self, request: Any) -> Hints:
        """Reads and counts the hints of a prompt when it is looked up first. Other prompts that they name are
        prefetched now."""
        known = self._hints.get(request.request_id)
        if known is not None:
            return known
        hints = self._hints[request.request_id] = read_hints(request)
        for reason in hints.ignored:
            self.counters.add("hints", 1, reason)
        self.counters.add("hints", int(hints.demote), "demote" if self.options.sessions else "refused")
        self.counters.add("hints", int(bool(hints.breakpoints)), "breakpoints")
        for tokens in hints.prefetches:
            search, prefetch = self._loads.search, None
            with contextlib.suppress(Error):
                if search != "device":
                    prefetch = self.cache.prefetch(tokens, namespace=namespace_of(request, self._resets),
                                                   now_s=self._now_s(), search=search)
            taken = prefetch is not None and not prefetch.refused
            self.counters.add("hints", 1, "prefetch" if taken else "refused")
            if prefetch is not None:
                self._begin(prefetch.transfers)
        return hints

    def _pin(self, request: Any, held: Held) -> None:
        """The prompt is computed, and stays as long as its hints say."""
        for seconds in held.hints.pins:
            lease_s, pin = min(seconds or math.inf, self.options.pin_lease_s), 0
            with contextlib.suppress(Error):
                pin = self.cache.pin(self.cache.tokens(held.number)[:held.prompt_tokens],
                                     namespace=namespace_of(request, self._resets),
                                     media=media_of(request, held.prompt_tokens), now_s=self._now_s(),
                                     lease_s=lease_s).pin
            self.counters.add("hints", 1, "pin" if pin else "refused")

    def _now_s(self) -> float:
        return time.monotonic() - self._clock

    def _look_up(self, request: Any, search: str, hints: Hints) -> Held | None:
        tokens = tokens_of(request)
        started = self._start(request, tokens, search, hints)
        if tokens is None or started is None:
            return None
        held = Held(started.request, len(tokens), started.lost, started.reused_tokens + started.lost_tokens,
                    hints=hints)
        if started.load_medium != "device":
            held.waits_since_s = time.monotonic()
            self._waiting += 1
        self._held[request.request_id] = held
        return held

    def _waits(self, held: Held) -> bool:
        return held.waits_since_s is not None and bool(self.cache.loading([held.number])[0])

    def _is_late(self, held: Held) -> bool:
        return held.waits_since_s is not None and time.monotonic() - held.waits_since_s > self._wait_s

    def _look_up_again(self, request: Any, held: Held) -> Held | None:
        """Looks a prompt up again, in the pools alone, when its loads have ended or it waits no longer. A request of
        the cache that is still being loaded ends when its load is answered. After a prompt gave up waiting, no other
        one waits until the transfers of the first are answered."""
        load = None
        if held.waits_since_s is not None:
            self.counters.observe("wait_seconds", time.monotonic() - held.waits_since_s)
        if self._waits(held):
            self.counters.add("late_loads", 1)
        else:
            load = self._loads.of(held.number)
        self.end(request.request_id)
        again = self._look_up(request, "device", held.hints)
        if again is not None:
            again.load = load
        return again

    def _refresh(self, held: Held) -> None:
        """vLLM asks again for a prompt that found no room in its own cache: other prompts may have left more of it. A
        prompt whose restore vLLM cut, or which failed, is computed."""
        if held.admitted or held.lost in ("engine_cut", "tier_failed"):
            return
        more = self.cache.refresh(held.number)
        if more is not None:
            self._begin(more.transfers)
            held.lost, held.branch = more.lost, max(held.branch, more.reused_tokens + more.lost_tokens)
            held.known = False

    def _start(self, request: Any, tokens: Int32s | None, search: str, hints: Hints) -> StartedRequest | None:
        """Into the cache; None, with the reason counted: it does not take the request now."""
        reason = "not_tokens" if tokens is None else "too_long" if len(tokens) > self._max_request_tokens else ""
        if tokens is not None and not reason:
            started = self.cache.start(tokens, namespace=namespace_of(request, self._resets),
                                       media=media_of(request, len(tokens)), hint=hints.reuse,
                                       now_s=self._now_s(), search=search)
            if started is not None:
                self._begin(started.transfers)
                if self._events is not None:
                    self._events.name(request, tokens, self._resets, self.cache.epoch)
                return started
            reason = "no_room"
        self.counters.add("refused", 1, reason)
        return None

    def _find_places(self, held: Held) -> None:
        """Where the reused KV and state lie."""
        held.known = True
        places = self.cache.places(held.number)
        held.reused = places.tokens
        held.kv, held.slot = places.kv[:held.reused // self._block], places.state
        if held.load is not None and held.load.tokens == held.reused:
            held.medium = held.load.medium
        elif held.load is not None and held.load.tokens > held.reused:
            held.lost, held.branch = "tier_failed", max(held.branch, held.load.tokens)

    def admit(self, request: Any, block_ids: Sequence[Sequence[int]], external_tokens: int) -> None:
        """vLLM has blocks for the prompt, and takes `external_tokens` tokens from here. It calls again with 0 when
        these are restored: a load is asynchronous for vLLM, which reads the state of a prompt that starts before it
        waits for loads."""
        held = self._held.get(request.request_id)
        if held is None:
            self.counters.add("prompts", 1)
            self.counters.observe("request_hit_tokens", 0)
            self.counters.observe("request_lost_tokens", 0)
            return
        if external_tokens and held.local + external_tokens != held.reused:
            self._refuse(request.request_id, held, external_tokens)
            return
        if not held.admitted or external_tokens:
            self._count(request, held, external_tokens)
        held.admitted = True
        if external_tokens == 0:
            return
        held.restored = True
        spans, end = self._spans(held, held.local, held.reused), held.reused // self._block
        for span, (columns, sources) in zip(spans, self.device_kv.take(request, spans), strict=True):
            table = np.array([block_ids[group][span.first:end] for group in span.groups], np.int32).T
            if len(columns):
                self._step.device_copies.append(DeviceCopies(span.groups, sources, table[columns],
                                                             span.places[columns]))
            self._restore_kv(span.groups, np.delete(table, columns, 0), np.delete(span.places, columns))
        for group in self.layout.state_groups:
            self._step.restore(group, block_ids[group][end - 1:end], [held.slot])
        self._step.restored.append(request.request_id)
        self.counters.add("restored_bytes", self._lone_bytes)

    def _spans(self, held: Held, local_tokens: int, reused_tokens: int) -> list[Span]:
        """KV of the prompt behind vLLM's own hit: of groups of KV all, of each sliding window its last blocks."""
        first, end = local_tokens // self._block, reused_tokens // self._block
        if first >= end:
            return []
        spans = [Span(self.layout.kv_groups, first, held.kv[first:end])]
        for group in self.layout.windows:
            begin = max(first, group.first_column(end))
            spans.append(Span((group.number,), begin, group.places(held.slot, begin, end)))
        return spans

    def _restore_kv(self, groups: tuple[int, ...], targets: Int32s, places: Int32s) -> None:
        """From places on the host [n] to vLLM's blocks [n, groups]."""
        for i, group in enumerate(groups):
            self._step.restore(group, targets[:, i], places)
        self.counters.add("restored_bytes", len(places) * self._span_bytes[groups])

    def _copy_on_device(self, requests: Mapping[str, Any], scheduled: Mapping[str, int], block_ids: BlockIds) -> None:
        """KV that this very step computes is not there yet when the workers restore: it comes from the host. So does
        all KV, if the blocks of the step are not known."""
        tables = {name: block_ids(name) for name in scheduled}
        known = {name: table for name, table in tables.items() if table is not None and name in requests}
        written = written_blocks([group for groups in self._span_bytes for group in groups], self._block, requests, {
            name: scheduled[name] for name in known}, known)
        for copies in self._step.device_copies:
            late = np.isin(copies.sources, written).any(axis=1) | (len(known) < len(tables))
            self._restore_kv(copies.groups, copies.targets[late], copies.places[late])
            for i, group in enumerate(copies.groups):
                self._step.move(group, copies.sources[~late, i], copies.targets[~late, i])
            there = int((~late).sum())
            if copies.groups == self.layout.kv_groups:
                self.counters.add("device_tokens", there * self._block)
            self.counters.add("device_bytes", there * self._span_bytes[copies.groups])

    def _refuse(self, request_id: str, held: Held, external_tokens: int) -> None:
        """vLLM waits for other tokens than those that a state follows. It hears that they could not be restored, and
        asks again."""
        logger.warning("stateport: vLLM takes the tokens %d to %d of request %s, and there is a state after %d: "
                       "nothing is restored", held.local, held.local + external_tokens, request_id, held.reused)
        held.reused, held.lost, held.admitted = 0, "engine_cut", False
        self._step.refused.append(request_id)

    def _count(self, request: Any, held: Held, external_tokens: int) -> None:
        self.counters.add("prompts", 1)
        if external_tokens:
            self.counters.add("hits", 1, held.medium)
            self.counters.add("hit_tokens", external_tokens, held.medium)
        lost_tokens = held.branch - max(held.reused, held.local)
        lost = held.lost if held.lost != "nothing" and lost_tokens > 0 else ""
        self.counters.observe("request_hit_tokens", external_tokens)
        self.counters.observe("request_lost_tokens", lost_tokens if lost else 0)
        if lost:
            self.counters.add("lost_hits", 1, lost)
            self.counters.add("lost_tokens", lost_tokens, lost)
        if self._traffic is not None:
            self._traffic.admitted(request, held.medium if external_tokens else "", lost)

    def failed(self, request_ids: Iterable[str]) -> None:
        """The pages of these could not be restored: vLLM computes them, or gives them up. Requests whose pages another
        connector restores are among them."""
        for name in request_ids:
            held = self._held.get(name)
            if held is not None and held.restored:
                held.reused, held.lost, held.admitted, held.restored = 0, "tier_failed", False, False
                self.counters.add("failed_restores", 1)

    def medium(self, request_id: str) -> str:
        """Where the tokens of an admitted prompt came from."""
        held = self._held.get(request_id)
        return held.medium if held else "host"

    # --- Where the prefill stops -------------------------------------------------------------------------------------

    def _next_stop(self, held: Held, start: int) -> int:
        """Where vLLM shall end the next chunk, so that a state is there: at the end of the cached prefix, at positions
        that the request names, and at multiples of checkpoint_tokens. 0: anywhere."""
        stops = [held.junction, *(position // self._block * self._block
                                  for position in (held.branch, *held.hints.breakpoints))]
        if self._grid:
            stops.append((start // self._grid + 1) * self._grid)
        return min((stop for stop in stops if start < stop < held.prompt_tokens), default=0)

    def _move_stop(self, request: Any, done: int) -> None:
        """Sets the boundary at which vLLM keeps and offers another state, of prompts and of decoding; by itself it
        keeps only the state at the end of a prompt. done: tokens that are computed after this step."""
        held = self._held.get(request.request_id)
        if held is not None and done < held.prompt_tokens:
            request.shared_prefix_boundary = self._next_stop(held, done)
            return
        if held is not None:
            self._pin(request, held)
        self.end(request.request_id)
        if self._decode_grid and done >= request.num_prompt_tokens:
            request.shared_prefix_boundary = (done // self._decode_grid + 1) * self._decode_grid

    # --- A step ------------------------------------------------------------------------------------------------------

    def plan_step(self, requests: Mapping[str, Any], *, scheduled: Mapping[str, int], offers: Offers,
                  block_ids: BlockIds, preempted: Iterable[str] = ()) -> StepPlan:
        """scheduled: tokens of each request of this step. offers: the states that it leaves at the ends of blocks; they
        are copied in this step, because vLLM does not keep their blocks."""
        for name in preempted:
            self.end(name)
            self._stale.discard(name)
        self._stale &= requests.keys()
        for name, offered in offers.items():
            if name in requests and name in scheduled and name not in self._stale:
                self._keep_offers(requests[name], offered, block_ids(name))
            else:
                self.counters.add("unsaved", len({tokens for _, _, tokens in offered}),
                                  "stale" if name in self._stale else "not_scheduled")
        for name, tokens in scheduled.items():
            if name in requests:
                self._move_stop(requests[name], requests[name].num_computed_tokens + tokens)
        if self._step.device_copies:
            self._copy_on_device(requests, scheduled, block_ids)
        step, self._step = self._step, StepBuilder()
        return step.build()

    def _keep_offers(self, request: Any, offered: Sequence[tuple[int, int, int]],
                     tables: Sequence[Sequence[int]] | None) -> None:
        at: dict[int, dict[int, int]] = {}
        for group, block, tokens in offered:
            at.setdefault(tokens, {})[group] = block
        for tokens, blocks in sorted(at.items()):
            complete = set(blocks) == set(self.layout.state_groups) and NULL_BLOCK not in blocks.values()
            if tokens % self._block:
                self.counters.add("unsaved", 1, "partial_block")
            elif tables is None or not complete:
                self.counters.add("unsaved", 1, "incomplete_offer")
            elif not self._has_kv(tables, tokens // self._block):
                self.counters.add("unsaved", 1, "no_kv")
            else:
                self._keep(request, tokens, blocks, tables)

    def _has_kv(self, tables: Sequence[Sequence[int]], end: int) -> bool:
        """Whether vLLM keeps the blocks of attention before the column `end`, of sliding windows the last ones."""
        first = {**dict.fromkeys(self.layout.kv_groups, 0),
                 **{group.number: group.first_column(end) for group in self.layout.windows}}
        return not any(NULL_BLOCK in tables[group][column:end] for group, column in first.items())

    def _keep(self, request: Any, tokens: int, blocks: Mapping[int, int], tables: Sequence[Sequence[int]]) -> None:
        held = self._held.get(request.request_id)
        if held is not None and tokens <= held.prompt_tokens:
            if self.cache.computed(held.number) < tokens:
                self._save(held.number, tokens, blocks, tables)
        elif tokens <= request.num_prompt_tokens or not self.layout.speculative:
            self._keep_alone(request, tokens, blocks, tables)

    def _keep_alone(self, request: Any, tokens: int, blocks: Mapping[int, int],
                    tables: Sequence[Sequence[int]]) -> None:
        """A state of decoding, or of a prompt that the cache did not take: a request of the cache that lives for it
        alone."""
        known = tokens_of(request)
        if known is None or len(known) < tokens:
            self.counters.add("unsaved", 1, "unknown_tokens")
            return
        started = self._start(request, known[:tokens], "device", read_hints(request))
        if started is None:
            return
        self._save(started.request, tokens, blocks, tables)
        self._finish(started.request)

    def _save(self, number: int, tokens: int, blocks: Mapping[int, int], tables: Sequence[Sequence[int]]) -> None:
        """The request has computed these tokens. KV that is new to the request is copied, and the state unless the
        cache has it or has no room."""
        first = self.cache.computed(number) // self._block
        inserted = self.cache.insert(number, tokens)
        if inserted is None:
            self.counters.add("unsaved", 1, "pool_in_use")
            return
        plan, commit = inserted
        places, strange = plan.kv(0, first)[:tokens // self._block - first], plan.scrub_kv
        self._begin(plan.transfers)
        self._step.clear(strange)
        for group in self.layout.kv_groups:
            self._step.save(group, tables[group][first:tokens // self._block], places)
        for slot in commit.groups[0].copies["dst_slot"].tolist():
            self._save_state(slot, tokens // self._block, blocks, tables)
        states = len(commit.groups[0].copies)
        self.counters.add("saved_states", states)
        self.counters.add("saved_bytes", len(places) * self._bytes[0] + states * self._bytes[1])
        self.counters.add("unsaved", commit.dropped_states, "pool_in_use")

    def _save_state(self, slot: int, end: int, blocks: Mapping[int, int], tables: Sequence[Sequence[int]]) -> None:
        """The state at the end of `end` columns. A prefix that is shorter than a window leaves no bytes of an earlier
        state."""
        if any(end < group.blocks for group in self.layout.windows):
            self._step.clear(np.array([slot], np.int32), STATE)
        for group, block in blocks.items():
            self._step.save(group, [block], [slot])
        for window in self.layout.windows:
            first = window.first_column(end)
            self._step.save(window.number, tables[window.number][first:end], window.places(slot, first, end))

    def take_statistics(self) -> dict[str, Any]:
        """Counts, observations and levels since the last call: Counters.data."""
        if self._watch is not None:
            self._watch.look(self.counters)
        return self.counters.take()

    def take_events(self) -> list[dict[str, Any]]:
        """Contents that can be restored since the last call, or not any more: events of KvEventEncoder."""
        return self._events.take(self.cache) if self._events is not None and self._cache is not None else []

    # --- Ends --------------------------------------------------------------------------------------------------------

    def finished(self, request: Any) -> None:
        """The request is done, or its caller has given it up."""
        if self._traffic is not None:
            taken = self._traffic.ended(request, self._resets)
            self.counters.add("recorded" if taken else "unrecorded", 1)
        self._hints.pop(request.request_id, None)
        if self._events is not None:
            self._events.ended(request.request_id)
        self.end(request.request_id)

    def close(self) -> None:
        """Writes the rest of the trace."""
        if self._traffic is not None:
            self._traffic.recorder.close()

    def end(self, request_id: str) -> None:
        """The prompt is computed, or vLLM has preempted or dropped it. Its checkpoints stay."""
        held = self._held.pop(request_id, None)
        if held is None:
            return
        if held.waits_since_s is not None:
            self._waiting -= 1
            if self._waits(held) and time.monotonic() - held.waits_since_s > min(HANG_S, self._wait_s):
                self._loads.give_up(held.number)
        self._finish(held.number)

    def _finish(self, number: int) -> None:
        self.cache.finish(number)
        self._loads.forget(number)
        self._begin_rest()

    def reset(self, running: Iterable[str] = ()) -> None:
        """Forgets everything, in files too, at once. Later states are this engine's alone, because vLLM resets a cache
        when weights change, and the model's name does not show that. States of the prompts `running`, which have begun,
        are not kept.

        With keep_on_reset nothing is forgotten: earlier checkpoints stay, and prompts are looked up again."""
        for name in list(self._held):
            self.end(name)
        if self.options.keep_on_reset:
            return
        self._stale |= set(running)
        self._resets += 1
        self.cache.advance_epoch()
        self._begin_rest()
