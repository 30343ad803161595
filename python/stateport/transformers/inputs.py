# SPDX-License-Identifier: Apache-2.0
"""Options of `generate` that a cache of prefixes supports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stateport._arguments import integer
from stateport.errors import InvalidArgument

_BREAKPOINTS_MAX = 8  # of a Prompt

# Of a generation configuration: whether the value asks for beams or a cache of another kind.
_REFUSED_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "num_beams": lambda value: value not in (None, 1),
    "prompt_lookup_num_tokens": lambda value: value is not None,
    "assistant_early_exit": lambda value: value is not None,
    "cache_implementation": lambda value: value not in (None, "dynamic"),
    "use_cache": lambda value: value is False,
}
_REFUSED_INPUTS = ("assistant_model", "cache", "past_key_values", "cache_params", "inputs_embeds", "position_ids",
                   "token_type_ids", "inputs", "pixel_values", "pixel_values_videos", "image_grid_thw",
                   "input_features", "encoder_outputs", "ple_input_ids", "streamer_timeout", "custom_generate")
# Arguments of a model's forward that leave a token's KV and state as they are. Others are refused: images, audio, …
_PLAIN_INPUTS = frozenset(("attention_mask", "use_cache", "logits_to_keep", "return_dict", "output_attentions",
                           "output_hidden_states", "output_router_logits"))


def check_ids(model: Any, input_ids: Any) -> None:
    """Raises InvalidArgument unless input_ids is one prompt of token ids on the model's device."""
    if not isinstance(input_ids, torch.Tensor):
        raise InvalidArgument(f"input_ids is a {type(input_ids).__name__}, and must be a torch tensor")
    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] == 0:
        raise InvalidArgument(f"input_ids has the shape {list(input_ids.shape)}, and must have [1, tokens]: one "
                              "sequence that is not empty")
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise InvalidArgument(f"input_ids has elements of {input_ids.dtype}, and must have torch.int64 or torch.int32")
    device = next(model.parameters()).device
    if input_ids.device != device:
        raise InvalidArgument(f"input_ids lies on {input_ids.device}, and the model on {device}")
    vocabulary = model.get_input_embeddings().num_embeddings
    least, most = int(input_ids.min()), int(input_ids.max())
    if least < 0 or most >= vocabulary:
        raise InvalidArgument(f"input_ids has elements from {least} to {most}, and must have token ids below "
                              f"{vocabulary}")


def check_breakpoints(input_ids: torch.Tensor, breakpoints: Sequence[int]) -> None:
    """Raises InvalidArgument unless these are at most 8 ascending positions in the prompt."""
    if len(breakpoints) > _BREAKPOINTS_MAX:
        raise InvalidArgument(f"breakpoints has {len(breakpoints)} positions, and must have at most {_BREAKPOINTS_MAX}")
    least = 1
    for i, position in enumerate(breakpoints):
        least = 1 + integer(f"breakpoints[{i}]", position, least, input_ids.shape[1])


def setting(model: Any, options: dict[str, Any], name: str) -> Any:
    """An option of generate, or that of the generation configuration that holds for it."""
    given = options.get("generation_config") or model.generation_config
    return options.get(name, getattr(given, name, None))


def check_options(model: Any, input_ids: Any, options: dict[str, Any]) -> None:
    """Raises InvalidArgument for options of generate that one DynamicCache of one prompt cannot serve."""
    inputs = inspect.signature(model.forward).parameters.keys() - _PLAIN_INPUTS
    for name in (*_REFUSED_INPUTS, *sorted(inputs)):
        if options.get(name) is not None:
            raise InvalidArgument(f"{name} is not supported: a prompt is looked up by its token ids alone")
    for name, refuses in _REFUSED_SETTINGS.items():
        value = setting(model, options, name)
        if refuses(value):
            raise InvalidArgument(f"{name} is {value!r}, which needs another cache than a DynamicCache of one prompt")
    mask = options.get("attention_mask")
    if mask is not None and (tuple(mask.shape) != tuple(input_ids.shape) or not bool((mask == 1).all())):
        raise InvalidArgument("attention_mask is not all ones in the shape of input_ids: a prompt must have no padding")
