# SPDX-License-Identifier: Apache-2.0
"""Counters of the connector."""

from __future__ import annotations

from collections.abc import Mapping

# name: the counted event, and its label. Counters of vLLM's metrics are stateport_<name>_total.
COUNTED = {
    "prompts": ("Prompts that vLLM admitted", ""),
    "hits": ("Prompts that restored a state, by the slowest tier it came from", "tier"),
    "hit_tokens": ("Tokens that were restored and not computed, by tier", "tier"),
    "lost_hits": ("Prompts that could not use all of the KV that they matched, by reason", "reason"),
    "lost_tokens": ("Tokens of matched KV that were computed again, by reason", "reason"),
    "refused": ("Look-ups and states of decoding that the cache did not take, by reason", "reason"),
    "saved_states": ("States that were copied to the host", ""),
    "saved_bytes": ("Bytes of KV and states that were copied to the host, in each worker", ""),
    "restored_bytes": ("Bytes that were copied from the host, in each worker", ""),
    "device_tokens": ("Restored tokens whose KV was still in vLLM's blocks, and was copied there", ""),
    "device_bytes": ("Bytes of that KV, in each worker", ""),
    "loaded_bytes": ("Bytes of images that were loaded to the host, in each worker, by tier", "tier"),
    "unsaved": ("States that vLLM offered and that were not kept, by reason", "reason"),
    "failed_restores": ("Prompts whose pages could not be restored", ""),
    "failed_transfers": ("Transfers with files or the shared store that did not succeed, and finds that were not "
                         "answered", ""),
    "asked_images": ("Images that the shared store was asked for", ""),
    "found_images": ("Images that a find located", ""),
    "recorded": ("Requests that the recorder took", ""),
    "unrecorded": ("Requests that the recorder did not take, because its queue was full or it has ended", ""),
    "hints": ("Actions of kv_hints and named breakpoints, by kind, or by why they had no effect: unknown, malformed, "
              "refused", "action"),
    "late_loads": ("Prompts that were computed because files or the shared store kept them waiting", ""),
}


class Counters:
    """Counts by name and label, since they were last taken."""

    def __init__(self, values: Mapping[str, int] | None = None) -> None:
        self.values: dict[str, int] = dict(values or {})

    def add(self, name: str, count: int, label: str = "") -> None:
        """Raises KeyError for a name that is none."""
        key = f"{name}:{label}" if COUNTED[name][1] else name
        if count:
            self.values[key] = self.values.get(key, 0) + count

    def merge(self, others: Mapping[str, int]) -> None:
        for key, count in others.items():
            self.values[key] = self.values.get(key, 0) + count

    def take(self) -> dict[str, int]:
        taken, self.values = self.values, {}
        return taken
