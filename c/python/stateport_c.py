# SPDX-License-Identifier: Apache-2.0
"""<stateport.h> through ctypes. Standard library only. The package stateport has it as stateport._c.

    library = stateport_c.Library("libstateport-c.so")  # or libstateport-c-core.so
    spec = library.make("spec_find", b"qwen3-next-80b-a3b", None)"""

import ctypes
import operator
from ctypes import (CFUNCTYPE, POINTER, byref, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8,
                    c_uint64, c_void_p, sizeof)

INT32S, INT64S = POINTER(c_int32), POINTER(c_int64)
InvalidValue = ValueError  # raised for a number that does not fit into its member
FLAG = object()  # a member that is a stateport_flag of C: false, true or a number
_RANGES = {FLAG: (-2**31, 2**31 - 1), c_int32: (-2**31, 2**31 - 1), c_int64: (-2**63, 2**63 - 1),
           c_uint64: (0, 2**64 - 1), c_size_t: (0, 2**64 - 1)}


def _checked(name, value, kind):
    """A value for a member of a struct. Numbers that do not fit are refused, not cut. A pointer takes an address, bytes
    or another struct, a callback a function, and both take None for null. The struct keeps these objects alive, but
    nothing at an address."""
    if kind in _RANGES:
        return _fitting(name, value, kind)
    if kind is c_double:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidValue(f"{name} is {value!r}, and must be a number")
    elif kind is c_void_p and isinstance(value, bytes):
        return ctypes.cast(c_char_p(value), c_void_p)
    elif value is None and issubclass(kind, (c_void_p, c_char_p, ctypes._Pointer, ctypes._CFuncPtr)):
        return kind()
    elif isinstance(value, ctypes.Structure) and issubclass(kind, ctypes._Pointer):
        return ctypes.pointer(value)
    elif isinstance(value, (int, c_void_p)) and issubclass(kind, ctypes._Pointer):
        return ctypes.cast(value, kind)
    elif callable(value) and issubclass(kind, ctypes._CFuncPtr) and not isinstance(value, kind):
        return kind(value)
    return value


def struct(name, /, **members):
    """A struct of stateport.h with its `size` first, which is set by itself."""
    return _struct(name, {"size": c_size_t} | members)


def plain_struct(name, /, **members):
    """A struct of stateport.h without `size`: it is the same for ever."""
    return _struct(name, members)


def _struct(name, members):
    sized = next(iter(members)) == "size"
    names = list(members)[sized:]
    store = ctypes.Structure.__setattr__
    fields = [(member, c_int32 if kind is FLAG else kind) for member, kind in members.items()]

    def init(self, *in_order, **values):
        if sized:
            store(self, "size", sizeof(self))
        if len(in_order) > len(names):
            raise TypeError(f"{name} has {len(names)} members, not {len(in_order)}")
        for member, value in zip(names, in_order):
            assign(self, member, value)
        for member, value in values.items():
            assign(self, member, value)

    def assign(self, member, value):
        kind = members.get(member)
        if kind is None:
            raise TypeError(f"{name} has no member {member}")
        store(self, member, _checked(member, value, kind))

    return type(name, (ctypes.Structure,), {"_fields_": fields, "__init__": init, "__setattr__": assign})


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


# By the letters of FUNCTIONS.
ARGUMENTS = {"p": c_void_p, "t": c_char_p, "i": c_int32, "l": c_int64, "u": c_uint64, "z": c_size_t, "d": c_double}


