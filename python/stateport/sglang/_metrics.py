# SPDX-License-Identifier: Apache-2.0
"""Metrics of the linker and of the storage in the registry of SGLang's own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

_SECONDS = [2.0**i for i in range(-12, 7)]
_TIERS = ("host", "file")


class TierMetrics:
    """sglang:stateport_…, with SGLang's labels. SGLang's processes write to PROMETHEUS_MULTIPROC_DIR, which the client
    of Prometheus reads when it is imported: it is imported when the linker or the storage is made, after SGLang has set
    that.

    Any thread may call. A level is as new as the last transfer."""

    def __init__(self, labels: Mapping[str, str], capacity: Mapping[str, int], client: Any) -> None:
        """capacity: bytes by tier; 0: there is no such tier. client: the module prometheus_client."""
        names = list(labels)

        def gauge(name: str, text: str) -> Any:
            return client.Gauge(f"sglang:stateport_{name}", text, [*names, "tier"], multiprocess_mode="mostrecent")

        self._transfers = client.Counter("sglang:stateport_transfers", "Images that were loaded or stored, by how that "
                                         "ended", [*names, "kind", "status"])
        self._dropped = client.Counter("sglang:stateport_dropped_images", "Images that lost their place to others",
                                       [*names, "tier"])
        self._seconds = client.Histogram("sglang:stateport_job_seconds", "Time from the begin of a load or an offload "
                                         "to its end", [*names, "kind"], buckets=_SECONDS)
        self._images = gauge("images", "Images that lie in the tier")
        self._image_bytes = gauge("image_bytes", "Bytes of these images")
        self._room = gauge("capacity_bytes", "Bytes that there is room for")
        self._begin(labels, capacity)

    def _begin(self, labels: Mapping[str, str], capacity: Mapping[str, int]) -> None:
        self._labels = dict(labels)
        self._tiers = [tier for tier in _TIERS if capacity[tier]]
        for tier in self._tiers:
            self._room.labels(**self._labels, tier=tier).set(capacity[tier])

    def again(self, labels: Mapping[str, str], capacity: Mapping[str, int]) -> TierMetrics:
        """For tiers that this process opens later: a registry takes each metric once."""
        later = copy.copy(self)
        later._begin(labels, capacity)
        return later

    def count_end(self, kind: str, status: str) -> None:
        self._transfers.labels(**self._labels, kind=kind, status=status).inc()

    def count_drop(self, tier: str) -> None:
        self._dropped.labels(**self._labels, tier=tier).inc()

    def observe(self, kind: str, seconds: float) -> None:
        self._seconds.labels(**self._labels, kind=kind).observe(seconds)

    def look(self, info: Mapping[str, int | float]) -> None:
        """info: of StateTiers."""
        for tier in self._tiers:
            self._images.labels(**self._labels, tier=tier).set(info[f"{tier}_images"])
            size = info["host_image_bytes" if tier == "host" else "file_bytes"]
            self._image_bytes.labels(**self._labels, tier=tier).set(size)


_opened: list[TierMetrics] = []  # the first of this process


def make_metrics(server_args: Any, rank: int, capacity: Mapping[str, int]) -> TierMetrics | None:
    """None: SGLang has no metrics, or the client of Prometheus is not installed."""
    name = getattr(server_args, "served_model_name", None) or getattr(server_args, "model_path", "")
    return open_metrics(getattr(server_args, "enable_metrics", False), str(name), rank, capacity)


def open_metrics(are_enabled: bool, model: str, rank: int, capacity: Mapping[str, int]) -> TierMetrics | None:
    """The same for a name of the model."""
    if not are_enabled:
        return None
    try:
        import prometheus_client
    except ImportError:
        logger.warning("stateport: prometheus_client is not installed: SGLang's tiers have no metrics")
        return None
    labels = {"model_name": model, "tp_rank": str(rank)}
    if _opened:
        return _opened[0].again(labels, capacity)
    _opened.append(TierMetrics(labels, capacity, prometheus_client))
    return _opened[0]
