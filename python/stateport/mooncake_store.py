# SPDX-License-Identifier: Apache-2.0
"""Objects in a Mooncake Store, through its Python client. Nothing of Mooncake is imported but by connect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from stateport.client_store import ClientStore, RemoteRequest
from stateport.errors import BackendError


class MooncakeStore(ClientStore):
    """Objects in a Mooncake Store, through its Python client (mooncake-transfer-engine). Pieces must lie in registered
    memory. Removals are forced: an object goes even if it was read a moment ago. For some time after a writer was
    killed in a put (the master's put_start_discard_timeout_sec), puts of that key are answered done and leave nothing.

    client: a mooncake.store.MooncakeDistributedStore that was set up; the engine's own will do. It is not closed, but
    memory that was registered here is unregistered at the end. config: a ReplicateConfig for puts. queue_bytes,
    queue_requests: as of ClientStore."""

    def __init__(self, client: Any, *, config: Any = None, queue_bytes: int = 0, queue_requests: int = 0) -> None:
        self._carrier = _Mooncake(client, config)
        super().__init__(self._carrier, queue_bytes=queue_bytes, queue_requests=queue_requests)

    @classmethod
    def connect(cls, master: str = "127.0.0.1:50051", *, local_hostname: str = "127.0.0.1",
                metadata_server: str = "P2PHANDSHAKE", protocol: str = "tcp", devices: str = "",
                segment_bytes: int = 0, buffer_bytes: int = 128 << 20, **options: Any) -> MooncakeStore:
        """Sets a client up, which ends with the store. segment_bytes: of this machine's memory that the store may use
        for everybody's objects. buffer_bytes: of the client's own. Raises BackendError if the package
        mooncake-transfer-engine cannot be imported, or the master cannot be reached."""
        try:
            from mooncake.store import MooncakeDistributedStore
        except ImportError as error:
            raise BackendError(f"MooncakeStore.connect needs the package mooncake-transfer-engine: {error}") from error
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
    """The calls of a store as those of a client of Mooncake."""

    needs_registration = True

    def __init__(self, client: Any, config: Any) -> None:
        self._client, self._config = client, () if config is None else (config,)
        self._registered: set[int] = set()
        self.owns_client = False

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

    def close(self) -> None:
        for address in self._registered:
            with contextlib.suppress(Exception):
                self._client.unregister_buffer(address)
        if self.owns_client:
            self._client.close()

    def put(self, requests: list[RemoteRequest]) -> Iterator[str]:
        for code in self._move("put_from", requests, *self._config):
            yield _MOONCAKE_STATUSES.get(code, "failed")

    def get(self, requests: list[RemoteRequest]) -> Iterator[tuple[str, int]]:
        for request, code in zip(requests, self._move("get_into", requests), strict=True):
            if code == _SMALLER_MEMORY and self._client.get_size(request.key) > _size(request):
                yield "foreign_layout", 0
            else:
                yield ("done", code) if code > 0 else (_MOONCAKE_STATUSES.get(code or -1, "failed"), 0)

    def exists(self, requests: list[RemoteRequest]) -> Iterator[str]:
        codes = self._client.batch_is_exist([request.key for request in requests])
        for _, code in zip(requests, codes, strict=True):
            yield {1: "done", 0: "gone"}.get(code, "failed")

    def remove(self, requests: list[RemoteRequest]) -> Iterator[str]:
        for request in requests:
            yield _MOONCAKE_STATUSES.get(self._client.remove(request.key, True), "failed")

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


def _size(request: RemoteRequest) -> int:
    return sum(size for _, size in request.pieces)
