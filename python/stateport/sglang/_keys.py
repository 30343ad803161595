# SPDX-License-Identifier: Apache-2.0
"""Names of SGLang's pages as keys of images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stateport._arrays import IMAGE_KEY, Records
from stateport.errors import InvalidArgument
from stateport.tier_options import CONTENTS

_DIGITS = 48  # of a SHA-256 in hexadecimal: three words


def page_keys(hashes: Sequence[str], content: str, group: int = 0, seed: int = 0) -> Records:
    """IMAGE_KEY [n] of pages, or of states at the ends of pages, by SGLang's hashes of them.

    SGLang names a page by the SHA-256 of its tokens behind the hash of the page before it, from the namespace of the
    request on. Such a hash fixes the tokens, and with them the position, of which SGLang tells nothing else. So a key
    has 191 bits of it: 128 in `prefix`, 63 in `tokens`. seed: not 0: of its hash with this secret. Raises
    InvalidArgument for what is no such hash."""
    try:
        names = [bytes.fromhex(page[:_DIGITS]) for page in hashes]
        if any(len(name) != _DIGITS // 2 for name in names):
            raise ValueError
    except ValueError:
        bad = next((page for page in hashes if len(page) < _DIGITS or not _is_hexadecimal(page)), "")
        raise InvalidArgument(f"keys has the element {bad!r}, and must have hashes of at least {_DIGITS} hexadecimal "
                              "digits") from None
    if seed:
        secret = seed.to_bytes(8, "little")
        names = [hashlib.blake2b(name, digest_size=_DIGITS // 2, key=secret).digest() for name in names]
    words = np.frombuffer(b"".join(names), "<u8").reshape(-1, 3)
    keys = np.zeros(len(words), IMAGE_KEY)
    keys["prefix"], keys["tokens"], keys["group"] = words[:, :2], words[:, 2] >> np.uint64(1), group
    keys["content"] = CONTENTS.index(content)
    return keys


def _is_hexadecimal(text: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in text[:_DIGITS])


def leading(held: npt.NDArray[np.bool_]) -> int:
    """How many are held before the first that is not."""
    return int(held.argmin()) if not held.all() else len(held)
