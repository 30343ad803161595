# SPDX-License-Identifier: Apache-2.0
"""The copies of this library as one writes them in Triton. Each covers all requests and tensors in one launch.

Tensors are given by tables in device memory: addresses (int64) and strides from slot to slot. Addresses and slots are
16-byte aligned and tensors have a multiple of 16 elements, as those of engines have: the hints below promise that, so
that loads and stores are 16 bytes wide."""
import triton
import triton.language as tl


@triton.jit
def copy_slots(tile_tensor, tile_first, src_base, src_stride, dst_base, dst_stride, elements, src_slots, dst_slots,
               SRC: tl.constexpr, DST: tl.constexpr, SRC_BYTES: tl.constexpr, DST_BYTES: tl.constexpr,
               BLOCK: tl.constexpr):
    """Grid (tiles, requests): a tile is BLOCK elements of one tensor. Strides in bytes. Converts from SRC to DST."""
    tensor = tl.load(tile_tensor + tl.program_id(0))
    first = tl.load(tile_first + tl.program_id(0))
    src_slot = tl.load(src_slots + tl.program_id(1)).to(tl.int64)
    dst_slot = tl.load(dst_slots + tl.program_id(1)).to(tl.int64)
    src = tl.load(src_base + tensor) + src_slot * tl.load(src_stride + tensor) + first.to(tl.int64) * SRC_BYTES
    dst = tl.load(dst_base + tensor) + dst_slot * tl.load(dst_stride + tensor) + first.to(tl.int64) * DST_BYTES
    src = tl.multiple_of(src.to(tl.pointer_type(SRC)), 16)
    dst = tl.multiple_of(dst.to(tl.pointer_type(DST)), 16)
    at = tl.arange(0, BLOCK)
    mask = at < tl.multiple_of(tl.load(elements + tensor) - first, 16)
    tl.store(dst + at, tl.load(src + at, mask=mask).to(DST), mask=mask)


@triton.jit
def shift_sd(base, stride, slots, dim, WINDOW: tl.constexpr, SHIFT: tl.constexpr, TOKENS: tl.constexpr,
             BLOCK: tl.constexpr):
    """Grid (blocks of columns, tensors, requests); windows [WINDOW, dim] of 2-byte elements, in place. TOKENS: a power
    of two, at least WINDOW - SHIFT. A program has all tokens of its columns in registers before it stores one."""
    slot = tl.load(slots + tl.program_id(2)).to(tl.int64)
    address = tl.load(base + tl.program_id(1)) + slot * tl.load(stride + tl.program_id(1))
    data = tl.multiple_of(address.to(tl.pointer_type(tl.int16)), 16)
    token = tl.arange(0, TOKENS)[:, None]
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (token < WINDOW - SHIFT) & (column < dim)
    at = token * dim + column
    values = tl.load(data + at + SHIFT * dim, mask=mask)
    tl.debug_barrier()
    tl.store(data + at, values, mask=mask)


@triton.jit
def shift_ds(base, stride, slots, dim, WINDOW: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """The same for windows [dim, WINDOW]: a program has as many whole rows as BLOCK elements hold, lane by lane."""
    slot = tl.load(slots + tl.program_id(2)).to(tl.int64)
    address = tl.load(base + tl.program_id(1)) + slot * tl.load(stride + tl.program_id(1))
    data = address.to(tl.pointer_type(tl.int16))
    ROWS: tl.constexpr = BLOCK // WINDOW
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0) * ROWS * WINDOW + i
    mask = (i % WINDOW < WINDOW - SHIFT) & (i < ROWS * WINDOW) & (at < dim * WINDOW)
    values = tl.load(data + at + SHIFT, mask=mask)
    tl.debug_barrier()
    tl.store(data + at, values, mask=mask)


@triton.jit
def align_step(computed, scheduled, table, row_stride, base, stride, words, BLOCK_TOKENS: tl.constexpr,
               BLOCK: tl.constexpr):
    """Grid (requests, tensors): when a step of a request enters another block, its state is copied there, in 4-byte
    words; else the program ends."""
    row = tl.program_id(0)
    tensor = tl.program_id(1)
    before = tl.load(computed + row)
    src_column = (before - 1) // BLOCK_TOKENS
    dst_column = (before + tl.load(scheduled + row) - 1) // BLOCK_TOKENS
    if src_column != dst_column:
        src_block = tl.load(table + row * row_stride + src_column).to(tl.int64)
        dst_block = tl.load(table + row * row_stride + dst_column).to(tl.int64)
        first = tl.load(base + tensor)
        src = tl.multiple_of((first + src_block * tl.load(stride + tensor)).to(tl.pointer_type(tl.int32)), 16)
        dst = tl.multiple_of((first + dst_block * tl.load(stride + tensor)).to(tl.pointer_type(tl.int32)), 16)
        count = tl.multiple_of(tl.load(words + tensor), 16)
        begin = 0
        while begin < count:
            at = begin + tl.arange(0, BLOCK)
            tl.store(dst + at, tl.load(src + at, mask=at < count), mask=at < count)
            begin += BLOCK


@triton.jit
def empty():
    """The cost of a launch by itself."""
