# SPDX-License-Identifier: Apache-2.0
"""vLLM's pool of blocks in small: references, the queue of free blocks, and the names of their contents."""
from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence


@dataclasses.dataclass(eq=False)
class Block:
    block_id: int
    ref_cnt: int = 0
    names: set[tuple[bytes, int]] = dataclasses.field(default_factory=set)  # hash, group


class BlockPool:
    """The calls that the connector and the engine make, by vLLM's names. Block 0 is that of tokens without a block.

    reused: called for a block that is given to another owner: its content is lost from then on."""

    def __init__(self, blocks: int, hash_block_size: int, reused: Callable[[int], None]) -> None:
        self.hash_block_size, self._reused = hash_block_size, reused
        self.blocks = [Block(i) for i in range(blocks)]
        self.queue: collections.OrderedDict[int, None] = collections.OrderedDict.fromkeys(range(1, blocks))
        self._named: dict[tuple[bytes, int], dict[int, Block]] = {}

    def get_num_free_blocks(self) -> int:
        return len(self.queue)

    def get_new_blocks(self, count: int) -> list[Block]:
        if count > len(self.queue):
            raise ValueError(f"Cannot get {count} free blocks from the pool")
        out = [self.blocks[self.queue.popitem(last=False)[0]] for _ in range(count)]
        for block in out:
            assert block.ref_cnt == 0
            self.forget(block)
            block.ref_cnt = 1
            self._reused(block.block_id)
        return out

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                del self.queue[block.block_id]
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """The first of them is evicted first; blocks without a name go before all."""
        nameless = []
        for block in ordered_blocks:
            assert block.ref_cnt > 0 and block.block_id, f"block {block.block_id} is free already"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.queue[block.block_id] = None
                if not block.names:
                    nameless.append(block.block_id)
        for number in reversed(nameless):
            self.queue.move_to_end(number, last=False)

    def name(self, block: Block, content: bytes, group: int) -> None:
        """The block has this content of the group, or will have it when the step has run."""
        assert block.ref_cnt > 0
        block.names.add((content, group))
        self._named.setdefault((content, group), {})[block.block_id] = block

    def forget(self, block: Block) -> None:
        for name in block.names:
            del self._named[name][block.block_id]
            if not self._named[name]:
                del self._named[name]
        block.names.clear()

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[Block] | None:
        found = [self._named.get((block_hash, group)) for group in kv_cache_group_ids]
        if not all(found):
            return None
        return [next(iter(blocks.values())) for blocks in found if blocks]

    def forget_groups(self, groups: Sequence[int]) -> None:
        """Contents of these groups are not found any more, as if their blocks had been given away."""
        for block in self.blocks:
            if any(group in groups for _, group in block.names):
                assert all(group in groups for _, group in block.names)
                self.forget(block)
