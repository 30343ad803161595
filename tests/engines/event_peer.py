# SPDX-License-Identifier: Apache-2.0
"""Batches of KvEventEncoder, read and written again by an engine's own classes: event_peer.py vllm|sglang

Prompts are served by a cache that evicts. Each batch must decode as the engine's batch of events, and its events encode
again as they were, but for the keys that the engine does not know. vLLM's publisher and ours must send and repeat the
same frames."""
import argparse
import importlib
import pathlib
import random
import tempfile

import msgspec
import zmq

import stateport as sp
from stateport.kv_events import KvEventEncoder
from stateport.kv_publisher import KvEventPublisher

MODULES = {"vllm": "vllm.distributed.kv_events", "sglang": "sglang.srt.disaggregation.kv_events"}
OURS = {"component_types", "state_tokens"}  # keys that engines do not know
SIZE = 16


def serve(cache, prompt):
    with cache.serving(prompt) as started:
        while (done := cache.computed(started.request)) < len(prompt):
            tokens = cache.chunk([started.request], [len(prompt) - done])
            plan = cache.plan([started.request], tokens)
            last = done + int(tokens[0]) == len(prompt)
            cache.commit(plan, [int(last)], [7] if last else [])


def batches(name, prompts=300, adapters=True):
    """Payloads of a cache that evicts, with names of all kinds. adapters: some prompts have one, and a salt."""
    draw, earlier = random.Random(5), [[]]
    cache = sp.RequestCache("hash", sp.SlotLayout(3, 10), max_requests=1, max_request_tokens=512, kv_tokens=2048,
                            block_size_tokens=SIZE, events=True)
    encoder = KvEventEncoder(name, block_size_tokens=SIZE, rank=2)
    for number in range(prompts):
        shared = draw.choice(earlier)
        prompt = (shared[:draw.randint(0, len(shared))] + [draw.randrange(9) for _ in range(draw.randint(1, 80))])[:500]
        earlier.append(prompt)
        _, prefixes = sp.hash_blocks(prompt, SIZE)
        named = {"lora_id": 3, "lora_name": "adapter", "salt": "tenant"} if adapters and number % 3 == 0 else {}
        encoder.name(prefixes, prompt, session_id=f"session {number}", **named)
        serve(cache, prompt)
        encoder.add(cache.take_events())
        payload = encoder.take_batch(float(number))
        if payload is not None:
            yield payload


def check(name):
    engine = importlib.import_module(MODULES[name])
    decoder, encoder = msgspec.msgpack.Decoder(engine.KVEventBatch), msgspec.msgpack.Encoder()
    counts = {"batches": 0, "BlockStored": 0, "BlockRemoved": 0, "AllBlocksCleared": 0, "states": 0}
    for payload in batches(name):
        counts["batches"] += 1
        said, heard = msgspec.msgpack.decode(payload), decoder.decode(payload)
        assert heard.ts == said[0] and len(heard.events) == len(said[1])
        assert getattr(heard, "data_parallel_rank", getattr(heard, "attn_dp_rank", None)) == said[2] == 2
        for event, wanted in zip(heard.events, said[1], strict=True):
            assert type(event).__name__ == wanted["type"]
            unknown = {key for key in wanted if key != "type" and not hasattr(event, key)}
            assert unknown <= OURS, unknown
            own = msgspec.msgpack.decode(encoder.encode(event))
            assert own == {key: value for key, value in wanted.items() if key not in unknown and (
                value is not None or key in own)}, (own, wanted)
            counts[wanted["type"]] += 1
            counts["states"] += "state_tokens" in wanted
    print(f"{name}: {counts}")
    assert min(counts.values()) > 0


def check_publisher(name):
    """The engine's publisher and ours send the same messages, and repeat them in the same way."""
    if name != "vllm":
        return
    engine = importlib.import_module(MODULES[name])
    heard = []
    for which in ("engine", "stateport"):
        with tempfile.TemporaryDirectory() as folder:
            at, again = (f"ipc://{pathlib.Path(folder, kind)}" for kind in ("events", "replay"))
            if which == "engine":
                publisher = engine.ZmqEventPublisher(0, at, again, topic="kv")
                batch = engine.KVEventBatch(ts=1.0, events=[engine.AllBlocksCleared()])

                def publish(publisher=publisher, batch=batch):
                    publisher.publish(batch)
            else:
                publisher = KvEventPublisher(at, replay_endpoint=again, topic="kv", first_number=0)
                first_batch = KvEventEncoder(name, block_size_tokens=SIZE).take_batch(1.0)

                def publish(publisher=publisher, payload=first_batch):
                    publisher.publish(payload)
            context = zmq.Context()
            subscriber, replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
            subscriber.setsockopt(zmq.SUBSCRIBE, b"kv")
            subscriber.connect(at)
            replay.connect(again)
            sent = 0
            while not subscriber.poll(50):
                publish()
                sent += 1
            first = subscriber.recv_multipart()
            replay.send_multipart((b"", (0).to_bytes(8, "big")))
            repeated = []
            while (frames := replay.recv_multipart())[2] != engine.ZmqEventPublisher.END_SEQ:
                repeated.append(frames)
            heard.append((first[0], len(first[1]), first[2], repeated[0], frames))
            assert len(repeated) == sent
            (publisher.shutdown if which == "engine" else publisher.close)()
            context.destroy(linger=0)
    assert heard[0] == heard[1], heard
    print(f"{name}: one framing, {heard[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=MODULES)
    engine = parser.parse_args().engine
    check(engine)
    check_publisher(engine)


if __name__ == "__main__":
    main()
