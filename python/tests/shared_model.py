# SPDX-License-Identifier: Apache-2.0
"""A small model with four families of states and with KV: its layouts, and the values of its checkpoints, which a seed
makes. A rank's share of them, and their values after int8, are computed by numpy alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import stateport as sp

HEADS = 12  # a multiple of every number of ranks
LAYERS, LAYERS_PER_OBJECT = 8, 4
BLOCK = 32  # elements of int8_block32 that share a scale


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the whole model, as every layer of a family has it."""

    kind: str
    shape: tuple[int, ...]
    split: sp.TensorSplit
    dtype: str = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Family:
    """The content of one store of a rank: the states of some layers, or KV."""

    layers: tuple[int, ...]
    tensors: tuple[Tensor, ...]

    def layout(self, conv_layout: str, recurrent: str) -> sp.ModelLayout:
        specs = [sp.TensorSpec(one.kind, recurrent if one.dtype == "float32" else one.dtype, one.shape, layer,
                               conv_layout=conv_layout if one.kind == "conv" else "sd")
                 for layer in self.layers for one in self.tensors]
        return sp.ModelLayout(sp.StateSpec(specs), [one.split for _ in self.layers for one in self.tensors])


@dataclasses.dataclass(frozen=True)
class Model:
    """shared: groups of B and C, heads of q and k, heads of KV; neighbouring ranks hold the same one if there are fewer
    than ranks. conv_heads: of the short convolution. any_bits: values are random bits, of NaN and the like too; else
    they are numbers of very different sizes."""

    name: str = "a model"
    shared: int = 2
    conv_heads: int = HEADS
    any_bits: bool = True

    def families(self) -> list[Family]:
        """Mamba-2, gated delta net, Kimi delta attention, short convolution; the last one is KV."""
        return [Family((0, 4), (conv(3, heads(16), self._common(64), self._common(64)), recurrent(16, 64))),
                Family((1, 5), (conv(3, self._common(72), self._common(72), heads(24)), recurrent(24, 72))),
                Family((2, 6), (conv(3, heads(64), heads(64), heads(64)), recurrent(64, 64))),
                Family((3, 7), (conv(2, sp.SplitBand(2 * HEADS, self.conv_heads)),)),
                Family((3, 7), (Tensor("recurrent", (32, self.shared, 16),
                                       sp.TensorSplit(1, (sp.SplitBand(self.shared, self.shared),))),))]

    def _common(self, extent: int) -> sp.SplitBand:
        return sp.SplitBand(self.shared * extent, self.shared)

    def values(self, prompt: int, family: int) -> list[Any]:
        """The whole checkpoint of a prompt: [layer, tensor] in the order of the layout, sd. bfloat16 as bits."""
        of = self.families()[family]
        random = np.random.default_rng([prompt, family])
        return [self._draw(random, one) for _ in of.layers for one in of.tensors]

    def _draw(self, random: np.random.Generator, tensor: Tensor) -> Any:
        if tensor.dtype == "bfloat16":
            return random.integers(0, 1 << 16, tensor.shape, np.uint16)
        if self.any_bits:
            return random.integers(0, 1 << 32, tensor.shape, np.uint32).view(np.float32)
        rows = (*tensor.shape[:-1], 1)
        return (random.standard_normal(tensor.shape) * 10.0 ** random.uniform(-1, 3, rows)).astype(np.float32)

    def share(self, prompt: int, family: int, rank: int, ranks: int, stage: int, stages: int) -> list[Any]:
        """The share of a checkpoint that one rank of a pipeline stage holds."""
        of, wholes = self.families()[family], self.values(prompt, family)
        begin, end = stage * LAYERS // stages, (stage + 1) * LAYERS // stages
        tensors = [(layer, one) for layer in of.layers for one in of.tensors]
        return [share_of(whole, one.split, rank, ranks)
                for (layer, one), whole in zip(tensors, wholes, strict=True) if begin <= layer < end]


def heads(extent: int) -> sp.SplitBand:
    return sp.SplitBand(HEADS * extent, HEADS)


def conv(window: int, *bands: sp.SplitBand) -> Tensor:
    return Tensor("conv", (window, sum(band.extent for band in bands)), sp.TensorSplit(1, bands))


def recurrent(*rest: int) -> Tensor:
    return Tensor("recurrent", (HEADS, *rest), sp.TensorSplit(0, (heads(1),)), "float32")


def share_of(whole: Any, split: sp.TensorSplit, rank: int, ranks: int) -> Any:
    """Of each band the rank's parts; one that it has in common with its neighbours if there are fewer than ranks."""
    begins = np.cumsum([band.extent for band in split.bands])[:-1]
    pieces = []
    for band, run in zip(split.bands, np.split(whole, begins, split.axis), strict=True):
        parts, first = np.split(run, band.parts, split.axis), rank * band.parts // ranks
        pieces += parts[first:first + max(band.parts // ranks, 1)]
    return np.concatenate(pieces, split.axis)


def blocks_of(values: Any) -> Any:
    """[rows, blocks, 32], filled up with zeros."""
    rows = values.reshape(-1, values.shape[-1])
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % BLOCK))).reshape(len(rows), -1, BLOCK)


def encoded(values: Any) -> tuple[Any, Any]:
    """Numbers as int8, in the shape of `values`, and the scale of each block: float16 [rows, blocks]."""
    blocks = blocks_of(values)
    limits = np.abs(blocks).max(2) / np.float32(127)
    scales = limits.astype(np.float16)
    scales = np.where(scales.astype(np.float32) < limits, np.nextafter(scales, np.float16(np.inf)), scales)
    integers = np.rint(blocks / scales[..., None].astype(np.float32)).astype(np.int8)
    rows = integers.reshape(len(integers), -1)[:, :values.shape[-1]]
    return rows.reshape(values.shape), scales


def decoded(integers: Any, scales: Any) -> Any:
    blocks = blocks_of(integers) * scales[..., None].astype(np.float32)
    return blocks.reshape(len(blocks), -1)[:, :integers.shape[-1]].reshape(integers.shape)


def error_of(values: Any, found: Any) -> float:
    """The largest error, as a part of the largest element of its block: 1 / 253 is the bound of int8_block32."""
    blocks = blocks_of(values).astype(np.float64)
    return float((np.abs(blocks_of(found) - blocks).max(2) / np.abs(blocks).max(2)).max())
