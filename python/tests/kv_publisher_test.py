# SPDX-License-Identifier: Apache-2.0
"""Messages of a publisher as real subscribers get them, and their repetition after a gap."""
from __future__ import annotations

import os
import pathlib
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import stateport as sp
from stateport.kv_publisher import END_OF_REPLAY, KvEventPublisher

zmq = pytest.importorskip("zmq")
WAIT_MS = 30_000


@pytest.fixture
def context() -> Iterator[Any]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def subscribe(context: Any, publisher: KvEventPublisher, topic: bytes = b"") -> Any:
    """Connected: the first message is b"ready", or more of them."""
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    socket.connect(publisher.endpoint)
    while not socket.poll(20):
        publisher.publish(b"ready")
    return socket


def messages(socket: Any, count: int) -> list[tuple[bytes, int, bytes]]:
    """Without those of `subscribe`."""
    found: list[tuple[bytes, int, bytes]] = []
    while len(found) < count:
        topic, number, payload = socket.recv_multipart()
        assert len(number) == 8
        if payload != b"ready":
            found.append((topic, int.from_bytes(number, "big"), payload))
    return found


def replay(context: Any, publisher: KvEventPublisher, first: int) -> list[tuple[int, bytes]]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.connect(publisher.replay_endpoint)
    socket.send_multipart((b"", first.to_bytes(8, "big")))
    socket.poll(WAIT_MS)
    time.sleep(0.2)  # slower than the publisher
    found = []
    while True:
        empty, topic, number, payload = socket.recv_multipart()
        assert empty == b""
        if number == END_OF_REPLAY:
            assert not topic and not payload
            return found
        assert topic == b"kv@pod@model"
        found.append((int.from_bytes(number, "big"), payload))


def test_a_subscriber_gets_all_in_order_and_what_it_missed_again(context: Any, tmp_path: pathlib.Path) -> None:
    with KvEventPublisher("tcp://127.0.0.1:*", replay_endpoint=f"ipc://{tmp_path}/replay", topic="kv@pod@model",
                          first_number=7, buffer_steps=3000) as publisher:
        socket = subscribe(context, publisher, b"kv@")
        payloads = [str(i).encode() * 500 for i in range(2500)]
        assert all(publisher.publish(payload) for payload in payloads)
        heard = messages(socket, len(payloads))
        first = heard[0][1]
        assert first > 7 - 1
        assert heard == [(b"kv@pod@model", first + i, payload) for i, payload in enumerate(payloads)]
        # More than ZeroMQ lets wait by default.
        assert replay(context, publisher, first) == [(first + i, payload) for i, payload in enumerate(payloads)]
        assert replay(context, publisher, first + 2490) == [(first + i, payloads[i]) for i in range(2490, 2500)]
        assert replay(context, publisher, first + 2500) == []
        assert replay(context, publisher, 0)[0][0] == 7


def test_the_oldest_messages_are_kept_no_more(context: Any, tmp_path: pathlib.Path) -> None:
    with KvEventPublisher("tcp://127.0.0.1:*", replay_endpoint=f"ipc://{tmp_path}/replay", topic="kv@pod@model",
                          first_number=0, buffer_steps=3) as publisher:
        for i in range(10):
            publisher.publish(bytes([i]))
        give_up = time.monotonic() + WAIT_MS / 1000
        while (found := replay(context, publisher, 0)) and found[-1][0] < 9:
            assert time.monotonic() < give_up
        assert found == [(i, bytes([i])) for i in (7, 8, 9)]


def test_requests_that_are_none_are_left_alone(context: Any, tmp_path: pathlib.Path) -> None:
    with KvEventPublisher("tcp://127.0.0.1:*", replay_endpoint=f"ipc://{tmp_path}/replay",
                          topic="kv@pod@model", first_number=0) as publisher:
        socket = context.socket(zmq.DEALER)
        socket.connect(publisher.replay_endpoint)
        for frames in ((b"",), (b"x", b"12345678"), (b"", b"1234"), (b"", b"12345678", b"")):
            socket.send_multipart(frames)
        publisher.publish(b"good")
        give_up = time.monotonic() + WAIT_MS / 1000
        while replay(context, publisher, 0) != [(0, b"good")]:
            assert time.monotonic() < give_up
        assert not socket.poll(100)


