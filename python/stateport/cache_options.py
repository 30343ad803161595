# SPDX-License-Identifier: Apache-2.0
"""Options of a request cache, and its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from stateport import _c
from stateport._arguments import integer, of_kind, struct_of
from stateport._arrays import Records
from stateport.errors import InvalidArgument
from stateport.eviction import Eviction
from stateport.hashing import check_seed
from stateport.tier_options import MEDIA, TRANSFER_STATUSES, TierOptions

INDEXES: tuple[str, ...] = _c.CACHE_INDEX
PLACEMENTS: tuple[str, ...] = _c.CHECKPOINT_PLACEMENT
SEARCHES: tuple[str, ...] = _c.PROMPT_SEARCH
HASHES: tuple[str, ...] = _c.BLOCK_HASH
ALIGN_MODES: tuple[str, ...] = _c.ALIGN_MODE
LOST_REASONS: tuple[str, ...] = _c.LOST_HIT
# Upper bounds of the buckets of CacheStats, each but the last, which has no bound.
AGE_BOUNDS_S: tuple[float, ...] = tuple(2.0**i for i in range(_c.AGE_BUCKETS - 1))
TOKEN_BOUNDS: tuple[int, ...] = tuple(64 << i for i in range(_c.TOKEN_BUCKETS - 1))


def _number_of(name: str, value: str, allowed: tuple[str, ...]) -> int:
    if value not in allowed:
        raise InvalidArgument(f"{name} is {value!r}, and must be one of {', '.join(allowed)}")
    return allowed.index(value)


@dataclasses.dataclass(frozen=True)
class Arena:
    """One memory that KV and states share: the cache moves it between them while it serves, by the moves of its answers
    (CacheArena). Both stores have addresses for the most that the cache may ever use of them (kv_tokens, checkpoints).
    An extent is the smallest run of blocks, or of slots, whose memory can be mapped and unmapped by itself.

    bytes: of physical memory for the extents of both parts; 0: no arena. kv_extent_count: KV blocks of one extent.
    kv_extent_bytes: of physical memory that it takes, in all layers together. states_extent_count, states_extent_bytes:
    the same of slots of the store that checkpoints lie in. state_share: of `bytes`, that states have at the start, from
    0 to 1."""

    bytes: int = 0
    kv_extent_count: int = 1
    kv_extent_bytes: int = 0
    states_extent_count: int = 1
    states_extent_bytes: int = 0
    state_share: float = 0.5

    def struct(self) -> Any:
        struct = _c.Arena(**dataclasses.asdict(self))
        if not 0 <= struct.state_share <= 1:
            raise InvalidArgument(f"arena.state_share is {self.state_share}, and must be from 0 to 1")
        struct.state_share = struct.state_share or -1  # 0 is the default in C
        return struct


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """States lie in slots: each running request has a live slot, and each checkpoint has a slot.

    layout_fingerprint: StateSpec.fingerprint; 0 is refused unless unchecked_layout.
    checkpoints: states that can be kept beside those of running requests.
    separate_checkpoints: checkpoints lie in a store of their own.
    scan_alignment_tokens: a pass over a prompt can save the state at its multiples from the start of the pass; 0: every
    token; -1: only at its end.
    placement: where passes over a prompt leave checkpoints, one of PLACEMENTS.
    tail_tokens: > 0: the last state of a prompt lies before its last `tail_tokens` tokens, for chat templates that swap
    the text before an answer or drop reasoning in the next turn. Not with placement "every". 0: 64, in namespaces whose
    prompts would lose more tokens without a tail: the cache learns that. -1: no tail.
    breakpoint_saves: named positions at which a pass saves its state on its way, from 0 to 8: each costs a scratch
    state of every request. At the others `chunk` ends the pass.
    spare_checkpoint_tokens: index "tree": further checkpoints at its multiples, while there is room.
    decode_checkpoint_tokens: decoding leaves a checkpoint at its multiples; 0: only at the end of a request.
    budget_bytes: > 0: the bytes of cached KV and checkpoints together.
    arena: KV and states share one memory physically; None: they do not. Not with budget_bytes."""

    layout_fingerprint: int = 0
    checkpoints: int = 0
    separate_checkpoints: bool = False
    scan_alignment_tokens: int = 0
    placement: str = "passes"
    tail_tokens: int = 0
    breakpoint_saves: int = 0
    spare_checkpoint_tokens: int = 0
    decode_checkpoint_tokens: int = 0
    budget_bytes: int = 0
    arena: Arena | None = None

    def struct(self) -> Any:
        """It holds on to its arena."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _c.SlotLayout(**values | {"placement": _number_of("placement", self.placement, PLACEMENTS),
                                         "arena": struct_of("arena", self.arena, Arena)})


