# SPDX-License-Identifier: Apache-2.0
"""Events of a cache in the wire formats of engines, for routers: KV and states that a worker can reuse."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stateport import _c
from stateport._arguments import integer, of_kind
from stateport._arrays import CACHE_EVENT, Records, int32s, records
from stateport._arrays import prefixes as prefix_rows
from stateport._msgpack import packer
from stateport.errors import InvalidArgument, InvalidState
from stateport.tier_options import CONTENTS, MEDIA

FORMATS = ("vllm", "sglang", "llm-d")
_MEDIA: dict[str, dict[str, str]] = {
    "vllm": {"device": "GPU", "host": "CPU", "file": "STORAGE", "remote": "EXTERNAL"},
    "sglang": {"device": "GPU", "host": "CPU_PINNED", "file": "DISK", "remote": "EXTERNAL"},
}
_MEDIA["llm-d"] = _MEDIA["vllm"]
_STATE, _REMOTE = CONTENTS.index("state"), MEDIA.index("remote")
_ANY = (1 << len(MEDIA)) - 1


def llm_d_topic(pod: str, model: str) -> str:
    """The topic under which llm-d's router expects the events of a pod."""
    for name, value in (("pod", pod), ("model", model)):
        if not of_kind(name, value, str) or "@" in value:
            raise InvalidArgument(f"{name} is {value!r}, and must be a name without @")
    return f"kv@{pod}@{model}"


@dataclasses.dataclass(frozen=True)
class _Name:
    """A block as its engine knows it. tokens: of the block, int32. end: tokens from the start of the prompt."""

    hash: int | bytes
    tokens: bytes
    end: int
    extra_keys: tuple[Any, ...] | None
    lora_id: int | None
    lora_name: str | None
    salt: str | None


class _Block:
    """A prefix. kv: bits of the media that have the KV of its last block. states: the same for each group of states.
    live: it has a name and KV, and it or a block behind it has a state with all of these between. said_kv, said_states:
    announced."""

    __slots__ = ("key", "parent", "children", "name", "session", "kv", "states", "live", "live_children", "said_kv",
                 "said_states")

    def __init__(self, key: tuple[int, int]) -> None:
        self.key = key
        self.parent: _Block | None = None
        self.children: dict[_Block, None] = {}  # in the order of their links, as _dirty is
        self.name: _Name | None = None
        self.session: str | None = None
        self.live = False
        self.kv = self.states = self.live_children = self.said_kv = self.said_states = 0


