#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the C interface from Python's standard library: interface_test.py LIBRARY."""

import ctypes
import itertools
import pathlib
import sys
import tempfile
from ctypes import byref, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "c" / "python"))
from stateport_c import (BACKEND_ERROR, CACHE_INDEX, EVICT_HIX, EVICT_MRU, FINISHED, I, INDEX_TREE, INT8,
                         INVALID_ARGUMENT, INVALID_HANDLE, INVALID_STATE, MEDIUM_DEVICE, MEDIUM_FILE, MEDIUM_HOST, NONE,
                         NO_CAPACITY, RECURRENT, STATE, TRANSFER_DONE, TRANSFER_DROP, TRANSFER_LOAD, TRANSFER_STORE,
                         AlignBatch, AlignBinding, AlignGroup, AlignOptions, AlignStep, BlockTable, CacheEvent,
                         CacheStats, CheckpointCommit, CheckpointOptions, ColumnLayout, EvictDemand, EvictResult,
                         EvictionOptions, FoundState, GroupCommit, GroupPlan, ImageKey, Insert, InsertResult, Library,
                         Lookup, Match, PassBatch, PassCommit, PassPlan, PlannedCheckpoints, PrefillChunk, Prompt,
                         RequestCacheOptions, Restore, ReuseHint, RunningRequest, ServedPrompt, SettledTransfers,
                         SlotAllocatorOptions, SlotCopy, SlotImage, SlotLayout, SlotVictim, SpecInfo, StartedRequest,
                         StateGroup, StateTiersInfo, StateTiersOptions, StoreOptions, Tag, TensorMemory, TensorSpec,
                         TierOptions, TierUsage, TransferPlan, TransferResult, TreeOptions, int32s, int64s, room)

SKIPPED = 77


def spec_of_bytes(stateport, count):
    tensor = TensorSpec(kind=RECURRENT, type=INT8, shape=(count, 1, 1))
    return stateport.make("spec_create", byref(tensor), 1)


def base_of(stateport, store):
    memory = TensorMemory()
    stateport.store_tensor(store, 0, byref(memory))
    return memory.base, memory.slot_stride_bytes


def write(stateport, store, slot, data):
    base, stride = base_of(stateport, store)
    stateport.copy_bytes(None, c_void_p(base + slot * stride), data, len(data))
    stateport.stream_synchronize(None)


def read(stateport, store, slot, count):
    base, stride = base_of(stateport, store)
    room = ctypes.create_string_buffer(count)
    stateport.copy_bytes(None, room, c_void_p(base + slot * stride), count)
    stateport.stream_synchronize(None)
    return room.raw


def test_specs(stateport):
    spec = stateport.make("spec_find", b"qwen3-next-80b-a3b", None)
    info = SpecInfo()
    stateport.spec_describe(spec, byref(info))
    assert info.tensors == 72 and info.slot_bytes == 36 * 2 * (3 * 8192 + 32 * 128 * 128)
    stateport.spec_destroy(spec)


def test_stores(stateport):
    spec = spec_of_bytes(stateport, 10)
    store = stateport.make("store_create", spec, byref(StoreOptions(slots=3)), None)
    write(stateport, store, 0, b"stateport!")
    stateport.store_copy(store, None, byref(SlotCopy(0, 2, 0, 0)), 1)
    assert read(stateport, store, 2, 10) == b"stateport!"
    base, stride = base_of(stateport, store)
    view = stateport.make("store_view", spec, byref(TensorMemory(base=base, slot_stride_bytes=stride)), 1, I(3))
    copier = stateport.make("copier_create", view, store)
    stateport.store_clear(view, None, int32s(0), 1)
    stateport.copier_copy(copier, None, byref(SlotCopy(2, 1, 0, 2)), 1)
    assert read(stateport, store, 0, 10) == bytes(10) and read(stateport, view, 1, 10) == b"stateport!"
    stateport.refuses(INVALID_ARGUMENT, "3", "store_copy", store, None, byref(SlotCopy(3, 0, 0, 3)), 1)
    for handle, end in (copier, "copier_destroy"), (view, "store_destroy"), (store, "store_destroy"):
        getattr(stateport, end)(handle)
    stateport.spec_destroy(spec)


