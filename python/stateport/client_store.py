# SPDX-License-Identifier: Apache-2.0
"""A store that many machines share through a client that is written in Python."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import itertools
import logging
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from stateport import _c, _library
from stateport._arguments import integer
from stateport._arrays import copied
from stateport._library import calls
from stateport.errors import InvalidArgument
from stateport.remote_store import REMOTE_COMPLETION, REMOTE_KEY, RemoteStore
from stateport.tier_options import TRANSFER_STATUSES

logger = logging.getLogger(__name__)


_NUMBERS = {status: number for number, status in enumerate(TRANSFER_STATUSES)}
_FAILED = _NUMBERS["failed"]


@dataclasses.dataclass(frozen=True)
class RemoteRequest:
    """One request to a client. pieces: addresses and numbers of bytes; empty for a find or a removal."""

    ticket: int
    key: str
    pieces: tuple[tuple[int, int], ...] = ()


class RemoteClient(Protocol):
    """The functions of a client in Python. Arguments were checked. put, get, exists and remove answer whether they
    accept the batch; a call that raises refuses it. poll answers a list, or another finite iterable, of (ticket,
    status, bytes) with one of TRANSFER_STATUSES; answers above `capacity` are kept for the next poll. An answer with a
    ticket that is not such a triple fails its request, and one without a ticket answers no request; the first such
    mistake of a client is logged. Calls come from any thread, one at a time. close is the last one: memory of the
    callers may not be touched after it."""

    needs_registration: bool

    def register(self, address: int, size: int) -> None: ...
    def unregister(self, address: int, size: int) -> None: ...
    def put(self, requests: list[RemoteRequest]) -> bool: ...
    def get(self, requests: list[RemoteRequest]) -> bool: ...
    def exists(self, requests: list[RemoteRequest]) -> bool: ...
    def remove(self, requests: list[RemoteRequest]) -> bool: ...
    def poll(self, capacity: int) -> Iterable[tuple[int, str, int]]: ...
    def close(self) -> None: ...


class ClientStore(RemoteStore):
    """A store through a client in Python."""

    def __init__(self, client: RemoteClient) -> None:
        context = next(_contexts)
        functions = _Functions(client, context)
        _living[context] = functions  # until `destroy`: the library may use the client longer than this object lives
        try:
            super().__init__(calls.remote_store_callbacks, ctypes.byref(functions.table))
        except BaseException:
            _living.pop(context, None)
            raise
        _library.close_at_exit(self)


_contexts = itertools.count(1)
_living: dict[int, _Functions] = {}


_NAMES = ("register", "unregister", "put", "get", "exists", "remove", "poll", "close")


class _Functions:
    """The functions of a client as C calls them. Nothing is raised: ctypes would give C any number."""

    def __init__(self, client: RemoteClient, context: int) -> None:
        for name in _NAMES:
            if not callable(getattr(client, name, None)):
                raise InvalidArgument(f"client is a {type(client).__name__}, which has no function {name}")
        self._client = client
        self._answers: collections.deque[tuple[int, int, int, int]] = collections.deque()  # of one poll, not given yet
        self._mistake = ""  # the first one
        self.table = _c.RemoteCallbacks(
            context=context, needs_registration=int(client.needs_registration),
            register_memory=lambda where, size, _: self._told(client.register, where or 0, size),
            unregister_memory=lambda where, size, _: self._told(client.unregister, where or 0, size),
            put=lambda rows, count, _: self._asked(client.put, rows, count),
            get=lambda rows, count, _: self._asked(client.get, rows, count),
            exists=lambda rows, count, _: self._asked(client.exists, rows, count),
            remove=lambda rows, count, _: self._asked(client.remove, rows, count),
            poll=lambda out, capacity, _: self._polled(out, capacity),
            destroy=self._end)

    @staticmethod
    def _told(call: Any, where: int, size: int) -> int:
        try:
            call(where, size)
        except BaseException:
            return 1
        return 0

    @staticmethod
    def _asked(call: Any, rows: Any, count: int) -> int:
        try:
            return int(bool(call(_requests(rows, count))))
        except BaseException:
            return 0

    def _polled(self, out: Any, capacity: int) -> int:
        try:
            if not self._answers:
                for answer in self._client.poll(capacity):
                    self._answers.extend(self._rows(answer))
            rows = np.array([self._answers[i] for i in range(min(capacity, len(self._answers)))], REMOTE_COMPLETION)
            ctypes.memmove(out, rows.ctypes.data, rows.nbytes)
            for _ in range(len(rows)):
                self._answers.popleft()
        except BaseException as error:
            self._log(f"poll raised {type(error).__name__}: {error}")
            return 0
        return len(rows)

    def _rows(self, answer: Any) -> list[tuple[int, int, int, int]]:
        """The answer as a row of REMOTE_COMPLETION; none if it has no ticket."""
        try:
            ticket, *others = answer
            ticket = integer("ticket", ticket, 0, 2**64 - 1)
        except Exception:
            self._log(f"poll answered {answer!r:.100}, which has no ticket")
            return []
        try:
            status, size = others
            number = _NUMBERS[status]
            return [(ticket, number, 0, integer("bytes", size, 0, 2**64 - 1) if status == "done" else 0)]
        except Exception:
            self._log(f"poll answered {answer!r:.100}, which is not (ticket, status, bytes)")
            return [(ticket, _FAILED, 0, 0)]

    def _log(self, mistake: str) -> None:
        if not self._mistake:
            self._mistake = mistake
            logger.warning("client %s: %s", type(self._client).__name__, mistake)

    def _end(self, context: int) -> None:
        with contextlib.suppress(BaseException):
            self._client.close()
        _living.pop(context, None)


def _requests(rows: Any, count: int) -> list[RemoteRequest]:
    if rows._type_ is _c.RemoteKey:
        return [RemoteRequest(ticket, ctypes.string_at(key, size).decode("ascii"))
                for ticket, key, size in copied(rows, count, REMOTE_KEY).tolist()]
    return [_request(rows[i]) for i in range(count)]


def _request(row: Any) -> RemoteRequest:
    key = ctypes.string_at(row.key, row.key_bytes).decode("ascii")
    pieces = tuple((row.pieces[i].address, row.pieces[i].bytes) for i in range(row.piece_count))
    return RemoteRequest(row.ticket, key, pieces)
