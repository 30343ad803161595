# SPDX-License-Identifier: Apache-2.0
"""Pools, caches, checkpoints, copies and migrates the recurrent state of hybrid language models.

`RequestCache` decides which prefixes are reused, kept and evicted; `StateStore`, `SlotCopier` and `StateTiers` move
bytes. The adapters to engines are modules of their own: stateport.transformers, .vllm, .sglang, .megatron."""

from stateport._arrays import (
    CACHE_EVENT,
    FORGET_RECORD,
    IMAGE_KEY,
    KV_MOVE,
    MEMORY_MOVE,
    REFUSED_BREAKPOINT,
    ROUTER_REACH,
    SLOT_COPY,
    SLOT_IMAGE,
    STATE_CHECK,
    STATE_FAULT,
    STATE_SAVE,
    STEP_COMMIT,
    TRANSFER,
    TRANSFER_RESULT,
)
from stateport._library import backend, has_device, library_path, version
from stateport.align import AlignContext, AlignGroup, AlignPlanner, AlignStep
from stateport.cache_arena import MEMORY_PARTS, MOVE_KINDS, MemoryPlan
from stateport.cache_epochs import FORGET_BY
from stateport.cache_integrity import CHECK_KINDS, FAULT_KINDS, IntegrityUsage
from stateport.cache_options import (
    Arena,
    ArenaUsage,
    CacheOptions,
    CacheStats,
    ColumnLayout,
    PrefixOptions,
    PrefixWait,
    SessionOptions,
    ShareRunning,
    SlotLayout,
    StartedRequest,
    StateGroup,
    TierUsage,
    WaitingRequests,
)
from stateport.cache_prefixes import PinnedPrefix, Prefetch, PrefixUsage
from stateport.cache_sessions import SessionUsage
from stateport.cache_tenants import TenantUsage
from stateport.cache_tiers import SettledTransfers
from stateport.checkpoints import CheckpointCommit, CheckpointPlanner, PlannedCheckpoints, scratch_slots_bound
from stateport.client_store import ClientStore, RemoteClient, RemoteRequest
from stateport.copier import SlotCopier
from stateport.elastic import ElasticMemory, ElasticStore, ElasticStoreInfo, ElasticUsage, MemoryMover
from stateport.errors import (
    BackendError,
    ClosedError,
    Error,
    InternalError,
    InvalidArgument,
    InvalidState,
    NoCapacity,
    OutOfMemory,
)
from stateport.eviction import Eviction, ReuseHint
from stateport.file_tier import FileTier, ImageLayout, image_keys
from stateport.handover import HANDOVER_RANGE, Handover, HandoverEnd, plan_handover
from stateport.hashing import Hasher, MediaKey, Namespace, hash_blocks
from stateport.image_cache import ImageCache, ImagePlan, ImageTierUsage
from stateport.integrity import StateIntegrity
from stateport.kv_events import KvEventEncoder, llm_d_topic
from stateport.kv_publisher import END_OF_REPLAY, KvEventPublisher
from stateport.model_layout import ModelLayout, Shard, SplitBand, TensorSplit
from stateport.mooncake_store import MooncakeStore
from stateport.passes import EndedRequests, GroupCommit, GroupPlan, HitPlaces, PassCommit, PassPlan
from stateport.prefix_tree import Inserted, Lock, Match, PrefixTree, TreeSizes, Victim
from stateport.remote_store import REMOTE_COMPLETION, InProcessObjects, InProcessStore, RemoteStore, ValkeyStore
from stateport.request_cache import RequestCache
from stateport.resharder import Resharder
from stateport.router import Router, RouterIndex, RouterReach
from stateport.runtime import ANY_DEVICE, Runtime, forget_stream, synchronize
from stateport.slot_allocator import AllocatorInfo, FoundState, SlotAllocator, SlotVictim, StateTag
from stateport.spec import ModelInfo, StateSpec, TensorSpec, models
from stateport.step_committer import StepCommitter
from stateport.store import DeviceArray, StateStore
from stateport.tier_options import MEDIA, TRANSFER_KINDS, TRANSFER_STATUSES, TierOptions
from stateport.tiers import AttachedImages, ObjectEncoding, RemoteOptions, SharedLayout, StateTiers

