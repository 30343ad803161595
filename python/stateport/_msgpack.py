# SPDX-License-Identifier: Apache-2.0
"""msgpack by a package that is there: engines have msgspec or msgpack, and the rest of stateport needs neither."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from stateport.errors import BackendError


def _call(*names: tuple[str, str]) -> Callable[[Any], Any]:
    for module, name in names:
        try:
            call: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        return call
    raise BackendError("events need the package msgspec or msgpack, and neither is installed")


def packer() -> Callable[[Any], bytes]:
    """Plain values to bytes. Raises BackendError without a package."""
    return _call(("msgspec.msgpack", "encode"), ("msgpack", "packb"))


def unpacker() -> Callable[[bytes], Any]:
    """Bytes to plain values. Raises BackendError without a package."""
    return _call(("msgspec.msgpack", "decode"), ("msgpack", "unpackb"))
