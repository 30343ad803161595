# SPDX-License-Identifier: Apache-2.0
"""Prefix caching for hybrid models of transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, StoppingCriteriaList

from stateport import _library
from stateport.cache_integrity import IntegrityUsage
from stateport.cache_options import ArenaUsage, CacheStats, SessionOptions, TierUsage
from stateport.errors import BackendError, InvalidArgument
from stateport.eviction import ReuseHint
from stateport.hashing import Namespace
from stateport.transformers import attention
from stateport.transformers.budget import Tiers, cut, parse_bytes
from stateport.transformers.inputs import check_breakpoints, check_ids, check_options, setting
from stateport.transformers.layout import cache_argument, probe
from stateport.transformers.ledger import Ledger
from stateport.transformers.request import Request, Served
from stateport.transformers.samples import Samples
from stateport.transformers.speed import Clock, Speed
from stateport.transformers.stores import extent_of, granularity_bytes
from stateport.transformers.streaming import TokenStream
from stateport.transformers.warming import Warming

_DEVICES = {"OpenMP": "cpu", "CUDA": "cuda", "HIP": "cuda"}  # torch's name of the device of each build
_PAGE_TOKENS = 16  # with tiers: an image of KV has a header of 4 KiB


class PrefixCache:
    """Keeps KV and recurrent states of earlier prompts and answers, so that a prompt that begins as one of them is
    computed from where they part.

        with PrefixCache(model, memory="2 GiB") as cache:
            output = cache.generate(input_ids, max_new_tokens=100)   # in place of model.generate

    memory: bytes for states and KV together, on the model's device: it moves between them as prompts need it. tiers:
    where both go when it is full. page_tokens: KV is kept, and prompts are matched, in pages of this size; None: 1, and
    16 with tiers. max_tokens: of one prompt with its answer; longer ones run without the cache, and memory for the KV
    of one never becomes memory for states; None: as long as the model allows, and half of memory. requests: that run at
    a time; others run without the cache. chunk_tokens: of a prompt, in one forward
    pass. speed: how long passes and loads take, where an operator knows; None: it is measured. skip_slow_hits: a hit of
    `generate` and `stream` is not taken if it takes longer than one pass over the whole prompt; False: every hit is
    taken. eviction: one of stateport.eviction.ORDERS. hash_seed: a secret below 2^64 in all names of prompts; None: a
    random one, and with a folder 0: later caches with the same seed find the files. scrub: memory that changes tenant
    (Namespace.salt) is set to zero before it is used, all of it at the end, and bytes of files before they are given
    back. The memory in which the model computes is torch's, and is not cleared. integrity: each state is summed when it
    is kept, and compared before a request goes on from it. One that has changed meanwhile, or holds a NaN or an
    infinity, is taken back, and its tokens are computed again (integrity_usage); a hit waits for the device. KV is not
    summed. sessions: named by ReuseHint.session of a request's hint, and ended by close_session, or by last_turn of a
    hint; None: neither has such an effect.

    Until `close` a model that attends by "sdpa" attends by "stateport_sdpa": the same, without a mask of all pairs of
    tokens in passes that do not begin a prompt. The model's weights must not change while the cache lives. Any thread
    may call. A forked process makes its own.
    Raises UnsupportedModel, and InvalidArgument for options that do not fit the model."""

    def __init__(self, model: Any, *, memory: int | str, tiers: Tiers | None = None, page_tokens: int | None = None,
                 max_tokens: int | None = None, requests: int = 2, chunk_tokens: int = 4096, speed: Speed | None = None,
                 skip_slow_hits: bool = True, eviction: str = "hix", hash_seed: int | None = None,
                 scrub: bool = False, integrity: bool = False, sessions: SessionOptions | None = None) -> None:
        _require_positive(page_tokens=page_tokens, max_tokens=max_tokens, requests=requests, chunk_tokens=chunk_tokens)
        _require_device(model)
        self.model = model
        with contextlib.ExitStack() as undo:
            attention.use(model)
            undo.callback(attention.leave, model)
            self.layout = probe(model)
            self.page_tokens = page_tokens or (_PAGE_TOKENS if tiers else 1)
            self.chunk_tokens = chunk_tokens
            config = model.config.get_text_config(decoder=True)
            memory_bytes, granularity = parse_bytes("memory", memory), granularity_bytes(self.layout)
            sizes = cut(memory_bytes, states=extent_of(self.layout.state_spec(), granularity),
                        pages=extent_of(self.layout.page_spec(self.page_tokens), granularity),
                        page_tokens=self.page_tokens, requests=requests, max_tokens=max_tokens,
                        model_tokens=getattr(config, "max_position_embeddings", None) or 2**30)
            self.request_tokens = sizes.request_tokens
            self.speed = speed or Speed()
            self.clock = Clock(self.layout.device)
            self._skip_slow_hits = skip_slow_hits
            self.last: Served | None = None
            self._ledger = Ledger(model, self.layout, memory_bytes, sizes, requests=requests,
                                  page_tokens=self.page_tokens, eviction=eviction, tiers=tiers, hash_seed=hash_seed,
                                  scrub=scrub, integrity=integrity, sessions=sessions)
            undo.pop_all()

    # --- Requests ----------------------------------------------------------------------------------------------------

    def generate(self, input_ids: torch.Tensor, *, namespace: Namespace | None = None, hint: ReuseHint | None = None,
                 breakpoints: Sequence[int] = (), **options: Any) -> Any:
        """The answer of model.generate for these input_ids [1, tokens] and options. `last` has the saved tokens and
        time.

        namespace: prompts of different ones share nothing. hint: about the prompt's future. breakpoints: at most 8
        ascending positions, from 1 to the number of tokens, at which later prompts may leave this one (chat_prompt
        names those of a chat): a pass over the prompt ends at each, and leaves a state, if there is room.

        num_return_sequences=n samples n answers: the prompt is computed once, and a hit is always taken. The cache
        keeps the answers, too, if n + 1 requests may run now; else the prompt alone (last.cached is False). Raises
        InvalidArgument for more than one prompt, for padding, for positions that are none, and for options that need a
        cache of their own (num_beams, assistant_model, …)."""
        self._ledger.require_open()  # before torch does anything: in a child of a fork its threads are not there
        check_options(self.model, input_ids, options)
        criteria = StoppingCriteriaList(options.pop("stopping_criteria", None) or [])
        options.pop("attention_mask", None)
        count = setting(self.model, options, "num_return_sequences") or 1
        with self._request(input_ids, namespace, hint, breakpoints,
                           may_skip=self._skip_slow_hits and count == 1) as request:
            request.prefill()
            if count == 1:
                return self._generate(input_ids, request.past_key_values, [request, *criteria], options)
            with Samples(request, count, self._ends(options), criteria) as samples:
                return self._generate(input_ids, samples.past_key_values, [samples], options)

    def _generate(self, input_ids: torch.Tensor, cache: DynamicCache, criteria: list[Any],
                  options: dict[str, Any]) -> Any:
        return self.model.generate(input_ids=input_ids, attention_mask=torch.ones_like(input_ids),
                                   stopping_criteria=StoppingCriteriaList(criteria),
                                   **options | {cache_argument(self.model): cache})

    def _ends(self, options: dict[str, Any]) -> set[int]:
        """Tokens that end an answer."""
        ends = setting(self.model, options, "eos_token_id")
        return set() if ends is None else set(torch.as_tensor(ends).reshape(-1).tolist())

    def stream(self, input_ids: torch.Tensor, *, tokenizer: Any = None, namespace: Namespace | None = None,
               hint: ReuseHint | None = None, breakpoints: Sequence[int] = (), timeout_s: float | None = None,
               **options: Any) -> TokenStream:
        """As generate, but returns an iterator over the answer while it is sampled: token ids, or text with a
        tokenizer.

        Closing it, or leaving its `with` statement, ends the generation early and keeps the tokens computed so far."""
        self._ledger.require_open()
        check_options(self.model, input_ids, options)
        if (count := setting(self.model, options, "num_return_sequences") or 1) > 1:
            raise InvalidArgument(f"num_return_sequences is {count}, and must be 1: a stream has one answer")
        check_ids(self.model, input_ids)
        check_breakpoints(input_ids, breakpoints)
        return TokenStream(self, input_ids, tokenizer, timeout_s,
                           {"namespace": namespace, "hint": hint, "breakpoints": breakpoints, **options})

    def request(self, input_ids: torch.Tensor, *, namespace: Namespace | None = None, hint: ReuseHint | None = None,
                breakpoints: Sequence[int] = ()) -> Request:
        """Starts a request for a loop of the caller's own: see Request. It takes every hit."""
        return self._request(input_ids, namespace, hint, breakpoints, may_skip=False)

    def _request(self, input_ids: torch.Tensor, namespace: Namespace | None, hint: ReuseHint | None,
                 breakpoints: Sequence[int], *, may_skip: bool) -> Request:
        self._ledger.require_open()
        check_ids(self.model, input_ids)
        check_breakpoints(input_ids, breakpoints)
        return Request(self, self._ledger, input_ids, {"namespace": namespace, "hint": hint, "breakpoints": breakpoints,
                                                       "may_skip": may_skip})

    def warm_up(self, prompts: Sequence[int], tails: Sequence[int] = (), *, rounds: int = 3) -> None:
        """Computes made-up prompts of these lengths, and behind each of them tails of those lengths, `rounds` times, so
        that kernels are chosen and loaded before the first request, and `speed` knows how long passes take.

        Prompts run as prompts that miss do, and in one pass, tails as the rest of a prompt that hits. Nothing of it is
        cached, and no statistic changes. Raises InvalidArgument for lengths that are not positive."""
        self._ledger.require_open()
        for name, lengths in (("prompts", prompts), ("tails", tails), ("rounds", (rounds,))):
            for length in lengths:
                _require_positive(**{name: length})
        for length in prompts:
            for turn in range(rounds):
                Warming(self, self._ledger, measured=turn > 0).warm_up(length, tails)

    def ended(self, request: Request) -> None:
        """Called by a request that ends."""
        self.last = request.served

    # --- The cache ---------------------------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """Hits, and why there were not more. Hits that were not taken count; speed.skipped_hits of them."""
        self._ledger.require_open()
        return self._ledger.book.stats()

    def memory_usage(self) -> ArenaUsage:
        """How memory is divided now, and how often it moved."""
        self._ledger.require_open()
        return self._ledger.book.arena_usage()

    def tier_usage(self, medium: str) -> TierUsage:
        """Contents and counters of "host" or "file"."""
        self._ledger.require_open()
        return self._ledger.book.tier_usage(medium)

    def integrity_usage(self) -> IntegrityUsage:
        """States that were checked, and that were taken back. Raises InvalidState without `integrity`."""
        self._ledger.require_open()
        return self._ledger.book.integrity_usage()

    def prometheus(self, prefix: str = "stateport") -> str:
        """The statistics in the text format of Prometheus."""
        self._ledger.require_open()
        return self._ledger.book.prometheus(prefix)

    @property
    def running_requests(self) -> int:
        """That started and did not end."""
        self._ledger.require_open()
        return self._ledger.book.running_requests

    def reset(self) -> None:
        """Forgets everything that is cached, in tiers too. Requests that run go on with the contents that they
        hold, and leave nothing."""
        self._ledger.require_open()
        self._ledger.reset()

    def weights_changed(self, epoch: int = 0) -> int:
        """The model has other weights from now on: no later prompt finds anything that was made before, in tiers
        neither. Requests that run go on with the KV and the states that they hold, and leave nothing. epoch: the number
        of the new weights; 0: the current number plus 1. Answers it. Raises InvalidArgument for a number that is not
        greater than the current one."""
        self._ledger.require_open()
        return self._ledger.weights_changed(epoch)

    def close_session(self, session: int) -> bool:
        """The session expects no further prompt: contents that no other one used are evicted before all others, until
        the session speaks again. False: it is unknown, or was closed already. Raises InvalidState without `sessions`,
        and InvalidArgument for 0, which is no session."""
        self._ledger.require_open()
        return self._ledger.close_session(session)

    def drain(self) -> None:
        """Writes the cache to files, so that another process, or the next run, finds it. Waits until it is written."""
        self._ledger.require_open()
        self._ledger.drain()

    def check_invariants(self) -> None:
        """Recounts everything; raises InternalError naming the first fault."""
        self._ledger.require_open()
        self._ledger.check_invariants()

    def close(self) -> None:
        """Writes the cache to files, if there are any, and gives all memory back. Running requests are aborted: their
        next call raises ClosedError. Closing twice is fine."""
        if not self._ledger.book.closed:
            self._ledger.close()
            attention.leave(self.model)

    @property
    def closed(self) -> bool:
        return self._ledger.book.closed

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<PrefixCache, closed>"
        return f"<PrefixCache of a {self.layout.architecture}: {self._ledger.book!r}>"


def _require_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidArgument(f"{name} is {value!r}, and must be a positive number")


def _require_device(model: Any) -> None:
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "generate"):
        raise InvalidArgument(f"model is a {type(model).__name__}, and must be a model of transformers that generates")
    if model.training:
        raise InvalidArgument("model is in training mode, where its answers are random: call model.eval() first")
    backend, device = _library.backend(), next(model.parameters()).device
    if backend is None:
        raise BackendError("this build of stateport has no device: it is a core-only one")
    if device.type != _DEVICES[backend]:
        raise InvalidArgument(f"model lies on {device}, and this build of stateport for {backend} reaches "
                              f"{_DEVICES[backend]} alone")
