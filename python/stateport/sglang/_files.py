# SPDX-License-Identifier: Apache-2.0
"""Images in files for threads that wait: what was longest unused goes when the folder is full."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stateport._arrays import Records
from stateport.errors import NoCapacity
from stateport.file_tier import Bytes, FileTier
from stateport.image_cache import ImageCache, ImagePlan
from stateport.tier_options import TRANSFER_KINDS, TRANSFER_STATUSES, transfer_results

_ANSWER_S = 0.0005  # how long a thread sleeps before it looks for answers again
_DROP = TRANSFER_KINDS.index("drop")


class WaitingFiles:
    """A file tier whose calls wait for their answers, and the cache of its images. Any number of threads may call."""

    def __init__(self, tier: FileTier, cache: ImageCache) -> None:
        self.tier, self._cache = tier, cache
        self._writes = threading.Lock()  # while the contents change
        self._numbers = threading.Lock()
        self._number = 0
        self._answers: dict[int, str] = {}
        self._answered = threading.Condition()
        found = tier.keys()
        tier.remove(found[~cache.attach("file", found)])

    def lookup(self, keys: Records) -> npt.NDArray[np.bool_]:
        """[n] whether each image can be read."""
        return self.tier.lookup(keys)

    def touch(self, keys: Records) -> None:
        """The first image is the last used one: of pages, those behind it need it."""
        self._cache.touch(keys)

    def write(self, keys: Records, images: Sequence[Bytes]) -> bool:
        """Writes images, giving up others for them. Answers whether all of them are there."""
        with self._writes:
            plan = self._cache.put(keys, np.arange(len(keys), dtype=np.int32))
            request, ended = plan.request, plan.ended
            while request not in ended:
                stores = self._drop(plan)
                try:
                    status = self._write(stores["image"], [images[i] for i in stores["place"].tolist()])
                except BaseException:
                    self._give_up(request, stores)
                    raise
                plan = self._cache.settle(transfer_results(stores["id"], status))
                ended = plan.ended
            return ended[request] == 0

    def _give_up(self, request: int, stores: Records) -> None:
        """Answers that the images that are still to write have failed."""
        plan = self._cache.settle(transfer_results(stores["id"], "failed"))
        while request not in plan.ended:
            plan = self._cache.settle(transfer_results(self._drop(plan)["id"], "failed"))

    def _drop(self, plan: ImagePlan) -> Records:
        """Removes what a plan drops. Returns its other transfers: the images to write."""
        drops = plan.transfers["kind"] == _DROP
        self.tier.remove(plan.transfers["image"][drops])
        stores: Records = plan.transfers[~drops]
        return stores

    def _write(self, keys: Records, images: Sequence[Bytes]) -> str:
        """Into one file: all or none."""
        number = self._new_number()
        try:
            self.tier.write(number, np.ascontiguousarray(keys), images)
        except NoCapacity:
            self.tier.wait()
            return "no_room"
        return self._answer(number)

    def read(self, keys: Records, images: Sequence[Bytes]) -> list[str]:
        """Reads an image for each key. Answers how each went, as in TRANSFER_STATUSES; one that is not "done" is not
        held any more."""
        numbers = [self._begin_read(keys[i:i + 1], image) for i, image in enumerate(images)]
        statuses = [self._answer(number) for number in numbers]
        lost = keys[[status != "done" for status in statuses]]
        if len(lost):
            self.remove(lost)
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
        with self._numbers:
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

    def remove(self, keys: Records) -> None:
        with self._writes:
            self._cache.remove(keys)
            self.tier.remove(keys)

    def clear(self) -> None:
        """Forgets every image that this tier sees."""
        self.remove(self.tier.keys())

    def close(self) -> None:
        self.tier.close()
        self._cache.close()
