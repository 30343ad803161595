# SPDX-License-Identifier: Apache-2.0
"""What a request of vLLM says about its prompt: tokens, and what keeps it apart from prompts of the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from stateport._arrays import Int32s
from stateport.hashing import MediaKey, Namespace


def tokens_of(request: Any) -> Int32s | None:
    """All tokens that are known. None: parts of the prompt are embeddings, which have no name."""
    if getattr(request, "prompt_embeds", None) is not None:
        return None
    return np.asarray(request.all_token_ids[:], dtype=np.int32)


def namespace_of(request: Any) -> Namespace | None:
    """Of the adapter and the salt: requests that differ in one of them share nothing."""
    lora, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
    if lora is None and salt is None:
        return None
    adapter = None if lora is None else f"{lora.lora_name}\0{lora.lora_int_id}\0{lora.lora_path}".encode()
    return Namespace(adapter, None if salt is None else str(salt).encode())


def media_of(request: Any, tokens: int) -> list[MediaKey]:
    """Images and other inputs of the first `tokens` tokens, by where their placeholders begin."""
    keys = [MediaKey(str(feature.identifier).encode(), int(feature.mm_position.offset))
            for feature in getattr(request, "mm_features", None) or ()]
    return sorted((key for key in keys if key.first_token < tokens), key=lambda key: key.first_token)
