# SPDX-License-Identifier: Apache-2.0
"""Turns of a chat continue from the positions that earlier turns named, and give the answers of a run without a
cache."""
from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the adapter needs transformers (python/engines.toml)")

import torch  # noqa: E402
from chat_model import TEMPLATE, VOCABULARY, chat_tokenizer  # noqa: E402
from witness import Witness  # noqa: E402

from conftest import seeds  # noqa: E402
from stateport.demo.tiny import tiny_model  # noqa: E402
from stateport.errors import InvalidArgument  # noqa: E402
from stateport.transformers import ChatPrompt, PrefixCache, Served, chat_prompt  # noqa: E402

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 3}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
PLAIN = ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}")


class Chat:
    """A chat with a tiny model through a cache. Each turn is compared with a run that knows no cache."""

    def __init__(self, cache: PrefixCache, tokenizer: Any, **template: Any) -> None:
        self.messages: list[dict[str, Any]] = [SYSTEM]
        self._cache, self._tokenizer, self._template = cache, tokenizer, template
        self._witness = Witness(cache.model)

    def turn(self, role: str, text: str, *, named: bool = True) -> tuple[ChatPrompt, Served]:
        """Asks, and keeps the answer with reasoning that is long enough to be worth dropping."""
        self.messages.append({"role": role, "content": text})
        prompt = chat_prompt(self._tokenizer, self.messages, **self._template)
        tokens, served = self._witness.serve(self._cache, tuple(prompt.input_ids[0].tolist()), 6,
                                             breakpoints=prompt.breakpoints if named else ())
        answer = self._tokenizer.decode(tokens[prompt.input_ids.shape[1]:], skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": answer, "reasoning_content": "The reasoning. " * 9})
        return prompt, served


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chat_tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("qwen3_next", vocab_size=VOCABULARY)


def text_of(tokenizer: Any, prompt: ChatPrompt, position: int) -> str:
    """The prompt up to a position."""
    return str(tokenizer.decode(prompt.input_ids[0, :position], skip_special_tokens=False))


def test_positions_lie_where_the_turns_of_a_chat_part(tokenizer: Any) -> None:
    messages = [SYSTEM, {"role": "user", "content": "What is the weather?"},
                {"role": "assistant", "content": "fine", "reasoning_content": "I look."},
                {"role": "user", "content": "And why?"}]
    prompt = chat_prompt(tokenizer, messages, tools=TOOLS)
    whole = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(prompt.input_ids[0], skip_special_tokens=False) == whole
    system, question, asks = (text_of(tokenizer, prompt, position) for position in prompt.breakpoints)
    assert system == whole[:whole.index("What is")]
    assert question == whole[:whole.index("And why")]
    assert asks == whole[:whole.index("<|im_start|>assistant\n<think>")]
    # The reasoning of an answer stays while its tools answer: the next question drops it.
    messages += [{"role": "assistant", "content": "call", "reasoning_content": "I ask."},
                 {"role": "tool", "content": "12 degrees"}]
    prompt = chat_prompt(tokenizer, messages, tools=TOOLS)
    whole = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert [text_of(tokenizer, prompt, position) for position in prompt.breakpoints] == [
        system, question, whole[:whole.index("<|im_start|>assistant\n<think>\nI ask")],
        whole[:whole.rindex("<|im_start|>assistant\n<think>")]]


@pytest.mark.parametrize("content", ["1 and 2", "  1", "2", "", "the sky"])
def test_a_position_is_never_behind_the_first_token_that_differs(content: str) -> None:
    """In a template without special tokens text merges across the places where turns part."""
    plain = chat_tokenizer(PLAIN)

    def ids(last: str, *, generation: bool) -> list[int]:
        chat = [SYSTEM, {"role": "user", "content": last}]
        found: list[int] = plain.apply_chat_template(chat, add_generation_prompt=generation, return_dict=False)
        return found

    prompt = chat_prompt(plain, [SYSTEM, {"role": "user", "content": content}])
    tokens = prompt.input_ids[0].tolist()
    without = ids(content, generation=False)
    question, asks = prompt.breakpoints[0], prompt.breakpoints[-1]
    assert tokens[:asks] == without[:asks]
    assert tokens[asks] != (*without, -1)[asks]
    assert question < asks
    others = [ids(last, generation=True) for last in ("1", "2", "x", "Q")]
    assert sum(other[:question] == tokens[:question] for other in others) == len(others)
    assert any(other[question] != tokens[question] for other in others)


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN, TEMPLATE.replace("<|im_end|>", " ")],
                         ids=["special tokens", "text", "no ends"])
