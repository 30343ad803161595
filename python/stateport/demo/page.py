# SPDX-License-Identifier: Apache-2.0
"""Many conversations with a tiny random model, with a cache and without one, as a page of plots: one HTML file that
loads nothing."""

from __future__ import annotations

import dataclasses
import html
import pathlib
import random
import time
from typing import Any

import torch

from stateport.demo.svg import Series, bars, lines
from stateport.demo.tiny import VOCABULARY, tiny_model
from stateport.transformers import PrefixCache, Served, Tiers

_CONVERSATIONS, _TURNS = 8, 6
_SYSTEM_TOKENS, _QUESTION_TOKENS, _ANSWER_TOKENS = 400, 40, 24


@dataclasses.dataclass
class Measured:
    """For each request, in order: the cache's counts, the seconds to the first token with and without it, and the bytes
    that tiers hold then."""

    served: list[Served] = dataclasses.field(default_factory=list)
    cached_s: list[float] = dataclasses.field(default_factory=list)
    cold_s: list[float] = dataclasses.field(default_factory=list)
    host_bytes: list[float] = dataclasses.field(default_factory=list)
    file_bytes: list[float] = dataclasses.field(default_factory=list)


def write(out: pathlib.Path, architecture: str, *, memory: int | str, tiers: Tiers | None) -> None:
    """Runs the conversations and writes the page to `out`."""
    model = tiny_model(architecture)
    with PrefixCache(model, memory=memory, tiers=tiers, skip_slow_hits=False) as cache:
        measured = _measure(model, cache)
        stats = cache.stats()
        title = f"{model.config.model_type}: {_CONVERSATIONS} conversations of {_TURNS} turns"
    out.write_text(_page(title, measured, stats), encoding="utf-8")
    reused = sum(one.reused_tokens for one in measured.served)
    print(f"{out}: {reused:,} of {sum(one.prompt_tokens for one in measured.served):,} tokens reused, "
          f"{sum(measured.cold_s):.2f} s to the first tokens without a cache, {sum(measured.cached_s):.2f} s with it")


def _measure(model: Any, cache: PrefixCache) -> Measured:
    draw, measured = random.Random(1), Measured()
    system = _tokens(draw, _SYSTEM_TOKENS)
    histories = [list(system) for _ in range(_CONVERSATIONS)]
    for turn in range(_TURNS):
        for number, history in enumerate(histories):
            history += _tokens(draw, _QUESTION_TOKENS)
            ids = torch.tensor([history])
            measured.cold_s.append(_cold(model, ids))
            out = cache.generate(ids, max_new_tokens=_ANSWER_TOKENS, do_sample=False)
            assert cache.last is not None
            measured.served.append(cache.last)
            # The last token of the prompt runs in `generate`, here and in a cold run.
            measured.cached_s.append(cache.last.restore_s + cache.last.prefill_s)
            measured.host_bytes.append(cache.tier_usage("host").bytes)
            measured.file_bytes.append(cache.tier_usage("file").bytes)
            histories[number] = out[0].tolist()
        print(f"turn {turn + 1} of {_TURNS}: {cache.stats().hit_tokens:,} tokens reused so far", flush=True)
    return measured


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, VOCABULARY) for _ in range(count)]


def _cold(model: Any, ids: torch.Tensor) -> float:
    """Seconds to compute a prompt, but for its last token."""
    begin = time.perf_counter()
    with torch.no_grad():
        model(ids[:, :-1], use_cache=True, logits_to_keep=1)
    return time.perf_counter() - begin


def _page(title: str, measured: Measured, stats: Any) -> str:
    served = measured.served
    plots = [
        ("Time to the prompt's last token", lines([
            Series("without a cache", [1e3 * value for value in measured.cold_s], "cold"),
            Series("with it: look up, restore, compute the rest", [1e3 * value for value in measured.cached_s], "hit"),
        ], unit="ms", x="request")),
        ("Tokens of each prompt", bars([
            Series("reused from memory", [one.reused_tokens - one.loaded_tokens for one in served], "hit"),
            Series("loaded from a tier", [one.loaded_tokens for one in served], "tier"),
            Series("computed", [one.prompt_tokens - one.reused_tokens for one in served], "cold"),
        ], unit="tokens", x="request")),
    ]
    if any(measured.host_bytes) or any(measured.file_bytes):
        plots.append(("Images below memory", bars([
            Series("host", [value / 2**20 for value in measured.host_bytes], "tier"),
            Series("files", [value / 2**20 for value in measured.file_bytes], "cold")], unit="MiB", x="request")))
    lost = "".join(f"<tr><td>{html.escape(reason)}</td><td>{tokens:,}</td></tr>"
                   for reason, tokens in sorted(stats.lost_tokens.items(), key=lambda item: -item[1]))
    body = "".join(f"<h2>{html.escape(name)}</h2>{plot}" for name, plot in plots)
    return _TEMPLATE.format(title=html.escape(title), body=body, lost=lost, hit=stats.hit_tokens,
                            prompt=stats.prompt_tokens, states=stats.evicted_states, kv=stats.evicted_kv_tokens)


_TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>stateport: {title}</title>
<style>
:root {{ --hit: #1a7f5a; --cold: #b3541e; --tier: #3565c4; --line: #ddd; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2em auto; padding: 0 1em; color: #222; }}
svg text {{ font-size: 11px; fill: #555; }} .grid {{ stroke: var(--line); }} h2 {{ font-size: 1.1em; margin-top: 2em; }}
.legend {{ margin: 0; font-size: 13px; }} td {{ padding: 0 1.5em 0 0; }} td + td {{ text-align: right; }}
</style>
<h1>{title}</h1>
<p>The model has random weights and is very small: the shapes of these plots are real, their seconds are not those of a
model that anybody uses. {hit:,} of {prompt:,} tokens were reused; {states:,} states and the KV of {kv:,} tokens were
evicted.</p>
{body}
<h2>Tokens that were not reused, and why</h2><table>{lost}</table>
</html>
"""
