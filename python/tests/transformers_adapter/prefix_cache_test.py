# SPDX-License-Identifier: Apache-2.0
"""Refusals of a PrefixCache, and that nothing leaks when a request fails."""
from __future__ import annotations

import functools
import os
import pathlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
import transformers  # noqa: E402
from witness import Witness, as_ids, budget  # noqa: E402

import stateport as sp  # noqa: E402
from stateport.demo.tiny import tiny_model  # noqa: E402
from stateport.transformers import PrefixCache, Request, Tiers, TokenStream, UnsupportedModel, probe  # noqa: E402
from stateport.transformers.layout import cache_argument  # noqa: E402

PROMPT = tuple(range(3, 40))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("lfm2")


@pytest.fixture
def cache(model: Any) -> Iterator[PrefixCache]:
    with PrefixCache(model, memory="1 MiB") as cache:
        yield cache
        cache.check_invariants()
        assert cache.running_requests == 0


def test_a_prompt_that_parts_inside_a_page_hits_the_page_before(model: Any) -> None:
    for page_tokens, hit in ((1, 21), (8, 16)):
        with PrefixCache(model, memory="1 MiB", page_tokens=page_tokens) as cache:
            witness = Witness(model)
            witness.serve(cache, PROMPT, 3)
            parted = PROMPT[:21]
            _, first = witness.serve(cache, (*parted, 100, 101, 102), 3)
            _, second = witness.serve(cache, (*parted, 103, 104, 105), 3)
            # The first one finds KV and no state, computes it all, and leaves a state where it parted.
            assert first.lost == "no_checkpoint"
            assert (first.reused_tokens, second.reused_tokens) == (0, hit)


def test_an_equal_prompt_computes_its_last_token_alone(cache: PrefixCache, model: Any) -> None:
    witness = Witness(model)
    for reused in (0, len(PROMPT) - 1):
        _, what = witness.serve(cache, PROMPT, 4)
        assert what.reused_tokens == reused
        assert what.computed_tokens == len(PROMPT) - 1 - reused


def test_chunks_of_a_prompt_give_the_same_answer(model: Any) -> None:
    with PrefixCache(model, memory="1 MiB", chunk_tokens=5) as cache:
        _, what = Witness(model).serve(cache, PROMPT, 4)
        assert what.computed_tokens == len(PROMPT) - 1
        assert cache.stats().states > len(PROMPT) // 5


def test_a_forgotten_prefix_is_computed_again(model: Any, tmp_path: pathlib.Path) -> None:
    tiers = Tiers(host_bytes="1 MiB", folder=tmp_path, file_bytes="8 MiB", write_through=True)
    with PrefixCache(model, memory="1 MiB", tiers=tiers, page_tokens=4) as cache:
        witness = Witness(model)
        witness.serve(cache, PROMPT, 3)
        cache.reset()
        cache.check_invariants()
        _, what = witness.serve(cache, PROMPT, 3)
        assert what.reused_tokens == what.loaded_tokens == 0


def test_other_weights_find_nothing_of_earlier_ones(tmp_path: pathlib.Path) -> None:
    model = tiny_model("qwen3_5")
    tiers = Tiers(host_bytes="1 MiB", folder=tmp_path, file_bytes="8 MiB", write_through=True)
    with PrefixCache(model, memory="1 MiB", tiers=tiers, page_tokens=4) as cache:
        witness = Witness(model)
        witness.serve(cache, PROMPT, 3)
        assert witness.serve(cache, PROMPT, 3)[1].reused_tokens > 0
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(1.25)
        assert cache.weights_changed() == 1
        cache.check_invariants()
        witness = Witness(model)  # compares with the model alone
        assert witness.serve(cache, PROMPT, 3)[1].reused_tokens == 0
        assert witness.serve(cache, PROMPT, 3)[1].reused_tokens > 0
        assert cache.weights_changed(7) == 7
        with pytest.raises(sp.InvalidArgument, match="epoch = 7"):
            cache.weights_changed(7)


