# SPDX-License-Identifier: Apache-2.0
"""Metrics of objects of the library as text."""

from __future__ import annotations

import ctypes
from typing import Any

from stateport.errors import InvalidArgument


def prometheus_text(call: Any, handle: Any, prefix: str) -> str:
    """call: of the library, which answers metrics. A text that grows meanwhile is asked for again."""
    if "\0" in prefix:
        raise InvalidArgument(f"prefix is {prefix!r}, and must have no zero character")
    name, needed = prefix.encode(), ctypes.c_size_t()
    call(handle, name, None, 0, ctypes.byref(needed))
    while True:
        text = ctypes.create_string_buffer(needed.value)
        call(handle, name, text, len(text), ctypes.byref(needed))
        if needed.value <= len(text):
            return text.value.decode()
