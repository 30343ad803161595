# SPDX-License-Identifier: Apache-2.0
"""<stateport.h> through ctypes, as far as tests and benchmarks call it. Standard library only.

    library = stateport_c.Library("libstateport-c.so")  # or libstateport-c-core.so
    spec = library.make("spec_find", b"qwen3-next-80b-a3b", None)"""

import ctypes
import operator
from ctypes import (CFUNCTYPE, POINTER, byref, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint64,
                    c_void_p, sizeof)

OK, INVALID_ARGUMENT, INVALID_HANDLE, NO_CAPACITY, _, BACKEND_ERROR, _, INVALID_STATE = range(8)  # stateport_status
NONE = -1
CONV, RECURRENT = range(2)  # stateport_state_kind
DEFAULT_TYPE, FP32, FP16, BF16, FP64, FP8, INT8, INT8_BLOCK32 = range(8)  # stateport_element_type
SLOTS, TREE, ALIGN = range(3)  # stateport_cache_index
FINISHED, PREEMPTED, ABORTED = range(3)  # stateport_request_end
KV_BLOCK, STATE = range(2)  # stateport_content
DEVICE, HOST, FILE, REMOTE, ELSEWHERE = range(5)  # stateport_medium
STORE, LOAD, COPY, DROP, FIND = range(5)  # stateport_transfer_kind
DONE, NO_ROOM, GONE, DAMAGED, FOREIGN_LAYOUT, WRONG_POSITION, FAILED = range(7)  # stateport_transfer_status
HIX, GDSF, LRU, LFU, FIFO, SLRU, PRIORITY, MRU, FILO = range(9)  # stateport_eviction
INT32S = POINTER(c_int32)
INT64S = POINTER(c_int64)


InvalidValue = ValueError  # raised for a number that does not fit into its member
FLAG = object()  # a member that is an int32_t of C, and false or true
_RANGES = {FLAG: (-2**31, 2**31 - 1), c_int32: (-2**31, 2**31 - 1), c_int64: (-2**63, 2**63 - 1),
           c_uint64: (0, 2**64 - 1), c_size_t: (0, 2**64 - 1)}


def struct(name, **members):
    """A struct of stateport.h: `size` first, set by itself. Numbers that do not fit are refused, not cut."""
    numbers = {member: kind for member, kind in members.items() if kind in _RANGES}

    def init(self, **values):
        for member, value in values.items():
            if member not in members:
                raise TypeError(f"{name} has no member {member}")
            if member in numbers:
                values[member] = _fitting(member, value, numbers[member])
            elif members[member] is c_double and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise InvalidValue(f"{member} is {value!r}, and must be a number")
        ctypes.Structure.__init__(self, size=sizeof(type(self)), **values)

    return type(name, (ctypes.Structure,), {"_fields_": [("size", c_size_t), *_fields(members)], "__init__": init})


def plain_struct(name, **members):
    """A struct of stateport.h without `size`: it is the same for ever. Numbers that do not fit are refused, not cut."""
    numbers = {member: kind for member, kind in members.items() if kind in _RANGES}

    def init(self, **values):
        for member, value in values.items():
            if member not in members:
                raise TypeError(f"{name} has no member {member}")
            if member in numbers:
                values[member] = _fitting(member, value, numbers[member])
        ctypes.Structure.__init__(self, **values)

    return type(name, (ctypes.Structure,), {"_fields_": _fields(members), "__init__": init})


def _fields(members):
    return [(member, c_int32 if kind is FLAG else kind) for member, kind in members.items()]


def _fitting(name, value, kind):
    low, high = _RANGES[kind]
    try:
        if isinstance(value, bool) and kind is not FLAG:
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidValue(f"{name} is {value!r}, and must be an integer") from None
    if not low <= number <= high:
        raise InvalidValue(f"{name} is {number}, and must be from {low} to {high}")
    return number


class SlotCopy(ctypes.Structure):
    _fields_ = [("src", c_int32), ("dst", c_int32), ("conv_shift", c_int32), ("recurrent_src", c_int32)]