def test_numbers_go_on_after_a_restart(context: Any) -> None:
    numbers = []
    for _ in range(2):
        with KvEventPublisher("tcp://127.0.0.1:*") as publisher:
            socket = subscribe(context, publisher)
            for _ in range(50):
                publisher.publish(b"x")
            numbers += [number for _, number, _ in messages(socket, 50)]
    assert numbers == sorted(set(numbers)) and numbers[50] > numbers[49] + 1


def test_a_full_queue_loses_payloads_and_their_numbers(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with KvEventPublisher("tcp://127.0.0.1:*", first_number=0, queue_max=2) as publisher:
        socket = subscribe(context, publisher)
        held = threading.Event()
        send = publisher._pub.send_multipart

        class Slow:
            def send_multipart(self, frames: Any) -> None:
                held.wait()
                send(frames)

        pub = publisher._pub
        publisher._pub = Slow()
        taken = [publisher.publish(str(i).encode()) for i in range(10)]
        lost = taken.count(False)
        assert lost in (7, 8) and taken[:2] == [True, True]
        held.set()
        give_up = time.monotonic() + WAIT_MS / 1000
        while not publisher.publish(b"last"):
            lost += 1
            assert time.monotonic() < give_up
        heard = messages(socket, 10 - taken.count(False) + 1)
        assert heard[-1][2] == b"last" and heard[-1][1] - heard[0][1] == len(heard) - 1 + lost
        publisher._pub = pub


def test_a_closed_publisher_sends_what_was_queued_and_refuses_more(context: Any) -> None:
    publisher = KvEventPublisher("tcp://127.0.0.1:*", first_number=0)
    socket = subscribe(context, publisher)
    for i in range(100):
        publisher.publish(str(i).encode())
    publisher.close()
    publisher.close()
    assert [payload for _, _, payload in messages(socket, 100)] == [str(i).encode() for i in range(100)]
    with pytest.raises(sp.ClosedError, match="closed"):
        publisher.publish(b"")
    assert not any(thread.name == "stateport-kv-events" for thread in threading.enumerate())


def test_a_payload_that_is_queued_just_before_the_end_is_sent(context: Any) -> None:
    publisher = KvEventPublisher("tcp://127.0.0.1:*", first_number=0)
    socket = subscribe(context, publisher)

    class Late(queue.Queue):  # type: ignore[type-arg]
        def get(self, *arguments: Any, **options: Any) -> Any:
            try:
                return super().get(*arguments, **options)
            except queue.Empty:  # the thread knows of none when another thread queues the last one
                if not publisher._closed:
                    publisher.publish(b"last")
                    publisher._closed = True
                raise

    publisher._queue = Late()
    publisher._thread.join()
    assert [payload for _, _, payload in messages(socket, 1)] == [b"last"]


def test_what_no_publisher_can_be_is_refused(tmp_path: pathlib.Path) -> None:
    with KvEventPublisher(f"ipc://{tmp_path}/events") as publisher:
        with pytest.raises(sp.BackendError, match="no/such/folder"):
            KvEventPublisher(f"ipc://{tmp_path}/more", replay_endpoint="ipc:///no/such/folder/replay")
        for options in ({"buffer_steps": -1}, {"hwm": "many"}, {"queue_max": 0}, {"first_number": -1}, {"topic": b""},
                        {"endpoint": 5557}, {"replay_endpoint": b"tcp://127.0.0.1:*"}):
            with pytest.raises(sp.InvalidArgument, match=next(iter(options))):
                KvEventPublisher(**{"endpoint": "tcp://127.0.0.1:*"} | options)  # type: ignore[arg-type]
        with pytest.raises(sp.InvalidArgument, match="payload"):
            publisher.publish("text")  # type: ignore[arg-type]
        child = os.fork()
        if child == 0:
            try:
                publisher.publish(b"")
            except sp.InvalidState:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
