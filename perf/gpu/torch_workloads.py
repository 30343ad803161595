# SPDX-License-Identifier: Apache-2.0
"""The workloads of torch_copy_bench. All contenders of a workload work on the same torch tensors: this library through
a view of their addresses (<stateport.h>), Triton's kernels through tables of them, torch by indexing."""
import ctypes
from ctypes import byref

import torch
import triton
import triton.language as tl

import stateport_c as c
import triton_kernels
from comparison import Contender, fastest, rounds_that_fit

POISON = -0x5A5A5A5B  # 0xA5 in every byte
COPY_SHAPES = [(2048, 4), (4096, 4), (4096, 8), (8192, 8)]  # elements of a Triton program, warps
COLUMN_SHAPES = [(256, 4), (512, 4), (1024, 4), (1024, 8)]


def tensor_spec(kind, element_type, *shape, conv_layout=0, layer=0):
    return c.TensorSpec(kind=kind, type=element_type, conv_layout=conv_layout, layer=layer,
                        shape=(*shape, 1, 1)[:3])


def words_of(spec):
    """4-byte words of one slot of a bf16 or fp32 tensor."""
    return spec.shape[0] * spec.shape[1] * spec.shape[2] * (2 if spec.type == c.BF16 else 4) // 4


class View:
    """A store of this library over torch tensors [slots, …]. Ends its handles with `close`."""

    def __init__(self, library, specs, tensors):
        self._library = library
        memory = [c.TensorMemory(base=tensor.data_ptr(), slot_stride_bytes=tensor.stride(0) * tensor.element_size())
                  for tensor in tensors]
        count = len(tensors)
        self._spec = library.make("spec_create", (c.TensorSpec * count)(*specs), count)
        self.store = library.make("store_view", self._spec, (c.TensorMemory * count)(*memory), count,
                                  c.I(tensors[0].shape[0]))

    def close(self):
        self._library.store_destroy(self.store)
        self._library.spec_destroy(self._spec)


class Tables:
    """Facts about torch tensors [slots, elements] that Triton's kernels read."""

    def __init__(self, device, tensors):
        def table(values, dtype):
            return torch.tensor(values, dtype=dtype, device=device.name)

        self.base = table([tensor.data_ptr() for tensor in tensors], torch.int64)
        self.stride = table([tensor.stride(0) * tensor.element_size() for tensor in tensors], torch.int64)
        self.elements = table([tensor[0].numel() for tensor in tensors], torch.int32)


def tiles(device, tensors, block):
    """(tensor, first element) of every tile of a slot, as two tables."""
    pairs = [(i, first) for i, tensor in enumerate(tensors) for first in range(0, tensor[0].numel(), block)]
    return [torch.tensor(column, dtype=torch.int32, device=device.name) for column in zip(*pairs)]


def random_bits(device, shape):
    return torch.empty(shape, dtype=torch.int32, device=device.name).random_()


def random_floats(device, shape):
    floats = torch.randn(shape, device=device.name)
    # Triton's interpreter cuts where a GPU rounds: there, numbers that need neither.
    return floats.to(torch.bfloat16).float() if device.name == "cpu" else floats


