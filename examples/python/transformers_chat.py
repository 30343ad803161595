# SPDX-License-Identifier: Apache-2.0
"""A chat with a model of transformers, whose turns reuse the states of the turns before. With the name of a model, as
LiquidAI/LFM2-1.2B, it is loaded; without one a tiny model with random weights answers nonsense.

    python transformers_chat.py [MODEL]"""
import sys

import torch

from stateport.demo.tiny import tiny_model
from stateport.transformers import PrefixCache, Tiers


class Letters:
    """A tokenizer for the tiny model: a token is a character."""

    def __call__(self, text, return_tensors):
        return type("Batch", (), {"input_ids": torch.tensor([[min(ord(letter), 127) for letter in text]])})

    def decode(self, tokens, **_):
        return "".join(map(chr, tokens))


def load(name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)


model, tokenizer = load(sys.argv[1]) if len(sys.argv) > 1 else (tiny_model("lfm2"), Letters())
reused = []
# docs: chat
tiers = Tiers(host_bytes="64 MiB")  # below memory; folder="states", file_bytes="100 GiB" survive a restart
with PrefixCache(model.eval(), memory="64 MiB", tiers=tiers, skip_slow_hits=False) as cache:
    text = "You answer in one sentence. "
    for question in ("What is a state?", "What is a block?", "Why?"):
        text += question
        ids = tokenizer(text, return_tensors="pt").input_ids
        output = cache.generate(ids, max_new_tokens=20)  # in place of model.generate: the same tokens
        text = tokenizer.decode(output[0].tolist(), skip_special_tokens=True)
        print(f"{question}: {cache.last.reused_tokens} of {cache.last.prompt_tokens} tokens reused")
        # docs end
        reused.append(cache.last.reused_tokens)
assert reused[0] == 0 and reused[-1] > 0, reused
