# SPDX-License-Identifier: Apache-2.0
"""vLLM's own copies of states at block boundaries beside ours, byte for byte: align_peer.py [--first SEED] [--seeds N]

MambaHybridModelState (add_request, preprocess_state, postprocess_state) with its Triton kernels under Triton's
interpreter, and AlignContext, take the same random steps of several requests, groups, layouts and drafts. After each
half of a step every byte of every page is compared; the first one that differs ends the run and is named. Exit code 1:
a difference, or nothing moved."""
import argparse
import os
import random
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"

from triton.backends import backends  # noqa: E402

# The interpreter needs no driver; vLLM uses Triton where there is one.
for name in ("interpreter", "cpu"):
    backends.setdefault(name, types.SimpleNamespace(driver=types.SimpleNamespace(is_active=lambda: True)))

import torch  # noqa: E402
from vllm.model_executor.layers.mamba import mamba_utils as layouts  # noqa: E402
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec  # noqa: E402
from vllm.v1.worker import mamba_utils  # noqa: E402
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState  # noqa: E402

import stateport as sp  # noqa: E402

COLUMNS, REQUESTS, STEPS = 16, 5, 14
CPU = torch.device("cpu")
TYPES = {1: torch.int8, 2: torch.float16, 4: torch.float32, 8: torch.float64}
mamba_utils._TEMPORAL_TILES = 2  # fewer programs for the interpreter


