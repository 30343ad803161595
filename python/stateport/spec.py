# SPDX-License-Identifier: Apache-2.0
"""The tensors of one state, by layer."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stateport import _c, _library
from stateport._arguments import name_bytes, text_bytes
from stateport._library import calls
from stateport.errors import InvalidArgument

ELEMENT_TYPES = {"default": 0, "float32": 1, "float16": 2, "bfloat16": 3, "float64": 4, "float8": 5, "int8": 6,
                 "int8_block32": 7}
_ELEMENT_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "float8": 1, "int8": 1}
_KINDS: tuple[str, ...] = _c.STATE_KIND
_LAYOUTS: tuple[str, ...] = _c.CONV_LAYOUT


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name} is {value!r}, and must be one of {', '.join(allowed)}")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One tensor of a state, as it is for one slot.

    shape: of a conv state (window, dim) in either layout; of a recurrent state one to three extents.
    conv_layout: "sd" = [window, dim], "ds" = [dim, window].
    token_stride, channel_stride: of a conv state, in elements; both 0: dense, as conv_layout says."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    layer: int = 0
    group: int = 0
    conv_layout: str = "sd"
    token_stride: int = 0
    channel_stride: int = 0

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, _KINDS)
        _one_of("dtype", self.dtype, ELEMENT_TYPES)
        _one_of("conv_layout", self.conv_layout, _LAYOUTS)
        extents = len(self.shape) if isinstance(self.shape, tuple) else 0
        if not 1 <= extents <= 3 or (self.kind == "conv" and extents != 2):
            raise InvalidArgument(f"shape is {self.shape}, and must be (window, dim) of a conv state, or one to three "
                                  "extents")

    def memory_shape(self) -> tuple[int, ...]:
        """The extents of one slot in the order of memory."""
        return self.shape[::-1] if self._channels_first() else self.shape

    def _channels_first(self) -> bool:
        if self.token_stride or self.channel_stride:
            return self.token_stride < self.channel_stride
        return self.kind == "conv" and self.conv_layout == "ds"

    def strides(self) -> tuple[int, ...]:
        """Of memory_shape, in elements."""
        if self.token_stride or self.channel_stride:
            strides = (self.token_stride, self.channel_stride)
            return strides[::-1] if self._channels_first() else strides
        dense, step = [], 1
        for extent in reversed(self.memory_shape()):
            dense.append(step)
            step *= extent
        return tuple(reversed(dense))


def element_type(name: str, dtype: str) -> int:
    """The number of an element type. Raises InvalidArgument that names the argument."""
    _one_of(name, dtype, ELEMENT_TYPES)
    return ELEMENT_TYPES[dtype]


def spec_options(drafts: int, conv_layout: str, recurrent_dtype: str) -> Any:
    """Options that an engine may choose freely for a model of the catalogue."""
    _one_of("conv_layout", conv_layout, _LAYOUTS)
    _one_of("recurrent_dtype", recurrent_dtype, ELEMENT_TYPES)
    return _c.SpecOptions(drafts=drafts, conv_layout=_LAYOUTS.index(conv_layout),
                          recurrent_type=ELEMENT_TYPES[recurrent_dtype])


def _extent(value: int) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidArgument(f"shape has the extent {value!r}, and must have numbers from 1 on")
    return value


class StateSpec(_library.Object):
    """The tensors of one state, in layer order, conv before recurrent. Immutable.

    Raises InvalidArgument for tensors that do not make a state."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        rows = (_c.TensorSpec * len(tensors))()
        for row, tensor in zip(rows, tensors, strict=True):
            row.__init__(layer=tensor.layer, group=tensor.group, kind=_KINDS.index(tensor.kind),
                         type=ELEMENT_TYPES[tensor.dtype], conv_layout=_LAYOUTS.index(tensor.conv_layout),
                         token_stride=tensor.token_stride, channel_stride=tensor.channel_stride)
            row.shape[:] = [_extent(extent) for extent in (*tensor.shape, 1, 1)[:3]]
        self._make(calls.spec_create, rows, len(tensors))
        self.tensors = tuple(tensors)  # with trailing extents of 1, as they were given

    def _make(self, create: object, *arguments: object) -> None:
        _library.Object.__init__(self, create, calls.spec_destroy, *arguments)  # type: ignore[arg-type]
        info = _c.SpecInfo()
        calls.spec_describe(self.handle, ctypes.byref(info))
        self.fingerprint = int(info.fingerprint)  # of the memory layout: equal specs have equal ones on every machine
        self.slot_bytes = int(info.slot_bytes)  # one state without padding
        self.tensors = tuple(self._read(i) for i in range(info.tensors))

    def _read(self, index: int) -> TensorSpec:
        row = _c.TensorSpec()
        calls.spec_tensor(self.handle, index, ctypes.byref(row))
        kind = _KINDS[row.kind]
        shape = tuple(row.shape)
        while len(shape) > 1 and shape[-1] == 1 and not (kind == "conv" and len(shape) == 2):
            shape = shape[:-1]
        return TensorSpec(kind, _ELEMENT_NAMES[row.type], shape, row.layer, row.group, _LAYOUTS[row.conv_layout],
                          row.token_stride, row.channel_stride)

    @classmethod
    def find(cls, model: str, *, drafts: int = 0, conv_layout: str = "sd",
             recurrent_dtype: str = "default") -> StateSpec:
        """The spec of a model of the catalogue (see `models`)."""
        name, options = text_bytes("model", model), spec_options(drafts, conv_layout, recurrent_dtype)
        return cls._from(calls.spec_find, name, ctypes.byref(options))

    @classmethod
    def from_config(cls, config: str | bytes, *, drafts: int = 0, conv_layout: str = "sd",
                    recurrent_dtype: str = "default") -> StateSpec:
        """The spec of the model of a checkpoint, from the text of its config.json (see `ModelInfo.from_config`)."""
        text, options = name_bytes("config", config), spec_options(drafts, conv_layout, recurrent_dtype)
        return cls._from(calls.spec_from_config, text, len(text), ctypes.byref(options))

    @classmethod
    def _from(cls, create: object, *arguments: object) -> StateSpec:
        spec = cls.__new__(cls)
        spec._make(create, *arguments)
        return spec

    def quantised(self, recurrent_dtype: str) -> StateSpec:
        """The spec of checkpoints whose recurrent tensors are kept as "float32", "float16", "bfloat16" or
        "int8_block32". Copies between stores of both specs convert on the way."""
        _one_of("recurrent_dtype", recurrent_dtype, ELEMENT_TYPES)
        return type(self)._from(calls.spec_quantised, self.handle, ELEMENT_TYPES[recurrent_dtype])

    @property
    def image_bytes(self) -> int:
        """Bytes of the image of one state in a tier, with header and padding."""
        out = ctypes.c_uint64()
        calls.image_bytes(self.handle, ctypes.byref(out))
        return out.value

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.tensors)

    def __repr__(self) -> str:
        return f"<StateSpec of {len(self.tensors)} tensors, {self.slot_bytes:,} bytes a state>"


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """A model, of the catalogue or of a config.

    name: of the catalogue; of a config its model type. kind: "mamba1", "mamba2", "gdn", "kda", "linear_attn",
    "short_conv" or "cca". state_layers: those of all layers that have more state than a window of KV.
    kv_bytes_per_token: over all layers that attend to all tokens, in bf16; None: not known. status: how far the row was
    checked against public configs. The tensors of the layers are those of its StateSpec."""

    name: str
    kind: str
    layers: int
    state_layers: int
    kv_bytes_per_token: int | None
    status: str

    @classmethod
    def find(cls, model: str) -> ModelInfo:
        """A row of the catalogue (see `models`)."""
        return cls._from(calls.model_describe, text_bytes("model", model))

    @classmethod
    def from_config(cls, config: str | bytes) -> ModelInfo:
        """The model of a checkpoint, from the text of its config.json. Reads the model types of Qwen3-Next and Qwen3.5
        to 3.8, Kimi Linear and K3, Ling 2.5 to 3.0, GLM 5.3 Flash, Nemotron-H, Granite 4.0-H, Falcon-H1, Bamba, Jamba,
        Olmo Hybrid, Lara Mini, LFM2 to LFM3, Qwen3.8 Flash Next, Inkling to Inkling 2 and Zaya. Raises InvalidArgument
        that names the member and its value for others, and for members that make no model."""
        text = name_bytes("config", config)
        return cls._from(calls.config_describe, text, len(text))

    @classmethod
    def _from(cls, describe: Any, *arguments: object) -> ModelInfo:
        row = _c.ModelInfo()
        describe(*arguments, ctypes.byref(row))
        return cls(row.name.decode(), row.kind.decode(), row.layers, row.state_layers, row.kv_bytes_per_token or None,
                   row.status.decode())


def models() -> tuple[str, ...]:
    """The names of the catalogue."""
    name = _library.library().stateport_model_name
    name.argtypes, name.restype = (ctypes.c_size_t,), ctypes.c_char_p
    names: list[str] = []
    while (found := name(len(names))) is not None:
        names.append(found.decode())
    return tuple(names)