def test_slot_allocator(stateport):
    allocator = stateport.make("slot_allocator_create", byref(SlotAllocatorOptions(blocks=4, slots=2)))
    blocks, slot = int32s(0, 0), c_int32()
    stateport.slot_allocator_allocate_blocks(allocator, blocks, 2)
    stateport.slot_allocator_allocate_slots(allocator, byref(blocks, 4), 1, byref(slot))
    tag = Tag(token_count=8, prefix=(5, 6), layout_fingerprint=7)
    stateport.slot_allocator_set_tag(allocator, I(blocks[1]), byref(tag))
    hashes = (c_int64 * 2)(21, 22)
    stateport.slot_allocator_register_states(allocator, byref(blocks, 4), byref(hashes, 8), 1)
    found = FoundState()
    stateport.slot_allocator_find_state(allocator, hashes, 2, byref(found))
    assert (found.index, found.block, found.slot) == (1, blocks[1], slot.value)
    restore = Restore()
    stateport.slot_allocator_restore(allocator, I(blocks[1]), I(9), byref(tag), byref(restore))
    assert restore.check == 0 and restore.copy.src_slot == slot.value and restore.copy.dst_slot == 9
    stateport.refuses(NO_CAPACITY, "required 2, available 1", "slot_allocator_allocate_blocks", allocator, blocks, 2)
    stateport.slot_allocator_check(allocator)
    stateport.slot_allocator_destroy(allocator)


def test_tree(stateport):
    tree = stateport.make("tree_create", byref(TreeOptions(slots=2)))
    tokens, kv, slot = int32s(1, 2, 3, 4), int32s(10, 11, 12, 13), c_int32()
    stateport.tree_allocate_slots(tree, byref(slot), 1)
    stateport.tree_tag_slot(tree, slot, tokens, 4, None)
    prefix = Insert(tokens=tokens, kv=kv, count=4, slot=slot.value)
    kept, hit, row = InsertResult(), Match(), int32s(0, 0, 0, 0)
    stateport.tree_insert(tree, byref(prefix), byref(kept))
    stateport.tree_match(tree, tokens, 4, None, row, byref(hit))
    assert hit.tokens == 4 and hit.slot == slot.value and hit.node == kept.node and row[:] == kv[:]
    lock = stateport.make("tree_lock_node", tree, c_uint64(hit.node))
    stateport.tree_evict(tree, c_int64(4), c_int64(1), None, None)
    stateport.tree_lock_destroy(lock)
    stateport.tree_evict(tree, c_int64(4), c_int64(1), None, None)
    freed, count = int32s(0, 0, 0, 0, 0), c_size_t()
    stateport.tree_take_freed_kv(tree, freed, 5, byref(count))
    assert freed[: count.value] == kv[:]
    stateport.tree_check(tree)
    stateport.refuses(INVALID_ARGUMENT, "evicted", "tree_lock_node", tree, c_uint64(hit.node), byref(c_void_p()))
    stateport.tree_destroy(tree)


def test_victims_of_trees(stateport):
    reported, tokens = [], int32s(1, 2, 3, 4)

    def hear(victim, context):
        v = victim.contents
        reported.append((v.node, v.end_tokens, v.slot, v.tokens[: v.count], v.kv[: v.count], context))
        stateport.refuses(INVALID_STATE, "by a callback", "tree_check", tree)
        return 1

    options = TreeOptions(slots=1, on_victim=hear, on_victim_context=77)  # holds on to the callback
    tree = stateport.make("tree_create", byref(options))
    slot, kept, freed = c_int32(), InsertResult(), c_int64()
    stateport.tree_allocate_slots(tree, byref(slot), 1)
    stateport.tree_tag_slot(tree, slot, tokens, 4, None)
    stateport.tree_insert(tree, byref(Insert(tokens=tokens, kv=tokens, count=4, slot=slot.value)), byref(kept))
    stateport.tree_evict(tree, c_int64(1), c_int64(0), None, byref(freed))
    assert reported == [(kept.node, 4, slot.value, [1, 2, 3, 4], [1, 2, 3, 4], 77)] and freed.value == 0
    stateport.tree_release_slots(tree, byref(slot), 1)  # it was kept
    stateport.tree_check(tree)
    stateport.tree_destroy(tree)


