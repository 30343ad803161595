# SPDX-License-Identifier: Apache-2.0
"""A chat with a model of transformers, whose turns reuse the states of the turns before. With the name of a model, as
LiquidAI/LFM2-1.2B, it is loaded; without one a tiny model with random weights answers nonsense.

    python transformers_chat.py [MODEL]"""
import sys

from stateport.demo.tiny import tiny_model
from stateport.transformers import PrefixCache, Tiers, chat_prompt


def letters():
    """A tokenizer for the tiny model: a token is a character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    held = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    held.pre_tokenizer, held.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    template = ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ 'assistant, who thinks: ' }}{% endif %}")
    return PreTrainedTokenizerFast(tokenizer_object=held, chat_template=template)


def load(name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)


model, tokenizer = load(sys.argv[1]) if len(sys.argv) > 1 else (tiny_model("lfm2"), letters())
reused = []
# docs: chat
tiers = Tiers(host_bytes="64 MiB")  # below memory; folder="states", file_bytes="100 GiB" survive a restart
with PrefixCache(model.eval(), memory="64 MiB", tiers=tiers, skip_slow_hits=False) as cache:
    messages = [{"role": "system", "content": "You answer in one sentence."}]
    for question in ("What is a state?", "What is a block?", "Why?"):
        messages.append({"role": "user", "content": question})
        prompt = chat_prompt(tokenizer, messages)
        # In place of model.generate: the same tokens. The breakpoints are where later turns leave this one.
        output = cache.generate(prompt.input_ids, breakpoints=prompt.breakpoints, max_new_tokens=20)
        answer = tokenizer.decode(output[0, prompt.input_ids.shape[1]:], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        print(f"{question}: {cache.last.reused_tokens} of {cache.last.prompt_tokens} tokens reused")
        # docs end
        reused.append(cache.last.reused_tokens)
assert reused[0] == 0 and reused[-1] > 0, reused
