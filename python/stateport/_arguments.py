# SPDX-License-Identifier: Apache-2.0
"""Arguments of the package's functions: refusals that name them."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, TypeVar

from stateport.errors import InvalidArgument

_Kind = TypeVar("_Kind")


def of_kind(name: str, value: Any, kind: type[_Kind]) -> _Kind:
    """An argument as it is. Raises InvalidArgument for one of another type."""
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} is a {type(value).__name__}, and must be a {kind.__name__}")
    return value


def struct_of(name: str, value: Any, kind: type[Any]) -> Any:
    """The struct of an argument; None for None. Raises InvalidArgument for one of another type."""
    return None if value is None else of_kind(name, value, kind).struct()


def integer(name: str, value: Any, low: int, high: int) -> int:
    """An argument as a number. Raises InvalidArgument for a value that is no integer or lies outside of [low, high]."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, and must be an integer") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name} is {number}, and must be from {low} to {high}")
    return number


def text_bytes(name: str, text: Any) -> bytes:
    """A text for C, where a null character ends it. No refusal shows the text: it may be a password."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{name} is a {type(text).__name__}, and must be a text")
    if "\0" not in text:
        with contextlib.suppress(UnicodeEncodeError):
            return text.encode()
    raise InvalidArgument(f"{name} must be a text of Unicode without null characters")


def name_bytes(name: str, value: Any) -> bytes:
    """A text or bytes, which may hold anything."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        with contextlib.suppress(UnicodeEncodeError):
            return value.encode()
    raise InvalidArgument(f"{name} is {value!r}, and must be a text or bytes")
