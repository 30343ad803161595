# SPDX-License-Identifier: Apache-2.0
"""How tensor-parallel ranks and pipeline stages share a model's state."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

from stateport import _c, _library
from stateport._arguments import name_bytes, of_kind, text_bytes
from stateport._library import calls
from stateport.spec import StateSpec, spec_options


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part of a model's states: the share of rank head_group, in a tensor-parallel group of head_groups ranks, of the
    layers [layer_begin, layer_end). All zero: the whole."""

    layer_begin: int = 0
    layer_end: int = 0
    head_group: int = 0
    head_groups: int = 0


def shard_row(name: str, shard: Any) -> Any:
    """A shard as C has it. Raises InvalidArgument for other values."""
    return _c.Shard(**dataclasses.asdict(of_kind(name, shard, Shard)))


@dataclasses.dataclass(frozen=True)
class SplitBand:
    """A run of the extent along which a tensor is split: `extent` elements in `parts` equal parts, which are heads, or
    groups of heads. Ranks take whole parts; where there are fewer parts than ranks, neighbouring ranks hold the same
    part, unless `unique`."""

    extent: int
    parts: int = 1
    unique: bool = False


@dataclasses.dataclass(frozen=True)
class TensorSplit:
    """How one tensor of the whole model is split: along extent `axis` of its shape (of a conv tensor 1, the channels),
    each band by itself."""

    axis: int
    bands: tuple[SplitBand, ...]


class ModelLayout(_library.Object):
    """The state of a whole model, or of one group of its layers, and how ranks share it. Immutable.

    whole: the tensors before they are split, layers ascending. splits: one for each tensor. Raises InvalidArgument for
    splits that are not those of the tensors."""

    def __init__(self, whole: StateSpec, splits: Sequence[TensorSplit]) -> None:
        for i, split in enumerate(splits):
            for j, band in enumerate(of_kind(f"splits[{i}]", split, TensorSplit).bands):
                of_kind(f"splits[{i}].bands[{j}]", band, SplitBand)
        bands = [(_c.SplitBand * len(split.bands))(
            *(_c.SplitBand(extent=band.extent, parts=band.parts, unique=int(band.unique)) for band in split.bands))
            for split in splits]
        rows = (_c.TensorSplit * len(splits))(*(
            _c.TensorSplit(bands=of, band_count=len(of), axis=split.axis)
            for split, of in zip(splits, bands, strict=True)))
        super().__init__(calls.model_layout_create, calls.model_layout_destroy,
                         _library.handle_of("whole", whole, StateSpec), rows, len(rows))

    @classmethod
    def find(cls, model: str, *, drafts: int = 0, conv_layout: str = "sd",
             recurrent_dtype: str = "default") -> ModelLayout:
        """Of a model of the catalogue (see `models`)."""
        options = spec_options(drafts, conv_layout, recurrent_dtype)
        return cls._made(calls.model_layout_find, text_bytes("model", model), ctypes.byref(options))

    @classmethod
    def from_config(cls, config: str | bytes, *, drafts: int = 0, conv_layout: str = "sd",
                    recurrent_dtype: str = "default") -> ModelLayout:
        """Of the model of a checkpoint, from the text of its config.json (see `ModelInfo.from_config`)."""
        text, options = name_bytes("config", config), spec_options(drafts, conv_layout, recurrent_dtype)
        return cls._made(calls.model_layout_from_config, text, len(text), ctypes.byref(options))

    @classmethod
    def _made(cls, create: Any, *arguments: object) -> ModelLayout:
        layout = cls.__new__(cls)
        _library.Object.__init__(layout, create, calls.model_layout_destroy, *arguments)
        return layout

    @property
    def fingerprint(self) -> int:
        """Of kinds, shapes, layers and splits of the whole model: equal for every rank, element type and memory
        order."""
        out = ctypes.c_uint64()
        calls.model_layout_fingerprint(self.handle, ctypes.byref(out))
        return out.value

    def spec(self, shard: Shard | None = None) -> StateSpec:
        """The tensors of a rank's state; None: of the whole state. Raises InvalidArgument for a shard that the model
        cannot have."""
        return StateSpec._from(calls.model_layout_spec, self.handle, ctypes.byref(shard_row("shard", shard or Shard())))

    def __repr__(self) -> str:
        return f"<ModelLayout {self.fingerprint:016x}>" if self._usable else "<ModelLayout, closed>"
