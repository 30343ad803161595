# SPDX-License-Identifier: Apache-2.0
"""Which conversations a sampled trace has."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

from stateport.record.names import BITS

OPENS = 16  # a block that more different ones follow is a shared opening, and no end of a conversation's prompt
REMEMBERED = 1 << 16


@dataclasses.dataclass
class _End:
    kept: bool
    followers: set[int] = dataclasses.field(default_factory=set)


class Conversations:
    """Chooses a part of the conversations by the names of their sessions. A prompt without a session is of the
    conversation whose earlier prompt it goes on from: of those whose last whole block is in it, the longest. The 65,536
    ends of prompts that were last used are known."""

    def __init__(self, sample: float) -> None:
        self._below = sample * float(1 << BITS)
        self._ends: collections.OrderedDict[int, _End] = collections.OrderedDict()

    def keep_session(self, session: int) -> bool:
        """session: a name."""
        return session < self._below

    def keep(self, blocks: Sequence[int], whole: Callable[[], int]) -> bool:
        """blocks: names of the prompt's whole blocks. whole: answers a name of the whole prompt."""
        kept = self._known(blocks)
        if kept is None:
            kept = whole() < self._below
        if not blocks:
            return kept
        self._ends.setdefault(blocks[-1], _End(kept))
        self._ends.move_to_end(blocks[-1])
        if len(self._ends) > REMEMBERED:
            self._ends.popitem(last=False)
        return kept

    def _known(self, blocks: Sequence[int]) -> bool | None:
        for at in range(len(blocks) - 1, -1, -1):
            end = self._ends.get(blocks[at])
            if end is None:
                continue
            if at + 1 < len(blocks) and len(end.followers) <= OPENS:
                end.followers.add(blocks[at + 1])
            if len(end.followers) <= OPENS:
                self._ends.move_to_end(blocks[at])
                return end.kept
        return None