class ContiguousCopy:
    """The two limits of a copy: one large memcpy, and this library's kernel over the same contiguous ranges."""

    rounds = 4

    def __init__(self, library, device, range_bytes):
        self._library, self._device = library, device
        self.moved_bytes = 2 * range_bytes
        self._memory = random_bits(device, (2 * self.rounds, range_bytes // 4))
        self._view = View(library, [tensor_spec(c.RECURRENT, c.INT8, range_bytes)], [self._memory])

    def _ends(self, round):
        first = 2 * (round % self.rounds)
        return first, first + 1

    def _kernel(self, round):
        src, dst = self._ends(round)
        self._library.store_copy(self._view.store, self._device.stream, byref(c.SlotCopy(src, dst, 0, src)), 1)

    def _memcpy(self, round):
        src, dst = self._ends(round)
        self._memory[dst].copy_(self._memory[src])

    def _prepare(self, round):
        self._memory[self._ends(round)[1]].fill_(POISON)

    def _holds(self, round):
        src, dst = self._ends(round)
        return torch.equal(self._memory[src], self._memory[dst])

    def contenders(self):
        return [Contender("big_memcpy", self._memcpy, self._prepare, self._holds),
                Contender("contiguous", self._kernel, self._prepare, self._holds)]

    def limit_ns(self, counters, moved_bytes):
        return min(counters["big_memcpy_ns"], counters["contiguous_ns"]) * moved_bytes / self.moved_bytes

    def close(self):
        self._view.close()


class Copies:
    """G1: whole states between slots of one store. G5, with `to_bf16`: fp32 states to the bf16 slots of another."""

    def __init__(self, library, device, shapes, requests, free_bytes, to_bf16=False):
        """`shapes`: (kind, type, *extents) of every tensor. Raises MemoryError."""
        specs = [tensor_spec(*shape, layer=i) for i, shape in enumerate(shapes)]
        slot_bytes = sum(4 * words_of(spec) for spec in specs)
        # Read and written by a round, which is also the memory that it needs.
        self.moved_bytes = requests * (slot_bytes * 3 // 2 if to_bf16 else 2 * slot_bytes)
        rounds = rounds_that_fit(self.moved_bytes, free_bytes)
        if rounds == 0:
            raise MemoryError(f"{self.moved_bytes >> 20} MiB of device memory are needed, {free_bytes >> 20} are free")
        self._library, self._device, self._requests = library, device, requests
        slots = rounds * requests * (1 if to_bf16 else 2)
        make = random_floats if to_bf16 else random_bits
        self._src = [make(device, (slots, words_of(spec))) for spec in specs]
        self._dst = [tensor.to(torch.bfloat16) for tensor in self._src] if to_bf16 else self._src
        self._views = [View(library, specs, self._src)]
        if to_bf16:
            specs_bf16 = [tensor_spec(shape[0], c.BF16, *shape[2:], layer=i) for i, shape in enumerate(shapes)]
            self._views.append(View(library, specs_bf16, self._dst))
        self._copier = library.make("copier_create", self._views[0].store, self._views[-1].store)
        self._plans = self._make_plans(rounds, slots)
        self._tables = Tables(device, self._src), Tables(device, self._dst)
        self._types = (tl.float32, tl.bfloat16, 4, 2) if to_bf16 else (tl.int32, tl.int32, 4, 4)

    def _make_plans(self, rounds, slots):
        """Per round: sources, destinations (int64, on the device), the same in 32 bits, and this library's plan."""
        order = torch.randperm(slots, generator=torch.Generator().manual_seed(1))
        plans = []
        for part in order.view(rounds, self._requests, -1):
            src, dst = part[:, 0].contiguous(), part[:, -1].contiguous()
            copies = (c.SlotCopy * self._requests)(*[c.SlotCopy(s, d, 0, s) for s, d in part[:, [0, -1]].tolist()])
            on_device = [indices.to(self._device.name) for indices in (src, dst)]
            plans.append((*on_device, *[indices.to(torch.int32) for indices in on_device], copies))
        return plans

    def _plan(self, round):
        return self._plans[round % len(self._plans)]

    def _ours(self, round):
        self._library.copier_copy(self._copier, self._device.stream, self._plan(round)[4], self._requests)

    def _torch(self, round):
        src_slots, dst_slots = self._plan(round)[:2]
        for src, dst in zip(self._src, self._dst):
            dst[dst_slots] = src[src_slots].to(dst.dtype)

    def _triton(self, block, warps):
        tile_tensor, tile_first = tiles(self._device, self._src, block)
        src, dst = self._tables

        def run(round):
            src_slots, dst_slots = self._plan(round)[2:4]
            triton_kernels.copy_slots[(len(tile_tensor), self._requests)](
                tile_tensor, tile_first, src.base, src.stride, dst.base, dst.stride, src.elements, src_slots, dst_slots,
                *self._types, block, num_warps=warps)

        return run

    def _prepare(self, round):
        for dst in self._dst:
            dst.view(torch.int32).index_fill_(0, self._plan(round)[1], POISON)

    def _holds(self, round):
        src_slots, dst_slots = self._plan(round)[:2]
        return all(torch.equal(dst[dst_slots].view(torch.int32), src[src_slots].to(dst.dtype).view(torch.int32))
                   for src, dst in zip(self._src, self._dst))

    def contenders(self):
        def contender(name, run):
            return Contender(name, run, self._prepare, self._holds)

        shapes = COPY_SHAPES if self._device.name != "cpu" else COPY_SHAPES[:1]
        in_triton = fastest([contender("triton", self._triton(*shape)) for shape in shapes], self._device.time_ns)
        return [contender("ours", self._ours), in_triton, contender("torch", self._torch)]

    def close(self):
        self._library.copier_destroy(self._copier)
        for view in self._views:
            view.close()


class Shift:
    """G4: conv windows shifted by one token in place."""

    rounds = 4
    shift = 1

    def __init__(self, library, device, layers, window, dim, requests, ds):
        self._library, self._device, self._requests, self._ds = library, device, requests, ds
        self._window, self._dim = window, dim
        extents = (dim, window) if ds else (window, dim)
        slots = self.rounds * requests
        self.moved_bytes = 2 * requests * layers * (window - self.shift) * dim * 2
        self._before = [random_bits(device, (slots, window * dim // 2)).view(torch.int16).view(slots, *extents)
                        for _ in range(layers)]
        self._tensors = [before.clone() for before in self._before]
        specs = [tensor_spec(c.CONV, c.BF16, window, dim, conv_layout=int(ds), layer=i) for i in range(layers)]
        self._view = View(library, specs, self._tensors)
        self._copier = library.make("copier_create", self._view.store, self._view.store)
        self._tables = Tables(device, self._tensors)
        self._plans = [(c.SlotCopy * requests)(*[c.SlotCopy(slot, slot, self.shift, -1) for slot in self._slots(round)])
                       for round in range(self.rounds)]
        self._slot_tables = [torch.tensor(self._slots(round), dtype=torch.int64, device=device.name)
                             for round in range(self.rounds)]
        self._slot_tables_32 = [slots.to(torch.int32) for slots in self._slot_tables]

    def _slots(self, round):
        first = round % self.rounds * self._requests
        return range(first, first + self._requests)

    def _range(self, round):
        slots = self._slots(round)
        return slice(slots.start, slots.stop)

    def _ours(self, round):
        self._library.copier_copy_shifted(self._copier, self._device.stream, self._plans[round % self.rounds],
                                          self._requests)

    def _torch(self, round):
        slots = self._slot_tables[round % self.rounds]
        kept = self._window - self.shift
        for tensor in self._tensors:
            if self._ds:
                tensor[slots, :, :kept] = tensor[slots, :, self.shift:]
            else:
                tensor[slots, :kept] = tensor[slots, self.shift:]

    def _triton(self, block, warps):
        per_program = block // self._window if self._ds else block  # columns
        grid = (triton.cdiv(self._dim, per_program), len(self._tensors), self._requests)
        window = (self._window, self.shift)
        if not self._ds:
            window += (triton.next_power_of_2(self._window - self.shift),)
        kernel = triton_kernels.shift_ds if self._ds else triton_kernels.shift_sd

        def run(round):
            slots = self._slot_tables_32[round % self.rounds]
            kernel[grid](self._tables.base, self._tables.stride, slots, self._dim, *window, block, num_warps=warps)

        return run

    def _prepare(self, round):
        for tensor, before in zip(self._tensors, self._before):
            tensor[self._range(round)].copy_(before[self._range(round)])

    def _holds(self, round):
        kept = self._window - self.shift
        for tensor, before in zip(self._tensors, self._before):
            expected = before[self._range(round)].clone()
            tokens = expected.transpose(1, 2) if self._ds else expected
            tokens[:, :kept] = tokens[:, self.shift:].clone()
            if not torch.equal(tensor[self._range(round)], expected):
                return False
        return True

    def contenders(self):
        def contender(name, run):
            return Contender(name, run, self._prepare, self._holds)

        shapes = COLUMN_SHAPES if self._device.name != "cpu" else COLUMN_SHAPES[:1]
        in_triton = fastest([contender("triton", self._triton(*shape)) for shape in shapes], self._device.time_ns)
        return [contender("ours", self._ours), in_triton, contender("torch", self._torch)]

    def close(self):
        self._library.copier_destroy(self._copier)
        self._view.close()


class Step:
    """G3: the pre-step of block tables, each request's counters on the device. With computed = 5, no request enters
    another block; with computed = block_tokens, all do, and their states are copied."""

    block_tokens = 16

    def __init__(self, library, device, shapes, requests, computed, blocks):
        """Request r has the blocks 1 + 2 r and 2 + 2 r; where `blocks` is smaller, they are shared."""
        self._library, self._device = library, device
        specs = [tensor_spec(*shape, layer=i) for i, shape in enumerate(shapes)]
        self._before = [random_bits(device, (blocks, words_of(spec))) for spec in specs]
        self._tensors = [before.clone() for before in self._before]
        ids = torch.arange(2 * requests, dtype=torch.int32) % (blocks - 1) + 1
        self._table = ids.view(requests, 2).to(device.name)
        self._expected = [before.clone() for before in self._before]
        if computed + 1 > self.block_tokens:
            for expected in self._expected:
                expected[self._table[:, 1].long()] = expected[self._table[:, 0].long()]

        def counters(values):
            return torch.tensor(values, dtype=torch.int32, device=device.name)

        self._request = counters(list(range(requests)))
        self._computed, self._scheduled = counters([computed] * requests), counters([1] * requests)
        self._view = View(library, specs, self._tensors)
        window = min([spec.shape[0] for spec in specs if spec.kind == c.CONV], default=0)
        group = c.AlignGroup(block_size_tokens=self.block_tokens, blocks=blocks, conv_window=window)
        self._align = library.make("align_create", byref(c.AlignOptions(
            max_requests=requests, groups=ctypes.pointer(group), group_count=1)))
        binding = c.AlignBinding(store=self._view.store, block_table=self._table.data_ptr(), row_stride=2, columns=2)
        library.align_bind(self._align, byref(binding), 1)
        for request in range(requests):
            library.align_add_request(self._align, device.stream, c.I(request), ctypes.c_int64(computed))
        self._batch = c.AlignBatch(request=self._request.data_ptr(), computed=self._computed.data_ptr(),
                                   scheduled=self._scheduled.data_ptr(), rows=requests)
        self._tables = Tables(device, self._tensors)

    def _ours(self):
        self._library.align_pre_step(self._align, self._device.stream, byref(self._batch))

    def _triton(self):
        triton_kernels.align_step[(len(self._request), len(self._tensors))](
            self._computed, self._scheduled, self._table, 2, self._tables.base, self._tables.stride,
            self._tables.elements, self.block_tokens, 4096, num_warps=4)

    def _prepare(self, _):
        for tensor, before in zip(self._tensors, self._before):
            tensor.copy_(before)

    def _holds(self, _):
        return all(torch.equal(tensor, expected) for tensor, expected in zip(self._tensors, self._expected))

    def contenders(self):
        def contender(name, enqueue):
            replay = self._device.graph(enqueue)
            return Contender(name, lambda _: replay(), self._prepare, self._holds)

        return [contender("ours", self._ours), contender("triton", self._triton),
                contender("empty", lambda: triton_kernels.empty[(1,)]())]

    def close(self):
        self._library.align_destroy(self._align)
        self._view.close()
