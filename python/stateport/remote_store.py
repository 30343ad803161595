# SPDX-License-Identifier: Apache-2.0
"""Stores that many machines share, from and to memory of the host: of this process and of Valkey. For clients of other
stores in Python see client_store.py."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stateport import _c, _library
from stateport._arguments import integer, text_bytes
from stateport._arrays import Records, address, record_of, room
from stateport._library import calls
from stateport.errors import Error, InvalidArgument
from stateport.tier_options import TRANSFER_STATUSES

REMOTE_KEY = record_of(_c.RemoteKey)
REMOTE_OBJECT = record_of(_c.RemoteObject)
REMOTE_COMPLETION = record_of(_c.RemoteCompletion)

Bytes = npt.NDArray[np.uint8]
Memory = Bytes | tuple[int, int]  # a contiguous array of bytes, or an address and a number of bytes


class RemoteStore(_library.Object):
    """Values of bytes under keys, put and got in batches, asynchronously. It decides nothing: the store behind it has
    its own capacity and eviction, and an object may vanish at any time. Keys are 1 to 1,024 characters of ASCII without
    spaces. Every request that is accepted is answered by poll once, in any order, by its ticket: any number that no
    other request has which is not answered. Nothing waits for the network but the constructor and close.

    InProcessStore, ValkeyStore, MooncakeStore or ClientStore makes it."""

    def __init__(self, make: Any, *arguments: Any) -> None:
        self._under_way: dict[int, Any] = {}  # by ticket: the memory that the answer sets free
        self._registered: dict[int, Memory] = {}
        self._lock = threading.Lock()
        super().__init__(make, calls.remote_store_destroy, *arguments)

    def register(self, memory: Memory) -> None:
        """Makes memory known to the store, for the network's hardware. Slow: call it at the start. Some stores refuse
        puts and gets of other memory: info()["needs_registration"]."""
        where, size = _place("memory", memory)
        calls.remote_store_register(self.handle, where, size)
        self._registered[where] = memory

    def unregister(self, memory: Memory) -> None:
        """As it was registered. No request that is not answered may use it."""
        where, size = _place("memory", memory)
        calls.remote_store_unregister(self.handle, where, size)
        self._registered.pop(where, None)

    def put(self, tickets: Sequence[int], keys: Sequence[str], memory: Sequence[Memory | Sequence[Memory]]) -> None:
        """Stores objects: memory[i], or its pieces one behind the other, under keys[i]. It must stay as it is until the
        answer: done (also if the key was there already, which is then left as it is), no_room, failed. Raises
        NoCapacity if a queue is full; there is no answer then."""
        self._begin(calls.remote_store_put, tickets, keys, _objects(memory))

    def get(self, tickets: Sequence[int], keys: Sequence[str], memory: Sequence[Memory | Sequence[Memory]]) -> None:
        """Reads objects. Answers: done (the first `bytes` bytes of the memory are the object), gone, damaged,
        foreign_layout (it is larger than the memory), failed. After another one than done the memory holds anything."""
        objects = _objects(memory)
        for i, pieces in enumerate(objects):
            if any(isinstance(piece, np.ndarray) and not piece.flags.writeable for piece in pieces):
                raise InvalidArgument(f"memory[{i}] is read-only, and must be writable")
        self._begin(calls.remote_store_get, tickets, keys, objects)

    def exists(self, tickets: Sequence[int], keys: Sequence[str]) -> None:
        """Answers: done (it is there), gone, failed."""
        self._begin(calls.remote_store_exists, tickets, keys)

    def remove(self, tickets: Sequence[int], keys: Sequence[str]) -> None:
        """Answers: done (it was there, and is not any more), gone, failed."""
        self._begin(calls.remote_store_remove, tickets, keys)

    def _begin(self, call: Any, tickets: Sequence[int], keys: Sequence[str],
               objects: list[tuple[Memory, ...]] | None = None) -> None:
        handle, numbers = self.handle, _numbers(tickets)
        rows, kept = _batch(numbers, keys, objects)
        with self._lock:
            for ticket in numbers:
                if ticket in self._under_way:
                    raise InvalidArgument(f"tickets has {ticket}, which another request has that was not answered")
            self._under_way.update(dict.fromkeys(numbers, kept))
        try:
            call(handle, address(rows), len(rows))
        except Error:  # an interrupt may come after the request was accepted: its answer sets the memory free
            with self._lock:
                for ticket in numbers:
                    del self._under_way[ticket]
            raise

    def poll(self, capacity: int = 4096) -> Records:
        """At most `capacity` answers: REMOTE_COMPLETION [n]. Lets operations under way make progress."""
        out, count = room("capacity", capacity, REMOTE_COMPLETION), ctypes.c_size_t()
        calls.remote_store_poll(self.handle, address(out), capacity, ctypes.byref(count))
        answers = out[:count.value]
        with self._lock:
            for ticket in answers["ticket"].tolist():
                self._under_way.pop(ticket, None)
        return answers

    def info(self) -> dict[str, Any]:
        """needs_registration, accepted_requests, refused_requests, and `answers` by status."""
        out = _c.RemoteStoreInfo()
        calls.remote_store_describe(self.handle, ctypes.byref(out))
        return {"needs_registration": bool(out.needs_registration), "accepted_requests": out.accepted_requests,
                "refused_requests": out.refused_requests,
                "answers": dict(zip(TRANSFER_STATUSES, out.answers, strict=True))}


class InProcessObjects(_library.Object):
    """Objects that the InProcessStores made of it share, in memory of this process, the least recently used one evicted
    first."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(calls.remote_objects_create, calls.remote_objects_destroy,
                         integer("capacity_bytes", capacity_bytes, 0, 2**64 - 1))


