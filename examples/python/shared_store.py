# SPDX-License-Identifier: Apache-2.0
"""A state that one engine puts into a shared store and another one gets, whose two ranks each take a half. With the URL
of a server of Valkey or Redis the store is that server; without one it is memory of this process.

    python shared_store.py [valkey://127.0.0.1:6379/0]"""
import sys

import numpy as np

import stateport

# docs: a shared layout
layout = stateport.ModelLayout.find("granite-4.0-h-tiny", recurrent_dtype="float32")  # how ranks share a state
objects = stateport.InProcessObjects(1 << 30)


def connect():
    if len(sys.argv) > 1:
        return stateport.ValkeyStore(sys.argv[1])  # "valkeys://…" with TLS, ca_file="ca.pem"
    return stateport.InProcessStore(objects)


def engine_rank(rank, ranks):
    """The states of one rank, and the store as their tier."""
    shard = stateport.Shard(0, 36, rank, ranks)  # of all 36 layers that have a state
    states = stateport.StateStore(layout.spec(shard), slots=4)
    remote = stateport.RemoteOptions(connect(), [stateport.SharedLayout(layout, shard)], head_groups=2)
    return states, stateport.StateTiers(states=[states], model="granite, revision 1", remote=remote)
# docs end


def wait(tiers):
    """The answers of all transfers that are under way."""
    while not len(answers := tiers.poll()):
        pass
    assert set(answers["status"]) == {0}, answers


# docs: put and get
image = np.zeros(1, stateport.SLOT_IMAGE)
image["key"] = stateport.image_keys([[11, 12]], 4096, "state")  # the hash of the prompt, and its tokens
image["slot"] = 1

states, tiers = engine_rank(0, 1)
states.tensor(1)[1] = 0.5
tiers.put(image, "remote")
wait(tiers)

for rank in range(2):
    half, half_tiers = engine_rank(rank, 2)
    half_tiers.get(image)
    wait(half_tiers)
    assert (half.tensor(1)[1] == 0.5).all()
# docs end
    half_tiers.close()
tiers.close()
print("two ranks got their halves of a state that one rank had put")
