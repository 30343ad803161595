# SPDX-License-Identifier: Apache-2.0
"""Options of a request cache, and what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from stateport import _c
from stateport.errors import InvalidArgument
from stateport.eviction import Eviction
from stateport.hashing import check_seed
from stateport.tier_options import MEDIA, TierOptions

INDEXES: tuple[str, ...] = _c.CACHE_INDEX
PLACEMENTS: tuple[str, ...] = _c.CHECKPOINT_PLACEMENT
SEARCHES: tuple[str, ...] = _c.PROMPT_SEARCH
ALIGN_MODES: tuple[str, ...] = _c.ALIGN_MODE
LOST_REASONS: tuple[str, ...] = _c.LOST_HIT


@dataclasses.dataclass(frozen=True)
class StateGroup:
    """Indexes "align" and "tree_align": layers that share a block table of states.

    block_size_tokens: a multiple of that of KV. blocks: of running requests and checkpoints together. conv_window: the
    shortest of the group's conv states; 0: it has none. layout_fingerprint: StateSpec.fingerprint of its layers."""

    block_size_tokens: int
    blocks: int
    conv_window: int = 0
    layout_fingerprint: int = 0


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """What a request cache is made of.

    index: how checkpoints are found. "slots": by block hash. "tree": by tokens. "align": by block hash, with states in
    the columns of block tables. "tree_align" keeps states by the rules for align; it finds prompts, holds KV and evicts
    by the rules for tree.
    max_requests: that run at a time. max_request_tokens: of one: prompt, output and drafts together.
    kv_tokens: room for KV, in whole blocks of block_size_tokens (tree: a page). drafts: of a row, at most.
    layout_fingerprint: StateSpec.fingerprint (align: each group has its own); 0 is refused unless unchecked_layout.
    checkpoints: slots, tree: states that can be kept beside those of running requests.
    scan_alignment_tokens: slots, tree: a pass over a prompt can save the state every so many tokens from its start; 0:
    every token; -1: only at its end. decode_checkpoint_tokens: decoding leaves a checkpoint at its multiples; 0: only
    at the end of a request. placement: slots, tree: where passes over a prompt leave checkpoints, one of PLACEMENTS.
    spare_checkpoint_tokens: tree: further ones while there is room. budget_bytes: slots and tree alone: of cached KV
    and checkpoints together. fast_hash: xxh3_128 in place of sha256, for a single tenant unless hash_seed is a secret.
    overlap: a pass may be planned while the one before is not committed. events: keep them for take_events. If
    nobody takes them the oldest are lost, and their numbers have a gap.
    cost_linear, cost_quadratic: of a forward, for FLOPs in statistics. position_tokens: tree, hix: the history of
    positions so many tokens apart is kept. separate_checkpoints: slots, tree: checkpoints lie in a store of their
    own. hash_seed: enters every hash of a block: a secret random number below 2^64 where tenants are not trusted, the
    same for all that share files or a store; 0: none. scrub: plans name memory that changes tenant (Namespace.salt), to
    be set to zero before the copies and the pass: PassPlan.scrub_…, GroupPlan.clear."""

    index: str
    max_requests: int
    max_request_tokens: int
    kv_tokens: int
    layout_fingerprint: int = 0
    checkpoints: int = 0
    block_size_tokens: int = 16
    drafts: int = 0
    align_mode: str = "align"
    unchecked_layout: bool = False
    scan_alignment_tokens: int = 0
    decode_checkpoint_tokens: int = 0
    groups: Sequence[StateGroup] = ()
    eviction: Eviction | None = None
    fast_hash: bool = False
    overlap: bool = False
    events: bool = False
    cost_linear: float = 0.0
    cost_quadratic: float = 0.0
    placement: str = "passes"
    position_tokens: int = 64
    budget_bytes: int = 0
    spare_checkpoint_tokens: int = 0
    tiers: TierOptions | None = None
    separate_checkpoints: bool = False
    hash_seed: int = dataclasses.field(default=0, repr=False)
    scrub: bool = False

    def struct(self) -> Any:
        """It holds on to what it points to."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, allowed in (("index", INDEXES), ("placement", PLACEMENTS), ("align_mode", ALIGN_MODES)):
            if values[name] not in allowed:
                raise InvalidArgument(f"{name} is {values[name]!r}, and must be one of {', '.join(allowed)}")
            values[name] = allowed.index(values[name])
        check_seed("hash_seed", self.hash_seed)
        for name, kind in (("eviction", Eviction), ("tiers", TierOptions)):
            if values[name] is not None and not isinstance(values[name], kind):
                raise InvalidArgument(f"{name} is {values[name]!r}, and must be of {kind.__name__}")
            values[name] = values[name] and values[name].struct()
        rows = (_c.StateGroup * len(self.groups))()
        for row, group in zip(rows, self.groups, strict=True):
            row.__init__(**dataclasses.asdict(group))
        return _c.RequestCacheOptions(**values | {"groups": rows}, group_count=len(rows))


@dataclasses.dataclass(frozen=True)
class StartedRequest:
    """A request that took what it needs to run.

    request: its number until it ends; then the number is refused. The low 32 bits (`request & 0xffffffff`) are below
    max_requests, and no two running requests have the same: an array index.

    reused_tokens: the first pass begins here. lost_tokens: whose KV is cached beyond reused_tokens. lost: why no
    more is reused, one of LOST_REASONS; without lost_tokens "never_stored". "nothing": all whole blocks before the
    last token of the prompt are reused, or the request waits for a tier. load_tokens: > 0: more is on its way from
    a tier (load_bytes, from load_medium), and the first pass begins behind so many tokens; until then `chunk` says
    0. load_medium "elsewhere": only KV that the engine keeps is loaded, and load_bytes is 0. 0 tokens from "remote":
    that tier is being asked first. Until then `loading` of the request is true."""

    request: int
    reused_tokens: int
    lost: str
    lost_tokens: int
    load_tokens: int
    load_bytes: int
    load_medium: str


def started(struct: Any) -> StartedRequest:
    return StartedRequest(struct.request, struct.reused_tokens, LOST_REASONS[struct.lost], struct.lost_tokens,
                          struct.load_tokens, struct.load_bytes, MEDIA[struct.load_medium])


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """Counters since the cache was made. lost_…: by reason, those that occurred. Ages are upper bounds, powers of two,
    of states since their last use; 0: none was counted. kv_tokens: of whole blocks, cached or of running requests.
    states: checkpoints; align: blocks of states, with those of running requests."""

    requests: int
    requests_hit: int
    prompt_tokens: int
    hit_tokens: int
    hit_flops: float
    lost_requests: dict[str, int]
    lost_tokens: dict[str, int]
    lost_flops: dict[str, float]
    evicted_states: int
    reuse_age_p50_s: float
    reuse_age_p90_s: float
    eviction_age_p50_s: float
    eviction_age_p90_s: float
    evicted_kv_tokens: int
    kv_tokens: int
    states: int


@dataclasses.dataclass(frozen=True)
class TierUsage:
    """What one tier holds and did since the cache was made; see stateport_tier_usage."""

    states: int
    kv_blocks: int
    bytes: int
    bytes_written: int
    bytes_read: int
    loads: int
    hit_tokens: int
    evicted_states: int
    dropped_states: int
    refused_images: int
    lost_images: int
    saved_s: float
    asked_images: int
    found_images: int


def plain(kind: Any, struct: Any) -> Any:
    """A dataclass with the members of a struct; arrays by lost reason become dictionaries."""
    values = {}
    for field in dataclasses.fields(kind):
        value = getattr(struct, field.name)
        if field.name.startswith("lost_") and hasattr(value, "__len__"):
            value = {reason: value[i] for i, reason in enumerate(LOST_REASONS) if value[i]}
        values[field.name] = value
    return kind(**values)
