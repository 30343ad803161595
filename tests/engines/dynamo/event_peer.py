# SPDX-License-Identifier: Apache-2.0
"""Messages of KvEventPublisher under Dynamo's own reader: event_peer.py

A cache that evicts announces its contents. Dynamo's publisher hears the messages over ZeroMQ, decodes them, hashes the
tokens itself, and keeps a local index, whose events it logs. At the end the index must have the blocks that were
announced and no others: chains of Dynamo's hashes of their tokens."""
import asyncio
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import msgspec

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from event_peer import SIZE, batches  # noqa: E402

from stateport.kv_publisher import KvEventPublisher  # noqa: E402

GIVE_UP_S = 120


async def listen(endpoint):
    """Of the child: Dynamo's worker."""
    from dynamo import _core

    runtime = _core.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp", event_plane="zmq")
    worker = _core.KvEventPublisher(runtime.endpoint("stateport.test.generate"), worker_id=1, kv_block_size=SIZE,
                                    dp_rank=2, enable_local_indexer=True, zmq_endpoint=endpoint, zmq_topic="")
    while sys.stdin.readline():
        pass
    os._exit(0 if worker is not None else 1)


def announced(payloads):
    """The chains of blocks that are announced at the end, each as tokens of blocks, and the number of events of KV."""
    kv, events = {}, 0
    for payload in payloads:
        for event in msgspec.msgpack.decode(payload)[1]:
            if event.get("kv_cache_spec_kind") == "mamba" or event.get("group_idx"):
                continue
            events += 1
            if event["type"] == "AllBlocksCleared":
                kv.clear()
            for i, name in enumerate(event.get("block_hashes", ())):
                if event["type"] == "BlockStored":
                    parent = event["block_hashes"][i - 1] if i else event["parent_block_hash"]
                    kv[name] = parent, event["token_ids"][SIZE * i:SIZE * (i + 1)]
                else:
                    del kv[name]
    return chains_of(kv), events


def chains_of(kv):
    chains = []
    for name in kv:
        chain = []
        while name is not None:
            name, content = kv[name]
            chain.append(content)
        chains.append(chain[::-1])
    return chains


def recorded(lines):
    """The same of the events that Dynamo logs: each block as its hash of the tokens."""
    kv = {}
    for line in lines:
        if "data: Cleared" in line:
            kv.clear()
        elif "data: Stored" in line:
            parent = re.search(r"parent_hash: Some\(ExternalSequenceBlockHash\((\d+)\)\)", line)
            before = parent.group(1) if parent else None
            for name, tokens in re.findall(r"SequenceBlockHash\((\d+)\), tokens_hash: LocalBlockHash\((\d+)\)", line):
                kv[name] = before, int(tokens)
                before = name
        else:
            for name in re.findall(r"ExternalSequenceBlockHash\((\d+)\)", line):
                del kv[name]
    return chains_of(kv)


def main():
    from dynamo._core import compute_block_hash_for_seq

    payloads = list(batches("vllm", adapters=False))
    chains, events = announced(payloads)
    give_up, lines = time.monotonic() + GIVE_UP_S, []
    with KvEventPublisher("tcp://127.0.0.1:*", first_number=0) as publisher:
        child = subprocess.Popen([*COMMAND, publisher.endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, env=os.environ | {"DYN_LOG": "debug"})
        heard = threading.Thread(target=lambda: lines.extend(
            re.sub(r"\x1b\[[0-9;]*m", "", line) for line in child.stdout if "Recorded event" in line))
        heard.start()
        while not lines:  # until it has connected
            publisher.publish(payloads[0])
            time.sleep(0.1)
            assert time.monotonic() < give_up and child.poll() is None
        for payload in payloads:
            publisher.publish(payload)
        while len([line for line in lines if "data: Cleared" not in line]) < events - 1:
            time.sleep(0.1)
            assert time.monotonic() < give_up and child.poll() is None, f"{len(lines)} of {events} events"
        child.stdin.close()
        child.wait()
        heard.join()
    wanted = sorted(compute_block_hash_for_seq(sum(chain, []), SIZE) for chain in chains)
    assert sorted(recorded(lines)) == wanted
    print(f"Dynamo: {len(payloads)} messages with {events} events of KV, {len(wanted)} blocks at the end, all equal")


# Of this program again: the loader may have been named, too.
COMMAND = [part for part in pathlib.Path("/proc/self/cmdline").read_text().split("\0") if part]
if len(sys.argv) > 1:
    asyncio.run(listen(sys.argv[1]))
else:
    main()
