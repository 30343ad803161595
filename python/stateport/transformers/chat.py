# SPDX-License-Identifier: Apache-2.0
"""Prompts of chats, and the positions in them at which the next turns leave them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError

from stateport._arrays import Int64s
from stateport.errors import InvalidArgument

_SYSTEM_ROLES = ("system", "developer")
# Arguments of apply_chat_template that change which tokens a prompt has, in ways that a prompt of one chat has no use
# for.
_OWN_ARGUMENTS = ("add_generation_prompt", "continue_final_message", "max_length", "padding",
                  "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "truncation")

Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """The prompt of a chat. input_ids: [1, tokens]. breakpoints: ascending positions in it at which later prompts may
    leave it, for PrefixCache.generate."""

    input_ids: torch.Tensor
    breakpoints: tuple[int, ...]


def chat_prompt(tokenizer: Any, messages: Sequence[Message], *, device: Any = None, **template: Any) -> ChatPrompt:
    """The prompt that asks for the next answer of a chat, as tokenizer.apply_chat_template makes it.

        prompt = chat_prompt(tokenizer, messages, tools=tools)
        output = cache.generate(prompt.input_ids, breakpoints=prompt.breakpoints, max_new_tokens=100)

    messages: with "role" and "content". device: of input_ids. template: other arguments of apply_chat_template (tools,
    documents, chat_template) and of the template itself (enable_thinking). The breakpoints are at most four:

      * where the text begins that asks for the answer. The next turn has the answer there, and many templates drop its
        reasoning;
      * the end of the last question, if calls of tools follow it: their reasoning is dropped with the next question;
      * the beginning of the last question, which another one may replace;
      * the end of the system prompt and the tools, which other chats share.

    Each is found by rendering the prompt without that text, or with another one there: it is the number of tokens that
    both begin with. A text that the template refuses names no position. A tokenizer without offsets, and the option
    sanitize_control_tokens, cost up to four further calls of apply_chat_template; others tokenize little twice. Raises
    InvalidArgument for no messages, for a message without a role, and for arguments that this function sets itself."""
    _check(messages, template)
    rendered = _Rendered(tokenizer, messages, template)
    found = set()
    for chat in _parting(messages):
        with contextlib.suppress(TemplateError):
            found.add(rendered.shared(chat))
    return ChatPrompt(torch.from_numpy(rendered.ids).to(device).unsqueeze(0),
                      tuple(sorted(found - {0, len(rendered.ids)})))


class _Rendered:
    """The tokens of a prompt (ids [tokens]), with the places in its text where they end."""

    def __init__(self, tokenizer: Any, messages: Sequence[Message], template: Mapping[str, Any]) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._by_text = getattr(tokenizer, "is_fast", False) and not template.get("sanitize_control_tokens")
        if not self._by_text:
            self.ids = self._render(messages, add_generation_prompt=True, tokenize=True)
            return
        text = self._render(messages, add_generation_prompt=True, tokenize=False)
        held = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        self._text, self.ids = _letters(text), np.asarray(held["input_ids"], np.int64)
        self._ends = np.asarray(held["offset_mapping"], np.int64).reshape(-1, 2)[:, 1]
        self._cuts = np.flatnonzero(np.isin(self.ids, list(tokenizer.added_tokens_decoder))) + 1

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool, tokenize: bool) -> Any:
        out = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=add_generation_prompt,
                                                  tokenize=tokenize, return_dict=False, **self._template)
        return np.asarray(out, np.int64) if tokenize else out

    def shared(self, messages: Sequence[Message]) -> int:
        """How many tokens this prompt and another chat, which asks for no answer, begin with."""
        other = self._render(messages, add_generation_prompt=False, tokenize=not self._by_text)
        if not self._by_text:
            return _shared(self.ids, other)
        # Added tokens cut a text into parts that are tokenized by themselves. So the text behind the last one that both
        # have is enough, unless a tokenizer treats the beginning of a text in another way.
        alike = int(np.searchsorted(self._ends, _shared(self._text, _letters(other)), "right"))
        cuts = self._cuts[self._cuts <= alike]
        for first in (*cuts[-1:].tolist(), 0):
            begin = int(self._ends[first - 1]) if first else 0
            ids = self._tokenizer(other[begin:], add_special_tokens=False)["input_ids"]
            found = int(first) + _shared(self.ids[first:], np.asarray(ids, np.int64))
            if found >= alike:
                break
        return found


def _letters(text: str) -> Int64s:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)


def _parting(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Chats that leave this one at a position of interest. Without their last question templates would show reasoning
    that the prompt does not have."""
    yield messages
    first = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM_ROLES), len(messages))
    asked = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        return
    if asked[-1] + 1 < len(messages):
        yield messages[:asked[-1] + 1]
    yield [*messages[:asked[-1]], _other(messages[asked[-1]])]
    if asked[-1] > first:
        yield [*messages[:first], _other(messages[asked[0]])]


def _other(message: Message) -> Message:
    """Another text of the same form, whose first letter is another one."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    begins = str(parts[0].get("text", "")) if parts and isinstance(parts[0], Mapping) else ""
    text = "2" if begins.lstrip().startswith("1") else "1"
    return {**message, "content": [{"type": "text", "text": text}] if isinstance(content, list) else text}


def _shared(prompt: Int64s, other: Int64s) -> int:
    """How many tokens both begin with."""
    least = min(len(prompt), len(other))
    differ = np.flatnonzero(prompt[:least] != other[:least])
    return int(differ[0]) if len(differ) else least


def _check(messages: Sequence[Message], template: Mapping[str, Any]) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidArgument(f"messages is {messages!r}, and must be a sequence of at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidArgument(f"messages[{i}] is {message!r}, and must have a role")
    for name in _OWN_ARGUMENTS:
        if name in template:
            raise InvalidArgument(f"{name} is {template[name]!r}, and must be left out: chat_prompt sets it")