def test_victims_of_allocators(stateport):
    reported = []
    options = SlotAllocatorOptions(blocks=3, slots=2, on_victim_context=78)
    options.on_victim = lambda victim, context: reported.append((victim.contents.block, victim.contents.slot,
                                                             victim.contents.token_count, context))
    allocator = stateport.make("slot_allocator_create", byref(options))
    blocks, slots, evicted, count = int32s(0, 0), int32s(0, 0), c_int64(), c_size_t()
    stateport.slot_allocator_allocate_blocks(allocator, blocks, 2)
    stateport.slot_allocator_register_blocks(allocator, blocks, (c_int64 * 2)(31, 32), None, 2)
    stateport.slot_allocator_allocate_slots(allocator, blocks, 2, slots)
    stateport.slot_allocator_set_tag(allocator, I(blocks[0]), byref(Tag(token_count=8)))
    stateport.slot_allocator_release_blocks(allocator, blocks, 1)
    next_ones = room(SlotVictim, 2)
    stateport.slot_allocator_peek_victims(allocator, next_ones, 2, byref(count))
    assert count.value == 1 and next_ones[0].slot == slots[0] and not reported
    stateport.slot_allocator_evict(allocator, c_int64(2), byref(evicted))
    assert evicted.value == 1 and reported == [(blocks[0], slots[0], 8, 78)]
    stateport.slot_allocator_check(allocator)
    stateport.slot_allocator_destroy(allocator)


def test_tree_batches(stateport):
    tree = stateport.make("tree_create", byref(TreeOptions(slots=3, state_bytes=1000, kv_bytes_per_token=10)))
    prompts = [int32s(*range(10 * i, 10 * i + 4)) for i in range(3)]
    slots, prefixes, done = int32s(0, 0, 0), room(Insert, 3), c_size_t()
    stateport.tree_allocate_slots(tree, slots, 3)
    for i, prompt in enumerate(prompts):
        stateport.tree_tag_slot(tree, I(slots[i]), prompt, 4, None)
        prefixes[i] = Insert(tokens=prompt, kv=prompt, count=4, slot=slots[i])
    kept = room(InsertResult, 3)
    stateport.tree_insert_many(tree, prefixes, 3, kept, byref(done))
    assert done.value == 3 and len({result.node for result in kept}) == 3
    lookups, hits = room(Lookup, 3), room(Match, 3)
    for lookup, prompt in zip(lookups, prompts):
        lookup.tokens, lookup.count = prompt, 4
    stateport.tree_match_many(tree, lookups, 3, hits)
    assert [hit.node for hit in hits] == [result.node for result in kept]
    nodes = (c_uint64 * 3)(*(hit.node for hit in hits))
    stateport.tree_touch(tree, nodes, 3)
    locks = (c_void_p * 3)()
    stateport.tree_lock_nodes(tree, nodes, 3, locks)
    demand, freed = EvictDemand(bytes=1), EvictResult()
    stateport.tree_evict_demand(tree, byref(demand), byref(freed))
    assert (freed.tokens, freed.states) == (0, 0)
    stateport.tree_locks_destroy(locks, 3)
    stateport.tree_evict_demand(tree, byref(demand), byref(freed))
    assert (freed.tokens, freed.states) == (4, 1)
    stateport.tree_check(tree)
    stateport.tree_destroy(tree)


def test_checkpoints(stateport):
    allocator = stateport.make("slot_allocator_create", byref(SlotAllocatorOptions(blocks=4, slots=3)))
    planner = stateport.make("checkpoint_planner_create", allocator,
                             byref(CheckpointOptions(block_size_tokens=4, alignment_tokens=4)))
    blocks, keys, prefixes = int32s(0, 0, 0), (c_int64 * 3)(5, 6, 7), (c_uint64 * 6)(1, 2, 3, 4, 5, 6)
    stateport.slot_allocator_allocate_blocks(allocator, blocks, 3)
    stateport.slot_allocator_register_blocks(allocator, blocks, keys, None, 3)
    chunk = PrefillChunk(live_slot=9, prompt_tokens=12, chunk_tokens=12, required_blocks=3, blocks=blocks,
                         block_count=3, prefixes=prefixes, prefix_count=3)
    planned, done, commit = PlannedCheckpoints(), c_size_t(), CheckpointCommit()
    stateport.checkpoint_planner_plan(planner, byref(chunk), 1, byref(planned), byref(done))
    assert (planned.count, planned.offsets[0], planned.end_block) == (1, 8, blocks[2])
    stateport.checkpoint_planner_commit(planner, byref(commit))
    assert commit.scratch_count == commit.live_count == 1 and commit.from_live[0].src_slot == 9
    stateport.checkpoint_planner_publish(planner)
    found = FoundState()
    stateport.slot_allocator_find_state(allocator, keys, 3, byref(found))
    assert (found.index, found.slot) == (2, commit.from_live[0].dst_slot)
    stateport.refuses(INVALID_STATE, "no pending commit", "checkpoint_planner_publish", planner)
    stateport.checkpoint_planner_destroy(planner)
    stateport.slot_allocator_destroy(allocator)


