# SPDX-License-Identifier: Apache-2.0
"""The bookkeeping of cached prefixes together with their memory: it decides and carries out the copies."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from stateport import runtime
from stateport._arrays import TRANSFER, Int32s, Records
from stateport.cache_options import SessionOptions, SlotLayout, StartedRequest
from stateport.errors import ClosedError, InternalError, InvalidState, OutOfMemory
from stateport.eviction import Eviction, ReuseHint
from stateport.hashing import random_seed
from stateport.passes import PassCommit, PassPlan
from stateport.request_cache import RequestCache
from stateport.store import StateStore
from stateport.tier_options import TRANSFER_KINDS, TierOptions, transfer_results
from stateport.tiers import StateTiers
from stateport.transformers.budget import Cut, Tiers
from stateport.transformers.checks import Checks
from stateport.transformers.fingerprint import model_name
from stateport.transformers.layout import CacheLayout
from stateport.transformers.speed import Speed
from stateport.transformers.stores import Stores, kv_bytes_per_token

_POLL_S = 0.0001  # between looks at a load that is under way
_DROP = TRANSFER_KINDS.index("drop")
_NO_TRANSFERS = np.zeros(0, TRANSFER)

Forward = Callable[[DynamicCache, int, int], None]  # runs the tokens [begin, end) of a request


@dataclasses.dataclass
class Running:
    """A request that runs. cache: from which the model continues, in this row; None: nothing is restored. position:
    tokens whose KV and state are in the stores. live: the slot of its state. loaded_s: seconds until all was loaded.
    skipped: tokens of a hit that was not taken: the request has ended. wrong: so it has, because the state of its hit
    had changed."""

    number: int
    started: StartedRequest
    cache: DynamicCache | None = None
    position: int = 0
    live: int = -1
    loaded_s: float = 0.0
    skipped: int = 0
    row: int = 0
    wrong: bool = False


class Ledger:
    """One RequestCache by tokens, its stores and its tiers. Any thread may call; calls run one after another.

    A pass is planned, run and committed in one call, because a plan that another thread makes would replace it."""

    def __init__(self, model: Any, layout: CacheLayout, memory: int, sizes: Cut, *, requests: int, page_tokens: int,
                 eviction: str, tiers: Tiers | None, hash_seed: int | None = None, scrub: bool = False,
                 integrity: bool = False, sessions: SessionOptions | None = None) -> None:
        self.lock = threading.RLock()
        self._layout = layout
        state, page = layout.state_spec(), layout.page_spec(page_tokens)
        tiers = tiers or Tiers()
        self._in_files = tiers.folder is not None
        below = TierOptions(*tiers.sizes, state_image_bytes=state.image_bytes, kv_image_bytes=page.image_bytes,
                            write_through=tiers.write_through)
        self.stores = Stores(model.config, layout, page_tokens, memory, sizes, requests=requests, scrub=scrub)
        self.book = RequestCache(
            "tree",
            SlotLayout(state.fingerprint, sizes.checkpoints, arena=self.stores.arena,
                       # Without saves on its way a pass is one forward.
                       scan_alignment_tokens=-1 if layout.stepwise else 0,
                       decode_checkpoint_tokens=page_tokens if page_tokens > 1 else 0),
            max_requests=requests, max_request_tokens=sizes.request_tokens, block_size_tokens=page_tokens,
            kv_tokens=sizes.pages * page_tokens, tiers=below, scrub=scrub, integrity=integrity,
            sessions=sessions,
            hash_seed=random_seed(lasts=self._in_files) if hash_seed is None else hash_seed,
            eviction=Eviction(eviction, state_bytes=state.slot_bytes, kv_bytes_per_token=kv_bytes_per_token(layout)))
        self.stores.begin(self.book)
        self.checks = Checks(self.book, self.stores.states)
        self.tiers: StateTiers | None = None
        self._drops: Records = _NO_TRANSFERS  # of plans that could not begin
        if any(tiers.sizes):
            self.tiers = StateTiers(states=[self.stores.states], kv=self.stores.pages, host_bytes=below.host_bytes,
                                    model=model_name(model) if self._in_files else "", folder=tiers.folder,
                                    file_bytes=below.file_bytes, scrub=scrub)
        if self.tiers is not None and self._in_files:
            self.tiers.attach(self.book, self._stream())
        self._clock = time.monotonic()

    # --- The life of a request ---------------------------------------------------------------------------------------

    def start(self, tokens: Int32s, options: dict[str, Any], speed: Speed,
              skips: Callable[[int], bool]) -> Running | None:
        """Looks a prompt up, loads the part that tiers have, and restores it. None: there is no room. options: of
        RequestCache.start. speed: by which loads are weighed. skips: answers whether a hit of a number of tokens is not
        taken."""
        withdrawn = self.checks.withdrawn_states
        while (running := self._start_once(tokens, options, speed, skips)) is not None and running.wrong:
            if withdrawn == self.checks.withdrawn_states:
                return None  # the prompt would find the same state again
            withdrawn = self.checks.withdrawn_states
        return running

    def _start_once(self, tokens: Int32s, options: dict[str, Any], speed: Speed,
                    skips: Callable[[int], bool]) -> Running | None:
        with self.lock:
            if self.tiers is not None:
                self.book.set_speeds(host_bytes_per_s=speed.bytes_per_s("host"),
                                     file_bytes_per_s=speed.bytes_per_s("file"),
                                     tokens_per_s=speed.tokens_per_s(len(tokens)))
            started = self._start(tokens, options)
        if started is None:
            return None
        running = Running(started.request, started)
        try:
            begin = time.perf_counter()
            with self.lock, self.checks.around(self._stream()):
                self._begin(started.transfers)
            while self._waits(running):
                time.sleep(_POLL_S)
            running.loaded_s = time.perf_counter() - begin
            if started.reused_tokens or started.load_tokens:
                self._restore(running, skips)
        except BaseException:
            self.abort(running)
            raise
        return running

    def _start(self, tokens: Int32s, options: dict[str, Any]) -> StartedRequest | None:
        """A request that was given up while it loaded keeps its number until the cache hears of the end."""
        now_s = time.monotonic() - self._clock
        started = self.book.start(tokens, now_s=now_s, **options)
        if started is not None or self.tiers is None:
            return started
        self._end()
        return self.book.start(tokens, now_s=now_s, **options)

    def _waits(self, running: Running) -> bool:
        with self.lock:
            if self.tiers is None or not self.book.loading([running.number])[0]:
                return False
            self._end()
            return True

    def _restore(self, running: Running, skips: Callable[[int], bool]) -> None:
        """A pass of one token says where the state and the KV lie; it does not run."""
        with self.lock:
            plan = self._plan(running, 1)
            if plan is None:
                return
            start = int(plan.start[0])
            if start > 0 and skips(start):
                running.skipped = start
            elif start > 0:
                slot = int(plan.groups[0].read_slot[0])
                running.cache = self.stores.restore(slot, plan.kv(0)[:start])
                running.position = start
            self.book.cancel(plan)
            running.wrong = self.checks.is_wrong(running.number, self._stream())
            if running.skipped or running.wrong:
                self.abort(running)

    def run(self, running: Running, count: int, forward: Forward) -> bool:
        """Runs `count` tokens by `forward`, in parts that end where the cache wants a state. False: there is no room
        for their KV, and nothing ran."""
        with self.lock:
            if running.cache is not None and running.cache.get_seq_length() != running.position:
                raise InvalidState(f"the model's cache has {running.cache.get_seq_length()} tokens, and must have "
                                   f"{running.position}: a pass was broken off; abort this request")
            plan = self._plan(running, count)
            if plan is None:
                return False
            try:
                self._run(running, plan, count, forward)
            except BaseException:
                self.book.cancel(plan)
                raise
            self._commit(running, plan, count, [])
            return True

    def _run(self, running: Running, plan: PassPlan, count: int, forward: Forward) -> None:
        saves = {int(save["offset"]): int(save["slot"]) for save in plan.groups[0].saves}
        cache = running.cache
        assert cache is not None
        done = 0
        for end in sorted({*saves, count}):
            forward(cache, running.position + done, running.position + end)
            if end in saves:
                self.stores.save_state(cache, running.row, saves[end])
            done = end

    def append(self, running: Running, tokens: list[int]) -> bool:
        """The model ran one token after another and sampled these. False: there is no room for their KV."""
        with self.lock:
            for token in tokens:
                plan = self._plan(running, 1)
                if plan is None:
                    return False
                self._commit(running, plan, 1, [token])
            return True

    def fork(self, running: Running, tokens: list[int], hint: ReuseHint | None) -> list[Running]:
        """The model ran the last token of the prompt in each row of the request's cache, and sampled tokens [rows].
        Ends the request, and answers one for each row. []: there is no room for them."""
        with self.lock:
            plan = self._plan(running, 1)
            if plan is None:
                self.abort(running)
                return []
            self._commit(running, plan, 1, [])
            numbers = self.book.fork(running.number, tokens)
            self.finish(running, hint)
            return [Running(number, running.started, running.cache, running.position, row=row)
                    for row, number in enumerate(numbers or ())]

    def finish(self, running: Running, hint: ReuseHint | None) -> None:
        """The request is complete: its computed prefix is kept up to the last state."""
        with self.lock:
            if self.book.closed:
                return
            cache = running.cache
            # A cache that went on without room is longer than the reported KV.
            if cache is None or running.live < 0 or cache.get_seq_length() != running.position:
                self.abort(running)
                return
            self.stores.save_state(cache, running.row, running.live)
            self.book.finish([running.number], [hint] if hint else None)
            self._end()

    def abort(self, running: Running) -> None:
        """Only the published prefixes of the request are kept. Twice is fine, and after close, too."""
        with self.lock:
            if self.book.closed:
                return
            self.book.abort([running.number])

    # --- Passes ------------------------------------------------------------------------------------------------------

    def _plan(self, running: Running, count: int) -> PassPlan | None:
        """None: there is no room, even after all memory has moved that the cache can move."""
        while not (plan := self.book.plan([running.number], [count])).room[0]:
            try:
                with self.checks.around(self._stream()):
                    self._begin(plan.transfers)
            finally:
                ended = self._move(plan, wait=True)
            self.book.cancel(plan)
            if not ended:
                return None
        with self.checks.around(self._stream()):
            self._begin(plan.transfers)
            group = plan.groups[0]
            self._clear(self.stores.states, group.clear)
            self._clear(self.stores.pages, plan.scrub_kv)
            self._copy(group.copies)
            self._copy_kv(plan.fork_copies)
        return plan

    def _commit(self, running: Running, plan: PassPlan, count: int, sampled: list[int]) -> None:
        cache, first = running.cache, running.position
        assert cache is not None and int(plan.start[0]) == first
        running.live = int(plan.groups[0].write_slot[0])
        self.stores.save_kv(cache, running.row, first, plan.kv(0, first)[:count])
        commit = self.book.commit(plan, [len(sampled)], sampled)
        try:
            with self.checks.around(self._stream()):
                try:
                    self._begin(commit.transfers)
                finally:
                    self._keep(running, cache, commit, first + count)
        finally:
            self._move(commit, wait=False)
        running.position += count
        self._end()

    def _keep(self, running: Running, cache: DynamicCache, commit: PassCommit, tokens: int) -> None:
        if len(commit.groups[0].copies):
            if cache.get_seq_length() != tokens:
                raise InternalError(f"a state after {tokens} tokens is wanted, and the one that there is comes after "
                                    f"{cache.get_seq_length()}")
            self.stores.save_state(cache, running.row, running.live)
            self._copy(commit.groups[0].copies)

    def _move(self, answer: PassPlan | PassCommit, *, wait: bool) -> int:
        """Answers how many moves of memory have ended."""
        ended = self.stores.carry_out(answer, self._stream(), wait=wait)
        if len(answer.kv_copies):
            self._settle_copies()
        return ended

    def _clear(self, store: StateStore, slots: Int32s) -> None:
        if len(slots):
            store.clear(slots, self._stream())
            self._settle_copies()

    def _copy(self, copies: Any) -> None:
        if len(copies):
            self.stores.states.copy(copies, self._stream())
            self._settle_copies()

    def _copy_kv(self, copies: Any) -> None:
        if len(copies):
            self.stores.pages.copy(copies, self._stream())
            self._settle_copies()

    def _settle_copies(self) -> None:
        if self._layout.device.type == "cpu":
            runtime.synchronize()

    def _begin(self, transfers: Records) -> None:
        """Transfers that cannot begin have failed."""
        if self.tiers is None:
            return
        transfers, self._drops = np.concatenate([self._drops, transfers]), _NO_TRANSFERS
        try:
            self.tiers.begin_transfers(self.book, transfers, self._stream())
        except (OutOfMemory, InvalidState):
            self._fail(transfers)
            raise

    def _fail(self, transfers: Records) -> None:
        """Transfers that the cache names in answer to a failure fail, too. Drops wait, because the cache counts their
        room as free."""
        while len(transfers):
            drops = transfers["kind"] == _DROP
            self._drops = np.concatenate([self._drops, transfers[drops]])
            transfers = self.book.settle(transfer_results(transfers["id"][~drops], "failed")).transfers

    def _end(self) -> None:
        if self.tiers is not None:
            if len(self._drops):
                self._begin(_NO_TRANSFERS)
            self.tiers.end_transfers(self.book, self._stream())
        with self.checks.around(self._stream()):
            pass  # the work of ends and of transfers has been carried out
        self.checks.withdraw()

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self._layout.device) if self._layout.device.type == "cuda" else None

    # --- All of it ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Writes everything that is cached to files, as far as they have room. Waits for it."""
        with self.lock:
            written: float = -1
            while self.tiers is not None and written != (now := self.tiers.info()["written_images"]):
                written = now
                self._begin(self.book.drain())
                self.settle()

    def read(self, tokens: int) -> None:
        """Restores this many tokens and a state, whatever they are, and drops them."""
        with self.lock:
            self.stores.read(tokens)

    def settle(self) -> None:
        """Waits for all transfers that are under way."""
        with self.lock:
            while self.tiers is not None and self.book.transfers_under_way:
                self._end()
                time.sleep(_POLL_S)

    def check_invariants(self) -> None:
        with self.lock:
            self.book.check_invariants()
            if self.tiers is not None:
                self.tiers.check_invariants()

    def reset(self) -> None:
        with self.lock:
            self.settle()
            self.book.reset()
            self._end()

    def weights_changed(self, epoch: int) -> int:
        with self.lock:
            now = self.book.advance_epoch(epoch)
            self._end()
            return now

    def close_session(self, session: int) -> bool:
        with self.lock:
            return self.book.close_session(session)

    def close(self) -> None:
        """Writes the cache to files. Aborts running requests."""
        with self.lock:
            if self._in_files:
                self.drain()
            self.book.close()
            if self.tiers is not None:
                self.tiers.close()
            self.checks.close()
            self.stores.close()

    def require_open(self) -> None:
        if self.book.closed:
            raise ClosedError("this PrefixCache is closed")
        _ = self.book.handle  # refused after a fork