__all__ = [
    "ANY_DEVICE",
    "CACHE_EVENT",
    "CHECK_KINDS",
    "END_OF_REPLAY",
    "FAULT_KINDS",
    "FORGET_BY",
    "FORGET_RECORD",
    "HANDOVER_RANGE",
    "IMAGE_KEY",
    "KV_MOVE",
    "MEDIA",
    "MEMORY_MOVE",
    "MEMORY_PARTS",
    "MOVE_KINDS",
    "REMOTE_COMPLETION",
    "REFUSED_BREAKPOINT",
    "ROUTER_REACH",
    "SLOT_COPY",
    "SLOT_IMAGE",
    "STATE_CHECK",
    "STATE_FAULT",
    "STATE_SAVE",
    "STEP_COMMIT",
    "TRANSFER",
    "TRANSFER_KINDS",
    "TRANSFER_RESULT",
    "TRANSFER_STATUSES",
    "AlignContext",
    "AlignGroup",
    "AlignPlanner",
    "AlignStep",
    "AllocatorInfo",
    "Arena",
    "ArenaUsage",
    "AttachedImages",
    "BackendError",
    "CacheOptions",
    "CacheStats",
    "CheckpointCommit",
    "CheckpointPlanner",
    "ClientStore",
    "ClosedError",
    "ColumnLayout",
    "DeviceArray",
    "ElasticMemory",
    "ElasticStore",
    "ElasticStoreInfo",
    "ElasticUsage",
    "EndedRequests",
    "Error",
    "Eviction",
    "FileTier",
    "FoundState",
    "GroupCommit",
    "GroupPlan",
    "Handover",
    "HandoverEnd",
    "Hasher",
    "HitPlaces",
    "ImageCache",
    "ImageLayout",
    "ImagePlan",
    "ImageTierUsage",
    "InProcessObjects",
    "InProcessStore",
    "Inserted",
    "IntegrityUsage",
    "InternalError",
    "InvalidArgument",
    "InvalidState",
    "KvEventEncoder",
    "KvEventPublisher",
    "Lock",
    "Match",
    "MediaKey",
    "MemoryMover",
    "MemoryPlan",
    "ModelInfo",
    "ModelLayout",
    "MooncakeStore",
    "Namespace",
    "NoCapacity",
    "ObjectEncoding",
    "OutOfMemory",
    "PassCommit",
    "PassPlan",
    "PinnedPrefix",
    "PlannedCheckpoints",
    "Prefetch",
    "PrefixOptions",
    "PrefixTree",
    "PrefixUsage",
    "PrefixWait",
    "RemoteClient",
    "RemoteOptions",
    "RemoteRequest",
    "RemoteStore",
    "RequestCache",
    "Resharder",
    "ReuseHint",
    "Router",
    "RouterIndex",
    "RouterReach",
    "Runtime",
    "SessionOptions",
    "SessionUsage",
    "SettledTransfers",
    "Shard",
    "ShareRunning",
    "SharedLayout",
    "SlotAllocator",
    "SlotCopier",
    "SlotLayout",
    "SlotVictim",
    "SplitBand",
    "StartedRequest",
    "StateGroup",
    "StateIntegrity",
    "StateSpec",
    "StateStore",
    "StateTag",
    "StateTiers",
    "StepCommitter",
    "TenantUsage",
    "TensorSpec",
    "TensorSplit",
    "TierOptions",
    "TierUsage",
    "TreeSizes",
    "ValkeyStore",
    "Victim",
    "WaitingRequests",
    "backend",
    "forget_stream",
    "has_device",
    "hash_blocks",
    "image_keys",
    "library_path",
    "llm_d_topic",
    "models",
    "plan_handover",
    "scratch_slots_bound",
    "synchronize",
    "version",
]
