# SPDX-License-Identifier: Apache-2.0
"""The contents of vLLM's pages, and their places."""
from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import stateport as sp
from stateport.vllm.layout import Part, kv_parts, pool_sizes, read_layout, state_parts
from stateport.vllm.options import ConnectorOptions


class MambaSpec:
    def __init__(self, block_size: int = 16, mode: str = "align", speculative: int = 0) -> None:
        self.block_size, self.mamba_cache_mode, self.num_speculative_blocks = block_size, mode, speculative
        self.shapes, self.dtypes = ((3, 8), (2, 4, 4)), ("torch.bfloat16", "torch.float32")


class FullAttentionSpec:
    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec:
    def __init__(self, window: int, retained: int = 0) -> None:
        self.block_size, self.sliding_window, self.extra_retained_tokens = 16, window, retained


class ChunkedLocalAttentionSpec:
    block_size = 16


class CircularBufferSpec:
    block_size, prefix_cacheable = 2048, False


def uniform(*specs: Any) -> Any:
    """A group whose layers have specs of their own."""
    return types.SimpleNamespace(kv_cache_specs={f"layer {i}": spec for i, spec in enumerate(specs)},
                                 prefix_cacheable=all(getattr(spec, "prefix_cacheable", True) for spec in specs))


def config(*specs: Any) -> Any:
    groups = [types.SimpleNamespace(layer_names=list(getattr(spec, "kv_cache_specs", [f"{i}"])), kv_cache_spec=spec)
              for i, spec in enumerate(specs)]
    return types.SimpleNamespace(kv_cache_groups=groups, num_blocks=7)


def test_a_layout_names_groups_of_kv_and_of_states() -> None:
    layout = read_layout(config(MambaSpec(), MLAAttentionSpec(), MambaSpec(speculative=2)))
    assert (layout.block_size_tokens, layout.blocks, layout.speculative) == (16, 7, True)
    assert (layout.kv_groups, layout.state_groups) == ((1,), (0, 2))
    assert layout.groups[0].states == ((((3, 8), "bfloat16"), ((2, 4, 4), "float32")),)


def test_groups_that_are_not_cached_by_prefix_are_left_out() -> None:
    one = uniform(CircularBufferSpec())
    layout = read_layout(config(CircularBufferSpec(), one, MambaSpec(), FullAttentionSpec()))
    assert (layout.block_size_tokens, layout.kv_groups, layout.state_groups) == (16, (3,), (2,))


def test_states_are_recognised_by_their_shapes() -> None:
    spec = MambaSpec()
    del spec.mamba_cache_mode  # vLLM announced that it goes
    assert read_layout(config(spec, FullAttentionSpec())).state_groups == (0,)


def test_layers_of_a_group_may_have_specs_of_their_own() -> None:
    layout = read_layout(config(MambaSpec(), uniform(FullAttentionSpec()), uniform(SlidingWindowSpec(64))))
    assert (layout.kv_groups, [group.number for group in layout.windows]) == ((1,), [2])


@pytest.mark.parametrize(("window", "retained", "blocks"), [
    (2, 0, 1), (17, 0, 1), (18, 0, 2), (17, 1, 2), (128, 0, 8), (129, 0, 8), (130, 0, 9)])
def test_a_state_has_the_blocks_that_the_next_token_sees(window: int, retained: int, blocks: int) -> None:
    (group,) = read_layout(config(MambaSpec(), FullAttentionSpec(), SlidingWindowSpec(window, retained))).windows
    assert (group.number, group.content, group.blocks) == (2, "window", blocks)
    end = 100  # columns, of which vLLM's SlidingWindowManager skips the first ones
    assert group.first_column(end) == (16 * end - window + 1 - retained) // 16
    assert group.first_column(0) == 0
    assert group.places(3, end - blocks, end).tolist() == list(range(3 * blocks, 4 * blocks))
    assert group.places(3, end - 1, end).tolist() == [4 * blocks - 1]


def test_a_window_of_one_token_has_nothing_at_the_end_of_a_block() -> None:
    assert read_layout(config(MambaSpec(), FullAttentionSpec(), SlidingWindowSpec(1))).windows == ()


