# SPDX-License-Identifier: Apache-2.0
"""Requests of chats with branches: scenario.py FILE writes them as JSON lines {"id", "tokens", "output"}, in the order
in which one client sends them. Every conversation begins with the same 1,024 tokens. Prompts are the tokens that the
chat template and the vocabulary of models.py make of the messages."""
from __future__ import annotations

import json
import pathlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

SEED, COMMON, OUTPUT = 16, 1024, 16
START, END, WORDS = 259, 260, range(261, 512)  # <|im_start|>, <|im_end|>, and the tokens of " 0", " 1", …


@dataclass(frozen=True)
class Turn:
    words: list[int]  # of the user
    request: str  # its answer follows in later prompts


@dataclass(frozen=True)
class Request:
    name: str
    turns: list[Turn]

    def messages(self, answer: Callable[[str], list[int]]) -> list[tuple[str, list[int]]]:
        """Roles and words. `answer` gives those of an earlier request's answer."""
        out = [("system", _random("common", COMMON - len(message("system", []))))]
        for turn in self.turns[:-1]:
            out += [("user", turn.words), ("assistant", answer(turn.request))]
        return [*out, ("user", self.turns[-1].words)]

    def prompt(self, answer: Callable[[str], list[int]]) -> list[int]:
        tokens = [token for role, words in self.messages(answer) for token in message(role, words)]
        return [*tokens, START, *_bytes("assistant\n")]


def message(role: str, words: list[int]) -> list[int]:
    return [START, *_bytes(f"{role}\n"), *words, END, *_bytes("\n")]


def _bytes(characters: str) -> list[int]:
    return [3 + byte for byte in characters.encode()]


def text(words: list[int]) -> str:
    return "".join(f" {word - WORDS.start}" for word in words)


def words_of(characters: str) -> list[int]:
    return [WORDS.start + int(number) for number in characters.split()]


def _random(name: str, count: int) -> list[int]:
    chance = random.Random(f"{SEED} {name}")
    return [chance.choice(WORDS) for _ in range(count)]


def fixed_answer(request: str) -> list[int]:
    """Stands in later prompts for what was decoded: prompts do not depend on it then."""
    return _random(f"answer {request}", OUTPUT)


def requests() -> list[Request]:
    def turn(name: str, count: int, request: str) -> Turn:
        return Turn(_random(name, count), request)

    first = turn("first", 150, "first turn")
    second = turn("second", 100, "regenerated")
    third = turn("third", 180, "back to the first")
    return [Request("first turn", [first]),
            Request("next turn", [first, second]),
            Request("regenerated", [first, second]),
            Request("another conversation", [turn("another", 160, "another conversation")]),
            Request("back to the first", [first, second, third]),
            Request("a third conversation", [turn("a third", 120, "a third conversation")]),
            Request("edited turn", [first, turn("edited", 140, "edited turn")])]


def main() -> None:
    lines = [json.dumps({"id": request.name, "tokens": request.prompt(fixed_answer), "output": OUTPUT})
             for request in requests()]
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
