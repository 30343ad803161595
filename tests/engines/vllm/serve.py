# SPDX-License-Identifier: Apache-2.0
"""One engine: serve.py JOB.json. It serves the job's requests, one call of vLLM after the other, and writes the results
of each: tokens, their log-probabilities, reused tokens, those of them that stateport restored, by tier, and how long it
took. A call may wait for a file (wait_for) that another engine made (tell)."""
import json
import pathlib
import sys
import time
from typing import Any

from vllm import LLM, SamplingParams
from vllm.v1.metrics.reader import Counter

SIGNAL_S_MAX, WRITES_S = 600, 2  # WRITES_S: time in which the states of a call are written to a shared store
OURS = "vllm:stateport_"
RESTORED = OURS + "hit_tokens"


def mend_mamba2() -> None:
    """vLLM 0.32 reserves blocks for checkpoints within a chunk, which its Mamba-2 layers do not write on a CPU: prompts
    of one chunk fail (IndexError in conv_ssm_forward), stateport or not."""
    from vllm.model_executor.layers.mamba.abstract import MambaBase
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    MambaMixer2.get_kv_cache_spec = MambaBase.get_kv_cache_spec


def give_windows(windows: dict[str, int]) -> None:
    """vLLM 0.32 has no model with recurrent states, full attention and sliding windows. These layers of attention get
    windows here, as vLLM's models give them, so that its kernels and its KV cache manager have them."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.models.utils import extract_layer_index

    make = Attention.__init__

    def make_with_window(self: Any, *args: Any, prefix: str = "", **more: Any) -> None:
        window = windows.get(str(extract_layer_index(prefix)))
        make(self, *args, prefix=prefix, **({"per_layer_sliding_window": window} if window else {}), **more)

    Attention.__init__ = make_with_window


def engine(job: dict[str, Any]) -> LLM:
    transfer = None
    if job["stateport"] is not None:
        transfer = {"kv_connector": "StateportConnector", "kv_connector_module_path": "stateport.vllm",
                    "kv_role": "kv_both", "kv_connector_extra_config": job["stateport"]}
    return LLM(job["model"], dtype=job["dtype"], skip_tokenizer_init=True, enforce_eager=True, seed=16,
               enable_prefix_caching=True, max_model_len=4096, max_num_seqs=4,
               max_num_batched_tokens=job["batched_tokens"], prefix_cache_retention_interval=job["retention"],
               num_gpu_blocks_override=job.get("blocks"), disable_log_stats=False, kv_transfer_config=transfer)


def restored(llm: LLM) -> dict[str, int]:
    """Since the engine started, by tier, from vLLM's own metrics."""
    return {metric.labels["tier"]: int(metric.value) for metric in llm.get_metrics() if metric.name == RESTORED}


def counted(llm: LLM) -> dict[str, int]:
    """All of stateport's counters that are not 0, by name and label."""
    return {":".join([metric.name.removeprefix(OURS), *(metric.labels[name] for name in ("tier", "reason", "status")
                                                        if name in metric.labels)]): int(metric.value)
            for metric in llm.get_metrics()
            if isinstance(metric, Counter) and metric.name.startswith(OURS) and metric.value}


def owned_blocks(llm: LLM) -> int:
    """Of vLLM's pool, once all requests have ended."""
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    return sum(block.ref_cnt > 0 for block in pool.blocks if not block.is_null)


def serve(llm: LLM, call: dict[str, Any], earlier: dict[str, list[int]]) -> list[dict[str, Any]]:
    prompts = []
    for request in call["requests"]:
        tokens = earlier.get(request.get("after"), []) + request["tokens"]
        prompts.append({"prompt_token_ids": tokens} | ({"cache_salt": request["salt"]} if "salt" in request else {}))
    sampling = SamplingParams(temperature=0, max_tokens=call["output_tokens"], logprobs=0, detokenize=False,
                              ignore_eos=True)
    before, begin = restored(llm), time.monotonic()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    after, seconds = restored(llm), time.monotonic() - begin
    rows = []
    for request, prompt, output in zip(call["requests"], prompts, outputs, strict=True):
        sampled = list(output.outputs[0].token_ids)
        earlier[request["name"]] = prompt["prompt_token_ids"] + sampled
        chosen = [step[token].logprob for step, token in zip(output.outputs[0].logprobs, sampled, strict=True)]
        rows.append({"name": request["name"], "prompt_tokens": len(prompt["prompt_token_ids"]), "tokens": sampled,
                     "logprobs": chosen, "reused": output.num_cached_tokens, "seconds": seconds,
                     "restored": {tier: count - before.get(tier, 0) for tier, count in after.items()}})
    return rows


def wait_for(file: str | None) -> None:
    end = time.monotonic() + SIGNAL_S_MAX
    while file and not pathlib.Path(file).exists():
        if time.monotonic() > end:
            sys.exit(f"{file} is not there after {SIGNAL_S_MAX} s")
        time.sleep(0.05)


def tell(file: str | None) -> None:
    if file:
        time.sleep(WRITES_S)
        pathlib.Path(file).touch()


def main() -> None:
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    mend_mamba2()
    if job.get("windows"):
        give_windows(job["windows"])
    llm = engine(job)
    rows, earlier = [], {}
    for call in job["calls"]:
        wait_for(call.get("wait_for"))
        if call["reset"] and not llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its cache")
        rows += serve(llm, call, earlier)
        tell(call.get("tell"))
    counters, owned = counted(llm), owned_blocks(llm)
    llm.llm_engine.engine_core.shutdown()  # also ends the writes to files
    pathlib.Path(job["out"]).write_text(json.dumps({"rows": rows, "counters": counters, "owned_blocks": owned}))


if __name__ == "__main__":
    main()