TensorSpec = struct("TensorSpec", layer=c_int32, group=c_int32, kind=c_int32, type=c_int32, conv_layout=c_int32,
                    shape=c_int64 * 3, token_stride=c_int64, channel_stride=c_int64)
SpecInfo = struct("SpecInfo", tensors=c_size_t, slot_bytes=c_uint64, fingerprint=c_uint64)
SpecOptions = struct("SpecOptions", drafts=c_int32, conv_layout=c_int32, recurrent_type=c_int32)
RuntimeOptions = struct("RuntimeOptions", device_id=c_int32, host_threads=c_int32)
StoreOptions = struct("StoreOptions", slots=c_int32, layout=c_int32, allocate=c_void_p, deallocate=c_void_p,
                      context=c_void_p)
TensorMemory = struct("TensorMemory", base=c_void_p, stride=c_int64)
Tag = struct("Tag", token_count=c_int64, prefix=c_uint64 * 2, layout_fingerprint=c_uint64)
EvictionOptions = struct("EvictionOptions", order=c_int32, samples=c_int32, state_bytes=c_int64,
                         kv_bytes_per_token=c_int64, benefit_linear=c_double, benefit_quadratic=c_double,
                         positions=c_uint64)
ReuseHint = struct("ReuseHint", last_turn=FLAG, tool_call_pending=FLAG, factor=c_double,
                   expected_idle_s=c_double, session=c_uint64, continues=c_double)
SlotVictim = struct("SlotVictim", block=c_int32, slot=c_int32, token_count=c_int64, prefix=c_uint64 * 2,
                    layout_fingerprint=c_uint64, hash=c_int64)
# Callbacks: Python must hold on to the object as long as the allocator or the tree lives.
OnSlotVictim = CFUNCTYPE(None, POINTER(SlotVictim), c_void_p)
AllocatorOptions = struct("AllocatorOptions", blocks=c_int32, slots=c_int32, policy=c_int32,
                          eviction=POINTER(EvictionOptions), external_blocks=FLAG, on_victim=OnSlotVictim,
                          on_victim_context=c_void_p)
AllocatorInfo = struct("AllocatorInfo", free_blocks=c_int32, cached_blocks=c_int32, free_slots=c_int32,
                       registered_states=c_int32, evictions=c_int64, external_blocks=FLAG)
ServedPrompt = struct("ServedPrompt", now_s=c_double, hashes=POINTER(c_int64), count=c_size_t, usable_blocks=c_int32,
                      matched_blocks=c_int32, hit_blocks=c_int32, hint=POINTER(ReuseHint))
HashOptions = struct("HashOptions", block_size_tokens=c_int32, fast=FLAG, salt=c_void_p, salt_bytes=c_size_t,
                     adapter=c_void_p, adapter_bytes=c_size_t, seed=c_uint64)
Namespace = struct("Namespace", extra_key=c_void_p, extra_key_bytes=c_size_t, salt=c_void_p, salt_bytes=c_size_t)
FoundState = struct("FoundState", index=c_int64, block=c_int32, slot=c_int32)
Restore = struct("Restore", check=c_int32, copy=SlotCopy)
Victim = struct("Victim", node=c_uint64, end_tokens=c_int64, slot=c_int32, prefix=c_uint64 * 2, tokens=INT32S,
                kv=INT32S, count=c_size_t)
OnVictim = CFUNCTYPE(c_int32, POINTER(Victim), c_void_p)  # not 0: keep the slot
TreeOptions = struct("TreeOptions", page_size=c_int32, slots=c_int32, chunk_size=c_int32, max_states_per_path=c_int32,
                     eviction=c_int32, layout_fingerprint=c_uint64, kv_indices=c_int64, hash_seed=c_uint64,
                     state_bytes=c_int64, kv_bytes_per_token=c_int64, eviction_options=POINTER(EvictionOptions),
                     position_tokens=c_int32, on_victim=OnVictim, on_victim_context=c_void_p)
Match = struct("Match", node=c_uint64, tokens=c_int64, walked_tokens=c_int64, branching_position=c_int64,
               slot=c_int32, live_slot=c_int32, lost=c_int32, prefix=c_uint64 * 2, past=c_uint64 * 2,
               kv_node=c_uint64)