class InProcessStore(RemoteStore):
    """A client of InProcessObjects, for tests: poll carries requests out."""

    def __init__(self, objects: InProcessObjects, *, needs_registration: bool = False, queue_bytes: int = 0,
                 queue_requests: int = 0) -> None:
        limits = _c.RemoteLimits(queue_bytes=queue_bytes, queue_requests=queue_requests)
        handle = _library.handle_of("objects", objects, InProcessObjects)
        super().__init__(calls.remote_store_in_process, handle, ctypes.byref(limits), int(needs_registration))


class ValkeyStore(RemoteStore):
    """Objects on a server of Valkey or Redis (6 or newer, no cluster). Raises InvalidState where the library was built
    without hiredis.

    url: "valkey://[[user]:password@]host[:port][/database]", "valkeys://…" with TLS; other arguments override it. tls:
    the server's certificate must be of server_name (default: the host) and signed by an authority of ca_file (default:
    those of the system). lanes: connections, each with a thread. silence_timeout_s: without a byte from or to the
    server. piece_bytes: larger objects are cut. lifetime_s: the server forgets an object this long after its put, 0:
    never by age. 0 elsewhere: the library's default."""

    def __init__(self, url: str | None = None, *, host: str | None = None, port: int = 0, database: int = 0,
                 unix_socket: str | None = None, user: str | None = None, password: str | None = None,
                 tls: bool = False, ca_file: str | None = None, certificate_file: str | None = None,
                 key_file: str | None = None, server_name: str | None = None, lanes: int = 0,
                 connect_timeout_s: float = 0, silence_timeout_s: float = 0, piece_bytes: int = 0,
                 lifetime_s: float = 0, prefix: str | None = None, queue_bytes: int = 0,
                 queue_requests: int = 0) -> None:
        texts = {"url": url, "host": host, "unix_socket": unix_socket, "user": user, "password": password,
                 "ca_file": ca_file, "certificate_file": certificate_file, "key_file": key_file,
                 "server_name": server_name, "prefix": prefix}
        options = _c.ValkeyOptions(
            **{name: text_bytes(name, text) for name, text in texts.items() if text is not None}, port=port,
            database=database, tls=int(bool(tls)),
            lanes=lanes, connect_timeout_s=connect_timeout_s, silence_timeout_s=silence_timeout_s,
            piece_bytes=piece_bytes, lifetime_s=lifetime_s, queue_bytes=queue_bytes, queue_requests=queue_requests)
        super().__init__(calls.remote_store_valkey, ctypes.byref(options))

    def valkey_info(self) -> dict[str, Any]:
        """connections, failed_attempts, lost_connections, damaged_objects, and last_error: why the last request failed
        that did."""
        out = _c.ValkeyInfo()
        calls.remote_store_describe_valkey(self.handle, ctypes.byref(out))
        numbers = {name: getattr(out, name) for name, _ in out._fields_ if name not in ("size", "last_error")}
        return {**numbers, "last_error": out.last_error.decode(errors="replace")}


