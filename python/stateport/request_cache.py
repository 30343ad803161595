# SPDX-License-Identifier: Apache-2.0
"""The one interface that an engine needs: the life of a request, the same for each index and each layout."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stateport import _c
from stateport._arrays import (
    CACHE_EVENT,
    SLOT_COPY,
    Int32s,
    Int64s,
    Records,
    address,
    as_array,
    copied,
    int32s,
    int64s,
    room,
)
from stateport._library import calls
from stateport._metrics import prometheus_text
from stateport._prompts import prompt_of
from stateport.cache_arena import CacheArena, answered_memory
from stateport.cache_epochs import CacheEpochs
from stateport.cache_integrity import CacheIntegrity
from stateport.cache_options import (
    CacheOptions,
    CacheStats,
    ColumnLayout,
    SlotLayout,
    StartedRequest,
    WaitingRequests,
    plain,
    started,
)
from stateport.cache_prefixes import CachePrefixes
from stateport.cache_sessions import CacheSessions
from stateport.cache_tenants import CacheTenants
from stateport.cache_tiers import CacheTiers, answered_transfers
from stateport.errors import InvalidArgument, NoCapacity
from stateport.eviction import ReuseHint
from stateport.hashing import MediaKey, Namespace
from stateport.passes import EndedRequests, HitPlaces, PassCommit, PassPlan

_FINISHED, _PREEMPTED, _ABORTED = range(3)
_SLOTS = SlotLayout()


class RequestCache(CacheTiers, CacheArena, CacheEpochs, CacheTenants, CachePrefixes, CacheSessions, CacheIntegrity):
    """A cache of KV and states that decides and moves no byte. Keywords are the members of CacheOptions.

        start → (chunk → plan → [before] → forward → commit → [after])* → finish, preempt or abort

    [before]: for each group of the plan: clear, copies. [after]: for each group of the commit: steps, from_scratch,
    copies. Passes are committed in the order of their plans. Raises InvalidArgument for options that do not fit."""

    def __init__(self, index: str = "hash", layout: SlotLayout | ColumnLayout = _SLOTS, **options: Any) -> None:
        try:
            self.options = CacheOptions(index, layout, **options)
        except TypeError as error:
            raise InvalidArgument(f"RequestCache: {str(error).replace('CacheOptions.__init__() ', '')}") from None
        self._answers_end_copies = index == "tree" and isinstance(layout, SlotLayout) and layout.separate_checkpoints
        self._options = self.options.struct()  # holds on to a callback
        super().__init__(calls.request_cache_create, calls.request_cache_destroy, ctypes.byref(self._options))
        info = self._describe()
        self.groups = int(info.groups)  # of layers: in columns those of the layout, else one
        self.kv_blocks = int(info.kv_blocks)  # KV indices of plans are below it times block_size_tokens
        self.scratch_slots = int(info.scratch_slots)  # for saves in scratch
        self._plans: list[PassPlan] = []

    def _describe(self) -> Any:
        info = _c.RequestCacheInfo()
        calls.request_cache_describe(self.handle, ctypes.byref(info))
        return info

    def state_slots(self, group: int = 0) -> int:
        """Slots that the engine's store of a group must have."""
        out = ctypes.c_int32()
        calls.request_cache_state_slots(self.handle, group, ctypes.byref(out))
        return out.value

    def checkpoint_slots(self, group: int = 0) -> int:
        """The same of the store of checkpoints; with separate_checkpoints it is another one."""
        out = ctypes.c_int32()
        calls.request_cache_checkpoint_slots(self.handle, group, ctypes.byref(out))
        return out.value

    @property
    def running_requests(self) -> int:
        """With those that ended while a load for them was under way, or before their forks had begun."""
        return int(self._describe().running_requests)

    @property
    def waiting(self) -> WaitingRequests:
        """Those that ended are not counted."""
        info = self._describe()
        return WaitingRequests(info.waiting_for_answers, info.waiting_for_loads, info.waiting_for_requests)

    @property
    def transfers_under_way(self) -> int:
        """To and from tiers, named and not settled."""
        return int(self._describe().transfers_under_way)

    # --- The life of a request ---------------------------------------------------------------------------------------

    def start(self, tokens: Any, *, namespace: Namespace | None = None, media: Sequence[MediaKey] = (),
              hint: ReuseHint | None = None, now_s: float = 0.0,
              search: str = "everywhere", breakpoints: Any = ()) -> StartedRequest | None:
        """Looks a prompt up (int32 [n]; of a request that starts again: prompt and output so far) and takes the memory
        that it needs to run. None: there is no room, and nothing was taken. now_s: the caller's clock; never goes back
        but after `reset`.
        search: "everywhere"; "known", the remote tier is not asked for images; "device", nothing is loaded, and no
        other request awaited.
        breakpoints: at most 8 ascending positions at which later prompts may leave this one: where its system prompt or
        the text before its answer ends. The passes leave a checkpoint at each, whatever the placement: `chunk` ends
        there, or the pass saves its state on its way."""
        prompt, _keep = prompt_of(tokens, namespace=namespace, media=media, now_s=now_s, search=search, hint=hint,
                                  breakpoints=breakpoints)
        out, done = _c.StartedRequest(), ctypes.c_size_t()
        with self._turn:
            try:
                calls.request_cache_start(self.handle, ctypes.byref(prompt), 1, ctypes.byref(out), ctypes.byref(done))
            except NoCapacity:
                return None
            return started(out, answered_transfers(out))

    def refresh(self, request: int) -> StartedRequest | None:
        """Looks the prompt of a request up again before its first pass: since `start` other requests may have computed
        more of it. An engine asks when it is about to schedule the request. The device alone is searched. More is a
        deeper state, or more KV behind the same state: reused_tokens stays, and the prompt leaves its checkpoints where
        it now branches off. None: no more is found, or the request waits for a tier or for another request, and nothing
        changed. Else the answer replaces that of `start`, and memory that failed or cancelled plans took for the
        request is free again. Raises
        InvalidArgument for a request that does not run, InvalidState after its first commit or insert, and while a pass
        with it is outstanding."""
        out, found = _c.StartedRequest(), ctypes.c_uint8()
        with self._turn:
            calls.request_cache_refresh(self.handle, request, ctypes.byref(out), ctypes.byref(found))
            return started(out, answered_transfers(out)) if found.value else None

    def fork(self, request: int, tokens: Any) -> list[int] | None:
        """Starts forks of a request: requests that go on behind its computed tokens, for n samples, beams, or other
        continuations. tokens: int32 [forks], or [forks, k]. Fork i has the computed tokens, then tokens[i]. One token
        counts as sampled: the fork decodes. More are a prompt. Answers the numbers of the forks. They have the
        namespace and the hint of the request, and share its KV and its state. Nothing is copied before their first
        plan: in slots the first pass of a fork reads the state of the request (read_slot) and writes its own
        (write_slot); in columns `copies` have a copy of the state; fork_copies have a copy of the last KV block, if
        that is not full. Until all its forks have begun (their first commit) or ended, the request itself waits:
        `chunk` answers 0. It may end: it then keeps its memory and its number until they have, and leaves no state at
        its end. The last fork of a request that has ended begins with its first plan, which gives it the memory of the
        request and copies nothing. None: fewer request numbers than forks are free, and nothing changed. Raises
        InvalidArgument for a request that does not run, and a fork longer than max_request_tokens; InvalidState for a
        request that has not computed its prompt or is in an outstanding pass, and for a fork that has not begun."""
        rows = as_array("tokens", tokens)
        if rows.ndim not in (1, 2):
            raise InvalidArgument(f"tokens has {rows.ndim} dimensions, and must have 1 or 2: [forks] or [forks, k]")
        flat, forks = int32s("tokens", rows.reshape(-1)), np.empty(len(rows), np.int64)
        with self._turn:
            try:
                calls.request_cache_fork(self.handle, request, address(flat), len(flat), address(forks), len(forks))
            except NoCapacity:
                return None
        return [int(fork) for fork in forks]

    def chunk(self, requests: Any, budgets: Any) -> Int64s:
        """[n] how many of the next budgets[i] tokens of each prompt to run in one pass; 0: wait for a larger budget
        (least_budgets), for a tier, or for another request. After the prompt: the budget."""
        rows, wanted = int64s("requests", requests), int64s("budgets", budgets)
        _same_length("budgets", wanted, rows)
        tokens = np.empty(len(rows), np.int64)
        calls.request_cache_chunk(self.handle, address(rows), address(wanted), len(rows), address(tokens), None)
        return tokens

    def least_budgets(self, requests: Any) -> Int64s:
        """[n] the smallest budget of each request for which `chunk` is not 0; 0: the request waits."""
        rows = int64s("requests", requests)
        unread, least = np.zeros(len(rows), np.int64), np.empty(len(rows), np.int64)
        calls.request_cache_chunk(self.handle, address(rows), address(unread), len(rows), address(unread),
                                  address(least))
        return least

    def plan(self, requests: Any, tokens: Any, drafts: Any = None, parents: Any = None) -> PassPlan:
        """Plans one pass. Row i runs tokens[i] tokens of requests[i], the last drafts[i] of them proposed. Rows without
        room are named; the others run. Raises InvalidArgument for a request that does not run or is named twice, and
        for counts that do not fit.
        parents: drafts that are a tree (in slots): for each draft, one row after the other, the step that it follows. A
        step counts the tokens of a row from 0: draft i is step i + 1, and its parent is a step in [0, i]. The pass
        writes the KV of step s to the place of token start + s. None: the drafts of each row are a chain."""
        rows, counts = int64s("requests", requests), int32s("tokens", tokens)
        _same_length("tokens", counts, rows)
        steps = int32s("parents", [] if parents is None else parents)
        proposed = None if drafts is None else int32s("drafts", drafts)
        if proposed is not None:
            _same_length("drafts", proposed, rows)
        batch = _c.PassBatch(request=address(rows), tokens=address(counts), rows=len(rows),
                             drafts=None if proposed is None else address(proposed), parents=address(steps),
                             parent_count=len(steps))
        plan = PassPlan(self, self.groups, self._turn)
        with self._turn:
            calls.request_cache_plan(self.handle, ctypes.byref(batch), plan.address)
            plan.transfers = answered_transfers(plan.struct)
            plan.kv_copies, plan.moves = answered_memory(plan.struct)
            self._forget_plans()
            self._plans.append(plan)
        return plan

    def cancel(self, plan: PassPlan) -> None:
        """The newest outstanding pass did not run. Raises InvalidState for another one."""
        self._require_own(plan)
        with self._turn:
            calls.request_cache_cancel(self.handle, plan.pass_id)
            self._forget_plans()

    def _require_own(self, plan: PassPlan) -> None:
        if not isinstance(plan, PassPlan) or plan.owner is not self:
            raise InvalidArgument(f"plan is {plan!r}, and must be one of this cache")

    def commit(self, plan: PassPlan, counts: Any, sampled: Any, steps: Any = None) -> PassCommit:
        """The pass ran (or is enqueued) and sampled counts[i] tokens for row i, all in `sampled` one after the other. A
        count is 0 for a row without room or whose request ended, and for a part of the prompt; 0 or 1 where the prompt
        ends; else from 1 to the row's tokens. Raises InvalidArgument for counts that do not fit, and InvalidState for a
        pass that is not the oldest outstanding one.
        steps: [rows] after a plan with parents: the last step of each row that is kept. The steps on the path to it are
        kept, counts[i] - 1 drafts, whose tokens are the first ones that the row sampled."""
        self._require_own(plan)
        numbers, tokens = int32s("counts", counts), int32s("sampled", sampled)
        groups, out = self._commit_room()
        if steps is not None:
            kept = int32s("steps", steps)
            _same_length("steps", kept, numbers)
            out.steps = address(kept)
        upcoming = PassPlan(self, self.groups, self._turn) if self.options.overlap else None
        if upcoming is not None:
            out.next = upcoming.struct
        with self._turn:
            calls.request_cache_commit(self.handle, plan.pass_id, address(numbers), len(numbers), address(tokens),
                                       len(tokens), ctypes.byref(out))
            self._forget_plans()
            if upcoming is not None:
                self._plans.append(upcoming)
            return PassCommit(out, groups, upcoming)

    def _commit_room(self) -> tuple[Any, Any]:
        groups = (_c.GroupCommit * self.groups)()
        for group in groups:
            group.__init__()
        return groups, _c.PassCommit(groups=groups, group_count=self.groups)

    def places(self, request: int, group: int = 0) -> HitPlaces:
        """The KV and, in one group of layers, the checkpoint of a request's hit, for an engine that copies them into
        memory of its own. Both stay in place until the first commit, insert or refresh of the request or its end.
        Raises InvalidState after the first commit or insert, and while the request waits."""
        out = _c.HitPlaces()
        with self._turn:
            calls.request_cache_places(self.handle, request, group, ctypes.byref(out))
            return HitPlaces(int(out.tokens), copied(out.kv, out.kv_count, np.int32), int(out.kv_tokens_per_id),
                             int(out.state))

    def insert(self, request: int, tokens: int) -> tuple[PassPlan, PassCommit] | None:
        """Inserts the KV and the state of the first `tokens` tokens of a prompt. The engine has both in memory of its
        own: it computed them there, or another node sent them. The engine enqueues the transfers of the plan (with
        tiers), scrubs and clears as the plan names it, copies the KV of [start[0], tokens) to kv(0) and the state after
        them to write_slot[0] of each group, and enqueues the copies of the commit: all before any later call. The plan
        itself has no copies. The tokens count as computed from then on. The state becomes a checkpoint if the tokens
        are whole blocks (in columns: of every group, and not in mode none), whatever the placement; dropped_states is 1
        if it finds no room. After all tokens of the prompt the request can only end. Some of the KV may be cached
        already. Index "hash" in slots: its blocks are named again, and must get the same content. Otherwise the request
        reads the cached KV, and the engine's copy is not used. None: the tokens find no room. Raises InvalidArgument
        for a request that does not run or waits, and for tokens that are computed already or beyond the prompt;
        InvalidState while a pass is outstanding."""
        plan = PassPlan(self, self.groups, self._turn)
        groups, out = self._commit_room()
        with self._turn:
            try:
                calls.request_cache_insert(self.handle, request, tokens, plan.address, ctypes.byref(out))
            except NoCapacity:
                self._forget_plans()
                return None
            plan.transfers = answered_transfers(plan.struct)
            self._forget_plans()
            self._plans.append(plan)
            return plan, PassCommit(out, groups, None)

    def finish(self, requests: Any, hints: Sequence[ReuseHint] | None = None) -> EndedRequests:
        """Requests are complete: their computed prefixes are kept up to the last state. hints: about prompts that may
        continue them, one for each. With a tree and separate_checkpoints the answer must not be left out."""
        return self._ends(requests, _FINISHED, hints)

    def preempt(self, requests: Any, hints: Sequence[ReuseHint] | None = None) -> EndedRequests:
        """As finish, of requests that will start again."""
        return self._ends(requests, _PREEMPTED, hints)

    def abort(self, requests: Any, hints: Sequence[ReuseHint] | None = None) -> EndedRequests:
        """As finish, but only published prefixes are kept."""
        return self._ends(requests, _ABORTED, hints)

    def _ends(self, requests: Any, how: int, hints: Sequence[ReuseHint] | None) -> EndedRequests:
        rows, out = int64s("requests", np.atleast_1d(as_array("requests", requests))), _c.EndedRequests()
        reported = None
        if hints is not None:
            _same_length("hints", hints, rows)
            reported = (_c.ReuseHint * len(rows))(*(hint.struct() for hint in hints))
        with self._turn:
            calls.request_cache_end(self.handle, address(rows), len(rows), how, reported, ctypes.byref(out))
            self._forget_plans()
            return EndedRequests(answered_transfers(out), copied(out.copies, out.copy_count, SLOT_COPY))

    @contextlib.contextmanager
    def serving(self, tokens: Any, **options: Any) -> Iterator[StartedRequest]:
        """A request that starts now, is finished at the end of the `with` statement, and aborted when that raises.
        Raises NoCapacity if there is no room. Options are those of `start`."""
        if self._answers_end_copies:
            raise InvalidArgument("separate_checkpoints is set: finish answers copies then; call start and finish")
        request = self.start(tokens, **options)
        if request is None:
            raise NoCapacity("there is no room for the request now: finish or preempt another one")
        try:
            yield request
        except BaseException:
            self.abort(request.request)
            raise
        self.finish(request.request)

    # --- Running requests --------------------------------------------------------------------------------------------

    def _running(self, request: int) -> Any:
        out = _c.RunningRequest()
        calls.request_cache_request(self.handle, request, ctypes.byref(out))
        return out

    def tokens(self, request: int) -> Int32s:
        """Prompt and sampled tokens of a running request."""
        with self._turn:
            running = self._running(request)
            return copied(running.tokens, running.count, np.int32)

    def computed(self, request: int) -> int:
        """Tokens whose KV and state are there, of committed passes."""
        return int(self._running(request).computed)

    def kv(self, request: int) -> Int32s:
        """The ids of the request's KV: see PassPlan.kv."""
        with self._turn:
            running = self._running(request)
            return copied(running.kv, running.kv_count, np.int32)

    # --- The whole cache ---------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forgets everything that is cached, in tiers too, but for the remote tier. While a request runs or a transfer
        is under way it forgets all namespaces instead, as `forget` does one."""
        with self._turn:
            calls.request_cache_reset(self.handle)
            self._forget_plans()

    def stats(self) -> CacheStats:
        out = _c.CacheStats()
        calls.request_cache_stats(self.handle, ctypes.byref(out))
        stats: CacheStats = plain(CacheStats, out)
        return stats

    def prometheus(self, prefix: str = "stateport") -> str:
        """The statistics, the contents of the cache and the work of its tiers in the text format of Prometheus. prefix:
        of the names of metrics: letters, digits, _ and :"""
        return prometheus_text(calls.request_cache_prometheus, self.handle, prefix)

    def take_events(self, capacity: int = 4096) -> Records:
        """Moves the oldest events, at most `capacity`: CACHE_EVENT. Sequence numbers count up by one from 1; a gap
        means that events were lost because they were not taken in time."""
        out = room("capacity", capacity, CACHE_EVENT)
        out["size"] = CACHE_EVENT.itemsize
        count = ctypes.c_size_t()
        calls.request_cache_take_events(self.handle, address(out), capacity, ctypes.byref(count))
        return out[:count.value]

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError naming the first fault."""
        calls.request_cache_check(self.handle)

    def _forget_plans(self) -> None:
        for plan in self._plans:
            plan.forget()
        self._plans.clear()

    def close(self) -> None:
        self._forget_plans()
        super().close()

    def __repr__(self) -> str:
        if not self._usable:
            return "<RequestCache, closed>"
        stats = self.stats()
        return (f"<RequestCache by {self.options.index}: {self.running_requests} requests run, {stats.states} states, "
                f"{stats.kv_tokens:,} tokens of KV, {stats.hit_tokens:,} of {stats.prompt_tokens:,} tokens hit>")


def _same_length(name: str, values: Any, requests: Any) -> None:
    if len(values) != len(requests):
        raise InvalidArgument(f"{name} has {len(values)} elements, and requests {len(requests)}")
