# SPDX-License-Identifier: Apache-2.0
"""An engine whose cache has a store that machines share below the device, for a process of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from served import Served
from shared_ranks import connect

PROMPT_TOKENS = 100


class Engine:
    """Raises if a state or KV from which it continues does not follow from the prompt's tokens."""

    def __init__(self, store: tuple[str, dict[str, Any]]) -> None:
        self._client = connect(*store)
        self._served = Served(remote=self._client)
        self._is_drained = False

    def serve(self, seed: int) -> tuple[int, int, int]:
        """Serves a prompt; answers how many tokens were computed and how many hit in the store, and how many
        images were lost so far."""
        computed, before = self._served.computed_tokens, self._hit_tokens()
        self._served.serve(np.random.default_rng(seed).integers(0, 9, PROMPT_TOKENS).astype(np.int32))
        usage = self._served.cache.tier_usage("remote")
        return self._served.computed_tokens - computed, self._hit_tokens() - before, usage.lost_images

    def _hit_tokens(self) -> int:
        return int(self._served.cache.tier_usage("remote").hit_tokens)

    def drain(self) -> None:
        """Writes the cache to the store and ends the engine."""
        self._served.drain()
        self._is_drained = True

    def close(self) -> None:
        if not self._is_drained:
            self._served.cache.close()
            self._served.tiers.close()
        self._client.close()
