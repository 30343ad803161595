# SPDX-License-Identifier: Apache-2.0
"""The hints of a vLLM request about the future of its contents: its kv_hints, its session_id, and the positions that
later prompts may leave it at."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stateport._arrays import Int32s
from stateport.eviction import ReuseHint

_TOKEN_MAX = 2**31 - 1
BREAKPOINTS = "stateport_breakpoints"  # key of extra_args and of kv_transfer_params
_BREAKPOINTS_MAX = 8
_SECONDS = ("lease_s", "ttl_s", "duration_s")  # names of how long a pin lasts


@dataclasses.dataclass(frozen=True)
class Hints:
    """Actions of one request that the cache understands. session: the number of its session, 0: none. demote: its
    contents are evicted first, once it has ended. pins: seconds that its prompt stays, of each action; 0: not said.
    prefetches: prompts to load from tiers. breakpoints: positions in the prompt where a state is wanted. ignored:
    actions without effect, by reason: "unknown" ones, and "malformed" ones, whose payload cannot be read."""

    session: int = 0
    demote: bool = False
    pins: tuple[float, ...] = ()
    prefetches: tuple[Int32s, ...] = ()
    breakpoints: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def reuse(self) -> ReuseHint | None:
        """For the cache; None: there is nothing to say."""
        return ReuseHint(session=self.session, last_turn=self.demote) if self.session else None


def read_hints(request: Any) -> Hints:
    """Never raises: a hint that cannot be read is ignored."""
    try:
        return _read(request)
    except Exception:
        return Hints(ignored=("malformed",))


def _read(request: Any) -> Hints:
    session = _number_of(request, getattr(request, "session_id", None))
    envelope = getattr(request, "kv_hints", None)
    pins, prefetches, ignored, demote = [], [], [], False
    breakpoints: tuple[int, ...] = ()
    try:
        breakpoints = _breakpoints(request)
    except Exception:
        ignored.append("malformed")
    for kind, payload in _actions(envelope):
        try:
            if kind in ("retain", "pin"):
                pins.append(_seconds(payload))
            elif kind == "prefetch":
                prefetches.append(_tokens(payload))
            elif kind == "demote":
                demote = True
            else:
                ignored.append("unknown")
        except Exception:
            ignored.append("malformed")
    if demote and not session:  # the request is a session by itself
        session = _number_of(request, f"request {getattr(request, 'request_id', '')}")
    return Hints(session, demote, tuple(pins), tuple(prefetches), breakpoints, tuple(ignored))


def _breakpoints(request: Any) -> tuple[int, ...]:
    """Raises for others than at most 8 ascending positions in the prompt."""
    named = None
    for arguments in (getattr(request, "kv_transfer_params", None),
                      getattr(getattr(request, "sampling_params", None), "extra_args", None)):
        named = arguments.get(BREAKPOINTS, named) if isinstance(arguments, Mapping) else named
    if named is None:
        return ()
    if not isinstance(named, (list, tuple)) or len(named) > _BREAKPOINTS_MAX or any(
            isinstance(position, bool) or not isinstance(position, int) for position in named):
        raise ValueError(named)
    if any(a >= b for a, b in itertools.pairwise((0, *named, request.num_prompt_tokens + 1))):
        raise ValueError(named)
    return tuple(named)


def _actions(envelope: Any) -> Iterator[tuple[str, Any]]:
    """(kind, payload) of each action; kind "": of another protocol."""
    actions = _member(envelope, "actions") if envelope is not None else ()
    known = str(_member(envelope, "protocol_version") or "0.1").split(".")[0] == "0"
    for action in actions if isinstance(actions, (list, tuple)) else ():
        version = str(_member(action, "action_version") or "1.0").split(".")[0]
        kind = str(_member(action, "action_type") or "").removeprefix("kv.")
        yield kind if known and version == "1" else "", _member(action, "payload")


def _member(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def _seconds(payload: Any) -> float:
    """How long contents stay; 0: not said. Raises for a time that is none."""
    given = [_member(payload, name) for name in _SECONDS]
    seconds = next((value for value in given if value is not None), 0.0)
    if isinstance(seconds, bool) or not 0 <= float(seconds) < math.inf:
        raise ValueError(seconds)
    return float(seconds)


def _tokens(payload: Any) -> Int32s:
    """The prompt to load. Raises if there is none."""
    tokens = np.asarray(_member(payload, "token_ids"))
    if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
        raise ValueError(tokens)
    if tokens.min() < 0 or tokens.max() > _TOKEN_MAX:
        raise ValueError(tokens)
    return tokens.astype(np.int32)


def _number_of(request: Any, name: Any) -> int:
    """A number from 1 to 2^64 - 1, of a session's name; 0: it has none. Sessions of another salt are others."""
    if name is None or name == "":
        return 0
    salted = repr((getattr(request, "cache_salt", None), str(name))).encode()
    return int.from_bytes(hashlib.sha256(salted).digest()[:8], "little") or 1