class KvEventEncoder:
    """Turns CACHE_EVENT records of one cache into events of an engine's format, batch by batch.

        name, for each prompt → add(cache.take_events()) → take_batch → a publisher

    A cache knows prefixes by hashes of its own. `name` tells the engine's hash and the tokens of each block; content
    without a name is announced when it gets one.

    format: "vllm", "sglang", or "llm-d" (vLLM's events; the topic is llm_d_topic). block_size_tokens: of the cache.
    usable_only: KV is announced only up to the deepest state behind which all is cached, and removed when the last such
    state goes, so that routers that know no states count only tokens that can be reused. media: the names of media that
    differ from the format's; a medium with the name "" is not announced. kv_group, state_groups: group_idx of KV and of
    each group of states; without groups KV alone can be reused. kv_kind: of KV, in the format of vLLM. rank: of the
    data-parallel engine. shared: the worker announces other contents, too: contents that are cleared are removed one by
    one, and the first batch clears nothing.
    idle_names_max: names without content that are kept, the latest ones.

    Events of vLLM: BlockStored and BlockRemoved, states as blocks of the kind "mamba" with state_tokens, the tokens
    before the state. In SGLang's format a block is announced once for each medium with its component_types, and again
    when these change. If records have a gap, all is announced as cleared, and content counts when it is stored again.

    A call takes O(blocks that it names or whose announcement changes). Not thread-safe."""

    def __init__(self, format: str = "vllm", *, block_size_tokens: int, usable_only: bool = True,
                 media: Mapping[str, str] | None = None, kv_group: int = 0, state_groups: Sequence[int] = (1,),
                 kv_kind: str = "full_attention", rank: int = 0, shared: bool = False,
                 idle_names_max: int = 65536) -> None:
        if format not in FORMATS:
            raise InvalidArgument(f"format is {format!r}, and must be one of {', '.join(FORMATS)}")
        if {kv_group}.intersection(state_groups) or len(set(state_groups)) < len(state_groups):
            raise InvalidArgument(f"state_groups is {state_groups!r}, and must name each group once, and not that of "
                                  f"KV, {kv_group}")
        for medium in media or ():
            if medium not in MEDIA:
                raise InvalidArgument(f"media has the key {medium!r}, and may have {', '.join(MEDIA)}")
        self.format = format
        self.block_size_tokens = integer("block_size_tokens", block_size_tokens, 1, 2**31 - 1)
        self.rank = integer("rank", rank, 0, 2**31 - 1)
        self._usable_only = usable_only
        self._media = [(_MEDIA[format] | dict(media or {})).get(medium, "") for medium in MEDIA]
        self._heard = sum(1 << i for i, medium in enumerate(self._media) if medium)
        self._kv_group, self._state_groups = kv_group, tuple(state_groups)
        self._kv_kind = kv_kind
        self._idle_max = integer("idle_names_max", idle_names_max, 0, 2**40)
        self._pack = packer()
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._idle: collections.OrderedDict[_Block, None] = collections.OrderedDict()
        self._dirty: dict[_Block, None] = {}  # in the order of their changes: batches are the same in every process
        self._sequence = 0
        self._shared = shared
        self._cleared = not shared  # the first batch says so: an earlier process may have announced contents

    # --- Names -------------------------------------------------------------------------------------------------------

    def name(self, prefixes: Any, tokens: Any, *, hashes: Sequence[int | bytes] | None = None,
             extra_keys: Sequence[tuple[Any, ...] | None] | None = None, lora_id: int | None = None,
             lora_name: str | None = None, salt: str | None = None, session_id: str | None = None,
             behind: tuple[int, int] | None = None, blocks_before: int = 0) -> None:
        """Names the blocks of a prompt, from its first one on or from the one that follows `behind`. prefixes [n, 2]:
        as of Hasher and CACHE_EVENT. tokens: at least those of n blocks. hashes [n]: the engine's; None: the first
        words of the prefixes. extra_keys [n]: of vLLM's block hashes; None: lora_name in each block, salt in the first.
        behind: the prefix of the last of the `blocks_before` blocks before these. A block that has a name keeps it; its
        session is that of its last name."""
        names, size, array = prefix_rows("prefixes", prefixes), self.block_size_tokens, int32s("tokens", tokens)
        if len(array) < len(names) * size:
            raise InvalidArgument(f"tokens has {len(array)} elements, and must have those of {len(names)} blocks of "
                                  f"{size} tokens")
        for name, values in (("hashes", hashes), ("extra_keys", extra_keys)):
            if values is not None and len(values) != len(names):
                raise InvalidArgument(f"{name} has {len(values)} elements, and prefixes has {len(names)}")
        if (integer("blocks_before", blocks_before, 0, 2**31 - 1) == 0) != (behind is None):
            raise InvalidArgument(f"blocks_before is {blocks_before} and behind is {behind!r}: name both or none")
        if hashes is None:
            hashes = names[:, 0].tolist()
        wire = [self._wire_hash(value) for value in hashes]
        before = None if behind is None else self._block(behind)
        for i, (first, second) in enumerate(names.tolist()):
            block = self._block((first, second))
            block.session = session_id
            if block.name is None:
                extra = extra_keys[i] if extra_keys is not None else tuple(
                    value for value in (lora_name, None if i + blocks_before else salt) if value is not None) or None
                block.name = _Name(wire[i], array[i * size:(i + 1) * size].tobytes(), (blocks_before + i + 1) * size,
                                   extra, lora_id, lora_name, salt)
                self._dirty[block] = None
                self._count_live(block, 0)
            if block.parent is None and before is not None:
                self._link(block, before)
            before = block
            if not block.kv and not block.states:
                self._idle[block] = None
                self._idle.move_to_end(block)
        self._trim()

    def _wire_hash(self, value: Any) -> int | bytes:
        if isinstance(value, bytes) and self.format != "sglang":
            return value
        number = integer("hashes", value, -2**63, 2**64 - 1)
        if self.format == "sglang":
            return number - 2**64 if number >= 2**63 else number
        return number % 2**64

    def _block(self, key: tuple[int, int]) -> _Block:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(key)
            self._idle[block] = None
        return block

    def _link(self, block: _Block, parent: _Block) -> None:
        block.parent = parent
        parent.children[block] = None
        self._dirty[block] = None
        if block.live:
            self._count_live(parent, 1)

    def _trim(self) -> None:
        """Forgets the oldest blocks without content, but for those whose removal is not told yet."""
        while len(self._idle) > self._idle_max:
            oldest = next(iter(self._idle))
            if oldest.said_kv or oldest.said_states:
                return
            self._drop(oldest)

    def _drop(self, block: _Block) -> None:
        self._idle.pop(block, None)
        self._dirty.pop(block, None)
        for child in block.children:
            child.parent = None
        if block.parent is not None:
            del block.parent.children[block]
        del self._blocks[block.key]

    # --- Contents ----------------------------------------------------------------------------------------------------

    def add(self, events: Records) -> None:
        """Takes records of `RequestCache.take_events`: CACHE_EVENT [n], in their order."""
        array = records("events", events, CACHE_EVENT)
        groups = array["group"][(array["content"] == _STATE) & (array["kind"] != _c.EVENT_CLEARED)]
        if len(groups) and not 0 <= groups.min() <= groups.max() < len(self._state_groups):
            raise InvalidArgument(f"events has states of the groups {groups.min()} to {groups.max()}, and state_groups "
                                  f"names {len(self._state_groups)}")
        columns = [array[name].tolist() for name in ("sequence", "kind", "content", "medium", "group", "prefix",
                                                     "parent")]
        for sequence, kind, content, medium, group, prefix, parent in zip(*columns, strict=True):
            if sequence != self._sequence + 1:
                self._clear()
            self._sequence = sequence
            if kind == _c.EVENT_CLEARED:
                self._clear()
            elif self._heard >> medium & 1:
                bit = 1 << medium + (len(MEDIA) * group if content == _STATE else 0)
                self._change(tuple(prefix), content == _STATE, bit, kind == _c.EVENT_STORED,
                             tuple(parent) if any(parent) else None)

    def _change(self, key: tuple[int, int], is_state: bool, bit: int, stored: bool,
                parent: tuple[int, int] | None) -> None:
        block = self._blocks.get(key)
        if block is None:
            if not stored:
                return
            block = self._block(key)
        if is_state:
            block.states = block.states | bit if stored else block.states & ~bit
        else:
            block.kv = block.kv | bit if stored else block.kv & ~bit
        if block.parent is None and parent is not None:
            self._link(block, self._block(parent))
        self._dirty[block] = None
        if block.kv or block.states:
            self._idle.pop(block, None)
        else:
            self._idle[block] = None
        self._count_live(block, 0)

    def _is_complete(self, block: _Block) -> bool:
        return all(block.states >> len(MEDIA) * g & _ANY for g in range(len(self._state_groups)))

    def _count_live(self, block: _Block, more: int) -> None:
        """`more` children of the block are live: it and those before it may become so, or cease to be."""
        at: _Block | None = block
        while at is not None:
            at.live_children += more
            live = bool(at.kv) and at.name is not None and (at.live_children > 0 or self._is_complete(at))
            if live == at.live:
                return
            at.live = live
            self._dirty[at] = None
            more, at = (1 if live else -1), at.parent

    def _clear(self) -> None:
        self._cleared = not self._shared
        self._dirty.clear()
        for block in self._blocks.values():
            block.kv = block.states = block.live_children = 0
            block.live = False
            self._idle[block] = None
            if self._shared:
                self._dirty[block] = None
            else:
                block.said_kv = block.said_states = 0
        self._trim()

    def tell_again(self, *, are_cleared: bool = False) -> None:
        """The next batch says that all is cleared, and announces all contents anew: for subscribers that cannot get a
        message which they missed. are_cleared: subscribers heard from elsewhere that the worker has cleared all; the
        batch does not say it again. Else raises InvalidState for a `shared` worker, whose other contents that would
        clear."""
        if self._shared and not are_cleared:
            raise InvalidState("the worker is shared, and announces contents that this encoder does not know")
        self._cleared = not are_cleared
        for block in self._blocks.values():
            block.said_kv = block.said_states = 0
            self._dirty[block] = None

    # --- Batches -----------------------------------------------------------------------------------------------------

    def take_events(self) -> list[dict[str, Any]]:
        """All changes since the last call, as plain values: removals before the rest."""
        said = self._settle()
        events: list[dict[str, Any]] = [{"type": "AllBlocksCleared"}] if self._cleared else []
        self._cleared = False
        changed = sorted(said, key=lambda block: block.name.end if block.name else 0)
        (self._tell_components if self.format == "sglang" else self._tell_groups)(changed, said, events)
        for block in said:
            if not block.kv and not block.states and block.name is None and not block.children:
                self._drop(block)
        self._trim()
        return events

    def take_batch(self, now_s: float | None = None) -> bytes | None:
        """The same as the payload of a message; None: nothing has changed. now_s: its time; None: now."""
        events = self.take_events()
        return self._pack([time.time() if now_s is None else now_s, events, self.rank]) if events else None

    def _settle(self) -> dict[_Block, tuple[int, int]]:
        """Decides the announcements. Answers all that may have changed, with the announcement before."""
        before: dict[_Block, tuple[int, int]] = {}
        stack = list(self._dirty)
        self._dirty.clear()
        while stack:
            block = stack.pop()
            before.setdefault(block, (block.said_kv, block.said_states))
            kv = states = 0
            if block.name is not None:
                states = block.states
                root = block.name.end == self.block_size_tokens
                if not self._usable_only or (block.live and (root or (block.parent and block.parent.said_kv))):
                    kv = block.kv
            if bool(kv) != bool(block.said_kv):
                stack.extend(block.children)
            block.said_kv, block.said_states = kv, states
        return before

    def _tell_groups(self, blocks: Sequence[_Block], before: Mapping[_Block, tuple[int, int]],
                     events: list[dict[str, Any]]) -> None:
        """Of vLLM: KV and states are blocks of groups of their own."""
        gone: dict[tuple[int, int], dict[str, Any]] = {}
        runs: dict[tuple[int, _Block], dict[str, Any]] = {}
        kv: list[dict[str, Any]] = []
        states: list[dict[str, Any]] = []
        for block in blocks:
            old_kv, old_states = before[block]
            for medium in _bits(block.said_kv & ~old_kv):
                self._extend(runs, kv, block, medium, ["full"], group_idx=self._kv_group,
                             kv_cache_spec_kind=self._kv_kind)
            for bit in _bits(block.said_states & ~old_states):
                group, medium = divmod(bit, len(MEDIA))
                self._extend({}, states, block, medium, ["mamba"], group_idx=self._state_groups[group],
                             kv_cache_spec_kind="mamba", state_tokens=block.name.end if block.name else 0)
        for block in reversed(blocks):
            old_kv, old_states = before[block]
            for medium in _bits(old_kv & ~block.said_kv):
                self._remove(gone, block, medium, group_idx=self._kv_group)
            for bit in _bits(old_states & ~block.said_states):
                group, medium = divmod(bit, len(MEDIA))
                self._remove(gone, block, medium, group_idx=self._state_groups[group])
        events += [*gone.values(), *kv, *states]

    def _tell_components(self, blocks: Sequence[_Block], before: Mapping[_Block, tuple[int, int]],
                         events: list[dict[str, Any]]) -> None:
        """Of SGLang: a block has components in each medium. Without KV in any of them it is not announced: routers that
        know no components take each block for KV."""
        gone: dict[tuple[int, int], dict[str, Any]] = {}
        runs: dict[tuple[int, _Block], dict[str, Any]] = {}
        stored: list[dict[str, Any]] = []
        for block in blocks:
            for medium in range(len(MEDIA)):
                old = self._components(*before[block], medium)
                new = self._components(block.said_kv, block.said_states, medium)
                if new and new != old:
                    more = {"state_tokens": block.name.end} if "MAMBA" in new and block.name else {}
                    self._extend({} if more else runs, stored, block, medium, new, **more)
        for block in reversed(blocks):
            for medium in range(len(MEDIA)):
                if self._components(*before[block], medium) and not self._components(
                        block.said_kv, block.said_states, medium):
                    self._remove(gone, block, medium)
        events += [*gone.values(), *stored]

    def _components(self, kv: int, states: int, medium: int) -> list[str]:
        groups = range(len(self._state_groups))
        has_state = bool(groups) and all(states >> len(MEDIA) * g + medium & 1 for g in groups)
        return (["FULL"] * (kv >> medium & 1) + ["MAMBA"] * has_state) if kv else []

    def _extend(self, runs: dict[tuple[int, _Block], dict[str, Any]], events: list[dict[str, Any]], block: _Block,
                medium: int, components: list[str], **more: Any) -> None:
        """Announces a block, in the event of the one before it if that is the last of its event."""
        name, parent = block.name, block.parent
        if name is None:
            return
        event = runs.pop((medium, parent), None) if parent is not None else None
        if event is None or event.get("session_id") != block.session:
            above = parent.name if parent is not None else None
            event = {"type": "BlockStored", "block_hashes": [], "parent_block_hash": above.hash if above else None,
                     "token_ids": [], "block_size": self.block_size_tokens, "lora_id": name.lora_id,
                     "medium": self._media[medium], "lora_name": name.lora_name, "component_types": components, **more}
            if self.format == "sglang":
                event["cache_salt"] = name.salt
            elif medium == _REMOTE:
                event["locality"] = "REMOTE"
            if block.session is not None:
                event["session_id"] = block.session
            events.append(event)
        event["block_hashes"].append(name.hash)
        event["token_ids"] += np.frombuffer(name.tokens, np.int32).tolist()
        if self.format != "sglang" and (name.extra_keys is not None or "extra_keys" in event):
            known = event.setdefault("extra_keys", [None] * (len(event["block_hashes"]) - 1))
            known.append(name.extra_keys)
        runs[medium, block] = event

    def _remove(self, gone: dict[tuple[int, int], dict[str, Any]], block: _Block, medium: int, **more: Any) -> None:
        event = gone.setdefault((medium, more.get("group_idx", 0)), {
            "type": "BlockRemoved", "block_hashes": [], "medium": self._media[medium], **more})
        if self.format != "sglang" and medium == _REMOTE:
            event["locality"] = "REMOTE"
        if block.name is not None:
            event["block_hashes"].append(block.name.hash)


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
