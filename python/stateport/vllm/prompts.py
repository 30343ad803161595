# SPDX-License-Identifier: Apache-2.0
"""The prompt of a vLLM request: its tokens, and the names that keep it apart from prompts of the same tokens."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from stateport._arrays import Int32s
from stateport._weights import files_of
from stateport.hashing import MediaKey, Namespace

_PROCESS = uuid.uuid4().hex


def tokens_of(request: Any) -> Int32s | None:
    """All tokens that are known. None: parts of the prompt are embeddings, which have no name."""
    if getattr(request, "prompt_embeds", None) is not None:
        return None
    return np.asarray(request.all_token_ids[:], dtype=np.int32)


def namespace_of(request: Any, resets: int = 0) -> Namespace | None:
    """Of the adapter and the salt: requests that differ in one of them share nothing. resets: of this process. After
    one, weights may have changed: nothing is shared with earlier states, or with other processes."""
    lora, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
    if lora is None and salt is None and not resets:
        return None
    key = b"" if lora is None else _adapter(lora)
    if resets:
        key += repr((_PROCESS, resets)).encode()
    return Namespace(key or None, None if salt is None else str(salt).encode())


def _adapter(lora: Any) -> bytes:
    """Names an adapter with facts about its files, since it may be trained again at the same place. Without known
    files, it is kept apart from those of other processes."""
    known = files_of(str(lora.lora_path))
    facts = known if known is not None else (_PROCESS, lora.lora_int_id)
    return repr((lora.lora_name, lora.lora_path, facts)).encode()


def media_of(request: Any, tokens: int) -> list[MediaKey]:
    """Images and other inputs of the first `tokens` tokens, by where their placeholders begin."""
    keys = [MediaKey(str(feature.identifier).encode(), int(feature.mm_position.offset))
            for feature in getattr(request, "mm_features", None) or ()]
    return sorted((key for key in keys if key.first_token < tokens), key=lambda key: key.first_token)