def _numbers(tickets: Sequence[int]) -> list[int]:
    numbers = list(tickets)
    if not all(type(number) is int and 0 <= number < 2**64 for number in numbers):
        numbers = [integer(f"tickets[{i}]", ticket, 0, 2**64 - 1) for i, ticket in enumerate(numbers)]
    if len(set(numbers)) != len(numbers):
        raise InvalidArgument("tickets names one twice")
    return numbers


def _objects(memory: Any) -> list[tuple[Memory, ...]]:
    """The pieces of each object, in lists of our own: the caller may change theirs."""
    try:
        objects = list(memory)
    except TypeError:
        raise InvalidArgument(f"memory is a {type(memory).__name__}, and must have one element for each key") from None
    return [_pieces(f"memory[{i}]", pieces) for i, pieces in enumerate(objects)]


def _pieces(name: str, memory: Any) -> tuple[Memory, ...]:
    """One piece, or several."""
    if isinstance(memory, np.ndarray) or _is_place(memory):
        return (memory,)
    if not isinstance(memory, (list, tuple)):
        raise InvalidArgument(f"{name} is a {type(memory).__name__}, and must be an array of bytes, an address and a "
                              "number of bytes, or a list of such pieces")
    return tuple(memory)


def _is_place(memory: Any) -> bool:
    return isinstance(memory, tuple) and len(memory) == 2 and all(isinstance(n, (int, np.integer)) for n in memory)


def _place(name: str, memory: Any) -> tuple[int, int]:
    """Where memory lies, and how many bytes it has."""
    if isinstance(memory, np.ndarray):
        if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
            raise InvalidArgument(f"{name} has the type {memory.dtype} and the shape {list(memory.shape)}, and must be "
                                  "contiguous bytes in one dimension")
        return memory.ctypes.data, memory.nbytes
    if not isinstance(memory, tuple):
        raise InvalidArgument(f"{name} is a {type(memory).__name__}, and must be an array of bytes, or an address "
                              "and a number of bytes")
    if not _is_place(memory) or not all(0 <= number < 2**63 for number in memory):
        raise InvalidArgument(f"{name} is {memory!r}, and must be an address and a number of bytes")
    return int(memory[0]), int(memory[1])


def _batch(tickets: list[int], keys: Sequence[str], objects: list[tuple[Memory, ...]] | None) -> tuple[Any, Any]:
    """The rows of a batch as C has them, and the objects that must live until its answers."""
    for name, values in (("keys", keys), ("memory", objects)):
        if values is not None and len(values) != len(tickets):
            raise InvalidArgument(f"{name} has {len(values)} elements, and tickets has {len(tickets)}")
    try:
        texts = [key.encode() for key in keys]
    except (AttributeError, UnicodeEncodeError):
        texts = [text_bytes(f"keys[{i}]", key) for i, key in enumerate(keys)]  # names the wrong one
    together = np.frombuffer(b"".join(texts), np.uint8)
    sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
    rows = np.zeros(len(texts), REMOTE_KEY if objects is None else REMOTE_OBJECT)
    rows["ticket"], rows["key_bytes"] = np.fromiter(tickets, np.uint64, len(texts)), sizes
    rows["key"] = np.cumsum(sizes) - sizes + np.uint64(address(together) or 0)
    kept: list[Any] = [objects, together]
    for i, pieces in enumerate(objects or ()):
        places = np.array([_place(f"memory[{i}]", piece) for piece in pieces], np.uint64).reshape(-1, 2)
        rows[i]["pieces"], rows[i]["piece_count"] = address(places) or 0, len(places)
        kept.append(places)
    return rows, kept
