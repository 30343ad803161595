# SPDX-License-Identifier: Apache-2.0
"""An engine in small that calls the connector's two sides as vLLM does, and a model whose KV and states are a hash of
the tokens that made them: a wrong page is found at once."""
from __future__ import annotations

import collections
import dataclasses
import hashlib
import pickle
import random
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stateport.vllm.layout import PageLayout, read_layout
from stateport.vllm.metadata import StepPlan
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.scheduler import SchedulerSide
from stateport.vllm.worker import WorkerSide
from vllm_pool import BlockPool

BLOCK, BLOCKS = 4, 256
HASHED = 2  # tokens that the engine hashes together
KV_GROUPS, STATE_GROUPS = (1, 3), (0, 2)
FIRST_WINDOW, WINDOWS_MAX = 4, 2  # the groups behind them may be sliding windows
WINDOWS = ((), (2,), (9, 18), ((11, 3),))  # of engines of random tests
PAGE_BYTES, STATE_BYTES = 96, 24 + 12 + 16  # a page has padding behind its states


class MambaSpec:
    block_size, num_speculative_blocks, mamba_cache_mode = BLOCK, 0, "align"
    shapes, dtypes = ((2, 3), (6,), (2,)), (torch.float32, torch.bfloat16, torch.int64)


class FullAttentionSpec:
    block_size = BLOCK