def test_contents_of_a_closed_session_are_evicted_first(model: Any) -> None:
    options = budget(probe(model), states=4, tokens=80, longest=40)
    with PrefixCache(model, eviction="lru", sessions=sp.SessionOptions(8), **options) as cache:
        witness, prompts = Witness(model), [tuple(range(first, first + 37)) for first in (3, 50)]
        for session, prompt in enumerate(prompts, 1):
            witness.serve(cache, prompt, 1, hint=sp.ReuseHint(session=session))
        assert [cache.close_session(2) for _ in range(2)] == [True, False]
        draw = random.Random(1)
        while cache.stats().evicted_states == 0:
            witness.serve(cache, tuple(draw.choices(range(1, 120), k=37)), 1)
        assert witness.serve(cache, prompts[0], 1)[1].reused_tokens == 36  # though it is older
        assert witness.serve(cache, prompts[1], 1)[1].reused_tokens < 36
        with pytest.raises(sp.InvalidArgument, match="session"):
            cache.close_session(0)


def test_without_sessions_none_is_closed(cache: PrefixCache) -> None:
    with pytest.raises(sp.InvalidState, match="sessions"):
        cache.close_session(1)


@pytest.mark.parametrize("write_through", [False, True])
def test_a_second_cache_finds_written_images(model: Any, tmp_path: pathlib.Path, write_through: bool) -> None:
    tiers = Tiers(folder=tmp_path, file_bytes="8 MiB", write_through=write_through)
    options: dict[str, Any] = {"memory": "1 MiB", "tiers": tiers, "page_tokens": 4}
    witness = Witness(model)
    with PrefixCache(model, **options) as first:
        witness.serve(first, PROMPT, 3)
        if not write_through:
            assert first.tier_usage("file").bytes == 0
        first.drain()
        assert first.tier_usage("file").states > 0
        with PrefixCache(model, **options) as second:
            _, what = witness.serve(second, PROMPT, 3)
            assert what.loaded_from == "file"
            assert what.loaded_tokens == what.reused_tokens >= len(PROMPT) - 4
            assert "stateport_hit_tokens" in second.prometheus()


def test_sampling_draws_the_same_as_without_a_cache(cache: PrefixCache, model: Any) -> None:
    for _ in range(2):
        outputs = []
        for generate in (model.generate, cache.generate):
            torch.manual_seed(7)
            outputs.append(generate(as_ids(PROMPT), max_new_tokens=8, do_sample=True).tolist())
        assert outputs[0] == outputs[1]


def test_namespaces_share_nothing(cache: PrefixCache) -> None:
    for tenant in (b"a", b"b"):
        cache.generate(as_ids(PROMPT), max_new_tokens=1, namespace=sp.Namespace(salt=tenant))
        assert cache.last is not None
        assert cache.last.reused_tokens == 0


@pytest.mark.parametrize("page_tokens", [1, 8])
def test_an_answer_that_fills_the_room_goes_on_without_the_cache(model: Any, page_tokens: int) -> None:
    witness = Witness(model)
    with PrefixCache(model, memory="1 MiB", page_tokens=page_tokens, max_tokens=48) as cache:
        _, what = witness.serve(cache, PROMPT, 30)
        assert not what.cached
        _, long = witness.serve(cache, tuple(range(3, 70)), 3)
        assert not long.cached
        assert long.reused_tokens == 0
        _, again = witness.serve(cache, PROMPT, 2)
        assert again.reused_tokens > 0


def test_requests_beyond_those_that_may_run_do_without_the_cache(model: Any) -> None:
    with PrefixCache(model, memory="1 MiB", requests=1) as cache, cache.request(as_ids(PROMPT)) as first:
        assert first.served.cached
        out = cache.generate(as_ids(PROMPT), max_new_tokens=3, do_sample=False)
        assert cache.last is not None
        assert not cache.last.cached
        assert torch.equal(out, model.generate(as_ids(PROMPT), max_new_tokens=3, do_sample=False))