Insert = struct("Insert", tokens=INT32S, kv=INT32S, count=c_size_t, name_space=c_void_p, prev_tokens=c_int64,
                slot=c_int32, priority=c_int32, chunked=FLAG, past=c_uint64 * 2, hint=POINTER(ReuseHint),
                request_tokens=c_int64)
InsertResult = struct("InsertResult", prefix_tokens=c_int64, node=c_uint64, state_exists=c_int32)
Lookup = struct("Lookup", tokens=INT32S, count=c_size_t, name_space=c_void_p, kv_out=INT32S, again=FLAG)
TreeSizes = struct("TreeSizes", evictable_tokens=c_int64, protected_tokens=c_int64, evictable_states=c_int64,
                   protected_states=c_int64, free_slots=c_int32)
EvictDemand = struct("EvictDemand", tokens=c_int64, states=c_int64, bytes=c_int64)
EvictResult = struct("EvictResult", tokens=c_int64, states=c_int64)
CheckpointOptions = struct("CheckpointOptions", block_size_tokens=c_int32, alignment_tokens=c_int32, max_rows=c_int32,
                           layout_fingerprint=c_uint64)
PrefillChunk = struct("PrefillChunk", row=c_int32, live_slot=c_int32, prompt_tokens=c_int64, finished_tokens=c_int64,
                      skip_tokens=c_int64, chunk_tokens=c_int64, matched_blocks=c_int32, required_blocks=c_int32,
                      blocks=INT32S, block_count=c_size_t, prefixes=POINTER(c_uint64), prefix_count=c_size_t)
PlannedCheckpoints = struct("PlannedCheckpoints", count=c_int32, offsets=c_int32 * 3, blocks=c_int32 * 3,
                            end_block=c_int32)
CheckpointCommit = struct("CheckpointCommit", from_scratch=POINTER(SlotCopy), scratch_count=c_size_t,
                          from_live=POINTER(SlotCopy), live_count=c_size_t, dropped=c_int32)
CheckpointArrays = struct("CheckpointArrays", offsets=INT32S, counts=INT32S)
AlignGroup = struct("AlignGroup", block_size_tokens=c_int32, blocks=c_int32, conv_window=c_int32,
                    retention_tokens=c_int64)
AlignOptions = struct("AlignOptions", drafts=c_int32, max_requests=c_int32, groups=POINTER(AlignGroup),
                      group_count=c_size_t, mode=c_int32)
BlockTable = struct("BlockTable", ids=INT32S, id_count=c_size_t, row_stride=c_int64, columns=c_int32)
AlignStep = struct("AlignStep", copies=c_int64, skipped_parts=c_int64)
AlignBinding = struct("AlignBinding", store=c_void_p, block_table=c_void_p, row_stride=c_int64, columns=c_int32)
AlignBatch = struct("AlignBatch", request=c_void_p, computed=c_void_p, scheduled=c_void_p, drafts=c_void_p,
                    rows=c_int32)
AlignArrays = struct("AlignArrays", columns=c_void_p, accepted=c_void_p, src_columns=c_void_p, src_offsets=c_void_p)
ChunkCheckpoint = struct("ChunkCheckpoint", start=c_int64, end=c_int64, position=c_int64, hash_block=c_int64,
                         alignment=c_int64)
StepScratch = struct("StepScratch", base=c_void_p, request_stride_bytes=c_int64, step_stride_bytes=c_int64,
                     token_stride=c_int64, channel_stride=c_int64, type=c_int32)
StepTargets = struct("StepTargets", last_step=c_void_p, live_slot=c_void_p, track_step=c_void_p, track_slot=c_void_p,
                     rows=c_int32)


class ImageKey(ctypes.Structure):
    _fields_ = [("prefix", c_uint64 * 2), ("tokens", c_int64), ("content", c_int32), ("group", c_int32)]


class Transfer(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("kind", c_int32), ("from_", c_int32), ("to", c_int32), ("place", c_int32),
                ("request", c_int64), ("image", ImageKey)]


