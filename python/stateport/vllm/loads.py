# SPDX-License-Identifier: Apache-2.0
"""Finds and loads of the cache's requests, seen in the transfers that the cache names."""

from __future__ import annotations

import dataclasses
import time

from stateport._arrays import Records
from stateport.tier_options import CONTENTS, MEDIA, TRANSFER_KINDS, TRANSFER_STATUSES

ASK_AGAIN_S = 5.0  # after a find that was not answered as it should be

_LOAD, _FIND = TRANSFER_KINDS.index("load"), TRANSFER_KINDS.index("find")
_DONE, _GONE, _FAILED = (TRANSFER_STATUSES.index(status) for status in ("done", "gone", "failed"))
_KV = CONTENTS.index("kv_block")


@dataclasses.dataclass(frozen=True)
class Load:
    """The load of a request. medium: the slowest tier. tokens: of the longest prefix."""

    medium: str
    tokens: int


@dataclasses.dataclass(frozen=True)
class Answers:
    """asked: finds. found: those of them that were done. failed: transfers that were not done, without finds of missing
    images. seconds: of requests whose finds, or whose loads, have all ended: the kind, the slowest tier, and the time
    since they began. Loads of which one failed are left out."""

    asked: int
    found: int
    failed: int
    seconds: tuple[tuple[str, str, float], ...] = dataclasses.field(default=(), compare=False)


@dataclasses.dataclass
class _Round:
    """The finds, or the loads, of a request that are under way together."""

    begun_s: float
    medium: int = 0
    left: int = 0
    failed: bool = False


_ROW = 0xFFFFFFFF  # of the number of a request: below max_requests


class Loads:
    """The finds and loads under way, and when to wait for them.

    A store that does not answer must not keep prompts waiting: until all that a prompt gave up on is answered, nothing
    is loaded; after a find that failed the store is not asked for ASK_AGAIN_S seconds."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._under_way: dict[int, tuple[int, int]] = {}  # by transfer: its request and kind
        self._rounds: dict[tuple[int, int], _Round] = {}  # by request and kind
        self._loads: dict[int, tuple[int, int]] = {}  # by request: the slowest tier, tokens
        self._late: dict[int, set[int]] = {}  # by request that was given up: its transfers
        self._ask_from_s = 0.0

    @property
    def search(self) -> str:
        """How far a prompt is looked for now: of RequestCache.start."""
        if self._late:
            return "device"
        return "known" if time.monotonic() < self._ask_from_s else "everywhere"

    def begin(self, transfers: Records) -> list[tuple[str, int, int]]:
        """Notes transfers that begin. Returns the loads: tier, blocks of KV, states."""
        loaded = []
        for number, kind, request, medium in zip(*(transfers[name].tolist() for name in (
                "id", "kind", "request", "from")), strict=True):
            if kind in (_LOAD, _FIND):
                self._under_way[number] = request, kind
                ends = self._rounds.setdefault((request, kind), _Round(time.monotonic()))
                ends.medium, ends.left = max(ends.medium, medium), ends.left + 1
        loads = transfers[transfers["kind"] == _LOAD]
        for request, medium, tokens in zip(loads["request"].tolist(), loads["from"].tolist(),
                                           loads["image"]["tokens"].tolist(), strict=True):
            if request & _ROW < self._max_requests:  # else it is a prefetch's
                slowest, longest = self._loads.get(request, (0, 0))
                self._loads[request] = max(medium, slowest), max(tokens, longest)
        for medium in sorted(set(loads["from"].tolist())):
            of_kv = loads["image"]["content"][loads["from"] == medium] == _KV
            loaded.append((MEDIA[medium], int(of_kv.sum()), int((~of_kv).sum())))
        return loaded

    def answered(self, results: Records) -> Answers:
        """Transfers ended: TRANSFER_RESULT [n]."""
        asked = found = failed = 0
        seconds = []
        for number, status in zip(results["id"].tolist(), results["status"].tolist(), strict=True):
            request, kind = self._under_way.pop(number, (-1, -1))
            late = self._late.get(request, set())
            late.discard(number)
            if not late:
                self._late.pop(request, None)
            asked += kind == _FIND
            found += kind == _FIND and status == _DONE
            is_failure = status != _DONE and not (kind == _FIND and status == _GONE)
            failed += is_failure
            if (round_ := self._rounds.get((request, kind))) is not None:
                round_.left -= 1
                round_.failed |= is_failure
                if round_.left == 0:
                    del self._rounds[request, kind]
                    if not round_.failed:
                        seconds.append((TRANSFER_KINDS[kind], MEDIA[round_.medium],
                                        time.monotonic() - round_.begun_s))
            if kind == _FIND and status == _FAILED:
                self._ask_from_s = time.monotonic() + ASK_AGAIN_S
        return Answers(asked, found, failed, tuple(seconds))

    def give_up(self, request: int) -> None:
        """The engine no longer waits for this request of the cache."""
        late = {number for number, (whose, _) in self._under_way.items() if whose == request}
        if late:
            self._late[request] = late

    def of(self, request: int) -> Load | None:
        """Of a request of the cache; None: it loaded nothing."""
        if request not in self._loads:
            return None
        medium, tokens = self._loads[request]
        return Load(MEDIA[medium], tokens)

    def forget(self, request: int) -> None:
        """The request of the cache ends."""
        self._loads.pop(request, None)
