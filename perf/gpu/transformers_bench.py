#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""H1: seconds to the first token of transformers through stateport.transformers, against model.generate.

    transformers_bench.py --library libstateport-c.so [--benchmark_filter REGEX]  # JSON as of Google Benchmark
    transformers_bench.py --library libstateport-c.so --device cpu                # a dry run: answers, no figures
    transformers_bench.py --library libstateport-c.so --device cpu --tokens 8192 --figures

Models have random weights. Ours and generate alternate, times are medians of the wall clock, and the device is idle at
both ends of a run. <model>/<tokens> of the names below; on a GPU 32,768 tokens, unless --tokens says another length.
  H1/<model>/<tokens>/chunk:N   a prompt of which nothing is cached, in passes of N tokens
  hit/<model>/<tokens>          a cached prompt with 64 tokens more; reused_tokens 0: the hit was not taken, because it
                                takes longer than the prompt
  again/<model>/<tokens>        the same prompt once more
  restart/<model>/<tokens>      the first request of a cache that finds the prompt in files
Without torch, transformers or a device it says so and exits with 77 (skipped)."""
import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from contextlib import contextmanager

import comparison
from comparison import Contender

SKIPPED = 77
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ("dense", "moe")
TAIL_TOKENS = 64
# tokens: of the prompts. chunks: of one pass. rounds: of each comparison.
SIZES = {"cuda": {"tokens": 32768, "chunks": (4096, 16384), "rounds": 3},
         "cpu": {"tokens": 96, "chunks": (32, 64), "rounds": 1}}
_DELTA_NET = {"num_hidden_layers": 12, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 3}
_COMMON = {"max_position_embeddings": 1 << 17, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SHAPES = {
    # Some 0.8 billion weights.
    "cuda": {**_DELTA_NET, "vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 4096, "head_dim": 256,
             "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_key_heads": 16,
             "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "cpu": {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"], "vocab_size": 2048,
            "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
            "linear_key_head_dim": 64, "linear_value_head_dim": 64},
}
_KINDS = {
    "dense": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    # With weights of this spread rounding flips which experts are chosen, as in models that were trained.
    "moe": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "initializer_range": 0.05}),
}


class Skipped(Exception):
    """There is nothing here to measure with."""


def load(device, library):
    """Returns (torch, transformers, stateport). Raises Skipped."""
    os.environ["STATEPORT_LIBRARY"] = library
    sys.path.insert(0, str(CHECKOUT / "python"))
    if not (CHECKOUT / "python/stateport/_c.py").exists():  # an installed package has it
        spec = importlib.util.spec_from_file_location("stateport._c", CHECKOUT / "c/python/stateport_c.py")
        sys.modules["stateport._c"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    try:
        import torch
        import transformers

        import stateport.transformers
    except ImportError as error:
        raise Skipped(f"Python has no torch and transformers here: {error}") from error
    if device == "cuda" and not torch.cuda.is_available():
        raise Skipped("torch finds no device")
    from stateport import _library
    try:
        backend = _library.backend()
    except stateport.BackendError as error:
        raise Skipped(f"the library cannot be loaded: {error}") from error
    wanted = "OpenMP" if device == "cpu" else "HIP" if torch.version.hip else "CUDA"
    if backend != wanted:
        raise Skipped(f"the library is built for {backend}, torch here runs on {wanted}")
    transformers.logging.set_verbosity_error()
    return torch, transformers, stateport


class Bench:
    """Measures one model, which is made when it is first needed."""

    def __init__(self, torch, transformers, stateport, device, kind, tokens, rounds):
        self._torch, self._transformers, self._stateport = torch, transformers, stateport
        self._device, self._kind, self._tokens, self._rounds = device, kind, tokens, rounds
        self._model, self._salts = None, itertools.count()
        self._ids = torch.Generator().manual_seed(5)

    def close(self):
        self._model = None
        if self._device == "cuda":
            self._torch.cuda.empty_cache()

    @property
    def model(self):
        if self._model is None:
            config, model, own = _KINDS[self._kind]
            self._torch.manual_seed(3)
            made = getattr(self._transformers, config)(**{**_COMMON, **_SHAPES[self._device], **own})
            with self._torch.device(self._device):
                self._model = getattr(self._transformers, model)(made).eval()
            if self._device == "cuda":
                self._model = self._model.to(self._torch.bfloat16)
            self._model.generation_config.eos_token_id = None
        return self._model

    # --- Measurements ------------------------------------------------------------------------------------------------

    def miss(self, chunk):
        ids = self._tokens_of(self._tokens)
        with self._cache(chunk_tokens=chunk) as cache:
            return self._compare(cache, lambda round: ids, fresh=True)

    def hit(self):
        base = self._tokens_of(self._tokens)
        with self._cache() as cache:
            cache.warm_up([self._tokens + TAIL_TOKENS], [TAIL_TOKENS])
            self._first(cache, base)
            longer = {}

            def prompt(round):
                if round not in longer:
                    longer[round] = self._torch.cat([base, self._tokens_of(TAIL_TOKENS)], 1)
                return longer[round]

            return self._compare(cache, prompt)

    def again(self):
        ids = self._tokens_of(self._tokens)
        with self._cache() as cache:
            self._first(cache, ids)
            return self._compare(cache, lambda round: ids)

    def restart(self):
        ids = self._tokens_of(self._tokens)
        with tempfile.TemporaryDirectory(prefix="stateport-") as folder:
            tiers = self._stateport.transformers.Tiers(folder=folder, file_bytes="40 GiB")
            with self._cache(tiers=tiers) as cache:
                self._first(cache, ids)
            ours, loads, same = [], [], []
            for _ in range(self._rounds):
                with self._cache(tiers=tiers) as cache:
                    ours.append(self._time_ns(lambda c=cache: same.append(self._first(c, ids))))
                    loads.append(cache.last.loaded_tokens)
        generate = [self._time_ns(lambda: same.append(self._generate(ids))) for _ in range(self._rounds + 1)][1:]
        return {"ours_ns": comparison.median(ours), "generate_ns": comparison.median(generate),
                "ratio_to_generate": comparison.median(generate) / comparison.median(ours),
                "loaded_tokens": loads[-1], "same_tokens": len(set(same)) == 1}

    def _compare(self, cache, prompt, fresh=False):
        """Counters of ours and generate. fresh: each run of ours finds nothing."""
        said, reused, wanted = [], [], {}

        def ours(round):
            salt = str(next(self._salts)).encode() if fresh else b""
            said.append((prompt(round), self._first(cache, prompt(round), salt)))
            reused.append(cache.last.reused_tokens)

        def generate(round):
            self._generate(prompt(round))

        def same(ids, token):
            if id(ids) not in wanted:
                wanted[id(ids)] = self._generate(ids)
            return wanted[id(ids)] == token

        contenders = [Contender(run.__name__, run, lambda round: None, lambda round: True) for run in (ours, generate)]
        counters = comparison.compare(contenders, self._rounds, self._time_ns)
        return {**counters, "reused_tokens": reused[-1], "same_tokens": all(same(*one) for one in said)}

    def _first(self, cache, ids, salt=b""):
        out = cache.generate(ids, max_new_tokens=1, do_sample=False, namespace=self._stateport.Namespace(salt=salt))
        return int(out[0, -1])

    def _generate(self, ids):
        out = self.model.generate(ids, attention_mask=self._torch.ones_like(ids), max_new_tokens=1, do_sample=False)
        return int(out[0, -1])

    # --- Prompts, caches, times-------------------------------------------------------------------------------------------

    def _tokens_of(self, count):
        ids = self._torch.randint(3, _SHAPES[self._device]["vocab_size"], (1, count), generator=self._ids)
        return ids.to(self._device)

    @contextmanager
    def _cache(self, **options):
        from stateport.transformers.stores import kv_bytes_per_token, state_bytes
        layout = self._stateport.transformers.probe(self.model)
        longest = self._tokens + 2 * TAIL_TOKENS
        states = (2 * longest // min(options.get("chunk_tokens", 4096), longest) + 16) * state_bytes(layout)
        kv = 3 * longest * kv_bytes_per_token(layout)
        with self._stateport.transformers.PrefixCache(
                self.model, memory=2 * (states + kv), max_tokens=longest,
                **{"chunk_tokens": 4096, **options}) as cache:
            yield cache

    def _time_ns(self, run):
        synchronize = self._torch.cuda.synchronize if self._device == "cuda" else lambda: None
        synchronize()
        begin = time.perf_counter_ns()
        run()
        synchronize()
        return max(1, time.perf_counter_ns() - begin)


def benchmarks(bench_of, models, tokens, chunks):
    """{name: function that returns counters}. bench_of: makes the Bench of a model."""
    found = {}
    for kind in models:
        for chunk in chunks:
            found[f"H1/{kind}/{tokens}/chunk:{chunk}"] = lambda kind=kind, chunk=chunk: bench_of(kind).miss(chunk)
        for name in ("hit", "again", "restart"):
            found[f"{name}/{kind}/{tokens}"] = lambda kind=kind, name=name: getattr(bench_of(kind), name)()
    return found


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="shared library of the C interface")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="torch's word; cuda for HIP too")
    parser.add_argument("--model", choices=MODELS, help="default: both")
    parser.add_argument("--tokens", type=int, help="of the prompts")
    parser.add_argument("--chunks", help="tokens of one pass, separated by commas")
    parser.add_argument("--rounds", type=int, help="of each comparison")
    parser.add_argument("--threads", type=int, help="of torch, on a CPU")
    parser.add_argument("--figures", action="store_true", help="on a CPU: JSON as on a GPU, in place of a dry run")
    parser.add_argument("--benchmark_filter", default="", metavar="REGEX")
    parser.add_argument("--benchmark_format", choices=("json",), default="json")
    options = parser.parse_args(arguments)
    size = SIZES[options.device]
    options.tokens = options.tokens or size["tokens"]
    options.rounds = options.rounds or size["rounds"]
    options.chunks = tuple(map(int, options.chunks.split(","))) if options.chunks else size["chunks"]
    for name in ("tokens", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be positive")
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        torch, transformers, stateport = load(options.device, options.library)
    except Skipped as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    if options.threads:
        torch.set_num_threads(options.threads)
    made = {}

    def bench_of(kind):
        if kind not in made:
            for other in made.values():
                other.close()
            made.clear()
            made[kind] = Bench(torch, transformers, stateport, options.device, kind, options.tokens, options.rounds)
        return made[kind]

    models = (options.model,) if options.model else MODELS
    with torch.no_grad():
        objects = comparison.run_all(benchmarks(bench_of, models, options.tokens, options.chunks), options.benchmark_filter,
                          lambda text: print(text, file=sys.stderr))
    if options.device == "cpu" and not options.figures:
        for result in objects:
            answers = "answers as generate does" if result["same_tokens"] else "ANSWERS DIFFERENTLY"
            print(f"dry run: {result['name']}: {answers}")
        return 0 if all(result["same_tokens"] for result in objects) else 1
    context = {"library_version": stateport.version(), "torch": torch.__version__,
               "transformers": transformers.__version__, "torch_threads": torch.get_num_threads()}
    if options.device == "cuda":
        context["device"] = torch.cuda.get_device_name()
    print(json.dumps({"context": context, "benchmarks": objects}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
