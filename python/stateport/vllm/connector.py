# SPDX-License-Identifier: Apache-2.0
"""The connector: vLLM's calls, handed to the scheduler's side or to the worker's."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from stateport._arrays import Records
from stateport.errors import InvalidArgument
from stateport.vllm.events import of_vllm
from stateport.vllm.identity import model_name
from stateport.vllm.layout import read_layout
from stateport.vllm.metadata import StepPlan, WorkerInfo
from stateport.vllm.metrics import StateportPromMetrics, StateportStats
from stateport.vllm.options import ConnectorOptions
from stateport.vllm.scheduler import SchedulerSide
from stateport.vllm.worker import WorkerSide

_SOURCES = {"host": CacheHitSource.HOST, "file": CacheHitSource.DISK, "remote": CacheHitSource.EXTERNAL_UNSPECIFIED}

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]
    plan: StepPlan


@dataclasses.dataclass
class ResultMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    results: Records

    def aggregate(self, other: ResultMetadata) -> ResultMetadata:
        return ResultMetadata(np.concatenate([self.results, other.results]))


@dataclasses.dataclass
class PoolMetadata(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    info: WorkerInfo


def _check_engine(vllm_config: Any, transfer_config: Any) -> None:
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(vllm_config.parallel_config, name, 1)
        if size > 1:
            raise InvalidArgument(f"{name} is {size}, and must be 1: a rank would have a part of each block")
    if getattr(transfer_config, "kv_load_failure_policy", "recompute") != "recompute":
        logger.warning('stateport: kv_load_failure_policy is not "recompute": a prompt whose restore fails ends with '
                       "an error, though it could be computed")


class StateportConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """See stateport.vllm. Raises InvalidArgument for a model or an engine that it cannot serve."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = ConnectorOptions.read(self._kv_transfer_config.kv_connector_extra_config or {})
        _check_engine(vllm_config, self._kv_transfer_config)
        layout = read_layout(kv_cache_config)
        self._requests: dict[str, Any] = {}
        self._restored: tuple[set[str], set[str]] = set(), set()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            seqs = int(vllm_config.scheduler_config.max_num_seqs)
            # Prompts that run, those that wait for files or a store, those that gave that up, and a state of decoding.
            self._scheduler = SchedulerSide(layout, options, max_requests=3 * seqs + 1,
                                            max_request_tokens=int(vllm_config.model_config.max_model_len),
                                            model=str(vllm_config.model_config.model),
                                            version=str(getattr(vllm, "__version__", "")))
        else:
            self._worker = WorkerSide(layout, options, model=model_name(
                vllm_config, layout.block_size_tokens, named=options.model, rank=_rank(vllm_config),
                outlives=options.has_tiers))

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: lost tokens are computed

    @property
    def _decides(self) -> SchedulerSide:
        if self._scheduler is None:
            raise InvalidArgument("a call for the scheduler's side came to a worker's connector")
        return self._scheduler

    @property
    def _moves(self) -> WorkerSide:
        if self._worker is None:
            raise InvalidArgument("a call for a worker's side came to the scheduler's connector")
        return self._worker

    # --- The worker's side -------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._moves.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        self._moves.detach_pages()

    def restore_kv_caches(self) -> None:
        self._moves.attach_pages()

    def get_handshake_metadata(self) -> PoolMetadata | None:
        return PoolMetadata(self._moves.info) if self._moves.info is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._restored = self._moves.restore(self._get_connector_metadata().plan)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        (restored, failed), self._restored = self._restored, (set(), set())
        return KVConnectorTransferResults(finished_recving=restored | failed, failed_recving=failed)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        self._moves.save(self._get_connector_metadata().plan)

    def build_connector_worker_meta(self) -> ResultMetadata | None:
        results = self._moves.results()
        return ResultMetadata(results) if len(results) else None

    # --- The scheduler's side ----------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        for said in metadata.values():
            if not isinstance(said, PoolMetadata):
                raise InvalidArgument(f"the workers' handshake is a {type(said).__name__}: a MultiConnector hands on "
                                      "that of its first connector alone, so name StateportConnector first")
        self._decides.open([metadata[rank].info for rank in sorted(metadata)])

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._decides.device_kv.bind(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens = self._decides.match(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._decides.admit(request, blocks.get_block_ids(), num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        if num_external_tokens == 0:
            return {}
        return {_SOURCES[self._decides.medium(request.request_id)]: num_external_tokens}

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        state = scheduler_output.kv_connector_block_state
        return StepMetadata(self._decides.plan_step(
            self._requests, scheduled=scheduler_output.num_scheduled_tokens,
            offers=state.boundary_state_offloads if state is not None else {},
            block_ids=state.get_block_ids if state is not None else _no_blocks,
            preempted=scheduler_output.preempted_req_ids or ()))

    def update_connector_output(self, connector_output: Any) -> None:
        self._decides.failed(connector_output.failed_recving)
        self._decides.device_kv.release(connector_output.finished_recving or ())
        metadata = connector_output.kv_connector_worker_meta
        if metadata is not None:
            self._decides.answered(metadata.results)

    def take_events(self) -> list[Any]:
        return of_vllm(self._decides.take_events())

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any,
                                    block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        self._requests.pop(request.request_id, None)
        self._decides.finished(request)
        return False, None

    def reset_cache(self) -> bool:
        self._decides.reset([name for name, request in self._requests.items() if request.num_computed_tokens > 0])
        return True

    # --- Both --------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    def get_kv_connector_stats(self) -> StateportStats | None:
        taken = self._scheduler.take_statistics() if self._scheduler is not None else self._moves.counters.take()
        return StateportStats(data=taken) if taken else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StateportStats:
        return StateportStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> StateportPromMetrics:
        return StateportPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


# A MultiConnector finds the class of statistics that come from another process by its name.
if StateportConnector.__name__ not in KVConnectorFactory._registry:
    KVConnectorFactory.register_connector(StateportConnector.__name__, __name__, StateportConnector.__name__)


def _no_blocks(request_id: str) -> None:
    return None


def _rank(vllm_config: Any) -> str:
    """Which part of the model a worker has: it takes no files of another part."""
    if vllm_config.parallel_config.world_size == 1:
        return ""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return " ".join(f"{group.rank_in_group}/{group.world_size}" for group in (get_pp_group(), get_tp_group()))