@pytest.mark.parametrize("space_first", [False, True])
def test_positions_by_text_are_those_of_all_tokens(template: str, space_first: bool) -> None:
    """Random chats: the plain model tokenizes every text whole."""
    fast, whole = (chat_tokenizer(template, space_first=space_first) for _ in range(2))
    whole.__class__ = type("Whole", (whole.__class__,), {"is_fast": False})
    for seed in seeds(60):
        draw = random.Random(seed)
        chat = [{"role": role, "content": "".join(draw.choices("12 \nä😀the?", k=draw.randrange(1, 9))),
                 "reasoning_content": "why"} for role in ("system", "user", "assistant", "user", "tool", "tool")]
        chat = chat[draw.randrange(2):draw.randrange(2, 7)]
        prompts = [chat_prompt(tokenizer, chat) for tokenizer in (fast, whole)]
        assert prompts[0].breakpoints == prompts[1].breakpoints, f"STATEPORT_TEST_FIRST_SEED={seed}"
        assert torch.equal(prompts[0].input_ids, prompts[1].input_ids)


def test_control_tokens_of_a_question_are_text_if_they_are_sanitized(tokenizer: Any) -> None:
    chat = [SYSTEM, {"role": "user", "content": "a<|im_end|>b"}]
    plain, clean = (chat_prompt(tokenizer, chat, sanitize_control_tokens=clean) for clean in (False, True))
    ends = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert int((plain.input_ids == ends).sum()) == int((clean.input_ids == ends).sum()) + 1
    assert len(clean.breakpoints) == 2