def tree_victim(stateport, hints, interleaved=False, handed_on=True):
    """Two prompts are looked up in order and kept in order, or the other way round. Which loses its state first?"""
    eviction = EvictionOptions(order=EVICT_HIX, samples=-1)
    tree = stateport.make("tree_create", byref(TreeOptions(slots=2, eviction_options=ctypes.pointer(eviction),
                                                           position_tokens=2)))
    prompts = [int32s(*range(10 * i, 10 * i + 4)) for i in range(2)]
    hits = [Match(), Match()]
    for i, prompt in enumerate(prompts):
        stateport.tree_set_time(tree, c_double(500 * i))
        stateport.tree_match(tree, prompt, 4, None, None, byref(hits[i]))
    for i in (1, 0) if interleaved else (0, 1):
        slot = c_int32()
        stateport.tree_allocate_slots(tree, byref(slot), 1)
        stateport.tree_tag_slot(tree, slot, prompts[i], 4, None)
        prefix = Insert(tokens=prompts[i], kv=prompts[i], count=4, slot=slot.value, hint=ctypes.pointer(hints[i]))
        if handed_on:
            prefix.past = hits[i].past
        stateport.tree_set_time(tree, c_double(1000 + 100 * (i == 0) * interleaved))
        stateport.tree_insert(tree, byref(prefix), byref(InsertResult()))
    stateport.tree_evict(tree, c_int64(0), c_int64(1), None, None)
    left = []
    for prompt in prompts:
        hit = Match()
        stateport.tree_match_again(tree, prompt, 4, None, None, byref(hit))
        left.append(hit.slot != NONE)
    stateport.tree_check(tree)
    stateport.tree_destroy(tree)
    return left.index(False)


def allocator_victim(stateport, hints):
    eviction = EvictionOptions(order=EVICT_HIX)
    options = SlotAllocatorOptions(blocks=4, slots=2, eviction=ctypes.pointer(eviction))
    allocator = stateport.make("slot_allocator_create", byref(options))
    blocks, slot = int32s(0, 0, 0), c_int32()
    stateport.slot_allocator_allocate_blocks(allocator, blocks, 3)
    for i in range(2):
        block, key = byref(blocks, 4 * i), (c_int64 * 1)(7 + i)
        stateport.slot_allocator_register_blocks(allocator, block, key, None, 1)
        stateport.slot_allocator_allocate_slots(allocator, block, 1, byref(slot))
        stateport.slot_allocator_set_tag(allocator, I(blocks[i]), byref(Tag(token_count=4)))
        stateport.slot_allocator_register_states(allocator, block, key, 1)
        served = ServedPrompt(now_s=i, hashes=key, count=1, hint=ctypes.pointer(hints[i]))
        stateport.slot_allocator_note_served(allocator, byref(served))
        stateport.slot_allocator_release_blocks(allocator, block, 1)
    served.now_s = 0.5
    stateport.refuses(INVALID_ARGUMENT, "now_s = 0.5", "slot_allocator_note_served", allocator, byref(served))
    stateport.slot_allocator_allocate_slots(allocator, byref(blocks, 8), 1, byref(slot))
    left = []
    for i in range(2):
        stateport.slot_allocator_slot_of(allocator, I(blocks[i]), byref(slot))
        left.append(slot.value != NONE)
    stateport.slot_allocator_check(allocator)
    stateport.slot_allocator_destroy(allocator)
    return left.index(False)


