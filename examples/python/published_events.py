# SPDX-License-Identifier: Apache-2.0
"""Messages of a worker over ZeroMQ, and their repetition for a router that comes late. python published_events.py"""
import pathlib
import tempfile

import zmq

import stateport

folder = pathlib.Path(tempfile.mkdtemp())
encoder = stateport.KvEventEncoder("vllm", block_size_tokens=16)
router = stateport.Router(16)

# docs: publish
publisher = stateport.KvEventPublisher(f"ipc://{folder}/events", replay_endpoint=f"ipc://{folder}/replay")
publisher.publish(encoder.take_batch())  # the first batch says that all before is cleared
# docs end

# docs: listen
context = zmq.Context()
events, replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
events.setsockopt(zmq.SUBSCRIBE, b"")
events.connect(publisher.endpoint)
replay.connect(publisher.replay_endpoint)
router.join("worker", next_number=0)


def catch_up() -> int:
    """Hears the missing ones, and answers how many messages that were."""
    replay.send_multipart([b"", router.index.next_sequence(0).to_bytes(8, "big")])
    heard = 0
    while (frames := replay.recv_multipart())[2] != stateport.END_OF_REPLAY:
        _, _, number, payload = frames
        router.hear("worker", int.from_bytes(number, "big"), payload)
        heard += 1
    return heard


def listen(milliseconds: int) -> int:
    """Hears those that come, and answers how many messages that were."""
    heard = 0
    while events.poll(milliseconds):
        _, number, payload = events.recv_multipart()
        if not router.hear("worker", int.from_bytes(number, "big"), payload):
            catch_up()
        heard += 1
    return heard
# docs end


missed = 0
while missed == 0:  # the thread of the publisher has sent it
    missed = catch_up()
while listen(50) == 0:  # until the subscription is known to the publisher
    encoder.tell_again()
    publisher.publish(encoder.take_batch())
publisher.close()
context.destroy(linger=0)
known = router.missing("worker") is None
print(f"{missed} message missed and repeated; the worker is {'known' if known else 'unknown'}")