class Pages:
    """The pages of a layer as vLLM lays them out: [conv | gap | recurrent | gap], as bytes and as tensors."""

    def __init__(self, draw, blocks, conv_shape, heads):
        self.items = draw.choice([1, 2, 4]), draw.choice([2, 4, 8])
        conv_bytes = conv_shape[0] * conv_shape[1] * self.items[0]
        self.conv_shape, self.heads, self.blocks = conv_shape, heads, blocks
        self.recurrent_at = conv_bytes + -conv_bytes % self.items[1]
        page = self.recurrent_at + heads * self.items[1] + draw.choice([0, 8, 24, 64])
        self.page, self.first = page + -page % 8, draw.choice([0, 8, 16])
        self.raw = torch.randint(0, 256, (blocks * self.page + 64,), dtype=torch.uint8)

    def copy(self):
        other = object.__new__(Pages)
        other.__dict__ = {**self.__dict__, "raw": self.raw.clone()}
        return other

    def tensors(self):
        """Conv [blocks, …] and recurrent [blocks, heads] states, in the memory of `raw`."""
        found = []
        for shape, item, at in ((self.conv_shape, self.items[0], 0), ((self.heads,), self.items[1], self.recurrent_at)):
            strides = (self.page // item, *((shape[1], 1) if len(shape) == 2 else (1,)))
            typed = self.raw[self.first:self.first + self.blocks * self.page].view(TYPES[item])
            found.append(typed.as_strided((self.blocks, *shape), strides, typed.storage_offset() + at // item))
        return found


class Vllm:
    """vLLM's model state over its pages, made without an engine."""

    def __init__(self, block, drafts, pages, tables):
        spec = MambaSpec(block_size=block, shapes=((2, 2), (2,)), dtypes=(torch.int32, torch.int64),
                         num_speculative_blocks=drafts, mamba_cache_mode="align")
        groups, forward = [], {}
        for number, layers in enumerate(pages):
            names = [f"{number}.{layer}" for layer in range(len(layers))]
            forward |= {name: types.SimpleNamespace(kv_cache=layer.tensors())
                        for name, layer in zip(names, layers, strict=True)}
            groups.append(KVCacheGroupSpec(names, spec))
        self.config = KVCacheConfig(num_blocks=pages[0][0].blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        copies = {spec.mamba_type: (layouts.get_conv_copy_spec, layouts.get_temporal_copy_spec)}
        context = mamba_utils.MambaSpecDecodeGPUContext.create(
            max_num_reqs=REQUESTS, kv_cache_config=self.config, copy_funcs=copies, device=CPU,
            make_buffer=lambda count, dtype: mamba_utils.CpuGpuBuffer(count, dtype=dtype, device=CPU, pin_memory=False))
        context.initialize_from_forward_context(self.config, forward, copies, tables)
        self.state = object.__new__(MambaHybridModelState)
        zeros = {name: torch.zeros(REQUESTS, dtype=torch.int32) for name in (
            "_mamba_state_idx_gpu", "_mamba_src_col_gpu", "_mamba_src_off_gpu", "num_accepted_tokens_gpu")}
        self.state.__dict__.update(
            zeros, _align_mode=True, recoverssm=None, _mamba_ctx=context, _mamba_group_ids=[], _mamba_spec=None,
            rope_state=None, prompt_embeds_state=None, max_num_reqs=REQUESTS, device=CPU,
            cache_config=types.SimpleNamespace(mamba_block_size=block, mamba_cache_mode="align"))
        self._keep = forward, tables

    def add(self, slot, computed):
        self.state.add_request(slot, types.SimpleNamespace(num_computed_tokens=computed, prefill_token_ids=None,
                                                           mm_features=[]))

    def pre(self, batch, counts):
        starts = torch.tensor([0, *torch.tensor(batch["scheduled"]).cumsum(0).tolist()], dtype=torch.int32)
        rows = types.SimpleNamespace(num_reqs=len(batch["request"]), query_start_loc=starts,
                                     idx_mapping=torch.tensor(batch["request"], dtype=torch.int32))
        self.state.preprocess_state(rows, (), self.config, counts)

    def post(self, batch, kept, counts):
        self.state.postprocess_state(torch.tensor(batch["request"], dtype=torch.int32),
                                     torch.tensor(kept, dtype=torch.int32), counts)


def ours(block, drafts, layout, window, pages):
    """AlignContext over views of the same pages, and its block tables, in batch order."""
    groups = [sp.AlignGroup(block, layers[0].blocks, conv_window=window) for layers in pages]
    context = sp.AlignContext(groups, max_requests=REQUESTS, drafts=drafts)
    stores, tables = [], []
    for layers in pages:
        specs = []
        for number, layer in enumerate(layers):
            names = [str(TYPES[item]).removeprefix("torch.") for item in layer.items]
            dim = layer.conv_shape[0] * layer.conv_shape[1] // window
            specs += [sp.TensorSpec("conv", names[0], (window, dim), layer=number, conv_layout=layout.lower()),
                      sp.TensorSpec("recurrent", names[1], (layer.heads,), layer=number)]
        tensors = [tensor for layer in layers for tensor in layer.tensors()]
        stores.append(sp.StateStore.view(sp.StateSpec(specs), tensors))
        tables.append(torch.zeros(REQUESTS, COLUMNS, dtype=torch.int32))
    context.bind(stores, tables)
    return context, tables


def batch_of(draw, computed, prompt, block, drafts):
    """A step: chunks of prompts that end on the grid, and decodes with drafts; and how many tokens each row samples."""
    requests = draw.sample(range(REQUESTS), draw.randint(1, REQUESTS))
    scheduled, proposed, kept = [], [], []
    for slot in requests:
        at = computed[slot]
        if at >= prompt[slot]:
            count = draw.randint(0, drafts)
            scheduled.append(1 + count)
            proposed.append(count)
            kept.append(draw.randint(1, 1 + count))
            continue
        end = at + draw.randint(1, prompt[slot] - at)
        if end < prompt[slot] and end // block * block > at:
            end = end // block * block
        if at % block and end > (at // block + 1) * block:
            end = (at // block + 1) * block
        scheduled.append(end - at)
        proposed.append(0)
        kept.append(int(end == prompt[slot]))
    return {"request": requests, "computed": [computed[slot] for slot in requests], "scheduled": scheduled,
            "drafts": proposed}, kept


def run(seed, steps):
    """None, or the first difference. The second answer counts the halves of steps in which bytes moved."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    layout, drafts, block = draw.choice(["SD", "DS"]), draw.choice([0, 1, 2, 3]), draw.choice([2, 4, 8])
    layouts.get_conv_state_layout.cache_clear()
    layouts.envs.VLLM_SSM_CONV_STATE_LAYOUT = os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] = layout
    window, dim, heads = draw.randint(drafts + 1, drafts + 4), draw.randint(1, 4), draw.randint(1, 40)
    shape = (window, dim) if layout == "SD" else (dim, window)
    blocks = REQUESTS * COLUMNS + 1
    theirs = [[Pages(draw, blocks, shape, heads) for _ in range(draw.randint(1, 2))]
              for _ in range(draw.choice([1, 2]))]
    mine = [[layer.copy() for layer in layers] for layers in theirs]
    tables = [torch.tensor(draw.sample(range(1, blocks), blocks - 1), dtype=torch.int32).reshape(REQUESTS, COLUMNS)
              for _ in theirs]
    peer = Vllm(block, drafts, theirs, tables)
    context, batch_tables = ours(block, drafts, layout, window, mine)
    computed, prompt, moved = {}, {}, 0

    for step in range(steps):
        for slot in range(REQUESTS):
            if slot not in computed or draw.random() < 0.08 or computed[slot] > (COLUMNS - drafts - 3) * block:
                if slot in computed:
                    context.forget(slot)
                computed[slot] = draw.choice([0, 0, block * draw.randint(1, 4)])
                prompt[slot] = computed[slot] + draw.randint(1, 4 * block)
                peer.add(slot, computed[slot])
                context.add_request(slot, computed[slot])
        batch, kept = batch_of(draw, computed, prompt, block, drafts)
        for of_batch, table in zip(batch_tables, tables, strict=True):
            of_batch.zero_()
            of_batch[:len(kept)] = table[batch["request"]]
        counts = torch.tensor([computed[slot] for slot in range(REQUESTS)], dtype=torch.int32)
        arrays = {name: torch.tensor(values, dtype=torch.int32) for name, values in batch.items()}
        before = contents(theirs)
        peer.pre(batch, counts)
        context.pre_step(**arrays)
        sp.synchronize()
        moved += before != contents(theirs)
        if contents(mine) != contents(theirs):
            return f"before the forward of step {step}", moved
        forward(batch, peer, theirs, mine, tables)
        for row, slot in enumerate(batch["request"]):
            computed[slot] += batch["scheduled"][row] - batch["drafts"][row] + max(kept[row], 1) - 1
            counts[slot] = computed[slot]
        before = contents(theirs)
        peer.post(batch, kept, counts)
        context.scatter_accepted(arrays["request"], torch.tensor(kept, dtype=torch.int32))
        if draw.random() < 0.5:
            context.post_step(**arrays)
        else:
            context.post_step_advanced(arrays["request"], torch.tensor(
                [computed[slot] for slot in batch["request"]], dtype=torch.int32))
        sp.synchronize()
        moved += before != contents(theirs)
        if contents(mine) != contents(theirs):
            return f"after the forward of step {step}", moved
    return None, moved


def contents(pages):
    return [layer.raw.numpy().tobytes() for layers in pages for layer in layers]


def forward(batch, peer, theirs, mine, tables):
    """The same bytes into the running window of both: the states after each draft."""
    for number, layers in enumerate(theirs):
        for slot, drafted in zip(batch["request"], batch["drafts"], strict=True):
            column = int(peer.state._mamba_state_idx_gpu[slot])
            for a, b in zip(layers, mine[number], strict=True):
                for j in range(drafted + 1):
                    at = int(tables[number][slot, column + j])
                    noise = torch.randint(0, 100, a.tensors()[1][at].shape)
                    for pages in (a, b):
                        pages.tensors()[1][at] = noise.to(pages.tensors()[1].dtype)
                at = int(tables[number][slot, column])
                noise = torch.randint(0, 100, a.tensors()[0][at].shape)
                for pages in (a, b):
                    pages.tensors()[0][at] = noise.to(pages.tensors()[0].dtype)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    moved = failed = 0
    with sp.Runtime(host_threads=1):
        for seed in range(given.first, given.first + given.seeds):
            found, copies = run(seed, STEPS)
            moved += copies
            if found:
                failed += 1
                print(f"seed {seed} differs {found}", flush=True)
    print(f"vLLM's model state and AlignContext: {given.seeds - failed} of {given.seeds} runs of {STEPS} steps equal "
          f"byte for byte (seeds from {given.first}; bytes moved in {moved} halves of steps)")
    return int(failed > 0 or moved == 0)


if __name__ == "__main__":
    sys.exit(main())
