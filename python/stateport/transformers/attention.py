# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a pass behind earlier tokens, without the mask of all its pairs that transformers makes for it.

transformers leaves the mask out only where a pass begins with the first token. Elsewhere it makes one of
[tokens of the pass, all tokens], which keeps torch from its fastest kernels. Here a mask is left out in both cases: on
a GPU torch's kernels know where the diagonal lies, on a CPU a mask is made for some rows at a time."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch.nn.attention.bias import causal_lower_right
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "stateport_sdpa"  # among transformers' implementations of attention
# Of a pass on a CPU, with one mask. Measured with 4,096 tokens behind 4,096, 4 heads of 64 numbers, fp32, 2 cores: 319
# ms with 1,024 rows, 335 ms with 256, 489 ms with all 4,096.
_ROWS = 1024


_users: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of each model that attends in this way
_lock = threading.Lock()


def use(model: Any) -> None:
    """Has `model` attend in this way until `leave` is called as often as `use`, if it attends by torch's
    scaled_dot_product_attention, and has no indexer: with one it makes a mask in every pass. Answers of passes over a
    whole prompt and over one token keep their bits."""
    with _lock:
        layers = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        is_sdpa = getattr(model.config, "_attn_implementation", None) == "sdpa"
        if model not in _users and is_sdpa and "indexed_attention" not in layers:
            model.set_attn_implementation(_NAME)
        _users[model] = _users.get(model, 0) + 1


def leave(model: Any) -> None:
    """Undoes one `use`."""
    with _lock:
        _users[model] -= 1
        if _users[model] == 0:
            del _users[model]
            if getattr(model.config, "_attn_implementation", None) == _NAME:
                model.set_attn_implementation("sdpa")


def _mask(batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
          *arguments: Any, **options: Any) -> torch.Tensor | None:
    """None: causal, with the last token of the pass as the last of all."""
    plain = (not arguments and options.get("attention_mask") is None and options.get("local_size") is None
             and options.get("allow_is_causal_skip", True) and kv_offset == 0)
    if plain and int(q_offset) + q_length == kv_length and q_length > 1:
        return None
    mask: torch.Tensor | None = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, *arguments, **options)
    return mask


def _attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            attention_mask: torch.Tensor | None, **options: Any) -> tuple[torch.Tensor, None]:
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    rows, behind = query.shape[2], key.shape[2] - query.shape[2]
    if attention_mask is not None or not causal or rows == 1 or behind == 0:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]
    if options.get("position_bias") is not None:  # which is a mask for all pairs of tokens anyway
        mask = _rows_of_mask(0, rows, behind).to(query.device)
        return sdpa_attention_forward(module, query, key, value, mask, **options)  # type: ignore[no-any-return]
    if query.device.type != "cpu":
        bias = causal_lower_right(rows, key.shape[2])
        return sdpa_attention_forward(module, query, key, value, bias, **options)  # type: ignore[no-any-return]
    parts = [sdpa_attention_forward(module, query[:, :, begin:end], key[:, :, :behind + end],
                                    value[:, :, :behind + end], _rows_of_mask(begin, end, behind), **options)[0]
             for begin, end in _blocks(rows)]
    return torch.cat(parts, dim=1), None


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + _ROWS, rows)) for begin in range(0, rows, _ROWS))


def _rows_of_mask(begin: int, end: int, behind: int) -> torch.Tensor:
    return (torch.arange(behind + begin, behind + end)[:, None] >= torch.arange(behind + end)[None])[None, None]


def _register() -> None:
    transformers.AttentionInterface.register(_NAME, _attend)
    transformers.AttentionMaskInterface.register(_NAME, _mask)


with contextlib.suppress(AttributeError):  # a version of transformers without these interfaces attends as it does
    _register()