def step(model: Any, request: Request, tokens: list[int]) -> None:
    """Runs the last of the tokens, samples the next one, and tells it."""
    at = torch.tensor([[len(tokens) - 1]])
    with torch.no_grad():
        out = model(as_ids(tuple(tokens[-1:])), position_ids=at, **{cache_argument(model): request.past_key_values})
    tokens.append(int(out.logits[0, -1].argmax()))
    request.append(tokens[-1])


def test_a_loop_of_the_callers_own(cache: PrefixCache, model: Any) -> None:
    wanted = model.generate(as_ids(PROMPT), max_new_tokens=6, do_sample=False)[0].tolist()
    for reused in (0, len(PROMPT) - 1):
        tokens = list(PROMPT)
        with cache.request(as_ids(PROMPT)) as request:
            assert request.served.reused_tokens == reused
            request.prefill()
            for _ in range(6):
                step(model, request, tokens)
        assert tokens == wanted
        with pytest.raises(sp.InvalidState, match="has ended"):
            request.append(3)


# --- Requests that do not end well -----------------------------------------------------------------------------------

@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_an_exception_of_the_model_leaves_nothing_behind(model: Any, at: int) -> None:
    """In any pass over the prompt, or while it decodes."""
    left = [at]

    def fail(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ArithmeticError("the model failed")

    witness = Witness(model)
    with PrefixCache(model, memory="1 MiB", chunk_tokens=16) as cache:
        hook = model.register_forward_pre_hook(fail)
        with pytest.raises(ArithmeticError, match="the model failed"), witness.recording(list(PROMPT)):
            cache.generate(as_ids(PROMPT), max_new_tokens=8)
        hook.remove()
        assert cache.running_requests == 0
        cache.check_invariants()
        witness.serve(cache, PROMPT, 4)
        witness.serve(cache, (*PROMPT, 5, 6), 4)


def test_a_pass_that_failed_gives_its_memory_back(cache: PrefixCache, model: Any) -> None:
    witness = Witness(model)
    witness.serve(cache, PROMPT, 3)
    before = cache.stats()

    def fail(*_: Any) -> None:
        raise ArithmeticError("the model failed")

    # The pass is to leave a state inside of it, where the prompts part.
    with model.register_forward_pre_hook(fail), pytest.raises(ArithmeticError, match="the model failed"):
        cache.generate(as_ids((*PROMPT[:21], 100, 101, 102)), max_new_tokens=3)
    after = cache.stats()
    assert (after.states, after.kv_tokens) == (before.states, before.kv_tokens)


def test_a_request_that_cannot_be_restored_ends(cache: PrefixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    cache.generate(as_ids(PROMPT), max_new_tokens=2)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(cache._ledger.stores, "restore", no_memory)
        cache.generate(as_ids(PROMPT), max_new_tokens=2)
    assert cache.running_requests == 0
    cache.generate(as_ids(PROMPT), max_new_tokens=2)
    assert cache.last is not None
    assert cache.last.reused_tokens > 0
    cache.check_invariants()


def test_a_prefill_that_was_broken_off_does_not_go_on(model: Any) -> None:
    """The model has taken tokens into its state that the cache does not know of."""

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with PrefixCache(model, memory="1 MiB", chunk_tokens=8) as cache:
        request = cache.request(as_ids(PROMPT))
        with model.register_forward_hook(fail), pytest.raises(KeyboardInterrupt):
            request.prefill()
        assert request.past_key_values.get_seq_length() == 8
        with pytest.raises(sp.InvalidState, match="abort this request"):
            request.prefill()
        request.abort()
        cache.check_invariants()
        Witness(model).serve(cache, PROMPT, 3)


@pytest.mark.parametrize("page_tokens", [1, 4])
def test_requests_that_find_no_more_room_leave_no_wrong_state(page_tokens: int) -> None:
    """Two answers grow beside each other, and memory is enough for one."""
    model = tiny_model("qwen3_5")  # its states remember for long
    witness = Witness(model)
    answers = [[*PROMPT[:20], 60 + i] for i in range(2)]
    with PrefixCache(model, **budget(probe(model), page_tokens=page_tokens, longest=300)) as cache:
        with cache.request(as_ids(tuple(answers[0]))) as first, cache.request(as_ids(tuple(answers[1]))) as second:
            requests = (first, second)
            for request in requests:
                request.prefill()
            while first.served.cached and second.served.cached:
                for request, tokens in zip(requests, answers, strict=True):
                    step(model, request, tokens)
        cache.check_invariants()
        # The deepest state that is kept of them, and a prompt that goes on right behind it.
        found = []
        for tokens in answers:
            request = cache.request(as_ids(tuple(tokens)))
            request.abort()
            found.append((request.served.reused_tokens, tokens))
        deepest, tokens = max(found)
        further = (*tokens[:deepest], 7)
        out = cache.generate(as_ids(further), max_new_tokens=3, do_sample=False, return_dict_in_generate=True,
                             output_logits=True)
        assert cache.last is not None
        assert cache.last.reused_tokens == len(further) - 1 >= 20
        witness.compare(further, out.sequences[0, len(further):].tolist(), torch.cat(out.logits))


def test_streams_answer_while_they_run_and_can_be_left(cache: PrefixCache, model: Any) -> None:
    wanted = model.generate(as_ids(PROMPT), max_new_tokens=9, do_sample=False)[0, len(PROMPT):].tolist()
    with cache.stream(as_ids(PROMPT), max_new_tokens=9, do_sample=False) as stream:
        assert list(stream) == wanted
        assert list(stream) == []
    with cache.stream(as_ids(PROMPT), max_new_tokens=2000, do_sample=False) as stream:
        assert [next(stream) for _ in range(12)][:9] == wanted
        assert cache.running_requests == 1
    assert cache.running_requests == 0
    stream.close()
    # The tokens computed until then are kept.
    assert len(PROMPT) + 11 <= cache.stats().kv_tokens < 1000
    out = cache.generate(as_ids((*PROMPT, *wanted, 7)), max_new_tokens=3, do_sample=False)
    assert cache.last is not None
    assert torch.equal(out, model.generate(as_ids((*PROMPT, *wanted, 7)), max_new_tokens=3, do_sample=False))


def test_an_abandoned_stream_ends(cache: PrefixCache) -> None:
    stream: TokenStream | None = cache.stream(as_ids(PROMPT), max_new_tokens=2000, do_sample=False)
    assert stream is not None
    next(stream)
    stream = None
    for thread in threading.enumerate():
        if thread.name == "stateport-stream":
            thread.join(60)
            assert not thread.is_alive()
    assert cache.last is not None
    assert cache.last.sampled_tokens < 2000


def test_a_stream_raises_the_error_of_the_model(cache: PrefixCache, model: Any) -> None:
    def fail(*_: Any) -> None:
        raise ArithmeticError("the model failed")

    with model.register_forward_pre_hook(fail), pytest.raises(ArithmeticError, match="the model failed"):
        list(cache.stream(as_ids(PROMPT), max_new_tokens=3))


def test_streams_with_a_tokenizer_answer_text(cache: PrefixCache) -> None:
    class Letters:
        def decode(self, tokens: Any, **_: Any) -> str:
            return "".join(chr(65 + int(token) % 26) + " " for token in tokens)

    text = "".join(cache.stream(as_ids(PROMPT), tokenizer=Letters(), max_new_tokens=5, do_sample=False))
    assert len(text) == 10
    assert text.endswith(" ")


def test_streams_run_beside_each_other(model: Any) -> None:
    prompts = [(*PROMPT[:20], 50 + i, *PROMPT[20:]) for i in range(3)]
    wanted = [model.generate(as_ids(prompt), max_new_tokens=12, do_sample=False)[0, len(prompt):].tolist()
              for prompt in prompts]
    with PrefixCache(model, memory="1 MiB", requests=3) as cache:
        for _ in range(2):
            streams = [cache.stream(as_ids(prompt), max_new_tokens=12, do_sample=False) for prompt in prompts]
            assert [list(stream) for stream in streams] == wanted
            cache.check_invariants()
        assert cache.stats().hit_tokens > 0


def test_closing_ends_running_requests(model: Any) -> None:
    cache = PrefixCache(model, memory="1 MiB")
    stream = cache.stream(as_ids(PROMPT), max_new_tokens=2000, do_sample=False)
    next(stream)
    cache.close()
    cache.close()
    with pytest.raises(sp.ClosedError, match="PrefixCache is closed"):
        list(stream)
    assert repr(cache) == "<PrefixCache, closed>"
    for call in (lambda: cache.generate(as_ids(PROMPT)), lambda: cache.stream(as_ids(PROMPT)), cache.stats,
                 lambda: cache.request(as_ids(PROMPT)), cache.drain, cache.reset, cache.check_invariants):
        with pytest.raises(sp.ClosedError, match="PrefixCache is closed"):
            call()


def test_a_child_of_a_fork_must_make_its_own(cache: PrefixCache) -> None:
    ids = as_ids(PROMPT)
    reported, child = os.pipe()
    number = os.fork()
    if number == 0:
        try:
            cache.generate(ids, max_new_tokens=1)
        except sp.InvalidState as error:
            os.write(child, str(error).encode())
        finally:
            os._exit(0)
    os.close(child)
    os.waitpid(number, 0)
    assert b"before the process forked" in os.read(reported, 1000)
    os.close(reported)


# --- Refusals --------------------------------------------------------------------------------------------------------

REFUSED_IDS = {
    "list": ([[3, 4]], "input_ids is a list"),
    "batch": (torch.ones(2, 5, dtype=torch.int64), r"the shape \[2, 5\]"),
    "one dimension": (torch.ones(5, dtype=torch.int64), r"the shape \[5\]"),
    "empty": (torch.ones(1, 0, dtype=torch.int64), r"the shape \[1, 0\]"),
    "floats": (torch.ones(1, 5), "torch.float32"),
    "device": (torch.ones(1, 5, dtype=torch.int64, device="meta"), "lies on meta, and the model on cpu"),
    "unknown token": (torch.tensor([[3, 128]]), "elements from 3 to 128"),
    "negative token": (torch.tensor([[3, -1]]), "elements from -1 to 3"),
}


@pytest.mark.parametrize("name", REFUSED_IDS)
def test_ids_that_are_refused(cache: PrefixCache, name: str) -> None:
    ids, why = REFUSED_IDS[name]
    for call in (cache.generate, cache.stream, cache.request):
        with pytest.raises(sp.InvalidArgument, match=why):
            call(ids)  # type: ignore[operator]


REFUSED_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "num_beams is 2"),
    "beams of a configuration": ({"generation_config": transformers.GenerationConfig(num_beams=3)}, "num_beams is 3"),
    "no cache": ({"use_cache": False}, "use_cache is False"),
    "static cache": ({"cache_implementation": "static"}, "cache_implementation is 'static'"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 2, 32)}, "inputs_embeds is not supported"),
    "another cache": ({"past_key_values": transformers.DynamicCache()}, "past_key_values is not supported"),
    "another cache, newer": ({"cache": transformers.DynamicCache()}, "cache is not supported"),
    "states of mamba": ({"cache_params": transformers.DynamicCache()}, "cache_params is not supported"),
    "padding": ({"attention_mask": torch.tensor([[0] + [1] * (len(PROMPT) - 1)])}, "attention_mask is not all ones"),
    "mask of another shape": ({"attention_mask": torch.ones(1, 3)}, "attention_mask is not all ones"),
}


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_options_that_are_refused(cache: PrefixCache, name: str) -> None:
    options, why = REFUSED_OPTIONS[name]
    for call in (cache.generate, cache.stream):
        with pytest.raises(sp.InvalidArgument, match=why):
            call(as_ids(PROMPT), **options)


