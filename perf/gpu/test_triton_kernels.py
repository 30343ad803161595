# SPDX-License-Identifier: Apache-2.0
"""Tests of the Triton kernels in Triton's interpreter: exit code 77 without torch and Triton."""
import os
import sys
import unittest

os.environ["TRITON_INTERPRET"] = "1"
try:
    import torch
    import triton
    import triton.language as tl
except ImportError as error:
    print(f"skipped: Python has no torch and Triton here: {error}")
    sys.exit(77)

import triton_kernels
from torch_devices import Cpu

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "c", "python"))
from torch_workloads import Tables, tiles  # noqa: E402

device = Cpu()


def random_words(*shape):
    return torch.randint(-2**31, 2**31 - 1, shape, dtype=torch.int32)


def slots(*values):
    return torch.tensor(values, dtype=torch.int32)


class Kernels(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def copy(self, src, dst, from_slots, to_slots, types, block):
        tile_tensor, tile_first = tiles(device, src, block)
        read, written = Tables(device, src), Tables(device, dst)
        triton_kernels.copy_slots[(len(tile_tensor), len(from_slots))](
            tile_tensor, tile_first, read.base, read.stride, written.base, written.stride, read.elements, from_slots,
            to_slots, *types, block)

    def test_copies_reach_their_slots_and_nothing_else(self):
        for block in (16, 64, 128):
            # Slots farther apart than they are long; the shortest is less than a tile, others end within one.
            whole = [random_words(5, count + 3) for count in (1, 63, 64, 65, 200)]
            tensors = [tensor[:, :-3] for tensor in whole]
            expected = [tensor.clone() for tensor in whole]
            for tensor in expected:
                tensor[3, :-3], tensor[0, :-3] = tensor[1, :-3].clone(), tensor[4, :-3].clone()
            self.copy(tensors, tensors, slots(1, 4), slots(3, 0), (tl.int32, tl.int32, 4, 4), block)
            for tensor, wanted in zip(whole, expected):
                self.assertTrue(torch.equal(tensor, wanted))

    def test_conversions_reach_their_slots_and_nothing_else(self):
        # Numbers that bf16 has: how others are rounded is the GPU's matter, the interpreter cuts them.
        src = [(torch.randn(4, count) * 1e3).to(torch.bfloat16).float() for count in (7, 130)]
        src[0][2, :2] = torch.tensor([float("inf"), -0.0])
        dst = [torch.full_like(tensor, 7, dtype=torch.bfloat16) for tensor in src]
        expected = [tensor.clone() for tensor in dst]
        for wanted, tensor in zip(expected, src):
            wanted[1] = tensor[2].to(torch.bfloat16)
        self.copy(src, dst, slots(2), slots(1), (tl.float32, tl.bfloat16, 4, 2), 64)
        for tensor, wanted in zip(dst, expected):
            self.assertTrue(torch.equal(tensor.view(torch.int16), wanted.view(torch.int16)))

    def test_shifts_in_place_keep_the_last_tokens(self):
        for window, dim, shift in ((2, 1, 1), (4, 33, 1), (4, 64, 3), (6, 130, 2), (7, 17, 1)):
            for ds in (False, True):
                shape = (3, dim, window) if ds else (3, window, dim)
                tensor = random_words(*shape).to(torch.int16)
                expected = tensor.clone()
                tokens = expected.transpose(1, 2) if ds else expected
                for slot in (0, 2):
                    tokens[slot, : window - shift] = tokens[slot, shift:].clone()
                tables = Tables(device, [tensor])
                block = 32
                if ds:
                    grid = (triton.cdiv(dim, block // window), 1, 2)
                    triton_kernels.shift_ds[grid](tables.base, tables.stride, slots(2, 0), dim, window, shift, block)
                else:
                    grid = (triton.cdiv(dim, block), 1, 2)
                    triton_kernels.shift_sd[grid](tables.base, tables.stride, slots(2, 0), dim, window, shift,
                                                  triton.next_power_of_2(window - shift), block)
                self.assertTrue(torch.equal(tensor, expected), (window, dim, shift, ds))

    def test_a_step_copies_the_states_of_requests_that_enter_another_block(self):
        tensors = [random_words(7, count) for count in (33, 64)]
        expected = [tensor.clone() for tensor in tensors]
        for tensor in expected:
            tensor[4] = tensor[3]
        table = slots(1, 2, 3, 4, 5, 6).view(3, 2).contiguous()
        tables = Tables(device, tensors)
        triton_kernels.align_step[(3, 2)](slots(5, 16, 16), slots(1, 1, 0), table, 2, tables.base, tables.stride,
                                          tables.elements, 16, 32)
        for tensor, wanted in zip(tensors, expected):
            self.assertTrue(torch.equal(tensor, wanted))


if __name__ == "__main__":
    unittest.main()
