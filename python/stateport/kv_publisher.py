# SPDX-License-Identifier: Apache-2.0
"""Messages to routers over ZeroMQ, in the framing of vLLM and SGLang."""

from __future__ import annotations

import collections
import logging
import queue
import threading
import time
from typing import Any

from stateport import _library
from stateport._arguments import integer, of_kind
from stateport.errors import BackendError, ClosedError, InvalidState

logger = logging.getLogger(__name__)

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)  # in place of a number
_IDLE_S = 0.05  # how long the thread waits for a payload before it looks for requests
_LINGER_MS = 1000  # how long close() waits for a subscriber to take the last messages


class KvEventPublisher:
    """Publishes payloads as messages (topic, number, payload), and repeats them on request.

    endpoint: of the PUB socket. It is bound if it has a * or ::, or begins with ipc://, else connected.
    replay_endpoint: of a ROUTER socket, which is bound; None: nothing is repeated. A subscriber that missed messages
    sends an empty frame and the number of the first one (8 bytes, big-endian) from a DEALER socket. It gets (empty
    frame, topic, number, payload) of each message from there on that is kept, then (empty frame, empty, -1, empty).
    buffer_steps: messages that are kept. hwm: messages that wait for a slow subscriber; others are lost for it.
    queue_max: payloads that wait for the thread that sends them.

    Numbers count up by one from first_number. None: from the microseconds since 1970, so that a process that starts
    again goes on behind the numbers of the one before, unless that published more than a message a microsecond.
    Subscribers see a gap then, and in its first batch (KvEventEncoder) that all before is cleared.

    Any thread may call publish and close. Needs the package pyzmq; raises BackendError without it, and for an endpoint
    that cannot be had."""

    def __init__(self, endpoint: str = "tcp://*:5557", *, replay_endpoint: str | None = None, topic: str = "",
                 buffer_steps: int = 10_000, hwm: int = 100_000, queue_max: int = 100_000,
                 first_number: int | None = None) -> None:
        try:
            import zmq
        except ImportError as error:
            raise BackendError("publishing needs the package pyzmq, which is not installed") from error
        self.endpoint = of_kind("endpoint", endpoint, str)
        self.replay_endpoint = None if replay_endpoint is None else of_kind("replay_endpoint", replay_endpoint, str)
        self._topic = of_kind("topic", topic, str).encode()
        first = time.time_ns() // 1000 if first_number is None else first_number
        self._next = integer("first_number", first, 0, 2**62)
        kept, waiting = integer("buffer_steps", buffer_steps, 0, 2**31 - 2), integer("hwm", hwm, 0, 2**31 - 1)
        self._buffer: collections.deque[tuple[bytes, bytes]] = collections.deque(maxlen=kept)
        self._queue: queue.Queue[tuple[bytes, bytes]] = queue.Queue(integer("queue_max", queue_max, 1, 2**31 - 1))
        self._lock = threading.Lock()  # of the order of numbers in the queue
        self._closed, self._forks = False, _library.forks
        self._context: Any = zmq.Context()
        self._replay: Any = None
        try:
            self._pub: Any = self._context.socket(zmq.PUB)
            self._pub.set_hwm(waiting)
            if "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://"):
                self._pub.bind(endpoint)
                self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
            else:
                self._pub.connect(endpoint)
            if replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.setsockopt(zmq.SNDHWM, kept + 1)  # a whole replay is never cut
                self._replay.bind(replay_endpoint)
                self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise BackendError(f"no sockets for endpoint {endpoint!r} and replay_endpoint {replay_endpoint!r}: "
                               f"{error}") from error
        self._thread = threading.Thread(target=self._run, name="stateport-kv-events", daemon=True)
        self._thread.start()

    def publish(self, payload: bytes) -> bool:
        """Queues a payload, and waits for nothing. False: the queue was full, and the payload is lost. Its number is
        left out, so that subscribers notice; tell them all again (KvEventEncoder.tell_again). Raises ClosedError, and
        InvalidState after a fork."""
        of_kind("payload", payload, bytes)
        if self._forks != _library.forks:
            raise InvalidState("this KvEventPublisher was made before the process forked: make one after it")
        with self._lock:
            if self._closed:
                raise ClosedError("this KvEventPublisher is closed")
            number, self._next = self._next.to_bytes(8, "big"), self._next + 1
            try:
                self._queue.put_nowait((number, payload))
            except queue.Full:
                return False
        return True

    def close(self) -> None:
        """Sends the queue, and ends the thread. Closing it twice is fine."""
        with self._lock:
            self._closed = True
        if self._forks == _library.forks:
            self._thread.join()

    def __enter__(self) -> KvEventPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while True:
                if self._replay is not None and self._replay.poll(0):
                    self._repeat(self._replay.recv_multipart())
                closed = self._closed  # nothing is queued after it was set
                try:
                    number, payload = self._queue.get(timeout=0 if closed else _IDLE_S)
                except queue.Empty:
                    if closed:
                        return
                    continue
                self._pub.send_multipart((self._topic, number, payload))
                self._buffer.append((number, payload))
        except Exception:
            logger.exception("stateport: events are published no more")
        finally:
            with self._lock:
                self._closed = True
            self._context.destroy(linger=_LINGER_MS)

    def _repeat(self, request: list[bytes]) -> None:
        if len(request) != 3 or request[1] or len(request[2]) != 8:
            logger.warning("stateport: a request for a replay has %d frames, and must have an empty one and a number "
                           "of 8 bytes", len(request) - 1)
            return
        client, _, first = request
        for number, payload in self._buffer:
            if number >= first:
                self._replay.send_multipart((client, b"", self._topic, number, payload))
        self._replay.send_multipart((client, b"", b"", END_OF_REPLAY, b""))
