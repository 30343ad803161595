# SPDX-License-Identifier: Apache-2.0
"""Prompts for the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stateport import _c
from stateport._arguments import struct_of
from stateport._arrays import address, int32s, int64s
from stateport.cache_options import SEARCHES
from stateport.errors import InvalidArgument
from stateport.eviction import ReuseHint
from stateport.hashing import MediaKey, Namespace, media_rows


def prompt_of(tokens: Any, *, namespace: Namespace | None, media: Sequence[MediaKey], now_s: float,
              search: str = "everywhere", hint: ReuseHint | None = None, breakpoints: Any = ()) -> tuple[Any, Any]:
    """A prompt of C, and the arrays that it points to, which must live as long."""
    if search not in SEARCHES:
        raise InvalidArgument(f"search is {search!r}, and must be one of {', '.join(SEARCHES)}")
    array, named = int32s("tokens", tokens), int64s("breakpoints", breakpoints)
    prompt = _c.Prompt(tokens=address(array), count=len(array),
                       name_space=struct_of("namespace", namespace, Namespace), media=media_rows(media),
                       media_count=len(media), hint=struct_of("hint", hint, ReuseHint), now_s=now_s,
                       search=SEARCHES.index(search), breakpoints=address(named), breakpoint_count=len(named))
    return prompt, (array, named)
