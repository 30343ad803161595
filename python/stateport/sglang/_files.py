# SPDX-License-Identifier: Apache-2.0
"""Images in files for threads that wait: what was longest unused goes when the folder is full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stateport._arrays import Records
from stateport.errors import NoCapacity
from stateport.file_tier import Bytes, FileTier
from stateport.sglang._keys import Recency, keys_of, names_of
from stateport.tier_options import TRANSFER_STATUSES

_ANSWER_S = 0.0005  # how long a thread sleeps before it looks for answers again
_TRIES = 16  # of a write that finds no room; each but the first two gives up as large a part of the folder


class WaitingFiles:
    """A file tier whose calls wait for their answers. Any number of threads may call."""

    def __init__(self, tier: FileTier, capacity_bytes: int, image_bytes: Callable[[int, int], int]) -> None:
        """image_bytes: of an image by content and group."""
        self.tier = tier
        self._capacity_bytes = capacity_bytes
        self._recency = Recency(capacity_bytes)
        self._lock = threading.Lock()  # of _recency and _number
        self._number = 0
        self._answers: dict[int, str] = {}
        self._answered = threading.Condition()
        found = tier.keys()
        for name, content, group in zip(names_of(found), found["content"], found["group"], strict=True):
            self._recency.add(name, image_bytes(int(content), int(group)))

    def lookup(self, keys: Records) -> npt.NDArray[np.bool_]:
        """[n] whether each image can be read."""
        return self.tier.lookup(keys)

    def touch(self, keys: Records) -> None:
        """The first image is the last used one: of pages, those behind it need it."""
        with self._lock:
            for name in reversed(names_of(keys)):
                self._recency.touch(name)

    def write(self, keys: Records, images: Sequence[Bytes]) -> bool:
        """Writes images into one file, giving up others for them. Answers whether they are there: all or none."""
        names, number = names_of(keys), self._new_number()
        need = sum(image.nbytes for image in images)
        for attempt in range(_TRIES):
            with self._lock:
                victims = self._recency.take_victims(need)
                if victims is None:
                    return False
                self.tier.remove(keys_of(victims))
            try:
                self.tier.write(number, keys, images)
            except NoCapacity:  # writes of other threads, or a file system that makes no holes
                self.tier.wait()
                need += self._capacity_bytes // _TRIES if attempt else 0
                continue
            if self._answer(number) != "done":
                return False
            with self._lock:
                for name, image in zip(names, images, strict=True):
                    if name not in self._recency:
                        self._recency.add(name, image.nbytes)
            return True
        return False

    def read(self, keys: Records, images: Sequence[Bytes]) -> list[str]:
        """Reads an image for each key. Answers how each went, as in TRANSFER_STATUSES; one that is not "done" is not
        held any more."""
        numbers = [self._begin_read(keys[i:i + 1], image) for i, image in enumerate(images)]
        statuses = [self._answer(number) for number in numbers]
        with self._lock:
            for name, status in zip(names_of(keys), statuses, strict=True):
                if status != "done":
                    self._recency.drop(name)
        return statuses

    def _begin_read(self, key: Records, image: Bytes) -> int:
        number = self._new_number()
        while True:
            try:
                self.tier.read(number, key, image)
                return number
            except NoCapacity:  # the queue is full of reads
                self.tier.wait()

    def _new_number(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def _answer(self, number: int) -> str:
        """Waits for the answer to a request. Whoever waits takes the answers of all."""
        with self._answered:
            while number not in self._answers:
                for done, status, _ in self.tier.poll().tolist():
                    self._answers[done] = TRANSFER_STATUSES[status]
                    self._answered.notify_all()
                if number not in self._answers:
                    self._answered.wait(_ANSWER_S)
            return self._answers.pop(number)

    def clear(self) -> None:
        """Forgets every image that this tier sees."""
        with self._lock:
            self._recency.clear()
        self.tier.remove(self.tier.keys())

    def close(self) -> None:
        self.tier.close()