@dataclasses.dataclass(frozen=True)
class StateGroup:
    """Layers that share a block table of states.

    block_size_tokens: a multiple of that of KV. blocks: of running requests and checkpoints together. conv_window: the
    shortest of the group's conv states; 0: it has none. layout_fingerprint: StateSpec.fingerprint of its layers."""

    block_size_tokens: int
    blocks: int
    conv_window: int = 0
    layout_fingerprint: int = 0


@dataclasses.dataclass(frozen=True)
class ColumnLayout:
    """States lie in blocks that the columns of block tables name. A pass reads a checkpoint where it lies.

    groups: at least one. mode: one of ALIGN_MODES; index "tree": not "none". tail_tokens: mode "align": `chunk` ends on
    the last boundary before the prompt's last `tail_tokens` tokens, instead of the last one before its last token; 0
    and -1: see SlotLayout."""

    groups: Sequence[StateGroup] = ()
    mode: str = "align"
    tail_tokens: int = 0

    def struct(self) -> Any:
        """It holds on to its groups."""
        if not isinstance(self.groups, Sequence):
            raise InvalidArgument(f"groups is {self.groups!r}, and must be a sequence of StateGroup")
        rows = (_c.StateGroup * len(self.groups))()
        for i, group in enumerate(self.groups):
            rows[i].__init__(**dataclasses.asdict(of_kind(f"groups[{i}]", group, StateGroup)))
        return _c.ColumnLayout(mode=_number_of("mode", self.mode, ALIGN_MODES), groups=rows, group_count=len(rows),
                               tail_tokens=self.tail_tokens)