class TransferResult(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("status", c_int32), ("reserved", c_int32)]


class SlotImage(ctypes.Structure):
    _fields_ = [("key", ImageKey), ("slot", c_int32), ("reserved", c_int32)]


LeadingBlocks = CFUNCTYPE(c_int64, POINTER(c_uint64), c_size_t, c_void_p)
TransferPlan = struct("TransferPlan", transfers=POINTER(Transfer), count=c_size_t)
TierOptions = struct("TierOptions", host_bytes=c_int64, file_bytes=c_int64, state_image_bytes=c_int64,
                     kv_image_bytes=c_int64, queue_bytes=c_int64, write_through=FLAG, host_bytes_per_s=c_double,
                     file_bytes_per_s=c_double, tokens_per_s=c_double, leading_blocks=LeadingBlocks,
                     leading_blocks_context=c_void_p, remote_bytes=c_int64, max_finds=c_int32,
                     remote_bytes_per_s=c_double, remote_latency_s=c_double)
TierUsage = struct("TierUsage", states=c_int64, kv_blocks=c_int64, bytes=c_int64, bytes_written=c_int64,
                   bytes_read=c_int64, loads=c_int64, hit_tokens=c_int64, evicted_states=c_int64,
                   dropped_states=c_int64, refused_images=c_int64, lost_images=c_int64,
                   saved_s=c_double, asked_images=c_int64, found_images=c_int64)
TierSpeeds = struct("TierSpeeds", host_bytes_per_s=c_double, file_bytes_per_s=c_double, tokens_per_s=c_double,
                    remote_bytes_per_s=c_double, remote_latency_s=c_double)
Shard = plain_struct("Shard", layer_begin=c_int32, layer_end=c_int32, head_group=c_int32, head_groups=c_int32)
SplitBand = plain_struct("SplitBand", extent=c_int64, parts=c_int32, unique=FLAG)
TensorSplit = plain_struct("TensorSplit", bands=POINTER(SplitBand), band_count=c_size_t, axis=c_int32, reserved=c_int32)
ShardStore = plain_struct("ShardStore", store=c_void_p, shard=Shard)
SharedLayout = plain_struct("SharedLayout", layout=c_void_p, shard=Shard)
ObjectEncoding = plain_struct("ObjectEncoding", conv=c_int32, recurrent=c_int32)
Rank = plain_struct("Rank", global_rank=c_int32, shard=Shard)
HandoverRange = plain_struct("HandoverRange", src_rank=c_int32, dst_rank=c_int32, src_offset=c_uint64,
                             dst_offset=c_uint64, bytes=c_uint64)
HandoverOptions = struct("HandoverOptions", model=c_char_p, model_bytes=c_size_t, content=c_int32, group=c_int32,
                         encoding=ObjectEncoding, head_groups=c_int32, layers_per_object=c_int32)
HandoverMemory = struct("HandoverMemory", base=c_void_p, bytes=c_uint64, place_bytes=c_uint64)
RemoteOptions = struct("RemoteOptions", store=c_void_p, states=POINTER(SharedLayout), state_count=c_size_t,
                       kv=POINTER(SharedLayout), head_groups=c_int32, layers_per_object=c_int32,
                       encodings=POINTER(ObjectEncoding), encoding_count=c_size_t, staging_bytes=c_uint64,
                       transfers_max=c_size_t, queue_bytes=c_uint64, finds_max=c_size_t)
StateTiersOptions = struct("StateTiersOptions", states=POINTER(c_void_p), state_count=c_size_t, kv=c_void_p,
                           model=c_char_p, model_bytes=c_size_t, layer_begin=c_int32, layer_end=c_int32,
                           head_group=c_int32, head_groups=c_int32, host_bytes=c_uint64, folder=c_char_p,
                           file_bytes=c_uint64, free_floor_bytes=c_uint64, file_queue_bytes=c_uint64,
                           staging_bytes=c_uint64, file_transfers_max=c_size_t, file_lanes=c_int32,
                           remote=POINTER(RemoteOptions), scrub=FLAG)
