# SPDX-License-Identifier: Apache-2.0
"""SGLang's publisher of events, which announces the tiers below the device, too."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from sglang.srt.disaggregation.kv_events import (
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
    ZmqEventPublisher,
    is_kv_publisher_rank,
    kv_event_namespace_seed,
    namespaced_block_hash,
)
from sglang.srt.mem_cache.utils import get_hash_str, hash_str_to_int64, storage_namespace_seed
from sglang.srt.runtime_context import get_observability

from stateport.errors import InvalidArgument
from stateport.sglang._events import Hashes, TierEvents

NAME = "stateport"
_latest: list[TierEvents] = []  # of this process, which SGLang makes before its publisher
_publishers: list[StateportPublisher] = []  # of this process, while it is open


class StateportPublisher(ZmqEventPublisher):  # type: ignore[misc]
    """`--kv-events-config '{"publisher": "stateport", …}'`, with all options of SGLang's "zmq"."""

    def __init__(self, attn_dp_rank: int, **options: Any) -> None:
        super().__init__(attn_dp_rank, **options)
        self.follow(_latest[-1])
        _publishers[:] = [self]

    def follow(self, tiers: TierEvents) -> None:
        """Publishes the contents of these tiers from now on. Those before them were closed."""
        self._tiers = tiers
        tiers.begin(self._tell)

    def publish(self, events: Any) -> None:
        super().publish(events)
        self._tiers.heard(events.events)

    def _tell(self, events: list[dict[str, Any]]) -> None:
        super().publish(KVEventBatch(ts=time.time(), events=events))

    def shutdown(self) -> None:
        _publishers.clear()
        self._tiers.close()
        super().shutdown()


def open_events(page_tokens: int, state_groups: int, pages_max: int, hash_seed: int) -> TierEvents | None:
    """Arguments of TierEvents. None: this process publishes no events of SGLang: another rank does. Raises
    InvalidArgument if SGLang is to have another publisher, or none."""
    config = get_observability().kv_events_config
    found = KVEventsConfig.from_cli(config).publisher if config else None
    if found != NAME:
        raise InvalidArgument(f"kv_events is true, and --kv-events-config has the publisher {found!r}, and must have "
                              f"{NAME!r}")
    if not is_kv_publisher_rank(config):
        return None
    hashes = Hashes(
        lambda tokens, before, size: get_hash_str(tokens, before, page_size=size), storage_namespace_seed,
        hash_str_to_int64,
        lambda said, salt: namespaced_block_hash(said, namespace_seed=kv_event_namespace_seed(
            extra_key=None, cache_salt=salt)),
        lambda seed: hashlib.sha256(seed).hexdigest())
    _latest[:] = [TierEvents(page_tokens, state_groups, pages_max, hash_seed, hashes)]
    for publisher in _publishers:  # a storage that is attached while SGLang serves
        publisher.follow(_latest[0])
    return _latest[0]


EventPublisherFactory.register_publisher(NAME, StateportPublisher)
