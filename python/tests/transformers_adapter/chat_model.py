# SPDX-License-Identifier: Apache-2.0
"""A small tokenizer with the template of a model that reasons: the next question drops the reasoning of all earlier
answers."""
from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 400
_TEXT = ["You are a helpful assistant. The reasoning of an answer. What is the weather? And why is the sky blue?",
         "user assistant system tool think What are the states of a model, and where is the state kept?"]

# As Qwen3's, but for the form of tool calls.
TEMPLATE = """
{%- if messages[0].role == 'system' or tools %}
    {{- '<|im_start|>system\\n' }}
    {{- messages[0].content + '\\n' if messages[0].role == 'system' else '' }}
    {%- for tool in tools or [] %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'tool' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}
"""


def chat_tokenizer(template: str = TEMPLATE, *, space_first: bool = False) -> Any:
    """Of bytes and merges of words; its special tokens are those of the template. space_first: a text begins with a
    space of its own, as with SentencePiece."""
    held = Tokenizer(models.BPE())
    held.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    held.decoder = decoders.ByteLevel()
    if space_first:
        held.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first"),
                                                      pre_tokenizers.ByteLevel(add_prefix_space=False)])
    held.train_from_iterator(_TEXT, trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|im_start|>", "<|im_end|>", "<think>", "</think>"]))
    return PreTrainedTokenizerFast(tokenizer_object=held, chat_template=template)
