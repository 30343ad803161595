# SPDX-License-Identifier: Apache-2.0
"""Several answers to one prompt, which is computed once."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

from stateport.transformers.answer import Answer
from stateport.transformers.layout import repeated
from stateport.transformers.request import Request


class Samples(StoppingCriteria):  # type: ignore[misc]
    """The answers to a request whose prompt has run but for its last token, as a stopping criterion of `generate` with
    num_return_sequences. past_key_values: the prompt in each row.

    The cache keeps each answer by a fork of the request, if it has a request number for each. ends: tokens that end an
    answer. criteria: the caller's own; they are asked here. Leaving the `with` statement keeps the answers; an
    exception aborts them."""

    def __init__(self, request: Request, count: int, ends: set[int], criteria: StoppingCriteriaList) -> None:
        self._request, self._ends, self._criteria = request, ends, criteria
        self.past_key_values: DynamicCache = repeated(request.past_key_values, request.layout, count,
                                                      request.model_config)
        self._answers: list[Answer] | None = None  # of rows; None: no token is sampled
        self._done = [False] * count

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        """Hears of a token of each row. Rows that are done have padding, which is no part of an answer."""
        tokens = input_ids[:, -1].tolist()
        self._request.count_sampled(self._done.count(False))
        if self._answers is None:
            self._answers = self._request.fork(self.past_key_values, tokens)
        else:
            for answer, token in zip(self._answers, tokens, strict=False):
                answer.append(token)
        ended: torch.Tensor = self._criteria(input_ids, scores, **options)
        for row, (token, is_ended) in enumerate(zip(tokens, ended.tolist(), strict=True)):
            if not self._done[row] and (is_ended or token in self._ends):
                self._done[row] = True
                if self._answers:
                    self._answers[row].finish()
        return ended

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        for answer in self._answers or ():
            if kind is None:
                answer.finish()
            else:
                answer.abort()
