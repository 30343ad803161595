# SPDX-License-Identifier: Apache-2.0
"""Passes over made-up prompts, before there are requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from stateport.transformers.layout import cache_argument, run
from stateport.transformers.stores import Stores


def warm_up(owner: Any, stores: Stores, prompt: int, tails: Sequence[int], *, measured: bool) -> None:
    """One prompt in the passes of a miss, in one pass, and with each tail behind it. measured: the times go into the
    owner's speed. Nothing is written into the stores."""
    vocabulary = owner.model.get_input_embeddings().num_embeddings
    ids = (torch.arange(prompt + max(tails, default=0), device=owner.layout.device) % vocabulary).unsqueeze(0)
    speed = owner.speed
    _timed(owner, lambda: _sample(owner.model, ids[:, :prompt], DynamicCache(config=owner.model.config)),
           lambda took: speed.passes.note(prompt, took), measured)
    cache = DynamicCache(config=owner.model.config)
    step = prompt if owner.layout.stepwise else owner.chunk_tokens
    for begin in range(0, prompt - 1, step):
        end = min(begin + step, prompt - 1)
        _timed(owner, lambda b=begin, e=end: run(owner.model, ids, cache, b, e),
               lambda took, n=end - begin: speed.passes.note(n, took), measured)
    _timed(owner, lambda: _sample(owner.model, ids[:, :prompt], cache), lambda took: speed.last_tokens.note(1, took),
           measured)
    held = np.arange(min(prompt, stores.tokens), dtype=np.int32)
    _timed(owner, lambda: stores.restore(0, held), lambda took: speed.restores.note(len(held), took), measured)
    for tail in tails:
        begin = cache.get_seq_length()
        ends = range(begin + 1, begin + tail + 1) if owner.layout.stepwise else [begin + tail]
        longer = ids.new_zeros(1, begin + tail)
        for end in ends:
            at = cache.get_seq_length()
            _timed(owner, lambda b=at, e=end, i=longer: run(owner.model, i, cache, b, e),
                   lambda took, n=end - at: None if owner.layout.stepwise else speed.passes.note(n, took), measured)


def _sample(model: Any, ids: torch.Tensor, cache: DynamicCache) -> None:
    model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False,
                   **{cache_argument(model): cache})


def _timed(owner: Any, work: Any, note: Any, measured: bool) -> None:
    begin = owner.clock.mark()
    work()
    took = owner.clock.seconds(begin, owner.clock.mark())
    if measured:
        note(took)