class Library:
    """library.name(…) calls stateport_name."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        self.has_device = hasattr(self._library, "stateport_backend")  # else it is libstateport-c-core.so
        for name in ("last_error", "version", *(("backend",) if self.has_device else ())):
            getattr(self._library, f"stateport_{name}").restype = c_char_p
        for name, letters in FUNCTIONS.items():
            if hasattr(self._library, f"stateport_{name}"):
                getattr(self._library, f"stateport_{name}").argtypes = [ARGUMENTS[letter] for letter in letters]

    def text(self, name):
        return getattr(self._library, f"stateport_{name}")().decode()

    def status(self, name, *arguments):
        return getattr(self._library, f"stateport_{name}")(*arguments)

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


# --- Generated from the headers by generate.py: do not edit below this line. ---
NONE = -1
ANY_DEVICE = -1
TRANSFER_STATUSES_MAX = 16
LOST_REASONS_MAX = 16
MEDIA_MAX = 8
AGE_BUCKETS = 24
TOKEN_BUCKETS = 16
CHECKPOINTS_MAX = 3
(ALIGN_MODE_ALIGN, ALIGN_MODE_NONE, ALIGN_MODE_ALL) = range(3)
ALIGN_MODE = ("align", "none", "all")
AlignGroup = struct("AlignGroup", block_size_tokens=c_int32, blocks=c_int32, conv_window=c_int32,
                    retention_tokens=c_int64)
AlignOptions = struct("AlignOptions", drafts=c_int32, max_requests=c_int32, groups=POINTER(AlignGroup),
                      group_count=c_size_t, mode=c_int32)
AlignBatch = struct("AlignBatch", request=INT32S, computed=INT32S, scheduled=INT32S, drafts=INT32S, rows=c_int32)
AlignArrays = struct("AlignArrays", columns=INT32S, accepted=INT32S, src_columns=INT32S, src_offsets=INT32S)
SlotCopy = plain_struct("SlotCopy", src_slot=c_int32, dst_slot=c_int32, conv_shift=c_int32, recurrent_src_slot=c_int32)
Tag = struct("Tag", token_count=c_int64, prefix=c_uint64 * 2, layout_fingerprint=c_uint64)
(TAG_MATCH, TAG_EMPTY, TAG_TOKEN_COUNT, TAG_PREFIX, TAG_LAYOUT) = range(5)
TAG_CHECK = ("match", "empty", "token_count", "prefix", "layout")
(OK, INVALID_ARGUMENT, INVALID_HANDLE, NO_CAPACITY, OUT_OF_MEMORY, BACKEND_ERROR, INTERNAL_ERROR,
 INVALID_STATE) = range(8)
STATUS = ("ok", "invalid_argument", "invalid_handle", "no_capacity", "out_of_memory", "backend_error", "internal_error",
          "invalid_state")
(DEFAULT_TYPE, FP32, FP16, BF16, FP64, FP8, INT8, INT8_BLOCK32) = range(8)
ELEMENT_TYPE = ("default_type", "fp32", "fp16", "bf16", "fp64", "fp8", "int8", "int8_block32")
(CONV, RECURRENT) = range(2)
STATE_KIND = ("conv", "recurrent")
(SD, DS) = range(2)
CONV_LAYOUT = ("sd", "ds")
SpecOptions = struct("SpecOptions", drafts=c_int32, conv_layout=c_int32, recurrent_type=c_int32)
TensorSpec = struct("TensorSpec", layer=c_int32, group=c_int32, kind=c_int32, type=c_int32, conv_layout=c_int32,
                    shape=c_int64 * 3, token_stride=c_int64, channel_stride=c_int64)
SpecInfo = struct("SpecInfo", tensors=c_size_t, slot_bytes=c_uint64, fingerprint=c_uint64)
ModelInfo = struct("ModelInfo", name=c_char_p, kind=c_char_p, status=c_char_p, layers=c_int32, state_layers=c_int32,
                   kv_bytes_per_token=c_uint64)
RuntimeOptions = struct("RuntimeOptions", device_id=c_int32, host_threads=c_int32)
(LAYER_MAJOR, SLOT_MAJOR) = range(2)
STORE_LAYOUT = ("layer_major", "slot_major")
StoreOptions = struct("StoreOptions", slots=c_int32, layout=c_int32,
                      allocate=CFUNCTYPE(c_void_p, c_size_t, c_size_t, c_void_p, c_void_p),
                      deallocate=CFUNCTYPE(None, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p), context=c_void_p)
TensorMemory = struct("TensorMemory", base=c_void_p, slot_stride_bytes=c_int64)
AlignBinding = struct("AlignBinding", store=c_void_p, block_table=INT32S, row_stride=c_int64, columns=c_int32)
(PART_KV, PART_STATES) = range(2)
MEMORY_PART = ("kv", "states")
(MOVE_UNMAP, MOVE_MAP) = range(2)
MOVE_KIND = ("unmap", "map")
MemoryMove = plain_struct("MemoryMove", id=c_uint64, kind=c_int32, part=c_int32, extent=c_int32, reserved=c_int32)
(EVICT_HIX, EVICT_GDSF, EVICT_LRU, EVICT_LFU, EVICT_FIFO, EVICT_SLRU, EVICT_PRIORITY, EVICT_MRU, EVICT_FILO) = range(9)
EVICTION = ("hix", "gdsf", "lru", "lfu", "fifo", "slru", "priority", "mru", "filo")
EvictionOptions = struct("EvictionOptions", order=c_int32, samples=c_int32, state_bytes=c_int64,
                         kv_bytes_per_token=c_int64, benefit_linear=c_double, benefit_quadratic=c_double,
                         positions=c_uint64)
ReuseHint = struct("ReuseHint", last_turn=FLAG, tool_call_pending=FLAG, factor=c_double, expected_idle_s=c_double,
                   session=c_uint64, continues=c_double)
(MEDIUM_DEVICE, MEDIUM_HOST, MEDIUM_FILE, MEDIUM_REMOTE, MEDIUM_ELSEWHERE) = range(5)
MEDIUM = ("device", "host", "file", "remote", "elsewhere")
(KV_BLOCK, STATE) = range(2)
CONTENT = ("kv_block", "state")
ImageKey = plain_struct("ImageKey", prefix=c_uint64 * 2, tokens=c_int64, content=c_int32, group=c_int32)
(TRANSFER_STORE, TRANSFER_LOAD, TRANSFER_COPY, TRANSFER_DROP, TRANSFER_FIND) = range(5)
TRANSFER_KIND = ("store", "load", "copy", "drop", "find")
Transfer = plain_struct("Transfer", id=c_uint64, kind=c_int32, from_=c_int32, to=c_int32, place=c_int32,
                        request=c_int64, image=ImageKey)
TransferPlan = struct("TransferPlan", transfers=POINTER(Transfer), count=c_size_t)
(TRANSFER_DONE, TRANSFER_NO_ROOM, TRANSFER_GONE, TRANSFER_DAMAGED, TRANSFER_FOREIGN_LAYOUT, TRANSFER_WRONG_POSITION,
 TRANSFER_FAILED) = range(7)
TRANSFER_STATUS = ("done", "no_room", "gone", "damaged", "foreign_layout", "wrong_position", "failed")
TransferResult = plain_struct("TransferResult", id=c_uint64, status=c_int32, reserved=c_int32)
TierSpeeds = struct("TierSpeeds", host_bytes_per_s=c_double, file_bytes_per_s=c_double, tokens_per_s=c_double,
                    remote_bytes_per_s=c_double, remote_latency_s=c_double)
TierOptions = struct("TierOptions", host_bytes=c_int64, file_bytes=c_int64, state_image_bytes=c_int64,
                     kv_image_bytes=c_int64, queue_bytes=c_int64, write_through=FLAG, host_bytes_per_s=c_double,
                     file_bytes_per_s=c_double, tokens_per_s=c_double,
                     leading_blocks=CFUNCTYPE(c_int64, POINTER(c_uint64), c_size_t, c_void_p),
                     leading_blocks_context=c_void_p, remote_bytes=c_int64, max_finds=c_int32,
                     remote_bytes_per_s=c_double, remote_latency_s=c_double)
TierUsage = struct("TierUsage", states=c_int64, kv_blocks=c_int64, bytes=c_int64, bytes_written=c_int64,
                   bytes_read=c_int64, loads=c_int64, hit_tokens=c_int64, evicted_states=c_int64,
                   dropped_states=c_int64, refused_images=c_int64, lost_images=c_int64, saved_s=c_double,
                   asked_images=c_int64, found_images=c_int64, reads=c_int64, read_bytes=c_int64, writes=c_int64,
                   write_bytes=c_int64, finds=c_int64, ended_reads=c_int64 * 16, ended_writes=c_int64 * 16,
                   ended_finds=c_int64 * 16)
(INDEX_HASH, INDEX_TREE) = range(2)
CACHE_INDEX = ("hash", "tree")
(HASH_SHA256, HASH_XXH3_128) = range(2)
BLOCK_HASH = ("sha256", "xxh3_128")
(PLACE_PASSES, PLACE_LAST, PLACE_BRANCH, PLACE_RUNGS, PLACE_EVERY) = range(5)
CHECKPOINT_PLACEMENT = ("passes", "last", "branch", "rungs", "every")
Arena = struct("Arena", bytes=c_int64, kv_extent_count=c_int32, kv_extent_bytes=c_int64, states_extent_count=c_int32,
               states_extent_bytes=c_int64, state_share=c_double)
SlotLayout = struct("SlotLayout", layout_fingerprint=c_uint64, checkpoints=c_int32, separate_checkpoints=FLAG,
                    scan_alignment_tokens=c_int32, placement=c_int32, tail_tokens=c_int64, breakpoint_saves=c_int32,
                    spare_checkpoint_tokens=c_int64, decode_checkpoint_tokens=c_int64, budget_bytes=c_int64,
                    arena=POINTER(Arena))
StateGroup = struct("StateGroup", block_size_tokens=c_int32, blocks=c_int32, conv_window=c_int32,
                    layout_fingerprint=c_uint64)
ColumnLayout = struct("ColumnLayout", mode=c_int32, groups=POINTER(StateGroup), group_count=c_size_t,
                      tail_tokens=c_int64)
ShareRunning = struct("ShareRunning", least_tokens=c_int64, longest_commits=c_int32)
PrefixOptions = struct("PrefixOptions", pins=c_int32, pinned_bytes=c_int64, prefetches=c_int32,
                       prefetched_bytes=c_int64)
SessionOptions = struct("SessionOptions", remembered=c_int32, idle_s=c_double, most_bytes=c_int64)
RequestCacheOptions = struct("RequestCacheOptions", index=c_int32, slots=POINTER(SlotLayout),
                             columns=POINTER(ColumnLayout), max_requests=c_int32, max_request_tokens=c_int64,
                             drafts=c_int32, block_size_tokens=c_int32, kv_tokens=c_int64, unchecked_layout=FLAG,
                             eviction=POINTER(EvictionOptions), position_tokens=c_int32, hash=c_int32,
                             hash_seed=c_uint64, epoch=c_uint64, overlap=FLAG, events=FLAG, scrub=FLAG, integrity=FLAG,
                             tenant_quotas=c_int32, share_running=POINTER(ShareRunning),
                             prefixes=POINTER(PrefixOptions), sessions=POINTER(SessionOptions),
                             tiers=POINTER(TierOptions), cost_linear=c_double, cost_quadratic=c_double)
HashOptions = struct("HashOptions", block_size_tokens=c_int32, fast=FLAG, salt=c_void_p, salt_bytes=c_size_t,
                     adapter=c_void_p, adapter_bytes=c_size_t, seed=c_uint64, epoch=c_uint64)
MediaKey = struct("MediaKey", id=c_void_p, id_bytes=c_size_t, first_token=c_int64)
(LOST_NOTHING, LOST_NO_CHECKPOINT, LOST_OFF_GRID, LOST_EVICTED, LOST_TOO_FEW_TOKENS, LOST_LOCKED_POOL, LOST_EVICTED_KV,
 LOST_NEVER_STORED, LOST_TIER_COSTS_MORE, LOST_TIER_FAILED) = range(10)
LOST_HIT = ("nothing", "no_checkpoint", "off_grid", "evicted", "too_few_tokens", "locked_pool", "evicted_kv",
            "never_stored", "tier_costs_more", "tier_failed")
CacheStats = struct("CacheStats", requests=c_int64, requests_hit=c_int64, prompt_tokens=c_int64, hit_tokens=c_int64,
                    hit_flops=c_double, lost_requests=c_int64 * 16, lost_tokens=c_int64 * 16, lost_flops=c_double * 16,
                    evicted_states=c_int64, reuse_age_p50_s=c_double, reuse_age_p90_s=c_double,
                    eviction_age_p50_s=c_double, eviction_age_p90_s=c_double, evicted_kv_tokens=c_int64,
                    kv_tokens=c_int64, states=c_int64, breakpoints_kept=c_int64, breakpoints_refused=c_int64,
                    awaited_tokens=c_int64, forks=c_int64, loaded_tokens=c_int64 * 8, reuse_ages=c_int64 * 24,
                    eviction_ages=c_int64 * 24, hit_depths=c_int64 * 16, loss_depths=c_int64 * 16)
Victim = struct("Victim", node=c_uint64, end_tokens=c_int64, slot=c_int32, prefix=c_uint64 * 2, tokens=INT32S,
                kv=INT32S, count=c_size_t)
TreeOptions = struct("TreeOptions", page_size=c_int32, slots=c_int32, chunk_size=c_int32, max_states_per_path=c_int32,
                     eviction=c_int32, layout_fingerprint=c_uint64, kv_indices=c_int64, hash_seed=c_uint64,
                     state_bytes=c_int64, kv_bytes_per_token=c_int64, eviction_options=POINTER(EvictionOptions),
                     position_tokens=c_int32, on_victim=CFUNCTYPE(c_int32, POINTER(Victim), c_void_p),
                     on_victim_context=c_void_p)
Namespace = struct("Namespace", extra_key=c_void_p, extra_key_bytes=c_size_t, salt=c_void_p, salt_bytes=c_size_t)
Match = struct("Match", node=c_uint64, tokens=c_int64, walked_tokens=c_int64, branching_position=c_int64, slot=c_int32,
               live_slot=c_int32, lost=c_int32, prefix=c_uint64 * 2, past=c_uint64 * 2, kv_node=c_uint64)
Insert = struct("Insert", tokens=INT32S, kv=INT32S, count=c_size_t, name_space=POINTER(Namespace), prev_tokens=c_int64,
                slot=c_int32, priority=c_int32, chunked=FLAG, past=c_uint64 * 2, hint=POINTER(ReuseHint),
                request_tokens=c_int64)
InsertResult = struct("InsertResult", prefix_tokens=c_int64, node=c_uint64, state_exists=c_int32)
Lookup = struct("Lookup", tokens=INT32S, count=c_size_t, name_space=POINTER(Namespace), kv_out=INT32S, again=FLAG)
EvictDemand = struct("EvictDemand", tokens=c_int64, states=c_int64, bytes=c_int64)
EvictResult = struct("EvictResult", tokens=c_int64, states=c_int64)
(VICTIM_TOKENS, VICTIM_STATES, VICTIM_BYTES) = range(3)
VICTIM_KIND = ("tokens", "states", "bytes")
TreeSizes = struct("TreeSizes", evictable_tokens=c_int64, protected_tokens=c_int64, evictable_states=c_int64,
                   protected_states=c_int64, free_slots=c_int32)
(SEARCH_EVERYWHERE, SEARCH_KNOWN, SEARCH_DEVICE) = range(3)
PROMPT_SEARCH = ("everywhere", "known", "device")
Prompt = struct("Prompt", tokens=INT32S, count=c_size_t, name_space=POINTER(Namespace), media=POINTER(MediaKey),
                media_count=c_size_t, hint=POINTER(ReuseHint), now_s=c_double, search=c_int32, breakpoints=INT64S,
                breakpoint_count=c_size_t)
StartedRequest = struct("StartedRequest", request=c_int64, lost=c_int32, reused_tokens=c_int64, lost_tokens=c_int64,
                        load_tokens=c_int64, load_bytes=c_int64, load_medium=c_int32, waits_for_request=c_int64,
                        waits_for_tokens=c_int64, transfers=POINTER(Transfer), transfer_count=c_size_t,
                        breakpoints=INT64S, breakpoint_count=c_size_t)
PassBatch = struct("PassBatch", request=INT64S, tokens=INT32S, drafts=INT32S, rows=c_size_t, parents=INT32S,
                   parent_count=c_size_t)
StateSave = plain_struct("StateSave", row=c_int32, offset=c_int32, slot=c_int32, in_scratch=c_int32)
GroupPlan = struct("GroupPlan", clear=INT32S, clear_count=c_size_t, copies=POINTER(SlotCopy), copy_count=c_size_t,
                   slots=POINTER(INT32S), slot_count=INT32S, read_column=INT32S, read_bias=INT32S, write_column=INT32S,
                   read_slot=INT32S, read_recurrent_slot=INT32S, write_slot=INT32S, saves=POINTER(StateSave),
                   save_count=c_size_t)
PassPlan = struct("PassPlan", groups=POINTER(GroupPlan), group_count=c_size_t, pass_=c_uint64,
                  transfers=POINTER(Transfer), transfer_count=c_size_t, ready=c_int32, rows_without_room=c_int32,
                  rows=c_size_t, room=POINTER(c_uint8), start=INT64S, kv=POINTER(INT32S), kv_count=INT64S,
                  kv_tokens_per_id=c_int32, scrub_kv=INT32S, scrub_kv_count=c_size_t, scrub_scratch=INT32S,
                  scrub_scratch_count=c_size_t, scrub_draft_rows=INT32S, scrub_draft_rows_count=c_size_t,
                  kv_copies=POINTER(SlotCopy), kv_copy_count=c_size_t, moves=POINTER(MemoryMove), move_count=c_size_t,
                  fork_copies=POINTER(SlotCopy), fork_copy_count=c_size_t)
StepCommit = plain_struct("StepCommit", row=c_int32, live_step=c_int32, live_slot=c_int32, kept_step=c_int32,
                          kept_slot=c_int32)
GroupCommit = struct("GroupCommit", steps=POINTER(StepCommit), step_count=c_size_t, from_scratch=POINTER(SlotCopy),
                     from_scratch_count=c_size_t, copies=POINTER(SlotCopy), copy_count=c_size_t)
RefusedBreakpoint = plain_struct("RefusedBreakpoint", request=c_int64, tokens=c_int64)
KvMove = plain_struct("KvMove", src=c_int32, dst=c_int32)
PassCommit = struct("PassCommit", groups=POINTER(GroupCommit), group_count=c_size_t, next=POINTER(PassPlan),
                    transfers=POINTER(Transfer), transfer_count=c_size_t, has_next=c_int32, published_states=c_int32,
                    dropped_states=c_int32, refused_breakpoints=POINTER(RefusedBreakpoint),
                    refused_breakpoint_count=c_size_t, kv_copies=POINTER(SlotCopy), kv_copy_count=c_size_t,
                    moves=POINTER(MemoryMove), move_count=c_size_t, steps=INT32S, kv_moves=POINTER(KvMove),
                    kv_move_count=c_size_t)
RunningRequest = struct("RunningRequest", tokens=INT32S, count=c_size_t, computed=c_int64, kv=INT32S, kv_count=c_size_t,
                        kv_tokens_per_id=c_int32)
HitPlaces = struct("HitPlaces", tokens=c_int64, kv=INT32S, kv_count=c_size_t, kv_tokens_per_id=c_int32, state=c_int32)
(FINISHED, PREEMPTED, ABORTED) = range(3)
REQUEST_END = ("finished", "preempted", "aborted")
EndedRequests = struct("EndedRequests", transfers=POINTER(Transfer), transfer_count=c_size_t, copies=POINTER(SlotCopy),
                       copy_count=c_size_t)
(EVENT_STORED, EVENT_REMOVED, EVENT_CLEARED) = range(3)
EVENT_KIND = ("stored", "removed", "cleared")
CacheEvent = struct("CacheEvent", sequence=c_uint64, kind=c_int32, content=c_int32, medium=c_int32, group=c_int32,
                    prefix=c_uint64 * 2, parent=c_uint64 * 2, tokens=c_int64)
RequestCacheInfo = struct("RequestCacheInfo", groups=c_size_t, kv_blocks=c_int32, scratch_slots=c_int32,
                          running_requests=c_int32, transfers_under_way=c_size_t, waiting_for_answers=c_int32,
                          waiting_for_loads=c_int32, waiting_for_requests=c_int32)
ArenaUsage = struct("ArenaUsage", kv_bytes=c_int64, state_bytes=c_int64, moves=c_int64, refused_moves=c_int64)
MemoryPlan = struct("MemoryPlan", kv_copies=POINTER(SlotCopy), kv_copy_count=c_size_t, moves=POINTER(MemoryMove),
                    move_count=c_size_t)
(FORGET_NAME_SPACE, FORGET_EXTRA_KEY, FORGET_SALT, FORGET_ALL) = range(4)
FORGET_BY = ("name_space", "extra_key", "salt", "all")
ForgetRecord = plain_struct("ForgetRecord", cache=c_uint64, call=c_uint64, names=c_uint64, by=c_int32, reserved=c_int32)
(CHECK_PUBLISHED, CHECK_READ) = range(2)
CHECK_KIND = ("published", "read")
StateCheck = plain_struct("StateCheck", kind=c_int32, group=c_int32, slot=c_int32, reserved=c_int32, content=c_uint64,
                          request=c_int64, pass_=c_uint64)
(FAULT_CHANGED, FAULT_OTHER_STATE, FAULT_NOT_FINITE) = range(3)
FAULT_KIND = ("changed", "other_state", "not_finite")
StateFault = plain_struct("StateFault", kind=c_int32, tensor=c_int32, check=StateCheck)
IntegrityUsage = struct("IntegrityUsage", published=c_int64, reads=c_int64, changed=c_int64, other_state=c_int64,
                        not_finite=c_int64, withdrawn_states=c_int64, unchecked_states=c_int64, checks_max=c_int64)
PinnedPrefix = struct("PinnedPrefix", pin=c_uint64, tokens=c_int64, refused=FLAG)
Prefetch = struct("Prefetch", prefetch=c_uint64, cached_tokens=c_int64, load_tokens=c_int64, load_bytes=c_int64,
                  load_medium=c_int32, refused=FLAG, transfers=POINTER(Transfer), transfer_count=c_size_t)
PrefixUsage = struct("PrefixUsage", pins=c_int32, pinned_kv_tokens=c_int64, pinned_states=c_int64, pinned_bytes=c_int64,
                     prefetches=c_int32, made_pins=c_int64, refused_pins=c_int64, ended_leases=c_int64,
                     made_prefetches=c_int64, refused_prefetches=c_int64, prefetched_tokens=c_int64)
SessionUsage = struct("SessionUsage", is_open=FLAG, kv_tokens=c_int64, states=c_int64, bytes=c_int64)
SettledTransfers = struct("SettledTransfers", ready_requests=c_int32, transfers=POINTER(Transfer),
                          transfer_count=c_size_t)
Shard = plain_struct("Shard", layer_begin=c_int32, layer_end=c_int32, head_group=c_int32, head_groups=c_int32)
SplitBand = plain_struct("SplitBand", extent=c_int64, parts=c_int32, unique=FLAG)
TensorSplit = plain_struct("TensorSplit", bands=POINTER(SplitBand), band_count=c_size_t, axis=c_int32, reserved=c_int32)
(BLOCK_LRU, BLOCK_REF_ZERO) = range(2)
BLOCK_POLICY = ("lru", "ref_zero")
SlotVictim = struct("SlotVictim", block=c_int32, slot=c_int32, token_count=c_int64, prefix=c_uint64 * 2,
                    layout_fingerprint=c_uint64, hash=c_int64)
SlotAllocatorOptions = struct("SlotAllocatorOptions", blocks=c_int32, slots=c_int32, policy=c_int32,
                              eviction=POINTER(EvictionOptions), external_blocks=FLAG,
                              on_victim=CFUNCTYPE(None, POINTER(SlotVictim), c_void_p), on_victim_context=c_void_p)
SlotAllocatorInfo = struct("SlotAllocatorInfo", free_blocks=c_int32, cached_blocks=c_int32, free_slots=c_int32,
                           registered_states=c_int32, evictions=c_int64, external_blocks=FLAG)
FoundState = struct("FoundState", index=c_int64, block=c_int32, slot=c_int32)
Restore = struct("Restore", check=c_int32, copy=SlotCopy)
ServedPrompt = struct("ServedPrompt", now_s=c_double, hashes=INT64S, count=c_size_t, usable_blocks=c_int32,
                      matched_blocks=c_int32, hit_blocks=c_int32, hint=POINTER(ReuseHint))
ElasticOptions = struct("ElasticOptions", limit_bytes=c_uint64, granularity_bytes=c_uint64)
ElasticUsage = struct("ElasticUsage", granularity_bytes=c_uint64, limit_bytes=c_uint64, mapped_bytes=c_uint64,
                      held_bytes=c_uint64)
ElasticStoreInfo = struct("ElasticStoreInfo", extent_count=c_int32, extents=c_int32, extent_bytes=c_int64,
                          fixed_bytes=c_int64, mapped_extents=c_int32)
FileTierOptions = struct("FileTierOptions", folder=c_char_p, file_bytes=c_uint64, free_floor_bytes=c_uint64,
                         queue_bytes=c_uint64, states=POINTER(c_void_p), state_count=c_size_t, kv=c_void_p,
                         model=c_void_p, model_bytes=c_size_t, layer_begin=c_int32, layer_end=c_int32,
                         head_group=c_int32, head_groups=c_int32, lanes=c_int32, scrub=FLAG)
FileTierInfo = struct("FileTierInfo", images=c_uint64, file_bytes=c_uint64, write_queue_bytes=c_uint64,
                      read_queue_bytes=c_uint64, found_images=c_uint64, foreign_files=c_uint64, foreign_images=c_uint64,
                      damaged_files=c_uint64, unreadable_files=c_uint64, dropped_temporaries=c_uint64,
                      written_images=c_uint64, written_bytes=c_uint64, read_images=c_uint64, read_bytes=c_uint64,
                      write_seconds=c_double, read_seconds=c_double, unscrubbed=c_uint64)
ImageLayout = struct("ImageLayout", image_bytes=c_uint64, header_bytes=c_uint64, sections=c_size_t)
RemotePiece = plain_struct("RemotePiece", address=c_void_p, bytes=c_size_t)
RemoteObject = plain_struct("RemoteObject", ticket=c_uint64, key=c_void_p, key_bytes=c_size_t,
                            pieces=POINTER(RemotePiece), piece_count=c_size_t)
RemoteKey = plain_struct("RemoteKey", ticket=c_uint64, key=c_void_p, key_bytes=c_size_t)
RemoteCompletion = plain_struct("RemoteCompletion", ticket=c_uint64, status=c_int32, reserved=c_int32, bytes=c_uint64)
RemoteLimits = struct("RemoteLimits", queue_bytes=c_uint64, queue_requests=c_uint64)
ValkeyOptions = struct("ValkeyOptions", url=c_char_p, host=c_char_p, port=c_int32, database=c_int32,
                       unix_socket=c_char_p, user=c_char_p, password=c_char_p, tls=FLAG, lanes=c_int32,
                       ca_file=c_char_p, certificate_file=c_char_p, key_file=c_char_p, server_name=c_char_p,
                       connect_timeout_s=c_double, silence_timeout_s=c_double, piece_bytes=c_uint64,
                       lifetime_s=c_double, prefix=c_char_p, queue_bytes=c_uint64, queue_requests=c_uint64)
MooncakeOptions = struct("MooncakeOptions", local_hostname=c_char_p, metadata_server=c_char_p, master=c_char_p,
                         protocol=c_char_p, devices=c_char_p, segment_bytes=c_uint64, buffer_bytes=c_uint64,
                         replicas=c_uint64, lanes=c_int32, queue_bytes=c_uint64, queue_requests=c_uint64)
RemoteCallbacks = struct("RemoteCallbacks", context=c_void_p, needs_registration=FLAG,
                         register_memory=CFUNCTYPE(c_int32, c_void_p, c_size_t, c_void_p),
                         unregister_memory=CFUNCTYPE(c_int32, c_void_p, c_size_t, c_void_p),
                         put=CFUNCTYPE(None, POINTER(RemoteObject), c_size_t, POINTER(RemoteCompletion), c_void_p),
                         get=CFUNCTYPE(None, POINTER(RemoteObject), c_size_t, POINTER(RemoteCompletion), c_void_p),
                         exists=CFUNCTYPE(None, POINTER(RemoteKey), c_size_t, POINTER(RemoteCompletion), c_void_p),
                         remove=CFUNCTYPE(None, POINTER(RemoteKey), c_size_t, POINTER(RemoteCompletion), c_void_p),
                         destroy=CFUNCTYPE(None, c_void_p), queue_bytes=c_uint64, queue_requests=c_uint64)
RemoteStoreInfo = struct("RemoteStoreInfo", needs_registration=FLAG, accepted_requests=c_uint64,
                         refused_requests=c_uint64, answers=c_uint64 * 7)
ValkeyInfo = struct("ValkeyInfo", connections=c_uint64, failed_attempts=c_uint64, lost_connections=c_uint64,
                    damaged_objects=c_uint64, last_error=c_char * 200)
SharedLayout = plain_struct("SharedLayout", layout=c_void_p, shard=Shard)
ObjectEncoding = plain_struct("ObjectEncoding", conv=c_int32, recurrent=c_int32)
RemoteOptions = struct("RemoteOptions", store=c_void_p, states=POINTER(SharedLayout), state_count=c_size_t,
                       kv=POINTER(SharedLayout), head_groups=c_int32, layers_per_object=c_int32,
                       encodings=POINTER(ObjectEncoding), encoding_count=c_size_t, staging_bytes=c_uint64)
StateTiersOptions = struct("StateTiersOptions", states=POINTER(c_void_p), state_count=c_size_t, kv=c_void_p,
                           model=c_void_p, model_bytes=c_size_t, layer_begin=c_int32, layer_end=c_int32,
                           head_group=c_int32, head_groups=c_int32, host_bytes=c_uint64, folder=c_char_p,
                           file_bytes=c_uint64, free_floor_bytes=c_uint64, file_queue_bytes=c_uint64,
                           staging_bytes=c_uint64, file_transfers_max=c_size_t, file_lanes=c_int32,
                           remote=POINTER(RemoteOptions), scrub=FLAG)
StateTiersInfo = struct("StateTiersInfo", in_flight=c_size_t, host_frame_bytes=c_uint64, host_bytes=c_uint64,
                        host_images=c_int64, host_image_bytes=c_uint64, file_images=c_uint64, file_bytes=c_uint64,
                        found_images=c_uint64, foreign_files=c_uint64, foreign_images=c_uint64, damaged_files=c_uint64,
                        unreadable_files=c_uint64, dropped_temporaries=c_uint64, written_images=c_uint64,
                        written_bytes=c_uint64, read_images=c_uint64, read_bytes=c_uint64, write_seconds=c_double,
                        read_seconds=c_double, remote_written_bytes=c_uint64, remote_read_bytes=c_uint64,
                        remote_write_seconds=c_double, remote_read_seconds=c_double, remote_asked_images=c_uint64,
                        remote_found_images=c_uint64, remote_removed_objects=c_uint64, unscrubbed=c_uint64)
AttachedImages = struct("AttachedImages", attached=c_size_t, removed=c_size_t, skipped=c_size_t)
SlotImage = plain_struct("SlotImage", key=ImageKey, slot=c_int32, reserved=c_int32)
Rank = plain_struct("Rank", global_rank=c_int32, shard=Shard)
HandoverRange = plain_struct("HandoverRange", src_rank=c_int32, dst_rank=c_int32, src_offset=c_uint64,
                             dst_offset=c_uint64, bytes=c_uint64)
HandoverOptions = struct("HandoverOptions", model=c_void_p, model_bytes=c_size_t, content=c_int32, group=c_int32,
                         encoding=ObjectEncoding, head_groups=c_int32, layers_per_object=c_int32)
HandoverMemory = struct("HandoverMemory", base=c_void_p, bytes=c_uint64, place_bytes=c_uint64)
IntegrityOptions = struct("IntegrityOptions", checks_max=c_int32)
BlockTable = struct("BlockTable", ids=INT32S, id_count=c_size_t, row_stride=c_int64, columns=c_int32)
AlignStep = struct("AlignStep", copies=c_int64, skipped_parts=c_int64)
ChunkCheckpoint = struct("ChunkCheckpoint", start=c_int64, end=c_int64, position=c_int64, hash_block=c_int64,
                         alignment=c_int64)
CheckpointOptions = struct("CheckpointOptions", block_size_tokens=c_int32, alignment_tokens=c_int32, max_rows=c_int32,
                           layout_fingerprint=c_uint64)
PrefillChunk = struct("PrefillChunk", row=c_int32, live_slot=c_int32, prompt_tokens=c_int64, finished_tokens=c_int64,
                      skip_tokens=c_int64, chunk_tokens=c_int64, matched_blocks=c_int32, required_blocks=c_int32,
                      blocks=INT32S, block_count=c_size_t, prefixes=POINTER(c_uint64), prefix_count=c_size_t)
PlannedCheckpoints = struct("PlannedCheckpoints", count=c_int32, offsets=c_int32 * 3, blocks=c_int32 * 3,
                            end_block=c_int32)
CheckpointArrays = struct("CheckpointArrays", offsets=INT32S, counts=INT32S)
CheckpointCommit = struct("CheckpointCommit", from_scratch=POINTER(SlotCopy), scratch_count=c_size_t,
                          from_live=POINTER(SlotCopy), live_count=c_size_t, dropped=c_int32)
ImageCacheOptions = struct("ImageCacheOptions", host_bytes=c_int64, file_bytes=c_int64, remote_bytes=c_int64,
                           kv_image_bytes=c_int64, state_image_bytes=INT64S, state_groups=c_size_t, write_through=FLAG,
                           queue_bytes=c_int64, eviction=c_int32, images_under_way_max=c_size_t)
EndedImages = plain_struct("EndedImages", request=c_int64, missing=c_int64)
ImagePlan = struct("ImagePlan", request=c_int64, transfers=POINTER(Transfer), transfer_count=c_size_t,
                   ended=POINTER(EndedImages), ended_count=c_size_t)
ImageTierUsage = struct("ImageTierUsage", images=c_int64, bytes=c_int64, written_images=c_int64, read_images=c_int64,
                        evicted_images=c_int64, refused_images=c_int64, lost_images=c_int64, asked_images=c_int64,
                        found_images=c_int64)
RouterOptions = struct("RouterOptions", workers_max=c_int32, state_groups=c_int32, prefixes_max=c_int64,
                       blocks_max=c_int64)
RouterReach = plain_struct("RouterReach", worker=c_int32, medium=c_int32, blocks=c_int32 * 4)
RouterUsage = struct("RouterUsage", prefixes=c_int64, refused=c_int64)
ShardStore = plain_struct("ShardStore", store=c_void_p, shard=Shard)
StepScratch = struct("StepScratch", base=c_void_p, request_stride_bytes=c_int64, step_stride_bytes=c_int64,
                     token_stride=c_int64, channel_stride=c_int64, type=c_int32)
StepTargets = struct("StepTargets", last_step=INT32S, live_slot=INT32S, track_step=INT32S, track_slot=INT32S,
                     rows=c_int32)
FUNCTIONS = {
    "model_describe": "tp", "config_describe": "tzp", "spec_find": "tpp", "spec_from_config": "tzpp",
    "spec_create": "pzp", "spec_quantised": "pip", "spec_destroy": "p", "spec_describe": "pp", "spec_tensor": "pzp",
    "runtime_create": "pp", "runtime_destroy": "p", "stream_synchronize": "p", "stream_forget": "p",
    "copy_bytes": "pppz", "store_create": "pppp", "store_view": "ppzip", "store_destroy": "p", "store_tensor": "pzp",
    "store_copy": "pppz", "store_clear": "pppz", "copier_create": "ppp", "copier_destroy": "p", "copier_copy": "pppz",
    "copier_copy_shifted": "pppz", "copier_copy_on_device": "pppi", "copier_copy_layers": "pppzii",
    "copier_copy_shifted_layers": "pppzii", "copier_copy_on_device_layers": "pppiii", "copier_create_scratch": "pppp",
    "copier_commit_scratch": "pppzpz", "copier_commit_scratch_layers": "pppzpzii", "align_create": "pp",
    "align_destroy": "p", "align_bind": "ppz", "align_add_request": "ppil", "align_forget": "ppi",
    "align_stage": "pppp", "align_pre_step": "ppp", "align_post_step": "ppp", "align_post_step_advanced": "ppp",
    "align_scatter_accepted": "ppppi", "align_gather_decode": "ppippipp", "align_group_arrays": "pip",
    "hash_blocks": "ppzpp", "hasher_create": "pp", "hasher_destroy": "p", "hasher_append": "ppzpzppzp",
    "hasher_reset": "p", "tree_create": "pp", "tree_destroy": "p", "tree_describe": "pp", "tree_set_time": "pd",
    "tree_match": "ppzppp", "tree_match_with_live_slot": "ppzppip", "tree_match_again": "ppzppp",
    "tree_match_many": "ppzp", "tree_check_restore": "ppp", "tree_insert": "ppp", "tree_insert_many": "ppzpp",
    "tree_touch": "ppz", "tree_evict": "pllpp", "tree_evict_demand": "ppp", "tree_peek_victims": "pipzp",
    "tree_drop_state": "pu", "tree_take_freed_kv": "ppzp", "tree_lock_node": "pup", "tree_lock_destroy": "p",
    "tree_lock_nodes": "ppzp", "tree_locks_destroy": "pz", "tree_allocate_slots": "ppz", "tree_release_slots": "ppz",
    "tree_tag_slot": "pipzp", "tree_reset": "p", "tree_check": "p", "request_cache_create": "pp",
    "request_cache_destroy": "p", "request_cache_describe": "pp", "request_cache_state_slots": "pzp",
    "request_cache_checkpoint_slots": "pzp", "request_cache_start": "ppzpp", "request_cache_refresh": "plpp",
    "request_cache_fork": "plpzpz", "request_cache_chunk": "pppzpp", "request_cache_plan": "ppp",
    "request_cache_cancel": "pu", "request_cache_commit": "pupzpzp", "request_cache_places": "plzp",
    "request_cache_insert": "pllpp", "request_cache_end": "ppzipp", "request_cache_request": "plp",
    "request_cache_state": "plzp", "request_cache_reset": "p", "request_cache_stats": "pp",
    "request_cache_prometheus": "ptpzp", "request_cache_take_events": "ppzp", "request_cache_check": "p",
    "request_cache_take_memory": "pp", "request_cache_settle_move": "pui", "request_cache_is_mapped": "piip",
    "request_cache_arena_usage": "pp", "request_cache_advance_epoch": "pup", "request_cache_epoch": "pp",
    "request_cache_forget": "ppi", "request_cache_forgotten": "ppzp", "request_cache_adopt_forgotten": "ppzp",
    "request_cache_is_stale": "plp", "request_cache_take_checks": "ppp", "request_cache_withdraw": "ppzp",
    "request_cache_integrity_usage": "pp", "request_cache_pin": "ppdp", "request_cache_unpin": "pup",
    "request_cache_prefetch": "ppp", "request_cache_prefetching": "pup", "request_cache_prefix_usage": "pp",
    "request_cache_close_session": "pup", "request_cache_session_usage": "pup", "request_cache_set_quota": "ppll",
    "request_cache_tenant_usage": "pppp", "request_cache_settle": "ppzp", "request_cache_loading": "ppzp",
    "request_cache_drain": "pp", "request_cache_attach": "pipzpp", "request_cache_set_speeds": "pp",
    "request_cache_tier_usage": "pip", "model_layout_create": "ppzp", "model_layout_find": "tpp",
    "model_layout_from_config": "tzpp", "model_layout_destroy": "p", "model_layout_fingerprint": "pp",
    "model_layout_spec": "ppp", "slot_allocator_create": "pp", "slot_allocator_destroy": "p",
    "slot_allocator_describe": "pp", "slot_allocator_allocate_blocks": "ppz", "slot_allocator_retain_blocks": "ppz",
    "slot_allocator_release_blocks": "ppz", "slot_allocator_register_blocks": "ppppz",
    "slot_allocator_deregister_blocks": "ppz", "slot_allocator_clear_blocks": "p",
    "slot_allocator_find_blocks": "ppzpp", "slot_allocator_advance_tick": "p", "slot_allocator_allocate_slots": "ppzp",
    "slot_allocator_evict": "plp", "slot_allocator_peek_victims": "ppzp", "slot_allocator_slot_of": "pip",
    "slot_allocator_set_tag": "pip", "slot_allocator_register_states": "pppz", "slot_allocator_note_served": "pp",
    "slot_allocator_find_state": "ppzp", "slot_allocator_restore": "piipp", "slot_allocator_withdraw": "pi",
    "slot_allocator_invalidate": "ppz", "slot_allocator_pin": "pip", "slot_allocator_unpin": "pi",
    "slot_allocator_check": "p", "elastic_memory_create": "pp", "elastic_memory_destroy": "p",
    "elastic_memory_usage": "pp", "elastic_store_create": "ppppp", "elastic_store_describe": "pp",
    "elastic_store_is_mapped": "pip", "elastic_store_map": "pi", "elastic_store_unmap": "pi",
    "memory_mover_create": "pppp", "memory_mover_destroy": "p", "memory_mover_carry_out": "pppip",
    "file_tier_create": "pp", "file_tier_destroy": "p", "file_tier_describe": "pp", "file_tier_layout": "piip",
    "file_tier_section": "piizpp", "file_tier_write": "puppz", "file_tier_read": "puppz", "file_tier_poll": "ppzp",
    "file_tier_wait": "p", "file_tier_lookup": "ppzp", "file_tier_remove": "ppz", "file_tier_keys": "ppzp",
    "file_tier_check": "p", "remote_objects_create": "up", "remote_objects_destroy": "p",
    "remote_store_in_process": "ppip", "remote_store_valkey": "pp", "remote_store_mooncake": "pp",
    "remote_store_callbacks": "pp", "remote_store_destroy": "p", "remote_store_register": "ppz",
    "remote_store_unregister": "ppz", "remote_store_put": "ppz", "remote_store_get": "ppz",
    "remote_store_exists": "ppz", "remote_store_remove": "ppz", "remote_store_poll": "ppzp",
    "remote_store_describe": "pp", "remote_store_describe_valkey": "pp", "image_bytes": "pp",
    "state_tiers_create": "pp", "state_tiers_destroy": "p", "state_tiers_describe": "pp",
    "state_tiers_prometheus": "ptpzp", "state_tiers_check": "p", "state_tiers_begin_transfers": "ppppz",
    "state_tiers_end_transfers": "pppp", "state_tiers_take_loads": "ppzp", "state_tiers_attach": "pppp",
    "state_tiers_share_forgotten": "ppp", "state_tiers_execute": "pppz", "state_tiers_poll": "pppzp",
    "state_tiers_put": "pppzip", "state_tiers_get": "pppzp", "state_tiers_find": "pppzp", "state_tiers_lookup": "ppzp",
    "state_tiers_remove": "pppz", "state_tiers_keys": "pipzp", "state_tiers_drain": "ppp",
    "handover_plan": "ppzpzppzp", "handover_end_create": "pppip", "handover_end_destroy": "p",
    "handover_end_describe": "pp", "handover_end_pack": "pppz", "handover_end_seal": "pip",
    "handover_end_check": "pipp", "handover_end_unpack": "pppz", "integrity_create": "pzpp", "integrity_destroy": "p",
    "integrity_begin": "pppz", "integrity_copy": "ppppzi", "integrity_end": "pp", "integrity_poll": "ppp",
    "integrity_wait": "pp", "align_planner_create": "pp", "align_planner_destroy": "p",
    "align_planner_add_requests": "pppz", "align_planner_forget": "ppz", "align_planner_pre_step": "pppzp",
    "align_planner_accept": "pppz", "align_planner_post_step": "pppzp", "align_planner_post_step_advanced": "pppzp",
    "align_planner_plan": "pipp", "align_planner_arrays": "pip", "align_planner_gather_accepted": "pipzp",
    "align_planner_retention": "pilpzpz", "align_planner_checkpoint_in": "pippp", "align_planner_publish": "pippzp",
    "align_planner_wrote": "pippz", "align_planner_check": "p", "checkpoint_planner_create": "ppp",
    "checkpoint_planner_destroy": "p", "checkpoint_planner_plan": "ppzpp", "checkpoint_planner_device_arrays": "pip",
    "checkpoint_planner_commit": "pp", "checkpoint_planner_publish": "p", "checkpoint_planner_abandon": "p",
    "checkpoint_planner_clear": "p", "checkpoint_planner_check": "p", "scratch_slots_bound": "liip",
    "slots_for_budget": "zzip", "image_cache_create": "pp", "image_cache_destroy": "p", "image_cache_check": "p",
    "image_cache_put": "pppzp", "image_cache_get": "pppzp", "image_cache_ask": "ppzp", "image_cache_remove": "ppzp",
    "image_cache_drain": "pp", "image_cache_settle": "ppzp", "image_cache_find": "ppzpp", "image_cache_touch": "ppz",
    "image_cache_pin": "ppzp", "image_cache_unpin": "ppz", "image_cache_attach": "pipzp",
    "image_cache_under_way": "pp", "image_cache_usage": "pip", "router_index_create": "pp",
    "router_index_destroy": "p", "router_index_check": "p", "router_index_join": "piu", "router_index_leave": "pi",
    "router_index_hear": "pipzp", "router_index_hear_message": "piupzp", "router_index_worker": "pipp",
    "router_index_find": "ppzpzp", "router_index_usage": "pp", "resharder_create": "ppzpzp", "resharder_destroy": "p",
    "resharder_copy": "pppz", "step_committer_create": "pzpiip", "step_committer_destroy": "p",
    "step_committer_commit": "ppp"
}
