# SPDX-License-Identifier: Apache-2.0
"""A store that many machines share through a client that is written in Python."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from stateport import _c, _library
from stateport._arguments import integer
from stateport._arrays import copied
from stateport._library import calls
from stateport.errors import InvalidArgument
from stateport.remote_store import REMOTE_KEY, RemoteStore
from stateport.tier_options import TRANSFER_STATUSES

logger = logging.getLogger(__name__)


_NUMBERS = {status: number for number, status in enumerate(TRANSFER_STATUSES)}


@dataclasses.dataclass(frozen=True)
class RemoteRequest:
    """One request to a client. pieces: addresses and numbers of bytes; empty for a find or a removal."""

    key: str
    pieces: tuple[tuple[int, int], ...] = ()


class RemoteClient(Protocol):
    """The functions of a client in Python, which wait for the store behind it. Arguments were checked. put, exists and
    remove answer a status for each request, one of TRANSFER_STATUSES, and get answers (status, bytes): a list, or
    another finite iterable. A request whose answer is none has failed. So have all requests of a call that raises, or
    has another number of answers. The first such mistake of a client is logged. Calls come one at a time; those of
    requests, from a thread of the library. close is the last one: memory of the callers may not be touched after
    it."""

    needs_registration: bool

    def register(self, address: int, size: int) -> None: ...
    def unregister(self, address: int, size: int) -> None: ...
    def put(self, requests: list[RemoteRequest]) -> Iterable[str]: ...
    def get(self, requests: list[RemoteRequest]) -> Iterable[tuple[str, int]]: ...
    def exists(self, requests: list[RemoteRequest]) -> Iterable[str]: ...
    def remove(self, requests: list[RemoteRequest]) -> Iterable[str]: ...
    def close(self) -> None: ...


class ClientStore(RemoteStore):
    """A store through a client in Python. queue_bytes, queue_requests: of requests that were not answered; 0: 1 GiB and
    65,536."""

    def __init__(self, client: RemoteClient, *, queue_bytes: int = 0, queue_requests: int = 0) -> None:
        context = next(_contexts)
        functions = _Functions(client, context)
        functions.table.queue_bytes, functions.table.queue_requests = (
            integer("queue_bytes", queue_bytes, 0, 2**64 - 1), integer("queue_requests", queue_requests, 0, 2**64 - 1))
        _living[context] = functions  # until `destroy`: the library may use the client longer than this object lives
        try:
            super().__init__(calls.remote_store_callbacks, ctypes.byref(functions.table))
        except BaseException:
            _living.pop(context, None)
            raise
        _library.close_at_exit(self)


_contexts = itertools.count(1)
_living: dict[int, _Functions] = {}


_NAMES = ("register", "unregister", "put", "get", "exists", "remove", "close")


class _Functions:
    """The functions of a client as C calls them. Nothing is raised: ctypes would give C any number."""

    def __init__(self, client: RemoteClient, context: int) -> None:
        for name in _NAMES:
            if not callable(getattr(client, name, None)):
                raise InvalidArgument(f"client is a {type(client).__name__}, which has no function {name}")
        self._client = client
        self._mistake = ""  # the first one
        self.table = _c.RemoteCallbacks(
            context=context, needs_registration=int(client.needs_registration),
            register_memory=lambda where, size, _: self._told(client.register, where or 0, size),
            unregister_memory=lambda where, size, _: self._told(client.unregister, where or 0, size),
            put=lambda rows, count, answers, _: self._carry_out("put", rows, count, answers),
            get=lambda rows, count, answers, _: self._carry_out("get", rows, count, answers),
            exists=lambda rows, count, answers, _: self._carry_out("exists", rows, count, answers),
            remove=lambda rows, count, answers, _: self._carry_out("remove", rows, count, answers),
            destroy=self._end)

    @staticmethod
    def _told(call: Any, where: int, size: int) -> int:
        try:
            call(where, size)
        except BaseException:
            return 1
        return 0

    def _carry_out(self, name: str, rows: Any, count: int, answers: Any) -> None:
        """Every answer is `failed` before."""
        try:
            reported = list(getattr(self._client, name)(_requests(rows, count)))
        except BaseException as error:
            self._log(f"{name} raised {type(error).__name__}: {error}")
            return
        if len(reported) != count:
            self._log(f"{name} answered {len(reported)} of {count} requests")
            return
        for i, answer in enumerate(reported):
            try:
                status, size = answer if name == "get" else (answer, 0)
                number = _NUMBERS[status]
                answers[i].bytes = integer("bytes", size, 0, 2**64 - 1) if status == "done" else 0
                answers[i].status = number
            except Exception:
                self._log(f"{name} answered {answer!r:.100}, which is not "
                          f"{'(status, bytes)' if name == 'get' else 'a status'}")

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
        return [RemoteRequest(ctypes.string_at(key, size).decode("ascii"))
                for _, key, size in copied(rows, count, REMOTE_KEY).tolist()]
    return [_request(rows[i]) for i in range(count)]


def _request(row: Any) -> RemoteRequest:
    key = ctypes.string_at(row.key, row.key_bytes).decode("ascii")
    pieces = tuple((row.pieces[i].address, row.pieces[i].bytes) for i in range(row.piece_count))
    return RemoteRequest(key, pieces)