StateTiersInfo = struct("StateTiersInfo", in_flight=c_size_t, host_frame_bytes=c_uint64, host_bytes=c_uint64,
                        host_images=c_int64, host_image_bytes=c_uint64, file_images=c_uint64, file_bytes=c_uint64,
                        found_images=c_uint64, foreign_files=c_uint64, foreign_images=c_uint64,
                        damaged_files=c_uint64, unreadable_files=c_uint64, dropped_temporaries=c_uint64,
                        written_images=c_uint64, written_bytes=c_uint64, read_images=c_uint64, read_bytes=c_uint64,
                        write_seconds=c_double, read_seconds=c_double, remote_written_bytes=c_uint64,
                        remote_read_bytes=c_uint64, remote_write_seconds=c_double, remote_read_seconds=c_double,
                        remote_asked_images=c_uint64, remote_found_images=c_uint64, remote_removed_objects=c_uint64,
                        unscrubbed=c_uint64)
FileTierOptions = struct("FileTierOptions", folder=c_char_p, file_bytes=c_uint64, free_floor_bytes=c_uint64,
                         queue_bytes=c_uint64, states=POINTER(c_void_p), state_count=c_size_t, kv=c_void_p,
                         model=c_char_p, model_bytes=c_size_t, layer_begin=c_int32, layer_end=c_int32,
                         head_group=c_int32, head_groups=c_int32, lanes=c_int32, scrub=FLAG)
FileTierInfo = struct("FileTierInfo", images=c_uint64, file_bytes=c_uint64, write_queue_bytes=c_uint64,
                      read_queue_bytes=c_uint64, found_images=c_uint64, foreign_files=c_uint64,
                      foreign_images=c_uint64, damaged_files=c_uint64, unreadable_files=c_uint64,
                      dropped_temporaries=c_uint64, written_images=c_uint64, written_bytes=c_uint64,
                      read_images=c_uint64, read_bytes=c_uint64, write_seconds=c_double, read_seconds=c_double,
                      unscrubbed=c_uint64)


class RemotePiece(ctypes.Structure):
    _fields_ = [("address", c_void_p), ("bytes", c_size_t)]


class RemoteObject(ctypes.Structure):
    _fields_ = [("ticket", c_uint64), ("key", c_void_p), ("key_bytes", c_size_t), ("pieces", POINTER(RemotePiece)),
                ("piece_count", c_size_t)]


class RemoteKey(ctypes.Structure):
    _fields_ = [("ticket", c_uint64), ("key", c_void_p), ("key_bytes", c_size_t)]


class RemoteCompletion(ctypes.Structure):
    _fields_ = [("ticket", c_uint64), ("status", c_int32), ("reserved", c_int32), ("bytes", c_uint64)]


RemoteLimits = struct("RemoteLimits", queue_bytes=c_uint64, queue_requests=c_uint64)
ValkeyOptions = struct("ValkeyOptions", url=c_char_p, host=c_char_p, port=c_int32, database=c_int32,
                       unix_socket=c_char_p, user=c_char_p, password=c_char_p, tls=FLAG, lanes=c_int32,
                       ca_file=c_char_p, certificate_file=c_char_p, key_file=c_char_p, server_name=c_char_p,
                       connect_timeout_s=c_double, silence_timeout_s=c_double, piece_bytes=c_uint64,
                       lifetime_s=c_double, prefix=c_char_p, queue_bytes=c_uint64, queue_requests=c_uint64)
MooncakeOptions = struct("MooncakeOptions", local_hostname=c_char_p, metadata_server=c_char_p, master=c_char_p,
                         protocol=c_char_p, devices=c_char_p, segment_bytes=c_uint64, buffer_bytes=c_uint64,
                         replicas=c_uint64, lanes=c_int32, queue_bytes=c_uint64, queue_requests=c_uint64)
