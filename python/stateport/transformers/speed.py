# SPDX-License-Identifier: Apache-2.0
"""How long passes, restores and loads take, and whether a hit is faster than computing the prompt."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

from stateport.errors import InvalidArgument

_KEPT = 4  # measurements of each power of two; the fastest one counts: kernels that are loaded first only add time
_KNOWN = 2  # measurements of a power of two that make it known
_REACH = 2  # a time is known from the least measured size divided by this to the largest one multiplied by it
_RETRIED = 32  # every 32nd slow hit is taken all the same, so that old measurements do not decide for ever
_LOADS_KEPT = 0.8  # of the weight of a load, when the next one is seen


class Clock:
    """Marks in time: of the device's own stream on a GPU, so that a pass is not waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None

    def mark(self) -> Any:
        """Now; on a GPU once it has done all that was enqueued before."""
        if self._device is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks. On a GPU it waits for the second one."""
        if self._device is None:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class Times:
    """Seconds by size, measured or given. Sizes between two known ones are interpolated."""

    def __init__(self, given: Mapping[int, float] | None = None) -> None:
        self._given = sorted((given or {}).items())
        self._seen: dict[int, collections.deque[tuple[float, int]]] = {}

    def note(self, size: int, seconds: float) -> None:
        """One measurement. Given figures stay as they are."""
        if size > 0 and not self._given:
            kept = self._seen.setdefault(size.bit_length(), collections.deque(maxlen=_KEPT))
            kept.append((seconds, size))

    def points(self, least: int = _KNOWN) -> list[tuple[int, float]]:
        """(size, seconds) of each power of two with `least` measurements, in the order of sizes."""
        if self._given:
            return self._given
        seen = tuple(self._seen.items())  # another thread may add to it
        found = (min(kept) for _, kept in sorted(seen) if len(kept) >= least)
        return [(size, seconds) for seconds, size in found]

    def seconds(self, size: int, least: int = _KNOWN, reach: float = _REACH) -> float | None:
        """None: not known. Beyond the largest known size time grows as the size does."""
        points = self.points(least)
        if not points or not points[0][0] <= size * reach or not size <= points[-1][0] * reach:
            return None
        for (low, low_s), (high, high_s) in zip(points, points[1:], strict=False):
            if low <= size <= high:
                return low_s + (high_s - low_s) * (size - low) / (high - low)
        (low, low_s), (high, high_s) = points[0], points[-1]
        return low_s if size < low else high_s * size / high


class Speed:
    """Seconds of passes, restores and loads. They are measured while requests run and by PrefixCache.warm_up, but for
    those that are given here.

    passes: seconds of a forward pass by its tokens. restores: of restoring from memory, by tokens. last_token_s: from
    the end of the passes over a prompt to its first new token. host_bytes_per_s, file_bytes_per_s: of loads. Raises
    InvalidArgument for sizes and figures that are not positive."""

    def __init__(self, passes: Mapping[int, float] | None = None, *, restores: Mapping[int, float] | None = None,
                 last_token_s: float = 0.0, host_bytes_per_s: float = 0.0, file_bytes_per_s: float = 0.0) -> None:
        for name, table in (("passes", passes), ("restores", restores)):
            for size, seconds in (table or {}).items():
                if isinstance(size, bool) or not isinstance(size, int) or size < 1 or not _is_time(seconds):
                    raise InvalidArgument(f"{name} has {seconds!r} for {size!r}, and must have positive seconds for "
                                          "positive numbers of tokens")
        given = {"last_token_s": last_token_s, "host_bytes_per_s": host_bytes_per_s,
                 "file_bytes_per_s": file_bytes_per_s}
        for name, value in given.items():
            if value != 0.0 and not _is_time(value):
                raise InvalidArgument(f"{name} is {value!r}, and must be positive, or 0: it is measured")
        self.passes, self.restores = Times(passes), Times(restores)
        self.last_tokens = Times({1: last_token_s} if last_token_s else None)
        self._given = {"host": host_bytes_per_s, "file": file_bytes_per_s}
        self._loads: dict[str, tuple[float, float]] = {}  # bytes and seconds
        self._lock = threading.Lock()
        self.skipped_hits = self.skipped_tokens = self._slow_hits = 0

    # --- Measurements ------------------------------------------------------------------------------------------------

    def note_load(self, medium: str, count: int, seconds: float) -> None:
        """A load of `count` bytes from a tier took `seconds`."""
        if count > 0 and seconds > 0.0:
            known_bytes, known_s = self._loads.get(medium, (0.0, 0.0))
            self._loads[medium] = _LOADS_KEPT * known_bytes + count, _LOADS_KEPT * known_s + seconds

    def bytes_per_s(self, medium: str) -> float:
        """Of loads from a tier; 0: not known."""
        if given := self._given.get(medium, 0.0):
            return given
        count, seconds = self._loads.get(medium, (0.0, 0.0))
        return count / seconds if seconds else 0.0

    # --- Decisions ---------------------------------------------------------------------------------------------------

    def hit_s(self, prompt: int, reused: int, stepwise: bool = False) -> float | None:
        """From the start of a request that restores `reused` tokens to its first new token. None: not known. stepwise:
        the rest of the prompt runs one token at a time."""
        rest = prompt - 1 - reused
        restore, last = self.restores.seconds(reused), self.last_tokens.seconds(1)
        if restore is None or last is None:
            return None
        if stepwise or rest == 0:
            return restore + last * (1 + rest)
        computed = self.passes.seconds(rest)
        return None if computed is None else restore + computed + last

    def is_slow(self, prompt: int, reused: int, stepwise: bool = False) -> bool:
        """Whether a hit takes longer than one pass over the whole prompt. False where a figure is not known, and once
        in a while all the same; and of a hit of less than half of the prompt, because a request that takes it leaves a
        state that is worth more to the next one."""
        if 2 * reused < prompt:
            return False
        whole, hit = self.passes.seconds(prompt), self.hit_s(prompt, reused, stepwise)
        if whole is None or hit is None or hit <= whole:
            return False
        with self._lock:
            self._slow_hits += 1
            return self._slow_hits % _RETRIED != 0

    def note_skip(self, reused: int) -> None:
        """A hit of `reused` tokens was not taken."""
        with self._lock:
            self.skipped_hits += 1
            self.skipped_tokens += reused

    def tokens_per_s(self, prompt: int) -> float:
        """The rate by which the core weighs loads for a prompt of `prompt` tokens; 0: not known. The time of the
        shortest pass is left out: a hit does not save it."""
        whole, points = self.passes.seconds(prompt), self.passes.points()
        if whole is None or len(points) < 2:
            return 0.0
        return prompt / max(whole - points[0][1], 1e-9)

    def saved(self, prompt: int, reused: int, spent_s: float) -> float:
        """An estimate: the seconds of computing the reused tokens, less `spent_s`. 0: nothing was measured."""
        whole, rest = (self.passes.seconds(size, 1, math.inf) if size else 0.0
                       for size in (prompt - 1, prompt - 1 - reused))
        return whole - rest - spent_s if reused and whole is not None and rest is not None else 0.0


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf
