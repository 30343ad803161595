# SPDX-License-Identifier: Apache-2.0
"""Statistics of the connector, as they go from a worker to the scheduler and from there to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateport.cache_options import AGE_BOUNDS_S, LOST_REASONS, TOKEN_BOUNDS

# name: the counted event, and its labels. Counters of vLLM's metrics are stateport_<name>_total.
COUNTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "prompts": ("Prompts that vLLM admitted", ()),
    "hits": ("Prompts that restored a state, by the slowest tier it came from", ("tier",)),
    "hit_tokens": ("Tokens that were restored and not computed, by tier", ("tier",)),
    "lost_hits": ("Prompts that could not use all of the KV that they matched, by reason", ("reason",)),
    "lost_tokens": ("Tokens of matched KV that were computed again, by reason", ("reason",)),
    "refused": ("Look-ups and states of decoding that the cache did not take, by reason", ("reason",)),
    "saved_states": ("States that were copied to the host", ()),
    "saved_bytes": ("Bytes of KV and states that were copied to the host, in each worker", ()),
    "restored_bytes": ("Bytes that were copied from the host, in each worker", ()),
    "device_tokens": ("Restored tokens whose KV was still in vLLM's blocks, and was copied there", ()),
    "device_bytes": ("Bytes of that KV, in each worker", ()),
    "loaded_bytes": ("Bytes of images that were loaded to the host, in each worker, by tier", ("tier",)),
    "unsaved": ("States that vLLM offered and that were not kept, by reason", ("reason",)),
    "failed_restores": ("Prompts whose pages could not be restored", ()),
    "failed_transfers": ("Transfers with files or the shared store that did not succeed, and finds that were not "
                         "answered", ()),
    "failed_reads": ("Images that a load did not bring from a tier, by how it ended", ("tier", "status")),
    "failed_writes": ("Images that were not written to a tier, by how that ended", ("tier", "status")),
    "asked_images": ("Images that the shared store was asked for", ()),
    "found_images": ("Images that a find located", ()),
    "evicted_states": ("States that lost their place to others", ("tier",)),
    "evicted_kv_tokens": ("Tokens whose KV lost its place on the host to others", ()),
    "recorded": ("Requests that the recorder took", ()),
    "unrecorded": ("Requests that the recorder did not take, because its queue was full or it has ended", ()),
    "hints": ("Actions of kv_hints and named breakpoints, by kind, or by why they had no effect: unknown, malformed, "
              "refused", ("action",)),
    "late_loads": ("Prompts that were computed because files or the shared store kept them waiting", ()),
}

# name: the values that its label can have.
FORESEEN: dict[str, tuple[str, ...]] = dict.fromkeys(("lost_hits", "lost_tokens"), (*LOST_REASONS[1:], "engine_cut"))

_SECONDS = tuple(2.0**i for i in range(-12, 7))

# name: the observed quantity, its labels, and the upper bounds of buckets. Histograms are stateport_<name>.
OBSERVED: dict[str, tuple[str, tuple[str, ...], Sequence[float]]] = {
    "request_hit_tokens": ("Restored tokens of each prompt", (), TOKEN_BOUNDS),
    "request_lost_tokens": ("Tokens of matched KV that each prompt computed again", (), TOKEN_BOUNDS),
    "wait_seconds": ("How long prompts waited for files or the shared store", (), _SECONDS),
    "load_seconds": ("Time from the begin of a prompt's loads to the last answer, by the slowest tier", ("tier",),
                     _SECONDS),
    "find_seconds": ("Time in which the shared store answered all questions about a prompt that were asked together",
                     (), _SECONDS),
    "restore_seconds": ("Time that a worker's step took to copy pages from the host; on a GPU: to enqueue that", (),
                        _SECONDS),
    "save_seconds": ("Time that a worker's step took to copy pages to the host and to begin transfers; on a GPU: to "
                     "enqueue that", (), _SECONDS),
    "reuse_age_seconds": ("Time since the last use of a state that a prompt continued from, rounded up to a power of "
                          "two", (), AGE_BOUNDS_S),
    "eviction_age_seconds": ("Time since the last use of a state that was evicted, rounded up to a power of two", (),
                             AGE_BOUNDS_S),
}

# name: the quantity, and its labels. Gauges are stateport_<name>.
MEASURED: dict[str, tuple[str, tuple[str, ...]]] = {
    "states": ("States that are cached", ("tier",)),
    "kv_tokens": ("Tokens whose KV is cached", ("tier",)),
    "used_bytes": ("Bytes of cached contents in each worker; below the host both contents together", ("tier",
                                                                                                  "content")),
    "capacity_bytes": ("Bytes that there is room for in each worker", ("tier", "content")),
    "transfers": ("Transfers that were decided and have not ended", ("tier", "direction")),
    "transfer_bytes": ("Bytes of these transfers in each worker", ("tier", "direction")),
    "waiting_prompts": ("Prompts that wait for answers of the shared store, or for loads", ("for",)),
}


def labels_of(name: str) -> tuple[str, ...]:
    """Raises KeyError for a name that is none."""
    for group in (COUNTED, OBSERVED, MEASURED):
        if name in group:
            return group[name][1]
    raise KeyError(name)


def _key(name: str, labels: tuple[str, ...]) -> str:
    named = labels_of(name)
    return ":".join((name, *labels)) if named else name


class Counters:
    """Counts, observations and the newest levels by name and labels, since they were last taken. As plain data counts
    and levels are numbers, and observations lists of numbers."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, int] = {}
        self.samples: dict[str, list[float]] = {}
        self.levels: dict[str, float] = {}
        self.merge(values or {})

    def add(self, name: str, count: int, *labels: str) -> None:
        """Raises KeyError for a name that is none."""
        key = _key(name, labels)
        if count:
            self.values[key] = self.values.get(key, 0) + count

    def observe(self, name: str, value: float, *labels: str) -> None:
        self.samples.setdefault(_key(name, labels), []).append(value)

    def set(self, name: str, level: float, *labels: str) -> None:
        self.levels[_key(name, labels)] = float(level)

    def merge(self, others: Mapping[str, Any]) -> None:
        """Adds counts and observations; levels of `others` are newer."""
        for key, value in others.items():
            name = key.partition(":")[0]
            if name in OBSERVED:
                self.samples.setdefault(key, []).extend(value)
            elif name in MEASURED:
                self.levels[key] = value
            else:
                self.values[key] = self.values.get(key, 0) + value

    def data(self) -> dict[str, Any]:
        return {**self.values, **self.samples, **self.levels}

    def take(self) -> dict[str, Any]:
        taken = self.data()
        self.values, self.samples, self.levels = {}, {}, {}
        return taken