# Callbacks: Python must hold on to the objects until `destroy` was called.
OnRemoteMemory = CFUNCTYPE(c_int32, c_void_p, c_size_t, c_void_p)
OnRemoteObjects = CFUNCTYPE(c_int32, POINTER(RemoteObject), c_size_t, c_void_p)
OnRemoteKeys = CFUNCTYPE(c_int32, POINTER(RemoteKey), c_size_t, c_void_p)
OnRemotePoll = CFUNCTYPE(c_size_t, POINTER(RemoteCompletion), c_size_t, c_void_p)
OnRemoteEnd = CFUNCTYPE(None, c_void_p)
RemoteCallbacks = struct("RemoteCallbacks", context=c_void_p, needs_registration=FLAG,
                         register_memory=OnRemoteMemory, unregister_memory=OnRemoteMemory, put=OnRemoteObjects,
                         get=OnRemoteObjects, exists=OnRemoteKeys, remove=OnRemoteKeys, poll=OnRemotePoll,
                         destroy=OnRemoteEnd)
RemoteStoreInfo = struct("RemoteStoreInfo", needs_registration=FLAG, accepted_requests=c_uint64,
                         refused_requests=c_uint64, answers=c_uint64 * 7)
ValkeyInfo = struct("ValkeyInfo", connections=c_uint64, failed_attempts=c_uint64, lost_connections=c_uint64,
                    damaged_objects=c_uint64, last_error=c_char * 200)

ImageLayout = struct("ImageLayout", image_bytes=c_uint64, header_bytes=c_uint64, sections=c_size_t)
AttachedImages = struct("AttachedImages", attached=c_size_t, removed=c_size_t, skipped=c_size_t)

StateGroup = struct("StateGroup", block_size_tokens=c_int32, blocks=c_int32, conv_window=c_int32,
                    layout_fingerprint=c_uint64)
CacheOptions = struct("CacheOptions", index=c_int32, align_mode=c_int32, max_requests=c_int32,
                      max_request_tokens=c_int64, drafts=c_int32, block_size_tokens=c_int32, kv_tokens=c_int64,
                      layout_fingerprint=c_uint64, unchecked_layout=FLAG, checkpoints=c_int32,
                      scan_alignment_tokens=c_int32, decode_checkpoint_tokens=c_int64, groups=POINTER(StateGroup),
                      group_count=c_size_t, eviction=POINTER(EvictionOptions), fast_hash=FLAG, overlap=FLAG,
                      events=FLAG, cost_linear=c_double, cost_quadratic=c_double, placement=c_int32,
                      position_tokens=c_int32, budget_bytes=c_int64, spare_checkpoint_tokens=c_int64,
                      tiers=POINTER(TierOptions), separate_checkpoints=FLAG, hash_seed=c_uint64, scrub=FLAG)
CacheInfo = struct("CacheInfo", groups=c_size_t, kv_blocks=c_int32, scratch_slots=c_int32, running_requests=c_int32,
                   transfers_under_way=c_size_t)
MediaKey = struct("MediaKey", id=c_char_p, id_bytes=c_size_t, first_token=c_int64)
Prompt = struct("Prompt", tokens=INT32S, count=c_size_t, name_space=c_void_p, media=POINTER(MediaKey),
                media_count=c_size_t, hint=POINTER(ReuseHint), now_s=c_double, search=c_int32)
StartedRequest = struct("StartedRequest", request=c_int64, lost=c_int32, reused_tokens=c_int64, lost_tokens=c_int64,
                        load_tokens=c_int64, load_bytes=c_int64, load_medium=c_int32)
PassBatch = struct("PassBatch", request=INT64S, tokens=INT32S, drafts=INT32S, rows=c_size_t)


class StateSave(ctypes.Structure):
    _fields_ = [("row", c_int32), ("offset", c_int32), ("slot", c_int32), ("in_scratch", c_int32)]


class StepCommit(ctypes.Structure):
    _fields_ = [("row", c_int32), ("live_step", c_int32), ("live_slot", c_int32), ("kept_step", c_int32),
                ("kept_slot", c_int32)]


