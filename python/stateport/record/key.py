# SPDX-License-Identifier: Apache-2.0
"""The key of names in a trace."""

from __future__ import annotations

import os

from stateport._arguments import of_kind
from stateport.errors import InvalidArgument

KEY_BYTES = 16, 64


def check_key(key: bytes) -> None:
    if not KEY_BYTES[0] <= len(of_kind("key", key, bytes)) <= KEY_BYTES[1]:
        raise InvalidArgument(f"key has {len(key)} bytes, and must have {KEY_BYTES[0]} to {KEY_BYTES[1]}")


def key_of_variable(name: str, variable: str) -> bytes:
    """A key in the environment. `name`: the argument that named the variable. Raises InvalidArgument, which does not
    tell the value."""
    if variable not in os.environ:
        raise InvalidArgument(f"{name} is {variable!r}, which is no environment variable here")
    key = os.environb[variable.encode()]
    if not KEY_BYTES[0] <= len(key) <= KEY_BYTES[1]:
        raise InvalidArgument(f"{name} is {variable!r}, whose value must have {KEY_BYTES[0]} to {KEY_BYTES[1]} bytes")
    return key
