# SPDX-License-Identifier: Apache-2.0
"""A conversation with a tiny random model. Its answers are nonsense; the computed and the reused tokens of each turn
are real."""

from __future__ import annotations

import string
import sys
from collections.abc import Iterator
from typing import Any

import torch

from stateport.demo.tiny import VOCABULARY, tiny_model
from stateport.transformers import PrefixCache, Served, Tiers

_SYSTEM = "You are a tiny model with random weights. You answer at length, and nobody minds what. " * 4
_SPOKEN = set(map(ord, string.ascii_lowercase + " "))  # a token is a character; others are never answered
_SCRIPT = ("Hello! Who are you?", "What is a hybrid model?", "/back", "What does a recurrent state hold?",
           "And why can it not be cut in the middle?", "/back", "So where must a checkpoint lie?")
_HELP = "/back takes the last turn back, so that the next one branches off before it; /quit ends."


def talk(architecture: str, *, memory: int | str, tiers: Tiers | None, answer_tokens: int) -> None:
    """Reads lines from the terminal (or from standard input, or else says some of its own) and answers them."""
    model = tiny_model(architecture)
    with PrefixCache(model, memory=memory, tiers=tiers, skip_slow_hits=False) as cache:
        print(f"{model.config.model_type}, {sum(weight.numel() for weight in model.parameters()):,} random weights, "
              f"{cache.request_tokens:,} tokens at most. {_HELP}")
        turns, saved_s = [_SYSTEM], 0.0
        for line in _lines():
            if line == "/back":
                del turns[max(len(turns) - 2, 1):]
                print("(took the last turn back)")
                continue
            turns.append(f"\nuser: {line}\nmodel: ")
            turns.append(_answer(cache, "".join(turns), answer_tokens))
            assert cache.last is not None
            saved_s += cache.last.saved_s
            print(progress(cache.last, saved_s))


def _lines() -> Iterator[str]:
    if sys.stdin is not None and sys.stdin.isatty():
        while (line := input("> ").strip()) != "/quit":
            yield line
        return
    given = [line.strip() for line in sys.stdin or () if line.strip()]
    for line in given or _SCRIPT:
        if line == "/quit":
            return
        print(f"> {line}")
        yield line


def _answer(cache: PrefixCache, text: str, tokens: int) -> str:
    silent = [token for token in range(VOCABULARY) if token not in _SPOKEN]
    ids = torch.tensor([[min(ord(letter), VOCABULARY - 1) for letter in text]])
    said = ""
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "suppress_tokens": silent}
    with cache.stream(ids, **options) as stream:
        for token in stream:
            said += chr(token)
            print(chr(token), end="", flush=True)
    print()
    return said


def progress(served: Served, saved_s: float) -> str:
    """One line: tokens that a turn reused, and the time that all turns saved."""
    share = served.reused_tokens / served.prompt_tokens
    bar = "#" * round(20 * share)
    where = f", {served.loaded_tokens} of them from {served.loaded_from}" if served.loaded_tokens else ""
    return (f"  [{bar:<20}] {served.reused_tokens} of {served.prompt_tokens} tokens reused{where}; "
            f"{1e3 * (served.restore_s + served.prefill_s):.1f} ms to begin, {served.saved_s:.4f} s saved, "
            f"{saved_s:.4f} s in all")
