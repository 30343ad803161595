# SPDX-License-Identifier: Apache-2.0
"""An engine in small that calls the connector's two sides as vLLM does, and a model whose KV and states are a hash of
the tokens that made them: a wrong page is found at once."""
from __future__ import annotations

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
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.scheduler import SchedulerSide
from stateport.vllm.worker import WorkerSide

BLOCK, BLOCKS = 4, 192
HASHED = 2  # tokens that the engine hashes together
KV_GROUPS, STATE_GROUPS = (1, 3), (0, 2)
PAGE_BYTES, STATE_BYTES = 96, 24 + 12 + 16  # a page has padding behind its states


class MambaSpec:
    block_size, num_speculative_blocks, mamba_cache_mode = BLOCK, 0, "align"
    shapes, dtypes = ((2, 3), (6,), (2, 2)), (torch.float32, torch.bfloat16, torch.float32)


class FullAttentionSpec:
    block_size = BLOCK


def kv_cache_config(drafts: int = 0) -> Any:
    """Two groups of attention and two of states, two layers each."""
    groups = [types.SimpleNamespace(layer_names=[f"g{number}.{i}" for i in range(2)],
                                    kv_cache_spec=MambaSpec() if number in STATE_GROUPS else FullAttentionSpec())
              for number in range(4)]
    for number in STATE_GROUPS:
        groups[number].kv_cache_spec.num_speculative_blocks = drafts
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
        self.states = torch.zeros((2, 2, BLOCKS, 1, 1, PAGE_BYTES), dtype=torch.int8)
        caches = {f"g{group}.{i}": self.kv[:, g, i] for g, group in enumerate(KV_GROUPS) for i in range(2)}
        caches |= {f"g{group}.{i}": self.states[g, i] for g, group in enumerate(STATE_GROUPS) for i in range(2)}
        self.side = WorkerSide(layout, options, model=f"stand-in {self.name}")
        self.caches = caches
        self.info = self.side.register(caches)

    def page(self, group: int, layer: int, block: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a block that mean something."""
        tensor = self.caches[f"g{group}.{layer}"][block]
        if group in KV_GROUPS:
            return tensor.numpy().view(np.uint8).reshape(-1)
        return tensor.numpy().view(np.uint8).reshape(-1)[:STATE_BYTES]

    def visit(self, request: Request, group: int, end: int, block: int, write: bool) -> None:
        for layer in range(2):
            name = f"{self.name} g{group}.{layer} {request.cache_salt}"
            page = self.page(group, layer, block)
            wanted = content("kv" if group in KV_GROUPS else "state", name, request.all_token_ids[:end], page.size)
            if write:
                page[:] = wanted
            else:
                assert np.array_equal(page, wanted), f"{request.request_id}: group {group}, tokens up to {end}"

    def spoil(self, block: int) -> None:
        self.kv[block] = -1
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
    mm_features: list[Any] = dataclasses.field(default_factory=list)
    prompt_embeds: Any = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = -1
    arrival_time: float = 0.0
    status: Any = None
    shared_prefix_boundary: int = 0
    skip_reading_prefix_cache: bool = False
    blocks: list[list[int]] = dataclasses.field(default_factory=lambda: [[] for _ in range(4)])
    waits: bool = False  # for a load
    restored: int = 0
    first_restored: int = 0  # before it was preempted
    stops: list[int] = dataclasses.field(default_factory=list)

    @property
    def block_hashes(self) -> list[bytes]:
        """Of halves of blocks."""
        name, hashes = repr(self.cache_salt).encode(), []
        for end in range(HASHED, len(self.all_token_ids) + 1, HASHED):
            name = hashlib.sha256(name + repr(self.all_token_ids[end - HASHED:end]).encode()).digest()
            hashes.append(name)
        return hashes

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[:self.num_prompt_tokens]

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens


class Engine:
    """Steps: admits requests, runs a chunk of each, and calls the connector as vLLM does."""

    def __init__(self, options: ConnectorOptions, *, ranks: int = 1, budget: int = 64, drafts: int = 0,
                 chance: random.Random) -> None:
        """late_saves: results are asked for before pages are saved, as with a speculator. cuts: how often vLLM takes
        fewer tokens than it was offered."""
        layout = read_layout(kv_cache_config(drafts))
        self.side = SchedulerSide(layout, options, max_requests=9, max_request_tokens=200)
        self.ranks = [Rank(i, layout, options) for i in range(ranks)]
        self.side.open([pickle.loads(pickle.dumps(rank.info)) for rank in self.ranks])
        self.free = list(range(1, BLOCKS))
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.budget, self.chance, self.local_hits = budget, chance, False
        self.late_saves, self.cuts = False, 0.0
        self.finished: list[Request] = []

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def allocate(self, request: Request, tokens: int) -> None:
        """KV blocks for all tokens; of the states only the last one, as vLLM's align mode."""
        blocks = -(-tokens // BLOCK)
        for group in range(4):
            row = request.blocks[group]
            while len(row) < blocks:
                null = group in STATE_GROUPS and len(row) < blocks - 1
                row.append(0 if null else self.free.pop())

    def release(self, request: Request) -> None:
        for row in request.blocks:
            for block in row:
                self.give_back(block)
            row.clear()

    def give_back(self, block: int) -> None:
        if block:
            self.free.append(block)
            for rank in self.ranks:
                rank.spoil(block)

    def visit(self, request: Request, begin: int, end: int, *, write: bool) -> None:
        """Writes or checks the KV of the blocks of tokens [begin, end), and the state at the end."""
        for rank in self.ranks:
            for group in KV_GROUPS:
                for k in range(begin // BLOCK, -(-end // BLOCK)):
                    rank.visit(request, group, min((k + 1) * BLOCK, end), request.blocks[group][k], write)
            for group in STATE_GROUPS:
                if end:
                    rank.visit(request, group, end, request.blocks[group][(end - 1) // BLOCK], write)

    # --- A step ------------------------------------------------------------------------------------------------------

    def step(self, preempt: Request | None = None) -> None:
        scheduled: dict[str, int] = {}
        preempted = [preempt.request_id] if preempt is not None else []
        if preempt is not None:
            self.running.remove(preempt)
        for request in self.running:
            scheduled[request.request_id] = self.chunk(request)
        loads = self.admit(scheduled)
        offers = self.offers(scheduled)
        plan = self.side.plan_step(self.requests, scheduled=scheduled, offers=offers, preempted=preempted,
                                   block_ids=lambda name: tuple(self.requests[name].blocks))
        if preempt is not None:  # vLLM may have given its blocks to others in this very step
            self.release(preempt)
            preempt.num_computed_tokens = 0
            self.waiting.insert(0, preempt)
        self.run(plan, scheduled, loads)
        for request in list(self.running):
            self.after(request, scheduled.get(request.request_id, 0))

    def run(self, plan: Any, scheduled: dict[str, int], loads: list[Request]) -> None:
        for name, tokens in scheduled.items():
            request = self.requests[name]
            begin = request.num_computed_tokens
            self.visit(request, begin, begin + tokens, write=True)
        sent = pickle.dumps(plan)
        results = []
        for rank in self.ranks:
            own = pickle.loads(sent)
            restored, failed = rank.side.restore(own)
            assert restored == {request.request_id for request in loads if request.restored}
            assert failed == {request.request_id for request in loads if not request.restored}
            if self.late_saves:
                results.append(rank.side.results())
            rank.side.save(own)
            if not self.late_saves:
                results.append(rank.side.results())
        self.side.failed(failed)
        self.side.answered(np.concatenate(results))
        for request in loads:
            request.waits = False
            if request.restored:
                self.visit(request, 0, request.num_computed_tokens, write=False)
            else:  # it begins anew
                request.num_computed_tokens = 0
                self.release(request)

    def sleep(self) -> None:
        """And wake up: the pages are lost, and the workers tell of their pools again."""
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

    def admit(self, scheduled: dict[str, int]) -> list[Request]:
        loads = []
        for request in list(self.waiting):
            if request.waits or len(self.free) < 2 * len(request.all_token_ids) // BLOCK + 20:
                continue
            if request.num_computed_tokens == 0:
                request.shared_prefix_boundary = 0
                local = self.local_hit(request)
                found = self.side.match(request, local)
                if found is None or (self.chance.random() < 0.1 and not self.local_hits):
                    continue
                if found and self.chance.random() < self.cuts:
                    self.allocate(request, local + found)
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
                if local:
                    self.visit(request, 0, local, write=True)
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
            scheduled[request.request_id] = self.chunk(request)
        return loads

    def local_hit(self, request: Request) -> int:
        """Tokens in vLLM's own cache: a random number here."""
        whole = (len(request.all_token_ids) - 1) // BLOCK
        return self.chance.randrange(whole + 1) * BLOCK if self.local_hits and self.chance.random() < 0.3 else 0

    def offers(self, scheduled: dict[str, int]) -> dict[str, list[tuple[int, int, int]]]:
        offers: dict[str, list[tuple[int, int, int]]] = {}
        for name, tokens in scheduled.items():
            request = self.requests[name]
            end = request.num_computed_tokens + tokens
            self.allocate(request, end)
            kept = {(request.num_prompt_tokens - 1) // BLOCK * BLOCK, request.shared_prefix_boundary // BLOCK * BLOCK}
            if end % BLOCK == 0 and end in kept:  # vLLM's sparse retention
                offers[name] = [(group, request.blocks[group][end // BLOCK - 1], end) for group in STATE_GROUPS]
        return offers

    def after(self, request: Request, tokens: int) -> None:
        """States that are passed go, whether they were offered or not; KV stays until the end."""
        request.num_computed_tokens += tokens
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
        self.release(request)
        self.finished.append(request)

    def drain(self) -> None:
        while self.waiting or self.running:
            self.step()

    def close(self) -> None:
        for rank in self.ranks:
            rank.side.close()
        self.side.close()
        self.side.cache.close()
