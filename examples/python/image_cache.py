# SPDX-License-Identifier: Apache-2.0
"""Tiers below an engine with its own cache: ImageCache decides by key, StateTiers moves. python image_cache.py"""
import time

import numpy as np

import stateport

spec = stateport.StateSpec([stateport.TensorSpec("recurrent", "float32", (64,))])
states = stateport.StateStore(spec, slots=8)  # the engine's own slots
tiers = stateport.StateTiers(states=[states], host_bytes=1 << 20)

# docs: images by key
images = stateport.ImageCache(host_bytes=1 << 20, state_image_bytes=[spec.image_bytes])
_, prefixes = stateport.hash_blocks(np.arange(64), 16)
keys = stateport.image_keys(prefixes, [16, 32, 48, 64], "state")  # the states after 1 to 4 blocks of a prompt


def carry_out(plan: stateport.ImagePlan) -> None:
    """Begins the transfers of a plan, and those that follow when they end. An engine polls once a step instead."""
    give_up = time.monotonic() + 60
    tiers.execute(plan.transfers)
    while images.under_way():
        assert time.monotonic() < give_up
        tiers.execute(images.settle(tiers.poll()).transfers)
    stateport.synchronize()


states.tensor(0)[:4] = [[1], [2], [3], [4]]
carry_out(images.put(keys, [0, 1, 2, 3]))  # from the slots 0 to 3
found = images.find(keys)  # leading images that a tier has
carry_out(images.get(keys[found - 1:found], [7]))  # the state after all blocks, into slot 7
# docs end

assert (states.tensor(0)[7] == 4).all(), "another state came back"
print(f"{found} of {len(keys)} states are below the device; the last one came back")
