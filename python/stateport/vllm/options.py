# SPDX-License-Identifier: Apache-2.0
"""Options of the connector, set by an operator."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from stateport.errors import InvalidArgument
from stateport.eviction import ORDERS
from stateport.hashing import random_seed, seed_of_variable
from stateport.record.options import check_record
from stateport.vllm.sharing import check_store

_OPTIONAL = {"folder": str, "remote": dict, "hash_seed_variable": str, "record": dict}
_LEARNING = ("hix", "gdsf")  # orders that weigh memory against benefit


@dataclasses.dataclass(frozen=True)
class ConnectorOptions:
    """The keys of vLLM's kv_connector_extra_config.

    host_bytes: of host memory in each worker, for KV and states together.
    folder, file_bytes: images in files, which later engines find, too; file_bytes for each worker. None: no files. The
    folder above must be there.
    remote: a store that engines on any machine share: {"store": "mooncake", "master": "HOST:PORT", …} or {"store":
    "valkey", "url": "valkey://HOST:PORT", …}, with the arguments of MooncakeStore.connect or of ValkeyStore. Each
    worker opens it. Engines of one model, parallelism and version of vLLM find each other's states. A password is named
    by "password_variable", an environment variable. None: nothing is shared.
    remote_bytes: of images there that this engine remembers; it asks for others.
    load_wait_s: a prompt waits this long for files and the store, then it is computed. Until its transfers are
    answered, no other prompt waits. 0: without end.
    checkpoint_tokens: a prompt leaves a state at its multiples (rounded up to whole blocks of vLLM), where later
    prompts may branch off. Each one ends a chunk of the prefill. 0: only where the prompt leaves a prefix that is
    cached, and where vLLM itself ends a chunk.
    state_share: the part of host_bytes for states, above 0 and below 1. 0: as a prompt with checkpoint_tokens needs.
    decode_checkpoint_tokens: decoding leaves a state at its multiples (rounded up to whole blocks), for prompts that
    go on from an answer. 0: none.
    eviction: "lru", "lfu", "fifo", "slru", "mru" or "filo".
    keep_on_reset: a reset of the connector forgets nothing. vLLM resets it when it sleeps at level 1 or 2, when it
    pauses with clear_cache, and by reset_prefix_cache with reset_connector; it does not say why. Use it only where the
    weights stay as they are. False: a reset forgets memory and files, and this engine shares no more.
    sessions: that are known at a time, by session_id. A request with the hint "demote" ends its session: contents that
    no other session used are evicted first. 0: neither has an effect.
    pinned_bytes: of host_bytes, that prompts with the hint "pin" or "retain" may keep, for the time that the hint says,
    and at most pin_lease_s seconds. 0: these hints have no effect.
    model: names the weights, whatever makes states of two models differ. Empty: the model's name, revision,
    configuration and, of a local folder, the names, sizes and times of its files: machines with copies of their own
    share nothing then.
    hash_seed_variable: an environment variable with a secret number from 1 to 2^64 - 1, which enters all names of
    prompts. The options name the variable, because vLLM prints them. Engines that share a folder or a store have one.
    None: a random one, and with a folder or a store none.
    scrub: where prompts have a cache_salt, places of the pools on the host that change salt are set to zero before they
    are written, all of them at the end, and bytes of files before they are given back. vLLM's own pages are vLLM's, and
    objects in a store are the store's.
    kv_events: contents of the pools, of files and of the store are announced by vLLM's publisher of events
    (--kv-events-config), KV only up to the deepest state that can be restored.
    record: {"path": "/var/stateport/traffic.jsonl.gz", …}: writes a trace of all requests for stateport-replay, without
    their tokens. The other keys are arguments of stateport.record.Recorder (block_tokens, rotate_bytes, total_bytes,
    sample, queue_tokens); "key_variable" names an environment variable with its key. None: nothing is recorded."""

    host_bytes: int = 4 << 30
    folder: str | None = None
    file_bytes: int = 0
    remote: Mapping[str, Any] | None = None
    remote_bytes: int = 64 << 30
    load_wait_s: float = 10.0
    checkpoint_tokens: int = 1024
    state_share: float = 0.0
    decode_checkpoint_tokens: int = 512
    eviction: str = "lru"
    keep_on_reset: bool = False
    sessions: int = 4096
    pinned_bytes: int = 0
    pin_lease_s: float = 3600.0
    model: str = ""
    hash_seed_variable: str | None = None
    scrub: bool = False
    kv_events: bool = False
    record: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.host_bytes < 1:
            raise InvalidArgument(f"host_bytes is {self.host_bytes}, and must be at least 1")
        if self.file_bytes < 0 or (self.file_bytes == 0) != (self.folder is None):
            raise InvalidArgument(f"file_bytes is {self.file_bytes} and folder is {self.folder!r}: name both or none")
        if self.remote_bytes < 1:
            raise InvalidArgument(f"remote_bytes is {self.remote_bytes}, and must be at least 1")
        if self.remote is not None:
            check_store(self.remote)
        if self.record is not None:
            check_record(self.record)
        if not 0 <= self.pinned_bytes <= self.host_bytes:
            raise InvalidArgument(f"pinned_bytes is {self.pinned_bytes}, and must be from 0 to host_bytes, which is "
                                  f"{self.host_bytes}")
        if not 0 < self.pin_lease_s < math.inf:
            raise InvalidArgument(f"pin_lease_s is {self.pin_lease_s}, and must be positive")
        for name in ("checkpoint_tokens", "decode_checkpoint_tokens", "load_wait_s", "sessions"):
            if not getattr(self, name) >= 0:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, and must not be negative")
        if not 0 <= self.state_share < 1:
            raise InvalidArgument(f"state_share is {self.state_share}, and must be from 0 to below 1")
        if self.eviction not in ORDERS or self.eviction in _LEARNING:
            allowed = ", ".join(order for order in ORDERS if order not in _LEARNING)
            raise InvalidArgument(f"eviction is {self.eviction!r}, and must be one of {allowed}")

    def hash_seed(self) -> int:
        """Raises InvalidArgument for a variable that is not set, or is no such number."""
        if self.hash_seed_variable is None:
            return random_seed(lasts=self.has_tiers)
        return seed_of_variable("hash_seed_variable", self.hash_seed_variable)

    @property
    def has_tiers(self) -> bool:
        """There is something below the memory of the host."""
        return self.folder is not None or self.remote is not None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> ConnectorOptions:
        """From kv_connector_extra_config. Raises InvalidArgument for a key that is none, and a value of another
        type."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in values.items():
            if name == "hash_seed":
                raise InvalidArgument("kv_connector_extra_config has the key 'hash_seed', and vLLM would print the "
                                      "secret: name an environment variable by 'hash_seed_variable' instead")
            if name not in fields:
                raise InvalidArgument(f"kv_connector_extra_config has the key {name!r}, and may have "
                                      f"{', '.join(fields)}")
            wanted = _OPTIONAL.get(name) or type(fields[name].default)
            if not isinstance(value, (int, float) if wanted is float else wanted) or (
                    isinstance(value, bool) and wanted is not bool):
                raise InvalidArgument(f"{name} is {value!r}, and must be {wanted.__name__}")
        return cls(**values)