@pytest.mark.parametrize(("specs", "part"), [
    ((MambaSpec(),), "no layers of full attention"),
    ((MambaSpec(), SlidingWindowSpec(64)), "no layers of full attention"),
    ((FullAttentionSpec(), SlidingWindowSpec(64)), "no layers of recurrent states"),
    ((MambaSpec(mode="none"), FullAttentionSpec()), "group 0 keeps its states in the mode 'none'"),
    ((MambaSpec(), ChunkedLocalAttentionSpec()), "group 1 is of ChunkedLocalAttentionSpec"),
    ((MambaSpec(), FullAttentionSpec(), uniform(SlidingWindowSpec(5), SlidingWindowSpec(4, 2))), "[4, 5] tokens"),
    ((MambaSpec(32), FullAttentionSpec()), "blocks of [16, 32] tokens"),
])
def test_models_that_cannot_be_served_are_refused(specs: Any, part: str) -> None:
    with pytest.raises(sp.InvalidArgument) as error:
        read_layout(config(*specs))
    assert part in str(error.value)


def covered(parts: list[Part], blocks: int, size: int) -> Any:
    """[blocks, n]: which elements of a layer's memory belong to each block."""
    memory = np.arange(size)
    return np.array([np.concatenate([memory[part.first + b * part.stride:][:part.elements] for part in parts])
                     for b in range(blocks)])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (2, 0, 1, 3), (0, 2, 1, 3), (3, 1, 0, 2)])
@pytest.mark.parametrize("pieces", [1, 2])
def test_parts_of_kv_are_the_elements_of_a_block_in_every_order_of_memory(order: tuple[int, ...], pieces: int) -> None:
    blocks, shape = 3, [3 * pieces, 2, 4, 5]
    dense = np.arange(int(np.prod(shape))).reshape([shape[i] for i in order])
    tensor = dense.transpose(np.argsort(order))
    assert list(tensor.shape) == shape
    parts = kv_parts(shape, [stride // 8 for stride in tensor.strides], "float16", blocks)
    found = covered(parts, blocks, tensor.size)
    wanted = tensor.reshape(blocks, -1)
    assert np.array_equal(np.sort(found, axis=1), np.sort(wanted, axis=1))
    if order == (0, 1, 2, 3):
        assert parts == [Part(0, pieces * 40, pieces * 40, "float16")]


def test_kv_of_other_shapes_is_refused() -> None:
    for shape in ((7, 2), (0, 2), ()):
        with pytest.raises(sp.InvalidArgument):
            kv_parts(shape, [1] * len(shape), "float16", 3)


def test_states_lie_one_behind_the_other_at_the_beginning_of_a_page() -> None:
    parts = state_parts((((3, 8), "bfloat16"), ((2, 4), "float32"), ((4,), "float8_e4m3fn")), 128, [2, 4, 1])
    assert parts == [Part(0, 64, 24, "bfloat16"), Part(12, 32, 8, "float32"), Part(80, 128, 4, "int8")]
    with pytest.raises(sp.InvalidArgument, match="lies at byte 2 of pages of 128 bytes"):
        state_parts((((1,), "bfloat16"), ((2,), "float32")), 128, [2, 4])


def test_pools_have_a_state_for_a_number_of_blocks() -> None:
    assert pool_sizes(1000, 10, 50, blocks_per_state=5) == pool_sizes(1000, 10, 50, blocks_per_state=9, state_share=0.5)
    sizes = pool_sizes(1000, 10, 50, blocks_per_state=5)
    assert (sizes.states, sizes.kv_blocks) == (10, 50)
    assert pool_sizes(70, 10, 50, blocks_per_state=100).states == 1
    with pytest.raises(sp.InvalidArgument, match="host_bytes is 69"):
        pool_sizes(69, 10, 50, blocks_per_state=100)


@pytest.mark.parametrize(("values", "part"), [
    ({"host_byte": 1}, "has the key 'host_byte'"),
    ({"host_bytes": "1"}, "host_bytes is '1', and must be int"),
    ({"host_bytes": True}, "must be int"),
    ({"host_bytes": 0}, "host_bytes is 0"),
    ({"folder": "x"}, "name both or none"),
    ({"file_bytes": 1}, "name both or none"),
    ({"folder": 1, "file_bytes": 1}, "folder is 1, and must be str"),
    ({"checkpoint_tokens": -1}, "checkpoint_tokens is -1"),
    ({"decode_checkpoint_tokens": -1}, "decode_checkpoint_tokens is -1"),
    ({"state_share": 1.0}, "state_share is 1.0"),
    ({"eviction": "hix"}, "eviction is 'hix'"),
])
def test_options_that_are_none_are_refused(values: dict[str, Any], part: str) -> None:
    with pytest.raises(sp.InvalidArgument) as error:
        ConnectorOptions.read(values)
    assert part in str(error.value)


def test_options_are_read() -> None:
    assert ConnectorOptions.read({}) == ConnectorOptions()
    assert ConnectorOptions.read({"folder": "a", "file_bytes": 5, "state_share": 0}).file_bytes == 5
