# SPDX-License-Identifier: Apache-2.0
"""Copies of states between two stores."""

from __future__ import annotations

from typing import Any

from stateport import _library
from stateport._arrays import address, slot_copies
from stateport._library import calls
from stateport._tensors import describe, stream_handle
from stateport.errors import InvalidArgument
from stateport.store import StateStore

Layers = tuple[int, int]


class SlotCopier(_library.Object):
    """Copies states from `source` to `destination`: the same tensors, whose layouts, strides and element types
    (float32, float16, bfloat16; int8_block32 of checkpoints) may differ. Every call is one launch on `stream`.

    With `live` the source holds states that a scan saved on its way (commit_scratch).
    layers=(begin, end) copies these layers alone."""

    def __init__(self, source: StateStore, destination: StateStore, *, live: StateStore | None = None) -> None:
        # The memory that the stores view must outlive the copier.
        self._stores = (source, destination, live)
        handles = (_library.handle_of("source", source, StateStore),
                   _library.handle_of("destination", destination, StateStore))
        if live is None:
            super().__init__(calls.copier_create, calls.copier_destroy, *handles)
        else:
            super().__init__(calls.copier_create_scratch, calls.copier_destroy, handles[0],
                             _library.handle_of("live", live, StateStore), handles[1])

    def copy(self, copies: Any, stream: Any = None, *, layers: Layers | None = None) -> None:
        """copies: SLOT_COPY without shifts, or integers [n, 2] (source, destination); negative slots are skipped.
        Raises InvalidArgument for a slot out of range and for two copies into one slot."""
        array = slot_copies("copies", copies)
        if layers is None:
            calls.copier_copy(self.handle, stream_handle(stream), address(array), len(array))
        else:
            calls.copier_copy_layers(self.handle, stream_handle(stream), address(array), len(array), *_range(layers))

    def copy_shifted(self, copies: Any, stream: Any = None, *, layers: Layers | None = None) -> None:
        """As `copy`, with conv_shift: the rest of the destination's window stays."""
        array = slot_copies("copies", copies)
        if layers is None:
            calls.copier_copy_shifted(self.handle, stream_handle(stream), address(array), len(array))
        else:
            calls.copier_copy_shifted_layers(self.handle, stream_handle(stream), address(array), len(array),
                                             *_range(layers))

    def copy_on_device(self, copies: Any, stream: Any = None, *, layers: Layers | None = None) -> None:
        """As copy_shifted, of copies int32 [n, 4] in device memory, which are read when the kernel runs. Parts out of
        range are skipped. The tensor must live until then."""
        memory = describe("copies", copies, writes=False)
        dense = len(memory.shape) == 2 and memory.shape[1] == 4 and memory.strides_bytes[1] == 4
        if memory.dtype != "int32" or not dense or (memory.shape[0] > 1 and memory.strides_bytes[0] != 16):
            raise InvalidArgument(f"copies has the shape {list(memory.shape)}, strides of {list(memory.strides_bytes)} "
                                  f"bytes and elements of type {memory.dtype}, and must be dense int32 [n, 4]")
        arguments = (self.handle, stream_handle(stream), memory.address, memory.shape[0])
        if layers is None:
            calls.copier_copy_on_device(*arguments)
        else:
            calls.copier_copy_on_device_layers(*arguments, *_range(layers))

    def commit_scratch(self, intermediates: Any, ends: Any, stream: Any = None, *,
                       layers: Layers | None = None) -> None:
        """Copies of states that a scan saved (from the source) and of live states (from `live`), in one launch."""
        first, second = slot_copies("intermediates", intermediates), slot_copies("ends", ends)
        arguments = (self.handle, stream_handle(stream), address(first), len(first), address(second), len(second))
        if layers is None:
            calls.copier_commit_scratch(*arguments)
        else:
            calls.copier_commit_scratch_layers(*arguments, *_range(layers))

    def __repr__(self) -> str:
        return f"<SlotCopier from {self._stores[0]!r} to {self._stores[1]!r}>"


def _range(layers: Layers) -> Layers:
    if not isinstance(layers, tuple) or len(layers) != 2:
        raise InvalidArgument(f"layers is {layers!r}, and must be (begin, end)")
    return layers