class SlidingWindowSpec:
    block_size = BLOCK

    def __init__(self, window: int, retained: int = 0) -> None:
        self.sliding_window, self.extra_retained_tokens = window, retained

    def skipped(self, tokens: int) -> int:
        """vLLM's get_num_skipped_tokens, in whole blocks."""
        return max(0, tokens - self.sliding_window + 1 - self.extra_retained_tokens) // BLOCK

    def needed(self, tokens: int) -> int:
        """The first column that a hit of these tokens needs."""
        return max(0, tokens // BLOCK - -(-(self.sliding_window - 1) // BLOCK))


def kv_cache_config(drafts: int = 0, windows: Sequence[SlidingWindowSpec] = ()) -> Any:
    """Two groups of attention and two of states, two layers each, and then those of sliding windows."""
    groups = [types.SimpleNamespace(layer_names=[f"g{number}.{i}" for i in range(2)],
                                    kv_cache_spec=MambaSpec() if number in STATE_GROUPS else FullAttentionSpec())
              for number in range(4)]
    for number in STATE_GROUPS:
        groups[number].kv_cache_spec.num_speculative_blocks = drafts
    groups += [types.SimpleNamespace(layer_names=[f"g{FIRST_WINDOW + i}.{j}" for j in range(2)], kv_cache_spec=spec)
               for i, spec in enumerate(windows)]
    return types.SimpleNamespace(kv_cache_groups=groups, num_blocks=BLOCKS)


def content(kind: str, layer: str, tokens: Sequence[int], size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The content of a layer after this prefix: `size` bytes."""
    name = f"{kind} {layer} {len(tokens)} ".encode() + np.asarray(tokens, np.int32).tobytes()
    return np.frombuffer(hashlib.shake_128(name).digest(size), np.uint8)


class Rank:
    """A worker with pages of its own. heads: [blocks, heads, tokens, elements] of a KV tensor; layers of one group are
    interleaved in memory, as in some of vLLM's layouts."""

    def __init__(self, number: int, layout: PageLayout, options: ConnectorOptions) -> None:
        self.name = f"rank{number}"
        self.kv = torch.zeros((BLOCKS, 2, 2, 2, BLOCK, 3), dtype=torch.float32)  # block, group, layer, head, token, …
        self.windows = torch.zeros((2, WINDOWS_MAX, BLOCKS, 2, BLOCK, 2), dtype=torch.bfloat16)  # layer, group, block
        self.states = torch.zeros((2, 2, BLOCKS, 1, 1, PAGE_BYTES), dtype=torch.int8)
        caches = {f"g{group}.{i}": self.kv[:, g, i] for g, group in enumerate(KV_GROUPS) for i in range(2)}
        caches |= {f"g{group}.{i}": self.states[g, i] for g, group in enumerate(STATE_GROUPS) for i in range(2)}
        caches |= {f"g{group.number}.{i}": self.windows[i, group.number - FIRST_WINDOW] for group in layout.windows
                   for i in range(2)}
        self.side = WorkerSide(layout, options, model=f"stand-in {self.name}")
        self.caches = caches
        self.info = self.side.register(caches)

    def page(self, group: int, layer: int, block: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a block that mean something."""
        tensor = self.caches[f"g{group}.{layer}"][block]
        bytes_ = tensor.view(torch.uint8).numpy().reshape(-1)
        return bytes_[:STATE_BYTES] if group in STATE_GROUPS else bytes_

    def visit(self, request: Request, group: int, end: int, block: int, write: bool) -> None:
        for layer in range(2):
            name = f"{self.name} g{group}.{layer} {request.cache_salt}"
            page = self.page(group, layer, block)
            wanted = content("state" if group in STATE_GROUPS else "kv", name, request.all_token_ids[:end], page.size)
            if write:
                page[:] = wanted
            else:
                assert np.array_equal(page, wanted), f"{request.request_id}: group {group}, tokens up to {end}"

    def spoil(self, block: int) -> None:
        self.kv[block] = -1
        self.windows[:, :, block] = -1
        self.states[:, :, block] = 77


@dataclasses.dataclass(eq=False)
class Request:
    """vLLM's request, as far as the connector reads and writes it."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int
    cache_salt: str | None = None
    session_id: str | None = None
    kv_hints: Any = None
    kv_transfer_params: Any = None
    sampling_params: Any = None
    mm_features: list[Any] = dataclasses.field(default_factory=list)
    prompt_embeds: Any = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = -1
    arrival_time: float = 0.0
    status: Any = None
    shared_prefix_boundary: int = 0
    skip_reading_prefix_cache: bool = False
    blocks: list[list[int]] = dataclasses.field(default_factory=lambda: [[] for _ in range(FIRST_WINDOW +
                                                                                                WINDOWS_MAX)])
    waits: bool = False  # for a load
    restored: int = 0
    local: int = 0  # tokens of the engine's own hit
    kept: int = 0  # the end of the chunk under way, if the engine keeps the state there
    first_restored: int = 0  # before it was preempted
    stops: list[int] = dataclasses.field(default_factory=list)
    _hashes: list[bytes] = dataclasses.field(default_factory=list)

    @property
    def block_hashes(self) -> list[bytes]:
        """Of halves of blocks."""
        name = self._hashes[-1] if self._hashes else repr(self.cache_salt).encode()
        for end in range(HASHED * len(self._hashes) + HASHED, len(self.all_token_ids) + 1, HASHED):
            name = hashlib.sha256(name + repr(self.all_token_ids[end - HASHED:end]).encode()).digest()
            self._hashes.append(name)
        return self._hashes

    def hash_at(self, tokens: int) -> bytes:
        """Of the block that ends there."""
        return self.block_hashes[tokens // HASHED - 1]

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[:self.num_prompt_tokens]

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens


@dataclasses.dataclass
class Step:
    """What the workers said of one step."""

    loads: list[Request]
    failed: set[str]
    results: Any


class Engine:
    """Steps: admits requests, runs a chunk of each, and calls the connector as vLLM does.

    caching: the engine finds prefixes in its own blocks, whose contents stay until they are given away, and checks in
    each step all that its requests read. Else its hits are random numbers (local_hits), and contents go with their
    owner. late_saves: results are asked for before pages are saved, as with a speculator. late_answers: a step is
    planned before the workers have answered the one before, as in vLLM's asynchronous scheduling. cuts: how often vLLM
    takes fewer tokens than it was offered. failures: how often a worker cannot restore.

    Blocks of sliding windows are allocated and given back as vLLM's SlidingWindowManager does."""

    def __init__(self, options: ConnectorOptions, *, ranks: int = 1, budget: int = 64, drafts: int = 0,
                 windows: Sequence[int | tuple[int, int]] = (), caching: bool = False, bound: bool = True,
                 chance: random.Random) -> None:
        """bound: the connector is told of the pool of blocks, where there is caching. windows: tokens of a sliding
        window, for each group of them, perhaps with the tokens that vLLM retains before it."""
        specs = [SlidingWindowSpec(*((one,) if isinstance(one, int) else one)) for one in windows]
        self.windows = {FIRST_WINDOW + i: spec for i, spec in enumerate(specs)}
        self.attention = KV_GROUPS + tuple(self.windows)
        self.groups = range(FIRST_WINDOW + len(windows))
        layout = read_layout(kv_cache_config(drafts, specs))
        self.side = SchedulerSide(layout, options, max_requests=9, max_request_tokens=200)
        self.ranks = [Rank(i, layout, options) for i in range(ranks)]
        self.side.open([pickle.loads(pickle.dumps(rank.info)) for rank in self.ranks])
        self.caching = caching
        self.pool = BlockPool(BLOCKS, HASHED, self.spoil)
        if caching and bound:
            self.side.device_kv.bind(types.SimpleNamespace(block_pool=self.pool))
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.budget, self.chance, self.local_hits = budget, chance, False
        self.late_saves, self.late_answers, self.cuts, self.failures = False, False, 0.0, 0.0
        self.finished: list[Request] = []
        self.gone: list[Request] = []  # given up while their pages are restored
        self.plans: list[StepPlan] = []
        self._steps: list[Step] = []  # not answered

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def spoil(self, block: int) -> None:
        for rank in self.ranks:
            rank.spoil(block)

    def allocate(self, request: Request, tokens: int, computed: int | None = None) -> None:
        """KV blocks for all tokens; of the states only the last one, as vLLM's align mode. Blocks that a window has
        left behind the first `computed` tokens (None: those of the request) are given back, or not allocated."""
        blocks = -(-tokens // BLOCK)
        for group in self.groups:
            row = request.blocks[group]
            nulls = blocks - 1 if group in STATE_GROUPS else 0
            if group in self.windows:
                nulls = self.windows[group].skipped(request.num_computed_tokens if computed is None else computed)
                for k in reversed(range(min(nulls, len(row)))):
                    self.give_back(row[k])
                    row[k] = 0
            while len(row) < blocks:
                row.append(0 if len(row) < nulls else self.pool.get_new_blocks(1)[0].block_id)

    def release(self, request: Request) -> None:
        for row in request.blocks:
            for block in reversed(row):
                self.give_back(block)
            row.clear()

    def give_back(self, number: int) -> None:
        if number:
            block = self.pool.blocks[number]
            self.pool.free_blocks([block])
            if block.ref_cnt == 0 and not self.caching:
                self.spoil(number)

    def find(self, request: Request) -> tuple[int, int]:
        """Tokens of the longest prefix of KV, windows and a state, and of KV alone, in the engine's own blocks."""
        ends = range(BLOCK, len(request.all_token_ids), BLOCK)
        kv = next((end - BLOCK for end in ends if not self.pool.get_cached_block(request.hash_at(end), KV_GROUPS)),
                  len(ends) * BLOCK)
        states = [end for end in ends if end <= kv and self.pool.get_cached_block(request.hash_at(end), STATE_GROUPS)]
        return max((end for end in states if self.has_windows(request, end)), default=0), kv

    def has_windows(self, request: Request, end: int) -> bool:
        return all(self.pool.get_cached_block(request.hash_at(BLOCK * k + BLOCK), [group])
                   for group, spec in self.windows.items() for k in range(spec.needed(end), end // BLOCK))

    def adopt(self, request: Request, tokens: int) -> None:
        """The request's tables begin with the blocks of a hit."""
        for end in range(BLOCK, tokens + 1, BLOCK):
            kv = self.pool.get_cached_block(request.hash_at(end), KV_GROUPS)
            states = self.pool.get_cached_block(request.hash_at(end), STATE_GROUPS) if end == tokens else []
            assert kv is not None and states is not None
            self.pool.touch([*kv, *states])
            for groups, blocks in ((KV_GROUPS, kv), (STATE_GROUPS, states or [self.pool.blocks[0]] * 2)):
                for group, block in zip(groups, blocks, strict=True):
                    request.blocks[group].append(block.block_id)
            for group, spec in self.windows.items():
                (window,) = (self.pool.get_cached_block(request.hash_at(end), [group]) or () if
                             end > spec.needed(tokens) * BLOCK else [self.pool.blocks[0]])
                self.pool.touch([window] if window.block_id else [])
                request.blocks[group].append(window.block_id)

    def name(self, request: Request, groups: Sequence[int], ends: Sequence[int]) -> None:
        """The engine finds these blocks of the request from now on."""
        for end in ends if self.caching else ():
            for group in groups:
                number = request.blocks[group][end // BLOCK - 1]
                if number:
                    self.pool.name(self.pool.blocks[number], request.hash_at(end), group)

    def keeps(self, request: Request, end: int) -> bool:
        """vLLM's sparse retention of states."""
        return end % BLOCK == 0 and end > 0 and end in (
            (request.num_prompt_tokens - 1) // BLOCK * BLOCK, request.shared_prefix_boundary // BLOCK * BLOCK)

    def check_blocks(self) -> None:
        """Counts all references anew. The connector has some while pages are being restored, and then none."""
        wanted = collections.Counter(block for one in (*self.requests.values(), *self.gone) for row in one.blocks
                                     for block in row)
        del wanted[0]
        more = {block.block_id for block in self.pool.blocks if block.ref_cnt != wanted[block.block_id]}
        assert all(self.pool.blocks[number].ref_cnt > wanted[number] for number in more)
        assert not more or any(step.loads for step in self._steps), f"blocks {more} have owners that have ended"
        assert set(self.pool.queue) == {block.block_id for block in self.pool.blocks[1:] if block.ref_cnt == 0}

    def visit_kv(self, request: Request, begin: int, end: int, *, write: bool) -> None:
        """Writes or checks the KV of the blocks of tokens [begin, end)."""
        for rank in self.ranks:
            for group in self.attention:
                for k in range(begin // BLOCK, -(-end // BLOCK)):
                    if request.blocks[group][k] or group in KV_GROUPS:
                        rank.visit(request, group, min((k + 1) * BLOCK, end), request.blocks[group][k], write)

    def check_windows(self, request: Request, tokens: int) -> None:
        """The next token finds a block for all that its windows reach."""
        for group, spec in self.windows.items():
            row = request.blocks[group]
            assert all(row[max(0, tokens - spec.sliding_window + 1) // BLOCK:]), f"{request.request_id}: {row}"

    def visit_state(self, request: Request, end: int, *, write: bool) -> None:
        """Writes or checks the state at the end."""
        for rank in self.ranks:
            for group in STATE_GROUPS:
                if end:
                    rank.visit(request, group, end, request.blocks[group][(end - 1) // BLOCK], write)

    # --- A step ------------------------------------------------------------------------------------------------------

    def step(self, preempt: Request | None = None) -> None:
        scheduled: dict[str, int] = {}
        offers: dict[str, list[tuple[int, int, int]]] = {}
        preempted = [preempt.request_id] if preempt is not None else []
        if preempt is not None:
            self.running.remove(preempt)
        for request in self.running:
            self.schedule(request, scheduled, offers)
        loads = self.admit(scheduled, offers)
        plan = self.side.plan_step(self.requests, scheduled=scheduled, offers=offers, preempted=preempted,
                                   block_ids=lambda name: tuple(self.requests[name].blocks))
        self.plans.append(plan)
        if preempt is not None:  # vLLM may have given its blocks to others in this very step
            self.release(preempt)
            preempt.num_computed_tokens = 0
            self.waiting.insert(0, preempt)
        while self._steps:
            self.answer(self._steps.pop(0))
        self._steps.append(self.run(plan, scheduled, loads))
        if not self.late_answers:
            self.answer(self._steps.pop())
        for request in list(self.running):
            self.after(request, scheduled.get(request.request_id, 0))

    def schedule(self, request: Request, scheduled: dict[str, int],
                 offers: dict[str, list[tuple[int, int, int]]]) -> None:
        """A chunk of the request. As vLLM does, names the KV that the chunk will compute."""
        tokens = scheduled[request.request_id] = self.chunk(request)
        first, end = request.num_computed_tokens, request.num_computed_tokens + tokens
        self.allocate(request, end)
        self.check_windows(request, first)
        self.name(request, self.attention, range(first // BLOCK * BLOCK + BLOCK, end + 1, BLOCK))
        request.kept = end if self.keeps(request, end) else 0
        if request.kept:
            offers[request.request_id] = [(group, request.blocks[group][end // BLOCK - 1], end)
                                          for group in STATE_GROUPS]

    def run(self, plan: Any, scheduled: dict[str, int], loads: list[Request]) -> Step:
        self.check_targets(plan)
        sent, results, failed = pickle.dumps(plan), [], set[str]()
        wanted, refused = ({one.request_id for one in loads if bool(one.restored) == good} for good in (True, False))
        owns = [pickle.loads(sent) for _ in self.ranks]
        for rank, own in zip(self.ranks, owns, strict=True):
            fails = bool(wanted) and self.chance.random() < self.failures
            if fails:  # a place that is none
                self.chance.choice([own.restores, own.moves]).pages[KV_GROUPS[0]] = np.array([[1, 1 << 20]], np.int32)
            said = rank.side.restore(own)
            assert said == ((set(), wanted | refused) if fails else (wanted, refused))
            failed |= said[1]
        self.forward(scheduled)
        for rank, own in zip(self.ranks, owns, strict=True):
            if self.late_saves:
                results.append(rank.side.results())
            rank.side.save(own)
            if not self.late_saves:
                results.append(rank.side.results())
        return Step(loads, failed, np.concatenate(results))

    def check_targets(self, plan: StepPlan) -> None:
        """A block into which a restore writes is the prompt's alone, and has no name yet. It is written once."""
        written = [*(pairs[:, 0] for pairs in plan.restores.pages.values()),
                   *(pairs[:, 1] for pairs in plan.moves.pages.values())]
        numbers = [number for pages in written for number in pages.tolist()]
        assert len(set(numbers)) == len(numbers)
        for block in (self.pool.blocks[number] for number in numbers):
            assert block.ref_cnt == 1 and not block.names, f"block {block.block_id} has other users"

    def forward(self, scheduled: dict[str, int]) -> None:
        """All that a chunk reads is there: the state before the pass, KV of other chunks of the pass, too."""
        rows = [(self.requests[name], self.requests[name].num_computed_tokens, tokens)
                for name, tokens in scheduled.items()]
        for request, begin, _ in rows if self.caching else ():
            self.visit_state(request, begin, write=False)
        for request, begin, tokens in rows:
            self.visit_kv(request, begin, begin + tokens, write=True)
            self.visit_state(request, begin + tokens, write=True)
        for request, begin, _ in rows if self.caching else ():
            self.visit_kv(request, 0, begin // BLOCK * BLOCK, write=False)

    def answer(self, step: Step) -> None:
        self.side.failed(step.failed)
        self.side.device_kv.release({request.request_id for request in step.loads})
        self.side.answered(step.results)
        for request in step.loads:
            request.waits = False
            if request in self.gone:
                self.gone.remove(request)
                self.release(request)
            elif request.request_id not in step.failed:
                self.visit_kv(request, 0, request.num_computed_tokens, write=False)
                self.visit_state(request, request.num_computed_tokens, write=False)
                self.check_windows(request, request.num_computed_tokens)
                self.name(request, self.attention, range(request.local + BLOCK, request.num_computed_tokens + 1, BLOCK))
                if self.keeps(request, request.num_computed_tokens):
                    self.name(request, STATE_GROUPS, [request.num_computed_tokens])
            else:  # it begins anew
                request.num_computed_tokens = request.restored = 0
                self.release(request)

    def sleep(self) -> None:
        """And wake up: the pages are lost, and the workers tell of their pools again."""
        self.pool.forget_groups(self.groups)
        for rank in self.ranks:
            for _ in range(2):
                rank.side.detach_pages()
            for block in range(BLOCKS):
                rank.spoil(block)
            for _ in range(2):
                rank.side.attach_pages()
        self.side.open([pickle.loads(pickle.dumps(rank.info)) for rank in self.ranks])

    def chunk(self, request: Request) -> int:
        """As vLLM's _mamba_block_aligned_split."""
        start, prompt = request.num_computed_tokens, len(request.all_token_ids)
        end = min(start + self.budget, prompt)
        if start >= prompt - 1 or start >= request.num_prompt_tokens:
            return end - start
        if end < prompt:
            end = end // BLOCK * BLOCK
        stop = start + (request.shared_prefix_boundary - start) // BLOCK * BLOCK
        stops = [(prompt - 1) // BLOCK * BLOCK, stop, (start // BLOCK + 1) * BLOCK if start % BLOCK else 0]
        end = min([stop for stop in stops if start < stop < end], default=end)
        request.stops.append(end)
        return end - start

    def admit(self, scheduled: dict[str, int], offers: dict[str, list[tuple[int, int, int]]]) -> list[Request]:
        loads = []
        for request in list(self.waiting):
            free = self.pool.get_num_free_blocks()
            if request.waits or free < len(self.attention) * len(request.all_token_ids) // BLOCK + 20:
                continue
            if request.num_computed_tokens == 0:
                local = self.local_hit(request)
                found = self.side.match(request, local)
                if found is None or (self.chance.random() < 0.1 and not self.local_hits):
                    continue
                request.local = local
                if self.caching:
                    self.adopt(request, local)
                if found and self.chance.random() < self.cuts:
                    self.allocate(request, local + found, local + found - BLOCK)
                    self.side.admit(request, request.blocks, found - BLOCK)
                    request.restored, request.waits = 0, found > BLOCK
                    if request.waits:
                        loads.append(request)
                        continue
                    self.release(request)
                    continue
                request.restored = found
                request.num_computed_tokens = local + found
                self.allocate(request, local + found)
                if local and not self.caching:
                    self.visit_kv(request, 0, local, write=True)
                    self.visit_state(request, local, write=True)
                self.side.admit(request, request.blocks, found)
                if found:
                    request.waits = True
                    loads.append(request)
                    continue
            else:
                self.side.admit(request, request.blocks, 0)
            self.waiting.remove(request)
            self.running.append(request)
            if request.num_cached_tokens < 0:
                request.num_cached_tokens, request.first_restored = request.num_computed_tokens, request.restored
            self.schedule(request, scheduled, offers)
        return loads

    def local_hit(self, request: Request) -> int:
        """Tokens in the engine's own cache."""
        request.shared_prefix_boundary = 0
        if not self.caching:
            whole = (len(request.all_token_ids) - 1) // BLOCK
            return self.chance.randrange(whole + 1) * BLOCK if self.local_hits and self.chance.random() < 0.3 else 0
        if request.skip_reading_prefix_cache:
            return 0
        hit, kv = self.find(request)
        request.shared_prefix_boundary = kv if kv > hit else 0
        return hit

    def after(self, request: Request, tokens: int) -> None:
        """States that are passed go, whether they were offered or not; KV stays until the end."""
        request.num_computed_tokens += tokens
        if tokens and request.kept:
            self.name(request, STATE_GROUPS, [request.kept])
        for group in STATE_GROUPS:
            row = request.blocks[group]
            for k in range(len(row) - 1):
                self.give_back(row[k])
                row[k] = 0
        if request.num_computed_tokens >= len(request.all_token_ids):
            if len(request.all_token_ids) - request.num_prompt_tokens >= int(request.request_id.split()[1]):
                self.finish(request)
            else:
                request.all_token_ids.append(self.chance.randrange(3))

    def finish(self, request: Request, status: str = "FINISHED_STOPPED") -> None:
        """The request is done, or its caller gives it up."""
        request.status = types.SimpleNamespace(name=status)
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.side.finished(request)
        self.requests.pop(request.request_id)
        if request.waits:  # its pages are written until the workers have answered
            self.gone.append(request)
        else:
            self.release(request)
        self.finished.append(request)

    def drain(self) -> None:
        while self.waiting or self.running or self.gone:
            self.step()

    def close(self) -> None:
        for rank in self.ranks:
            rank.side.close()
        self.side.close()
        self.side.cache.close()