def test_hints(stateport):
    for victim in (tree_victim, allocator_victim):
        assert victim(stateport, [ReuseHint(), ReuseHint()]) == 0
        assert victim(stateport, [ReuseHint(), ReuseHint(factor=1 / 16)]) == 1
        assert victim(stateport, [ReuseHint(), ReuseHint(last_turn=1, expected_idle_s=1e6)]) == 1
    # The one that was looked up first is kept last: without its past it counts as new.
    assert tree_victim(stateport, [ReuseHint(), ReuseHint()], interleaved=True) == 0
    assert tree_victim(stateport, [ReuseHint(), ReuseHint()], interleaved=True, handed_on=False) == 1

    for wrong, part in (EvictionOptions(order=9), "order = 9"), (EvictionOptions(order=EVICT_MRU), "eviction = mru"):
        options = SlotAllocatorOptions(blocks=2, eviction=ctypes.pointer(wrong))
        stateport.refuses(INVALID_ARGUMENT, part, "slot_allocator_create", byref(options), byref(c_void_p()))
    tree = stateport.make("tree_create", byref(TreeOptions(slots=1)))
    for hint, part in ((ReuseHint(factor=-2), "factor = -2"), (ReuseHint(expected_idle_s=-1), "expected_idle_s = -1"),
                       (ReuseHint(continues=1), "continues = 1"), (ReuseHint(continues=-0.5), "continues = -0.5")):
        prefix = Insert(slot=NONE, hint=ctypes.pointer(hint))
        stateport.refuses(INVALID_ARGUMENT, part, "tree_insert", tree, byref(prefix), byref(InsertResult()))
    stateport.tree_destroy(tree)


def test_align(stateport):
    spec = spec_of_bytes(stateport, 12)  # room for a block table too
    store = stateport.make("store_create", spec, byref(StoreOptions(slots=4)), None)
    table = stateport.make("store_create", spec, byref(StoreOptions(slots=1)), None)
    write(stateport, table, 0, bytes(int32s(1, 3, 0)))
    group = AlignGroup(block_size_tokens=4, blocks=4)
    align = stateport.make("align_create", byref(AlignOptions(max_requests=1, groups=ctypes.pointer(group),
                                                              group_count=1)))
    binding = AlignBinding(store=store, block_table=base_of(stateport, table)[0], row_stride=3, columns=3)
    stateport.align_bind(align, byref(binding), 1)
    write(stateport, store, 1, b"state @ 4...")
    stateport.align_add_request(align, None, I(0), c_int64(4))
    request, computed, scheduled = int32s(0), int32s(4), int32s(1)
    host = AlignBatch(request=ctypes.addressof(request), computed=ctypes.addressof(computed),
                      scheduled=ctypes.addressof(scheduled), rows=1)
    batch = AlignBatch()
    stateport.align_stage(align, None, byref(host), byref(batch))
    stateport.align_pre_step(align, None, byref(batch))
    assert read(stateport, store, 3, 12) == b"state @ 4..."
    for handle, end in (align, "align_destroy"), (store, "store_destroy"), (table, "store_destroy"):
        getattr(stateport, end)(handle)
    stateport.spec_destroy(spec)


def test_align_planner(stateport):
    group = AlignGroup(block_size_tokens=4, blocks=4)
    planner = stateport.make("align_planner_create", byref(AlignOptions(max_requests=1, groups=ctypes.pointer(group),
                                                                        group_count=1)))
    stateport.align_planner_add_requests(planner, int32s(0), (c_int64 * 1)(4), 1)
    request, computed, scheduled, row = int32s(0), int32s(4), int32s(1), int32s(1, 3, 0)
    batch = AlignBatch(request=ctypes.addressof(request), computed=ctypes.addressof(computed),
                       scheduled=ctypes.addressof(scheduled), rows=1)
    step, copies, count = AlignStep(), ctypes.POINTER(SlotCopy)(), c_size_t()
    table = BlockTable(ids=row, id_count=3, row_stride=3, columns=3)
    stateport.align_planner_pre_step(planner, byref(batch), byref(table), 1, byref(step))
    stateport.align_planner_plan(planner, I(0), byref(copies), byref(count))
    assert step.copies == count.value == 1 and (copies[0].src_slot, copies[0].dst_slot) == (1, 3)
    stateport.align_planner_destroy(planner)