GroupPlan = struct("GroupPlan", clear=INT32S, clear_count=c_size_t, copies=POINTER(SlotCopy), copy_count=c_size_t,
                   slots=POINTER(INT32S), slot_count=INT32S, read_column=INT32S, read_bias=INT32S,
                   write_column=INT32S, read_slot=INT32S, read_recurrent_slot=INT32S, write_slot=INT32S,
                   saves=POINTER(StateSave), save_count=c_size_t)
PassPlan = struct("PassPlan", groups=POINTER(GroupPlan), group_count=c_size_t, pass_id=c_uint64, ready=c_int32,
                  rows_without_room=c_int32, rows=c_size_t, room=POINTER(c_uint8), start=POINTER(c_int64),
                  kv=POINTER(INT32S), kv_count=POINTER(c_int64), kv_tokens_per_id=c_int32,
                  scrub_kv=INT32S, scrub_kv_count=c_size_t, scrub_scratch=INT32S, scrub_scratch_count=c_size_t,
                  scrub_draft_rows=INT32S, scrub_draft_rows_count=c_size_t)
GroupCommit = struct("GroupCommit", steps=POINTER(StepCommit), step_count=c_size_t, from_scratch=POINTER(SlotCopy),
                     from_scratch_count=c_size_t, copies=POINTER(SlotCopy), copy_count=c_size_t)
PassCommit = struct("PassCommit", groups=POINTER(GroupCommit), group_count=c_size_t, next=POINTER(PassPlan),
                    has_next=c_int32, published_states=c_int32, dropped_states=c_int32)
RunningRequest = struct("RunningRequest", tokens=INT32S, count=c_size_t, computed=c_int64, kv=INT32S,
                        kv_count=c_size_t, kv_tokens_per_id=c_int32)
HitPlaces = struct("HitPlaces", tokens=c_int64, kv=INT32S, kv_count=c_size_t, kv_tokens_per_id=c_int32, state=c_int32)
CacheEvent = struct("CacheEvent", sequence=c_uint64, kind=c_int32, content=c_int32, medium=c_int32, group=c_int32,
                    prefix=c_uint64 * 2, parent=c_uint64 * 2, tokens=c_int64)
CacheStats = struct("CacheStats", requests=c_int64, requests_hit=c_int64, prompt_tokens=c_int64, hit_tokens=c_int64,
                    hit_flops=c_double, lost_requests=c_int64 * 16, lost_tokens=c_int64 * 16,
                    lost_flops=c_double * 16, evicted_states=c_int64, reuse_age_p50_s=c_double,
                    reuse_age_p90_s=c_double, eviction_age_p50_s=c_double, eviction_age_p90_s=c_double,
                    evicted_kv_tokens=c_int64, kv_tokens=c_int64, states=c_int64)


class Library:
    """stateport.name(...) calls stateport_name. Integers become size_t or 64-bit: wrap int32 arguments in I."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        self.has_device = hasattr(self._library, "stateport_backend")  # else it is libstateport-c-core.so
        for name in ("last_error", "version", *(("backend",) if self.has_device else ())):
            getattr(self._library, f"stateport_{name}").restype = c_char_p

    def text(self, name):
        return getattr(self._library, f"stateport_{name}")().decode()

    def status(self, name, *arguments):
        wide = [c_size_t(value) if isinstance(value, int) else value for value in arguments]
        return getattr(self._library, f"stateport_{name}")(*wide)

    def __getattr__(self, name):
        def call(*arguments):
            status = self.status(name, *arguments)
            assert status == OK, f"stateport_{name}: status {status}: {self.text('last_error')}"

        return call

    def make(self, name, *arguments):
        handle = c_void_p()
        getattr(self, name)(*arguments, byref(handle))
        return handle

    def refuses(self, wanted, part, name, *arguments):
        status = self.status(name, *arguments)
        assert status == wanted, f"stateport_{name}: status {status}, wanted {wanted}"
        assert part in self.text("last_error"), self.text("last_error")


I = c_int32


def room(kind, count):
    """Room for `count` results: an array of structs whose sizes are set."""
    return (kind * count)(*(kind() for _ in range(count)))


def int32s(*values):
    return (c_int32 * len(values))(*values)


def int64s(*values):
    return (c_int64 * len(values))(*values)