@dataclasses.dataclass(frozen=True)
class ShareRunning:
    """Prompts that wait for a request which computes their prefix, so that it is computed once. A prompt waits if it
    shares more with the unfinished prompt of an earlier request than is cached. The earlier request leaves a checkpoint
    at the end of the shared prefix, at up to eight positions. The wait is over once that request has computed the
    prefix, has ended, or computes with old weights. The prompt then reuses all that is cached, and may wait for another
    request. An engine passes over a request that waits (`chunk` answers 0), and runs the others.

    least_tokens: a prompt waits for at least this number of tokens beyond its hit; 0: no prompt waits. Costs a hash of
    each block of a prompt with index "tree". Not in mode "none". longest_commits: commits and
    inserts since a request began to wait, at least 1, after which it waits no longer."""

    least_tokens: int = 0
    longest_commits: int = 1024

    def struct(self) -> Any:
        integer("share_running.longest_commits", self.longest_commits, 1, (1 << 31) - 1)  # 0 is the default in C
        return _c.ShareRunning(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class PrefixOptions:
    """Pins and prefetches of a cache: see CachePrefixes. Bytes are counted by state_bytes and kv_bytes_per_token of
    CacheOptions.eviction: KV in whole blocks, and states.

    pins: at a time; not in mode "none". pinned_bytes: that pins may keep together. prefetches: at a time; needs tiers.
    prefetched_bytes: that loads of prefetches may take together while they are under way."""

    pins: int = 0
    pinned_bytes: int = 0
    prefetches: int = 0
    prefetched_bytes: int = 0

    def struct(self) -> Any:
        return _c.PrefixOptions(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class SessionOptions:
    """Sessions of a cache, by ReuseHint.session: see CacheSessions.

    remembered: sessions that the cache knows at a time, rounded up to a power of two. idle_s: > 0: a session that no
    request named for this many seconds is closed with the next start. most_bytes: > 0: contents of a session that owns
    more bytes are demoted until it owns no more than that."""

    remembered: int = 0
    idle_s: float = 0.0
    most_bytes: int = 0

    def struct(self) -> Any:
        return _c.SessionOptions(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """Options of a request cache.

    index: how prefixes of prompts are found. "hash": by the hash of each block. "tree": by tokens, in a prefix tree.
    layout: how states lie in the engine's stores: a SlotLayout or a ColumnLayout.
    max_requests: that run at a time. max_request_tokens: of one: prompt, output and drafts together.
    drafts: of a row, at most. kv_tokens: room for KV, in whole blocks of block_size_tokens (index "tree": a page).
    unchecked_layout: a layout_fingerprint of 0 is accepted, and compares nothing.
    eviction: None: least recent use. position_tokens: index "tree" with hix: distance of the positions whose history is
    kept, in tokens.
    hash: of blocks, "sha256" or "xxh3_128", which is for a single tenant unless hash_seed is a secret.
    hash_seed: enters every hash of a block: a secret random number below 2^64 where tenants are not trusted, the same
    for all that share files or a store; 0: none. epoch: number of the weights, part of every name of contents unless it
    is 0: see CacheEpochs.
    overlap: a pass may be planned while the one before is not committed. events: keep them for take_events. If they are
    not taken the oldest are lost, and their numbers have a gap.
    scrub: plans name memory that changes tenant (Namespace.salt), to be set to zero before the copies and the pass:
    PassPlan.scrub_…, GroupPlan.clear. integrity: the cache names checks of its checkpoints: see CacheIntegrity.
    tenant_quotas: tenants that can have a quota at a time, at most 64: see CacheTenants. share_running: prompts
    wait for requests that compute their prefix; None: no prompt waits. prefixes: pins and prefetches; None:
    neither. sessions: that can be closed; None: none. tiers: below the device. cost_linear, cost_quadratic: of a
    forward, for FLOPs in statistics; both 0: tokens."""

    index: str = "hash"
    layout: SlotLayout | ColumnLayout = SlotLayout()
    max_requests: int = 0
    max_request_tokens: int = 0
    drafts: int = 0
    block_size_tokens: int = 16
    kv_tokens: int = 0
    unchecked_layout: bool = False
    eviction: Eviction | None = None
    position_tokens: int = 64
    hash: str = "sha256"
    hash_seed: int = dataclasses.field(default=0, repr=False)
    epoch: int = 0
    overlap: bool = False
    events: bool = False
    scrub: bool = False
    integrity: bool = False
    tenant_quotas: int = 0
    share_running: ShareRunning | None = None
    prefixes: PrefixOptions | None = None
    sessions: SessionOptions | None = None
    tiers: TierOptions | None = None
    cost_linear: float = 0.0
    cost_quadratic: float = 0.0

    def struct(self) -> Any:
        """It keeps the objects that it points to alive."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, allowed in (("index", INDEXES), ("hash", HASHES)):
            values[name] = _number_of(name, values[name], allowed)
        check_seed("hash_seed", self.hash_seed)
        integer("epoch", self.epoch, 0, (1 << 64) - 1)
        for name, kind in (("eviction", Eviction), ("share_running", ShareRunning), ("prefixes", PrefixOptions),
                           ("sessions", SessionOptions), ("tiers", TierOptions)):
            if values[name] is not None and not isinstance(values[name], kind):
                raise InvalidArgument(f"{name} is {values[name]!r}, and must be of {kind.__name__}")
            values[name] = values[name] and values[name].struct()
        if not isinstance(self.layout, SlotLayout | ColumnLayout):
            raise InvalidArgument(f"layout is {self.layout!r}, and must be a SlotLayout or a ColumnLayout")
        values["slots" if isinstance(self.layout, SlotLayout) else "columns"] = values.pop("layout").struct()
        return _c.RequestCacheOptions(**values)


@dataclasses.dataclass(frozen=True)
class PrefixWait:
    """A request waits until another one has computed the prefix that both share (ShareRunning). request: the one that
    computes it. tokens: length of the prefix, where that request leaves a checkpoint."""

    request: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class StartedRequest:
    """A request that has the memory that it needs to run.

    request: its number until it ends; then the number is refused. The low 32 bits (`request & 0xffffffff`) are below
    max_requests, and no two running requests have the same: an array index.

    reused_tokens: the first pass begins here, unless the request waits. lost_tokens: tokens beyond reused_tokens whose
    KV is cached. lost: why no more is reused, one of LOST_REASONS; without lost_tokens "never_stored". "nothing": all
    whole blocks before the last token of the prompt are reused, or the request waits. load_tokens: > 0: more is on its
    way from a tier (load_bytes, from load_medium), and the first pass begins behind that many tokens; until then
    `chunk` answers 0. load_medium "elsewhere": only KV that the engine keeps is loaded, and load_bytes is 0. 0 tokens
    from "remote": that tier is being asked first. Until then `loading` of the request is true. transfers: TRANSFER [n],
    see CacheTiers. breakpoints: where the checkpoints that the prompt named are to lie: rounded down to whole blocks,
    in columns to those of the last group; 0: nowhere. waits_for: another request is computing more of this prompt.
    Until the wait is over no pass can run this request: `chunk` answers 0. Then `computed` says how much it reuses."""

    request: int
    reused_tokens: int
    lost: str
    lost_tokens: int
    load_tokens: int
    load_bytes: int
    load_medium: str
    transfers: Records = dataclasses.field(repr=False, compare=False)
    breakpoints: tuple[int, ...] = ()
    waits_for: PrefixWait | None = None


def started(struct: Any, transfers: Records) -> StartedRequest:
    return StartedRequest(struct.request, struct.reused_tokens, LOST_REASONS[struct.lost], struct.lost_tokens,
                          struct.load_tokens, struct.load_bytes, MEDIA[struct.load_medium], transfers,
                          tuple(struct.breakpoints[:struct.breakpoint_count]),
                          PrefixWait(struct.waits_for_request, struct.waits_for_tokens)
                          if struct.waits_for_tokens > 0 else None)


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """Counters since the cache was made. lost_…: by reason, those that occurred. Ages are upper bounds, powers of two,
    of states since their last use; 0: none was counted. kv_tokens: of whole blocks, cached or of running requests.
    states: checkpoints; in columns: blocks of states, with those of running requests. breakpoints_kept,
    breakpoints_refused: named positions that a pass left a checkpoint at, and ran over without one. awaited_tokens: of
    hit_tokens: reused because a request waited (ShareRunning). forks: that were started, and are not among the
    requests. loaded_tokens: of hit_tokens, by the slowest tier that a request loaded from. reuse_ages, eviction_ages:
    states by their age (AGE_BOUNDS_S). hit_depths: requests by their hit tokens (TOKEN_BOUNDS). loss_depths: by the
    tokens that they computed again though their KV was cached. A request is counted with its first commit or insert, or
    with its end if it has none."""

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
    breakpoints_kept: int
    breakpoints_refused: int
    awaited_tokens: int
    forks: int
    loaded_tokens: dict[str, int]
    reuse_ages: tuple[int, ...]
    eviction_ages: tuple[int, ...]
    hit_depths: tuple[int, ...]
    loss_depths: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TierUsage:
    """Contents of one tier, and counters since the cache was made; see stateport_tier_usage. reads, writes, finds:
    transfers that were decided and have not ended. ended_…: transfers that ended, by status, those that occurred."""

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
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int
    finds: int
    ended_reads: dict[str, int]
    ended_writes: dict[str, int]
    ended_finds: dict[str, int]


class WaitingRequests(NamedTuple):
    """Requests that no pass can run yet. answers: the remote tier was asked. loads: something is loaded from a tier.
    requests: another request computes their prefix (ShareRunning)."""

    answers: int
    loads: int
    requests: int


@dataclasses.dataclass(frozen=True)
class ArenaUsage:
    """The memory of an arena, by the cache's own count. kv_bytes, state_bytes: of extents that are mapped, or may be;
    together never more than Arena.bytes. moves: decided since the cache was made. refused_moves: of these, settled as
    not done."""

    kv_bytes: int
    state_bytes: int
    moves: int
    refused_moves: int


def plain(kind: Any, struct: Any) -> Any:
    """A dataclass with the members of a struct. An array becomes a tuple, or a dictionary of the numbers other than 0
    if its index is an enumeration."""
    names = {"lost": LOST_REASONS, "loaded": MEDIA, "ended": TRANSFER_STATUSES}
    values = {}
    for field in dataclasses.fields(kind):
        value = getattr(struct, field.name)
        if hasattr(value, "__len__"):
            of = names.get(field.name.partition("_")[0])
            value = tuple(value) if of is None else {name: value[i] for i, name in enumerate(of) if value[i]}
        values[field.name] = value
    return kind(**values)
