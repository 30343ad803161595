# SPDX-License-Identifier: Apache-2.0
"""States in the engine's own torch tensors, and copies of them into a pool. python torch_tensors.py"""
import torch

import stateport

# docs: torch tensors
tensors = [stateport.TensorSpec("recurrent", "bfloat16", (16, 128), layer=layer) for layer in range(2)]
spec = stateport.StateSpec(tensors)
live = [torch.zeros(4, 16, 128, dtype=torch.bfloat16) for _ in range(2)]  # the engine's tensors: [slots, heads, dim]
kept = stateport.StateStore(spec, slots=32)
copier = stateport.SlotCopier(stateport.StateStore.view(spec, live), kept)
live[0][1] = 3.5
copier.copy([[0, 5], [1, 6]])  # live slot 0 to slot 5 of the pool, 1 to 6: one launch for all layers
stateport.synchronize()
# docs end

back = stateport.SlotCopier(kept, stateport.StateStore.view(spec, live))
back.copy([[6, 2]])
stateport.synchronize()
assert torch.equal(live[0][2], live[0][1]), "another state came back"
print("the state of live slot 1 went to the pool and came back to live slot 2")