def run_pass(stateport, cache, requests, tokens, sampled):
    """Plans and commits one pass over all rows, each of which samples one token. The group's plan and commit."""
    rows = len(requests)
    groups, done_groups = room(GroupPlan, 1), room(GroupCommit, 1)
    plan = PassPlan(groups=groups, group_count=1)
    batch = PassBatch(request=int64s(*requests), tokens=int32s(*tokens), rows=rows)
    stateport.request_cache_plan(cache, byref(batch), byref(plan))
    assert plan.ready and plan.rows == rows and not plan.rows_without_room and all(plan.room[:rows])
    starts = plan.start[:rows]
    done = PassCommit(groups=done_groups, group_count=1)
    stateport.request_cache_commit(cache, c_uint64(plan.pass_), int32s(*[1] * rows), rows, int32s(*sampled), rows,
                                   byref(done))
    stateport.refuses(INVALID_STATE, "pass", "request_cache_commit", cache, c_uint64(plan.pass_),
                      int32s(*[1] * rows), rows, int32s(*sampled), rows, byref(done))
    return starts, groups[0], done_groups[0]


def test_request_caches(stateport):
    for index, in_columns in itertools.product(range(len(CACHE_INDEX)), (False, True)):
        options = RequestCacheOptions(index=index, max_requests=2, max_request_tokens=16, block_size_tokens=4,
                                      kv_tokens=64, events=1)
        if in_columns:
            group = StateGroup(block_size_tokens=4, blocks=16, layout_fingerprint=7)
            options.columns = ColumnLayout(groups=ctypes.pointer(group), group_count=1)
        else:
            options.slots = SlotLayout(layout_fingerprint=7, checkpoints=4)
        cache = stateport.make("request_cache_create", byref(options))
        prompts, started, done = room(Prompt, 2), room(StartedRequest, 2), c_size_t()
        for i, prompt in enumerate(prompts):
            prompt.tokens, prompt.count = int32s(*range(10 * i, 10 * i + 8)), 8
        stateport.request_cache_start(cache, prompts, 2, started, byref(done))
        requests = [request.request for request in started]
        assert done.value == 2 and [request.reused_tokens for request in started] == [0, 0]
        stateport.refuses(NO_CAPACITY, "requests", "request_cache_start", cache, prompts, 1, started, byref(done))
        chunks = (c_int64 * 2)()
        stateport.request_cache_chunk(cache, int64s(*requests), (c_int64 * 2)(8, 8), 2, chunks, None)
        # By blocks prefill also stops where the same prompt hits: its last token is computed anyway.
        assert chunks[:] == ([4, 4] if in_columns else [8, 8])
        starts, plan, _ = run_pass(stateport, cache, requests, (8, 8), (98, 99))
        assert starts == [0, 0] and plan.read_slot[:2] == [NONE, NONE] and plan.write_slot[0] != plan.write_slot[1]
        starts, plan, _ = run_pass(stateport, cache, requests, (1, 1), (88, 89))
        assert starts == [8, 8] and plan.read_slot[0] != NONE
        running = RunningRequest()
        stateport.request_cache_request(cache, c_int64(requests[1]), byref(running))
        assert running.tokens[: running.count] == [*range(10, 18), 99, 89] and running.computed == 9
        stateport.request_cache_end(cache, int64s(*requests), 2, I(FINISHED), None, None)
        stateport.refuses(INVALID_ARGUMENT, "request", "request_cache_end", cache, int64s(requests[0]), 1, I(FINISHED),
                          None, None)
        # The second prompt begins as the first one did.
        prompts[0].tokens, prompts[0].count = int32s(*range(10, 18), 99, 1, 2), 11
        stateport.request_cache_start(cache, prompts, 1, started, byref(done))
        # The state at the end of a prompt of whole blocks does not serve the same prompt: by blocks alone it is kept.
        reused = 8 if in_columns else 4
        assert started[0].reused_tokens == reused
        stats, events, count = CacheStats(), room(CacheEvent, 100), c_size_t()
        stateport.request_cache_stats(cache, byref(stats))
        assert (stats.requests, stats.requests_hit, stats.hit_tokens) == (2, 0, 0)
        stateport.request_cache_end(cache, int64s(started[0].request), 1, I(FINISHED), None, None)
        stateport.request_cache_stats(cache, byref(stats))
        assert (stats.requests, stats.requests_hit, stats.hit_tokens) == (3, 1, reused)
        stateport.request_cache_take_events(cache, events, 100, byref(count))
        assert [event.sequence for event in events[: count.value]] == list(range(1, count.value + 1))
        assert {event.content for event in events[: count.value]} == {0, 1}
        stateport.request_cache_check(cache)
        stateport.request_cache_destroy(cache)


