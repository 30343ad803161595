# SPDX-License-Identifier: Apache-2.0
"""Orders of eviction, and hints that an engine may give about a request."""

from __future__ import annotations

import dataclasses
from typing import Any

from stateport import _c
from stateport.errors import InvalidArgument

ORDERS: tuple[str, ...] = _c.EVICTION


@dataclasses.dataclass(frozen=True)
class Eviction:
    """The eviction policy of one cache. Orders other than hix and gdsf need nothing else, unless the cache keeps to a
    budget in bytes.

    order: one of ORDERS; "hix" learns from the requests which states will be used again.
    samples: hix: candidates drawn for a victim; -1: all are compared.
    state_bytes, kv_bytes_per_token: hix, gdsf, budgets, quotas: memory of a state and of a token's KV.
    benefit_linear, benefit_quadratic: hix, gdsf: a hit of the tokens [from, to) saves
    linear * (to - from) + quadratic * (to² - from²); both 0: tokens count.
    positions: hix: whose history is remembered, 64 bytes each; 0: 16,384."""

    order: str = "lru"
    samples: int = 24
    state_bytes: int = 0
    kv_bytes_per_token: int = 0
    benefit_linear: float = 0.0
    benefit_quadratic: float = 0.0
    positions: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidArgument(f"order is {self.order!r}, and must be one of {', '.join(ORDERS)}")

    def struct(self) -> Any:
        values = dataclasses.asdict(self)
        return _c.EvictionOptions(**{**values, "order": ORDERS.index(self.order)})


@dataclasses.dataclass(frozen=True)
class ReuseHint:
    """A hint about a prompt's future: hix then values the end of this prompt differently from others of its kind. A
    hint of defaults says nothing.

    last_turn: no later prompt is expected to continue this one. tool_call_pending: it goes on as soon as a tool has
    answered. factor: multiplies the expected rate of uses, for all other knowledge. expected_idle_s: no use is expected
    within this number of seconds. session: names a conversation whose next prompt goes on from this one. continues: in
    (0, 1), how likely a later prompt goes on from this one."""

    last_turn: bool = False
    tool_call_pending: bool = False
    factor: float = 0.0
    expected_idle_s: float = 0.0
    session: int = 0
    continues: float = 0.0

    def struct(self) -> Any:
        return _c.ReuseHint(**dataclasses.asdict(self))
