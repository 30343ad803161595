# SPDX-License-Identifier: Apache-2.0
"""States that go from one group of ranks to another, as from those that compute prompts to those that decode, through a
transport of the engine's."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stateport import _c, _library
from stateport._arguments import integer, name_bytes, of_kind
from stateport._arrays import IMAGE_KEY, Records, address, record_of, records, slot_copies
from stateport._library import calls
from stateport._tensors import stream_handle
from stateport.errors import InvalidArgument
from stateport.model_layout import ModelLayout, Shard, shard_row
from stateport.store import StateStore
from stateport.tier_options import CONTENTS, TRANSFER_STATUSES
from stateport.tiers import ObjectEncoding, SharedLayout

HANDOVER_RANGE = record_of(_c.HandoverRange)


@dataclasses.dataclass(frozen=True)
class Handover:
    """The states that are handed over: equal on all ranks. head_groups, layers_per_object: the grid, of
    `plan_handover`."""

    model: str | bytes
    content: str = "state"
    group: int = 0
    encoding: ObjectEncoding = ObjectEncoding()
    head_groups: int = 0
    layers_per_object: int = 0

    def _struct(self) -> Any:
        name = name_bytes("handover.model", self.model)
        if self.content not in CONTENTS:
            raise InvalidArgument(f"content is {self.content!r}, and must be one of {', '.join(CONTENTS)}")
        encoding = of_kind("handover.encoding", self.encoding, ObjectEncoding)
        return _c.HandoverOptions(model=name, model_bytes=len(name), content=CONTENTS.index(self.content),
                                  group=self.group, encoding=encoding._row(), head_groups=self.head_groups,
                                  layers_per_object=self.layers_per_object)


def plan_handover(layout: ModelLayout, sources: Mapping[int, Shard], destinations: Mapping[int, Shard],
                  handover: Handover) -> tuple[Handover, Records]:
    """Which bytes (HANDOVER_RANGE [n]) bring every rank of the destinations its share, once, from the smallest source
    that has it; and `handover` with the grid by which all ranks cut their shares. Offsets are those in a place of a
    HandoverEnd. Raises InvalidArgument for ranks that cannot share the model, and for a part that no source has."""
    rows = [_ranks("sources", sources), _ranks("destinations", destinations)]
    of_kind("handover", handover, Handover)
    options, count, out = handover._struct(), ctypes.c_size_t(), np.empty(0, HANDOVER_RANGE)
    handle = _library.handle_of("layout", layout, ModelLayout)
    while True:
        calls.handover_plan(handle, rows[0], len(rows[0]), rows[1], len(rows[1]), ctypes.byref(options), address(out),
                            len(out), ctypes.byref(count))
        if count.value <= len(out):
            grid = {"head_groups": options.head_groups, "layers_per_object": options.layers_per_object}
            return dataclasses.replace(handover, **grid), out[:count.value]
        out = np.zeros(count.value, HANDOVER_RANGE)


class HandoverEnd(_library.Object):
    """One rank's end of hand-overs: pinned memory for states on their way, in places, and the copies that pack and
    unpack them.

        source       pack → its copy is done → seal → the transport moves ranges
        destination  the transport says that they came → check → unpack

    store: of the rank. shared: how it shares the model. handover: with the grid of the plan."""

    def __init__(self, store: StateStore, shared: SharedLayout, handover: Handover, places: int = 1) -> None:
        self._uses = (store, shared)  # the memory that they view must outlive this
        row = of_kind("shared", shared, SharedLayout)._row("shared")
        options = of_kind("handover", handover, Handover)._struct()
        super().__init__(calls.handover_end_create, calls.handover_end_destroy,
                         _library.handle_of("store", store, StateStore), ctypes.byref(row), ctypes.byref(options),
                         integer("places", places, 1, 2**31 - 1))
        self._owned: _library.Owned | None = _library.Owned(calls.handover_end_destroy, self.handle)
        memory = _c.HandoverMemory()
        calls.handover_end_describe(self.handle, ctypes.byref(memory))
        self.address = int(memory.base)  # of place 0; register it, and the bytes behind it, with the transport
        self.bytes = int(memory.bytes)  # of all places, one behind the other
        self.place_bytes = int(memory.place_bytes)

    def close(self) -> None:
        """Ends it; the pinned memory stays as long as arrays of `memory` show it."""
        self._handle, self._owned = None, None

    def memory(self, place: int) -> npt.NDArray[np.uint8]:
        """The bytes of a place. Raises ClosedError once this is closed."""
        owned, _ = self._owned, self.handle  # refuses a closed one
        at: Any = (ctypes.c_uint8 * self.place_bytes).from_address(
            self.address + self._place(place) * self.place_bytes)
        at.owner = (owned, self._uses)  # they live as long as the array
        array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(at)
        return array

    def _place(self, place: int) -> int:
        return integer("place", place, 0, self.bytes // self.place_bytes - 1)

    def pack(self, copies: Any, stream: Any = None) -> None:
        """Enqueues copies of slots into places: SLOT_COPY without shifts, or integers [n, 2] (slot, place). One
        launch."""
        array = slot_copies("copies", copies)
        calls.handover_end_pack(self.handle, stream_handle(stream), address(array), len(array))

    def seal(self, place: int, key: Any) -> None:
        """Writes headers with checksums, once the copy is done. key: IMAGE_KEY [1]."""
        named = _one_key(key)
        calls.handover_end_seal(self.handle, self._place(place), address(named))

    def check(self, place: int, key: Any) -> str:
        """"done" if the place holds the whole and undamaged state that `key` names; else "damaged", "foreign_layout" or
        "wrong_position". Reads every byte."""
        named, status = _one_key(key), ctypes.c_int32()
        calls.handover_end_check(self.handle, self._place(place), address(named), ctypes.byref(status))
        return TRANSFER_STATUSES[status.value]

    def unpack(self, copies: Any, stream: Any = None) -> None:
        """Enqueues copies of places into slots, as `pack`; only of places that were checked."""
        array = slot_copies("copies", copies)
        calls.handover_end_unpack(self.handle, stream_handle(stream), address(array), len(array))


def _ranks(name: str, ranks: Mapping[int, Shard]) -> Any:
    of_kind(name, ranks, Mapping)  # type: ignore[type-abstract]
    return (_c.Rank * len(ranks))(*(
        _c.Rank(global_rank=integer(f"a rank of {name}", rank, -2**31, 2**31 - 1),
                shard=shard_row(f"{name}[{rank}]", shard)) for rank, shard in ranks.items()))


def _one_key(key: Any) -> Records:
    array = records("key", key, IMAGE_KEY)
    if len(array) != 1:
        raise InvalidArgument(f"key has {len(array)} elements, and must have one")
    return array