def test_cache_tiers(stateport):
    """Contents beyond the room for two checkpoints move below, and are loaded when a prompt needs them."""
    tiers = TierOptions(host_bytes=1000, state_image_bytes=50, kv_image_bytes=10)
    options = RequestCacheOptions(index=INDEX_TREE, max_requests=1, max_request_tokens=16, block_size_tokens=4,
                                  kv_tokens=32, tiers=tiers,
                                  slots=SlotLayout(layout_fingerprint=7, checkpoints=2, scan_alignment_tokens=-1))
    cache = stateport.make("request_cache_create", byref(options))
    images = {}  # by key: the prompt that it belongs to
    places = {}  # by (content, place)
    answers = []

    def carry_out(answer):
        for move in answer.transfers[: answer.transfer_count]:
            key, place = bytes(move.image), (move.image.content, move.place)
            if move.kind == TRANSFER_STORE:
                assert (move.from_, move.to) == (MEDIUM_DEVICE, MEDIUM_HOST) and move.image.tokens in (4, 8)
                images[key] = places.get(place)
            elif move.kind == TRANSFER_LOAD:
                places[place] = images[key]
            if move.kind == TRANSFER_DROP:
                del images[key]
            else:
                answers.append(TransferResult(move.id, TRANSFER_DONE))

    def settle():
        settled = SettledTransfers()
        stateport.request_cache_settle(cache, (TransferResult * len(answers))(*answers), len(answers), byref(settled))
        answers.clear()
        carry_out(settled)

    def copy(group):
        for move in group.copies[: group.copy_count]:
            places[STATE, move.dst_slot] = places[STATE, move.src_slot]

    def serve(number):
        prompt, started, done = room(Prompt, 1), room(StartedRequest, 1), c_size_t()
        prompt[0].tokens, prompt[0].count = int32s(*range(100 * number, 100 * number + 9)), 9
        stateport.request_cache_start(cache, prompt, 1, started, byref(done))
        request, loading = started[0].request, (c_uint8 * 1)()
        stateport.request_cache_loading(cache, int64s(request), 1, loading)
        assert loading[0] == (started[0].load_tokens > 0)
        carry_out(started[0])
        settle()
        for tokens, samples in ((8, 0), (1, 1)):
            if started[0].load_tokens + started[0].reused_tokens >= tokens > 1:
                continue
            plan_groups, groups = room(GroupPlan, 1), room(GroupCommit, 1)
            plan = PassPlan(groups=plan_groups, group_count=1)
            stateport.request_cache_plan(cache, byref(PassBatch(request=int64s(request), tokens=int32s(tokens),
                                                                rows=1)), byref(plan))
            carry_out(plan)
            copy(plan_groups[0])
            read = plan_groups[0].read_slot[0]
            assert read == NONE or places[STATE, read] == number, (places, read)
            places[STATE, plan_groups[0].write_slot[0]] = number
            done_pass = PassCommit(groups=groups, group_count=1)
            stateport.request_cache_commit(cache, c_uint64(plan.pass_), int32s(samples), 1, int32s(5), samples,
                                           byref(done_pass))
            carry_out(done_pass)
            copy(groups[0])
            settle()
        stateport.request_cache_end(cache, int64s(request), 1, I(FINISHED), None, None)
        settle()
        return started[0]

    assert [serve(number).load_tokens for number in range(4)] == [0] * 4
    started = serve(0)
    assert (started.load_tokens, started.load_medium, started.reused_tokens) == (8, MEDIUM_HOST, 0)
    assert started.load_bytes == 50 + 2 * 10
    usage = TierUsage()
    stateport.request_cache_tier_usage(cache, I(MEDIUM_HOST), byref(usage))
    assert (usage.loads, usage.hit_tokens, usage.lost_images) == (1, 8, 0)
    stateport.refuses(INVALID_STATE, "no file tier", "request_cache_drain", cache, byref(TransferPlan()))
    stateport.request_cache_check(cache)
    stateport.request_cache_destroy(cache)


