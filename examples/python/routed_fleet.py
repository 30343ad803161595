# SPDX-License-Identifier: Apache-2.0
"""Workers announce their contents; a router sends each prompt to the one that reuses most. python routed_fleet.py"""
import stateport

BLOCK = 16


class Worker:
    """A scheduler's cache, without a model."""

    def __init__(self) -> None:
        # docs: announce
        self.cache = stateport.RequestCache("hash", stateport.SlotLayout(1, checkpoints=8), max_requests=1,
                                            max_request_tokens=512, kv_tokens=2048, block_size_tokens=BLOCK,
                                            events=True)
        self.encoder = stateport.KvEventEncoder("vllm", block_size_tokens=BLOCK)

    def announce(self, prompt: list[int]) -> bytes | None:
        """After a step: all changes, as one message."""
        _, prefixes = stateport.hash_blocks(prompt, BLOCK)
        self.encoder.name(prefixes, prompt)  # hashes=…: those of the engine
        self.encoder.add(self.cache.take_events())
        return self.encoder.take_batch()
        # docs end

    def serve(self, prompt: list[int]) -> int:
        """Answers how many tokens were reused."""
        with self.cache.serving(prompt) as started:
            while (done := self.cache.computed(started.request)) < len(prompt):
                tokens = self.cache.chunk([started.request], [len(prompt) - done])
                plan = self.cache.plan([started.request], tokens)
                last = done + int(tokens[0]) == len(prompt)
                self.cache.commit(plan, [int(last)], [7] if last else [])
        return started.reused_tokens


workers = {"one": Worker(), "two": Worker()}
prompts = [[number % 8] * 200 + [10 + number] * 60 for number in range(80)]  # eight system prompts
numbers = dict.fromkeys(workers, 0)
predicted = reused = 0

# docs: route
router = stateport.Router(BLOCK)
for name in workers:
    router.join(name)

for prompt in prompts:
    reach = router.find_tokens(prompt)  # or find(hashes of the engine)
    best = max(workers, key=lambda name: (reach[name].tokens if name in reach else 0, -numbers[name]))
    predicted += reach[best].tokens if best in reach else 0
    reused += workers[best].serve(prompt)
    message = workers[best].announce(prompt)
    if message is not None:
        numbers[best] += 1
        router.hear(best, numbers[best], message)
# docs end

print(f"{reused:,} of {sum(map(len, prompts)):,} tokens reused, {predicted:,} predicted")
