# SPDX-License-Identifier: Apache-2.0
"""Objects in a Mooncake Store, through its Python client. Nothing of Mooncake is imported but by connect."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from stateport.client_store import ClientStore, RemoteRequest
from stateport.errors import BackendError, InvalidArgument


class MooncakeStore(ClientStore):
    """Objects in a Mooncake Store, through its Python client (mooncake-transfer-engine). Pieces must lie in registered
    memory. Removals are forced: an object goes even if it was read a moment ago. For some time after a writer was
    killed in a put (the master's put_start_discard_timeout_sec), puts of that key are answered done and leave nothing.

    client: a mooncake.store.MooncakeDistributedStore that was set up; the engine's own will do. It is not closed, but
    memory that was registered here is unregistered at the end. queue_bytes, queue_requests: of requests that were not
    answered. config: a ReplicateConfig for puts."""

    def __init__(self, client: Any, *, config: Any = None, queue_bytes: int = 1 << 30,
                 queue_requests: int = 65536) -> None:
        self._carrier = _Mooncake(client, config, queue_bytes, queue_requests)
        try:
            super().__init__(self._carrier)
        except BaseException:
            self._carrier.close()
            raise

    @classmethod
    def connect(cls, master: str = "127.0.0.1:50051", *, local_hostname: str = "127.0.0.1",
                metadata_server: str = "P2PHANDSHAKE", protocol: str = "tcp", devices: str = "",
                segment_bytes: int = 0, buffer_bytes: int = 128 << 20, **options: Any) -> MooncakeStore:
        """Sets a client up, which ends with the store. segment_bytes: of this machine's memory that the store may use
        for everybody's objects. buffer_bytes: of the client's own. Raises BackendError if the master cannot be
        reached."""
        from mooncake.store import MooncakeDistributedStore

        client = MooncakeDistributedStore()
        code = client.setup(local_hostname, metadata_server, segment_bytes, buffer_bytes, protocol, devices, master)
        if code:
            raise BackendError(f"the client of Mooncake cannot be set up: code {code}")
        try:
            store = cls(client, **options)
        except BaseException:
            client.close()
            raise
        store._carrier.owns_client = True
        return store


# Statuses of the client: mooncake-store/include/types.h.
_MOONCAKE_STATUSES = {0: "done", -200: "no_room", -703: "gone", -704: "gone", -705: "done", -710: "gone", -712: "gone",
                      -801: "damaged", -1700: "no_room"}
_SMALLER_MEMORY = -600


class _Mooncake:
    """Calls a client of Mooncake, whose calls wait, on a thread of its own."""

    needs_registration = True

    def __init__(self, client: Any, config: Any, queue_bytes: int, queue_requests: int) -> None:
        for name, limit in (("queue_bytes", queue_bytes), ("queue_requests", queue_requests)):
            if not isinstance(limit, int) or limit < 1:
                raise InvalidArgument(f"{name} is {limit!r}, and must be at least 1")
        self._client, self._config = client, () if config is None else (config,)
        self._free_bytes, self._free_requests = queue_bytes, queue_requests
        self._changed = threading.Condition()
        self._waiting: collections.deque[tuple[str, list[RemoteRequest]]] = collections.deque()
        self._answers: collections.deque[tuple[int, str, int]] = collections.deque()
        self._stopping = False
        self._registered: set[int] = set()
        self.owns_client = False
        self._thread = threading.Thread(target=self._run, name="stateport-mooncake", daemon=True)
        self._thread.start()

    def register(self, address: int, size: int) -> None:
        self._require(self._client.register_buffer(address, size))
        self._registered.add(address)

    def unregister(self, address: int, size: int) -> None:
        self._require(self._client.unregister_buffer(address))
        self._registered.discard(address)

    @staticmethod
    def _require(code: int) -> None:
        if code:
            raise BackendError(f"Mooncake answers {code}")

    def put(self, requests: list[RemoteRequest]) -> bool:
        return self._add("put", requests)

    def get(self, requests: list[RemoteRequest]) -> bool:
        return self._add("get", requests)

    def exists(self, requests: list[RemoteRequest]) -> bool:
        return self._add("exists", requests)

    def remove(self, requests: list[RemoteRequest]) -> bool:
        return self._add("remove", requests)

    def _add(self, kind: str, requests: list[RemoteRequest]) -> bool:
        size = sum(_size(request) for request in requests)
        with self._changed:
            if size > self._free_bytes or len(requests) > self._free_requests:
                return False
            self._free_bytes -= size
            self._free_requests -= len(requests)
            self._waiting.append((kind, requests))
            self._changed.notify()
        return True

    def poll(self, capacity: int) -> list[tuple[int, str, int]]:
        with self._changed:
            answers = [self._answers.popleft() for _ in range(min(capacity, len(self._answers)))]
            self._free_requests += len(answers)
        return answers

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()
        for address in self._registered:
            with contextlib.suppress(Exception):
                self._client.unregister_buffer(address)
        if self.owns_client:
            self._client.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting)
                if self._stopping:
                    return
                kind, requests = self._waiting.popleft()
            try:
                outcomes = list(getattr(self, f"_{kind}_now")(requests))
            except Exception:
                outcomes = [("failed", 0)] * len(requests)
            with self._changed:
                for request, (status, size) in zip(requests, outcomes, strict=True):
                    self._answers.append((request.ticket, status, size if status == "done" else 0))
                    self._free_bytes += _size(request)

    def _put_now(self, requests: list[RemoteRequest]) -> Iterator[tuple[str, int]]:
        codes = self._move("put_from", requests, *self._config)
        for request, code in zip(requests, codes, strict=True):
            yield _MOONCAKE_STATUSES.get(code, "failed"), _size(request)

    def _get_now(self, requests: list[RemoteRequest]) -> Iterator[tuple[str, int]]:
        for request, code in zip(requests, self._move("get_into", requests), strict=True):
            if code == _SMALLER_MEMORY and self._client.get_size(request.key) > _size(request):
                yield "foreign_layout", 0
            else:
                yield ("done", code) if code > 0 else (_MOONCAKE_STATUSES.get(code or -1, "failed"), 0)

    def _move(self, call: str, requests: list[RemoteRequest], *config: Any) -> list[int]:
        """Objects in one piece go by one call, the others by another."""
        codes = [-1] * len(requests)
        for many in (False, True):
            chosen = [i for i, request in enumerate(requests) if (len(request.pieces) > 1) == many]
            if not chosen:
                continue
            keys = [requests[i].key for i in chosen]
            places: list[Any] = [list(zip(*requests[i].pieces, strict=True)) for i in chosen]
            if many:
                answers = getattr(self._client, f"batch_{call}_multi_buffers")(
                    keys, [list(place[0]) for place in places], [list(place[1]) for place in places], *config)
            else:
                answers = getattr(self._client, f"batch_{call}")(
                    keys, [place[0][0] for place in places], [place[1][0] for place in places], *config)
            for i, code in zip(chosen, answers, strict=True):
                codes[i] = code
        return codes

    def _exists_now(self, requests: list[RemoteRequest]) -> Iterator[tuple[str, int]]:
        codes = self._client.batch_is_exist([request.key for request in requests])
        for _, code in zip(requests, codes, strict=True):
            yield {1: "done", 0: "gone"}.get(code, "failed"), 0

    def _remove_now(self, requests: list[RemoteRequest]) -> Iterator[tuple[str, int]]:
        for request in requests:
            yield _MOONCAKE_STATUSES.get(self._client.remove(request.key, True), "failed"), 0


def _size(request: RemoteRequest) -> int:
    return sum(size for _, size in request.pieces)