def test_state_tiers(stateport):
    """A state goes to the host and to a file, and comes back after a restart."""
    spec = spec_of_bytes(stateport, 10)
    store = stateport.make("store_create", spec, byref(StoreOptions(slots=3)), None)
    write(stateport, store, 0, b"stateport!")
    with tempfile.TemporaryDirectory() as folder:
        for index, medium in enumerate((MEDIUM_HOST, MEDIUM_FILE, MEDIUM_FILE)):
            options = StateTiersOptions(states=ctypes.pointer(store), state_count=1, model=b"m", model_bytes=1,
                                        host_bytes=1 << 16, folder=folder.encode(), file_bytes=1 << 20)
            tiers = stateport.make("state_tiers_create", byref(options))
            image = SlotImage(ImageKey((1, 2), 64, STATE, 0), 0)
            first, count, result = c_uint64(), c_size_t(), TransferResult()

            def answer():
                count.value = 0
                while count.value == 0:
                    stateport.state_tiers_poll(tiers, None, byref(result), 1, byref(count))
                return result.id - first.value, result.status

            if index < 2:
                stateport.state_tiers_put(tiers, None, byref(image), 1, I(medium), byref(first))
                assert answer() == (0, TRANSFER_DONE)
            where = c_int32()
            stateport.state_tiers_lookup(tiers, byref(image.key), 1, byref(where))
            assert where.value == medium
            write(stateport, store, 2, b"..........")
            image.slot = 2
            stateport.state_tiers_get(tiers, None, byref(image), 1, byref(first))
            assert answer() == (0, TRANSFER_DONE) and read(stateport, store, 2, 10) == b"stateport!"
            info = StateTiersInfo()
            stateport.state_tiers_describe(tiers, byref(info))
            assert (info.found_images, info.file_images) == ((0, 0), (0, 1), (1, 1))[index]
            stateport.state_tiers_destroy(tiers)
    stateport.store_destroy(store)
    stateport.spec_destroy(spec)


def test_misuse(stateport):
    tree = stateport.make("tree_create", byref(TreeOptions(slots=2)))
    for wrong in (None, c_void_p(8), c_void_p(tree.value ^ 1 << 30), c_void_p(2**64 - 1)):
        stateport.refuses(INVALID_HANDLE, "must be the handle of a tree", "tree_check", wrong)
    stateport.refuses(INVALID_HANDLE, "spec = tree", "spec_describe", tree, byref(SpecInfo()))
    stateport.tree_destroy(tree)
    stateport.refuses(INVALID_HANDLE, "destroyed", "tree_check", tree)
    stateport.refuses(INVALID_HANDLE, "destroyed", "tree_destroy", tree)
    options = TreeOptions(slots=2)
    for size in (0, 7, 5000):
        options.size = size
        stateport.refuses(INVALID_ARGUMENT, "size", "tree_create", byref(options), byref(tree))


def main():
    stateport = Library(sys.argv[1])
    tests = (test_specs, test_slot_allocator, test_checkpoints, test_tree, test_tree_batches, test_victims_of_trees,
             test_victims_of_allocators, test_hints, test_align_planner, test_request_caches, test_cache_tiers,
             test_misuse)
    runtime, backend = c_void_p(), "no device"
    if stateport.has_device:
        if stateport.status("runtime_create", None, byref(runtime)) == BACKEND_ERROR:
            print("skipped:", stateport.text("last_error"))
            return SKIPPED
        assert runtime.value, stateport.text("last_error")
        tests, backend = (*tests, test_stores, test_state_tiers, test_align), stateport.text("backend")
    for test in tests:
        test(stateport)
    if stateport.has_device:
        stateport.runtime_destroy(runtime)
    print(f"stateport {stateport.text('version')} for {backend}, from Python: {len(tests)} tests passed")
    return 0


sys.exit(main())