def test_whatever_else_a_model_reads_is_refused() -> None:
    model = tiny_model("minicpmv4_6")
    with PrefixCache(model, memory="1 MiB") as cache:
        for name in ("pixel_values", "target_sizes", "mm_encoder_outputs", "labels", "ple_input_ids"):
            with pytest.raises(sp.InvalidArgument, match=f"{name} is not supported: a prompt is looked up by its"):
                cache.generate(as_ids(PROMPT), max_new_tokens=1, **{name: torch.ones(1, 2)})
        cache.generate(as_ids(PROMPT), max_new_tokens=1, use_cache=True)


def test_a_mask_of_ones_is_fine(cache: PrefixCache, model: Any) -> None:
    ids = as_ids(PROMPT)
    out = cache.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
    assert torch.equal(out, model.generate(ids, max_new_tokens=3, do_sample=False))


_SMALL = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0}
REFUSED_MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "MiniMax": ("MiniMax", {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2,
                            "layer_types": ["linear_attention", "full_attention"]}, "cache of its own"),
    "RecurrentGemma": ("RecurrentGemma", {"num_hidden_layers": 3, "intermediate_size": 48, "lru_width": 32},
                       "keeps state elsewhere"),
    # From transformers 5.24 on they take a cache.
    "mamba": ("Mamba", {"state_size": 8}, "(takes no DynamicCache|has no attention layers)"),
    "mamba2": ("Mamba2", {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
               "(takes no DynamicCache|has no attention layers)"),
    "attention alone": ("Llama", {"intermediate_size": 48}, "has no recurrent layers"),
    "sliding windows alone": ("Mistral", {"intermediate_size": 48, "num_key_value_heads": 4, "sliding_window": 8},
                              "has no recurrent layers"),
    "no whole attention": ("Lfm3", {"intermediate_size": 48, "num_key_value_heads": 4, "head_dim": 8,
                                    "sliding_window": 8, "layer_types": ["conv", "sliding_attention"]},
                           "has no attention layers without a sliding window"),
    "a window of one token": ("Lfm3", {"intermediate_size": 48, "num_key_value_heads": 4, "head_dim": 8,
                                       "sliding_window": 1, "num_hidden_layers": 3,
                                       "layer_types": ["conv", "sliding_attention", "full_attention"]},
                              r"has keys of the shape \[1, 4, 3, 8\] in layer 1, and must have \[1, heads, 0, dim\]"),
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_models_that_are_refused(name: str) -> None:
    family, options, why = REFUSED_MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**_SMALL, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with pytest.raises(UnsupportedModel, match=f"{family}ForCausalLM .*{why}"):
        PrefixCache(model, memory="16 MiB")


def test_a_layer_with_a_tensor_that_is_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called, and in whatever container."""
    layer, real = transformers.cache_utils.DynamicLayer, transformers.cache_utils.DynamicLayer.update
    for held in (torch.ones(1, 3, 4), [torch.ones(2)], {"a": (torch.ones(1),)}):
        def update(self: Any, *arguments: Any, held: Any = held, **options: Any) -> Any:
            self.windows = held
            return real(self, *arguments, **options)

        monkeypatch.setattr(layer, "update", update)
        with pytest.raises(UnsupportedModel, match="Lfm2ForCausalLM keeps windows in layer [0-9]+ of its DynamicCache"):
            PrefixCache(tiny_model("lfm2"), memory="1 MiB")
    monkeypatch.setattr(layer, "update", real)
    PrefixCache(tiny_model("lfm2"), memory="1 MiB").close()


@pytest.mark.parametrize("reshape", [lambda values: values.flatten(2), lambda values: values[..., 0]],
                         ids=["flat tokens", "one number a token"])
def test_a_layer_whose_keys_are_no_tokens_is_refused(monkeypatch: pytest.MonkeyPatch, reshape: Any) -> None:
    layer, real = transformers.cache_utils.DynamicLayer, transformers.cache_utils.DynamicLayer.update

    def update(self: Any, *arguments: Any, **options: Any) -> Any:
        keys, values = real(self, *arguments, **options)
        self.values = reshape(self.values)
        return keys, values

    monkeypatch.setattr(layer, "update", update)
    with pytest.raises(UnsupportedModel, match=r"has values of the shape \[1, [0-9]+, [0-9]+\] in layer"):
        PrefixCache(tiny_model("lfm2"), memory="1 MiB")


def test_a_model_with_state_outside_of_its_cache_is_refused() -> None:
    model = tiny_model("lfm2")
    real, calls = model.forward, []

    @functools.wraps(real)
    def forward(*arguments: Any, **options: Any) -> Any:
        out = real(*arguments, **options)
        calls.append(out)
        out.logits = out.logits * len(calls)
        return out

    model.forward = forward
    with pytest.raises(UnsupportedModel, match="keeps state elsewhere"):
        PrefixCache(model, memory="1 MiB")


def test_a_model_on_another_device_or_in_training_is_refused(model: Any) -> None:
    with pytest.raises(sp.InvalidArgument, match="lies on meta, and this build of stateport for OpenMP reaches cpu"):
        PrefixCache(tiny_model("lfm2").to("meta"), memory="1 MiB")
    with pytest.raises(sp.InvalidArgument, match="training mode"):
        PrefixCache(tiny_model("lfm2").train(), memory="1 MiB")
    with pytest.raises(sp.InvalidArgument, match="model is a str"):
        PrefixCache("lfm2", memory="1 MiB")


REFUSED_SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "too little": ({"memory": 1000}, "memory is 1,000 bytes, and must be at least"),
    "no number": ({"memory": "1 cup"}, "memory is '1 cup'"),
    "negative": ({"memory": -1}, "memory is -1"),
    "zero": ({"memory": 0}, "memory is 0 bytes, and must be at least"),
    "pages": ({"memory": "1 MiB", "page_tokens": 0}, "page_tokens is 0"),
    "requests": ({"memory": "1 MiB", "requests": -1}, "requests is -1"),
    "order": ({"memory": "1 MiB", "eviction": "best"}, "order is 'best'"),
}


@pytest.mark.parametrize("name", REFUSED_SIZES)
def test_sizes_that_are_refused(model: Any, name: str) -> None:
    options, why = REFUSED_SIZES[name]
    with pytest.raises(sp.InvalidArgument, match=why):
        PrefixCache(model, **options)


def test_tiers_that_are_refused() -> None:
    with pytest.raises(sp.InvalidArgument, match="both or neither"):
        Tiers(folder="images")
    with pytest.raises(sp.InvalidArgument, match="both or neither"):
        Tiers(file_bytes="1 GiB")
    with pytest.raises(sp.InvalidArgument, match="host_bytes is '1 XB'"):
        Tiers(host_bytes="1 XB")


def test_the_least_memory_serves_what_fits(model: Any) -> None:
    layout = probe(model)
    with pytest.raises(sp.InvalidArgument) as refused:
        PrefixCache(model, memory=1, requests=1)
    least = int(str(refused.value).split("at least ")[1].split(":")[0].replace(",", ""))
    with pytest.raises(sp.InvalidArgument):
        PrefixCache(model, memory=least - 1, requests=1)
    with PrefixCache(model, memory=least, requests=1) as cache:
        assert cache.request_tokens < len(PROMPT)
        witness = Witness(model)
        witness.serve(cache, PROMPT, 2)
        for _ in range(2):
            _, served = witness.serve(cache, PROMPT[:cache.request_tokens - 3], 2)
        assert served.reused_tokens > 0
    with PrefixCache(model, **budget(layout, longest=100)) as cache:
        assert cache.request_tokens == 100


def test_16_bit_models_are_restored_as_they_are() -> None:
    model = tiny_model("qwen3_5").to(torch.bfloat16)
    witness = Witness(model)
    with PrefixCache(model, memory="1 MiB") as cache:
        with witness.recording(list(PROMPT)):
            cache.generate(as_ids(PROMPT), max_new_tokens=1, do_sample=False)
        dtypes = {tensor.dtype for tensor in (*cache.layout.states, *cache.layout.kv)}
        assert torch.bfloat16 in dtypes
        outs = [cache.generate(as_ids(PROMPT), max_new_tokens=4, do_sample=False, return_dict_in_generate=True,
                               output_logits=True) for _ in range(2)]
        assert cache.last is not None
        assert cache.last.reused_tokens == len(PROMPT) - 1
        assert torch.equal(torch.cat(outs[0].logits), torch.cat(outs[1].logits))
