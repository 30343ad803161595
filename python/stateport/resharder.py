# SPDX-License-Identifier: Apache-2.0
"""Copies of states between ranks that share a model differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stateport import _c, _library
from stateport._arrays import address, slot_copies
from stateport._library import calls
from stateport._tensors import stream_handle
from stateport.errors import InvalidArgument
from stateport.model_layout import ModelLayout, Shard, shard_row
from stateport.store import StateStore

ShardStores = Sequence[tuple[StateStore, Shard]]


class Resharder(_library.Object):
    """Copies states between stores that share a model differently: ranks of tensor-parallel groups of other sizes,
    stages of other pipelines. Element types and conv layouts are converted on the way.

    sources together are one state, slot s of each; so are destinations. Raises InvalidArgument for stores that do not
    match their shards, and for a piece that no source holds."""

    def __init__(self, layout: ModelLayout, sources: ShardStores, destinations: ShardStores) -> None:
        self._stores = (layout, *sources, *destinations)  # the memory that the stores view must outlive this
        handle = _library.handle_of("layout", layout, ModelLayout)
        rows = [_rows(name, shards) for name, shards in (("sources", sources), ("destinations", destinations))]
        super().__init__(calls.resharder_create, calls.resharder_destroy, handle, rows[0], len(rows[0]), rows[1],
                         len(rows[1]))

    def copy(self, copies: Any, stream: Any = None) -> None:
        """copies: SLOT_COPY without shifts, or integers [n, 2] (source, destination); negative slots are skipped. One
        launch. Raises InvalidArgument for a slot out of range and for two copies into one slot."""
        array = slot_copies("copies", copies)
        calls.resharder_copy(self.handle, stream_handle(stream), address(array), len(array))


def _rows(name: str, shards: ShardStores) -> Any:
    rows = (_c.ShardStore * len(shards))()
    for i, pair in enumerate(shards):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidArgument(f"{name}[{i}] is a {type(pair).__name__}, and must be a store and its shard")
        rows[i].store = _library.handle_of(f"{name}[{i}][0]", pair[0], StateStore)
        rows[i].shard = shard_row(f"{name}[{i}][1]", pair[1])
    return rows