def test_texts_that_a_template_refuses_name_no_position() -> None:
    refusing = chat_tokenizer("{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE)
    assert chat_prompt(refusing, [SYSTEM, {"role": "user", "content": "a"}]).breakpoints == ()
    without_end = chat_tokenizer(TEMPLATE.replace("add_generation_prompt", "false"))
    prompt = chat_prompt(without_end, [SYSTEM, {"role": "user", "content": "a"}])
    assert [text_of(without_end, prompt, at)[-5:] for at in prompt.breakpoints] == ["user\n"]
    assert chat_prompt(without_end, [SYSTEM]).breakpoints == ()


def test_parts_of_a_message_and_an_answer_without_a_question_are_no_fault(tokenizer: Any) -> None:
    parts = chat_tokenizer(TEMPLATE.replace("message.content + '<|im_end|>", "message.content[0].text + '<|im_end|>"))
    asked = [{"role": "user", "content": [{"type": "text", "text": "1 sky"}]}]
    prompt = chat_prompt(parts, asked)
    assert text_of(parts, prompt, prompt.breakpoints[0]) == "<|im_start|>user\n"
    begun = chat_prompt(tokenizer, [SYSTEM, {"role": "assistant", "content": "Hello"}])
    assert text_of(tokenizer, begun, begun.breakpoints[0]).endswith("Hello<|im_end|>\n")


@pytest.mark.parametrize("architecture", ["qwen3_next", "jamba", "falcon_h1"])
@pytest.mark.parametrize("page_tokens", [1, 4])
def test_a_turn_continues_from_the_position_before_the_last_answer(architecture: str, page_tokens: int,
                                                                   tokenizer: Any) -> None:
    model = tiny_model(architecture, vocab_size=VOCABULARY)
    with PrefixCache(model, memory="4 MiB", page_tokens=page_tokens) as cache:
        chat = Chat(cache, tokenizer, tools=TOOLS)
        left, same = 0, len(tokenizer("<|im_start|>assistant\n").input_ids)
        for turn in range(4):
            prompt, served = chat.turn("user", f"What is the weather of day {turn}?")
            # The tokens before an answer, which all turns share, may fill a page.
            pages = {at // page_tokens * page_tokens for at in (left, left + (same if turn and page_tokens > 1 else 0))}
            assert served.reused_tokens in pages
            left = prompt.breakpoints[-1]
        assert cache.stats().breakpoints_kept >= 4
        assert cache.stats().breakpoints_refused == 0


def test_without_names_a_turn_computes_more(model: Any, tokenizer: Any) -> None:
    reused = []
    for named in (False, True):
        with PrefixCache(model, memory="4 MiB") as cache:
            chat = Chat(cache, tokenizer)
            reused.append([chat.turn("user", f"Question {turn}?", named=named)[1].reused_tokens for turn in range(3)])
    assert all(without < with_names for without, with_names in zip(reused[0][1:], reused[1][1:], strict=True))


def test_other_questions_and_other_chats_continue_from_their_positions(model: Any, tokenizer: Any) -> None:
    with PrefixCache(model, memory="4 MiB") as cache:
        chat = Chat(cache, tokenizer, tools=TOOLS)
        chat.turn("user", "What is the weather?")
        prompt, _ = chat.turn("user", "And why?")
        system, question, *_ = prompt.breakpoints
        del chat.messages[-2:]
        assert chat.turn("user", "Where is it?")[1].reused_tokens == question
        del chat.messages[1:]
        assert chat.turn("user", "Another chat")[1].reused_tokens == system


def test_the_question_behind_tools_continues_where_their_reasoning_was(model: Any, tokenizer: Any) -> None:
    with PrefixCache(model, memory="4 MiB") as cache:
        chat = Chat(cache, tokenizer)
        first, _ = chat.turn("user", "What is the weather?")
        second, step = chat.turn("tool", "12 degrees")
        assert step.reused_tokens >= first.input_ids.shape[1] - 1  # nothing is dropped yet
        assert second.breakpoints[-2] == first.breakpoints[-1]
        cache.reset()
        _, again = chat.turn("tool", "13 degrees")
        assert again.reused_tokens == 0
        # The first question's end is named by the last step alone now.
        assert chat.turn("user", "And why?")[1].reused_tokens == first.breakpoints[-1]


def test_positions_of_a_stream_and_of_a_loop_are_kept(model: Any) -> None:
    ids = chat_prompt(chat_tokenizer(), [SYSTEM]).input_ids
    with PrefixCache(model, memory="4 MiB") as cache:
        with cache.stream(ids, breakpoints=(5,), max_new_tokens=2) as stream:
            list(stream)
        with cache.request(ids, breakpoints=[5, 9]) as request:
            request.prefill()
        assert cache.stats().breakpoints_kept == 1  # the second prompt hits behind both
        other = ids.clone()
        other[0, 5:] += 1
        with cache.request(other) as request:
            assert request.served.reused_tokens == 5


@pytest.mark.parametrize("architecture", ["jamba", "qwen3_next"])
def test_passes_end_at_positions(architecture: str) -> None:
    """Passes of a model that runs one token at a time behind the first one end at positions near the end alone."""
    model = tiny_model(architecture)
    ids = chat_prompt(chat_tokenizer(), [SYSTEM]).input_ids % 128
    parts: list[int] = []
    model.register_forward_pre_hook(lambda _, __, inputs: parts.append(inputs["input_ids"].shape[1]), with_kwargs=True)
    count = ids.shape[1]
    with PrefixCache(model, memory="4 MiB") as cache:
        parts.clear()
        with cache.request(ids, breakpoints=[3, count - 6, count - 4]) as request:
            request.prefill()
        first = [3, count - 9] if architecture == "qwen3_next" else [count - 6]
        assert parts == [*first, *([2, 3] if architecture == "qwen3_next" else [1] * 5)]
        assert cache.stats().breakpoints_kept == (3 if architecture == "qwen3_next" else 2)


@pytest.mark.parametrize(("breakpoints", "match"), [
    ([0], r"breakpoints\[0\] is 0"), ([4, 4], r"breakpoints\[1\] is 4, and must be from 5 to"),
    ([1000], r"breakpoints\[0\] is 1000"), ([1.5], "must be an integer"), (range(1, 10), "has 9 positions")])
def test_positions_that_are_none_are_refused(model: Any, breakpoints: Any, match: str) -> None:
    ids = chat_prompt(chat_tokenizer(), [SYSTEM]).input_ids
    with PrefixCache(model, memory="1 MiB", max_tokens=16) as cache:  # also of a prompt that is too long for the cache
        for call in (cache.generate, cache.stream, cache.request):
            with pytest.raises(InvalidArgument, match=match):
                call(ids, breakpoints=breakpoints)
        assert cache.running_requests == 0


@pytest.mark.parametrize(("messages", "options", "match"), [
    ([], {}, "messages is"), ("a text", {}, "messages is"), ([{"content": "a"}], {}, r"messages\[0\] is"),
    ([SYSTEM, 3], {}, r"messages\[1\] is 3"), ([SYSTEM], {"tokenize": False}, "tokenize is False"),
    ([SYSTEM], {"continue_final_message": True}, "continue_final_message is True")])
def test_chats_that_are_none_are_refused(messages: Any, options: dict[str, Any], match: str, tokenizer: Any) -> None:
    with pytest.raises(InvalidArgument, match=match):
        chat_prompt(tokenizer, messages, **options)
