# SPDX-License-Identifier: Apache-2.0
"""Images in files for threads that wait: what was longest unused goes when the folder is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stateport._arrays import Records
from stateport.errors import NoCapacity
from stateport.file_tier import Bytes, FileTier
from stateport.image_cache import ImageCache, ImagePlan
from stateport.sglang._events import TierEvents
from stateport.sglang._metrics import TierMetrics
from stateport.tier_options import MEDIA, TRANSFER_KINDS, TRANSFER_STATUSES, transfer_results

_ANSWER_S = 0.0005  # how long a thread sleeps before it looks for answers again
_DROP, _FILE = TRANSFER_KINDS.index("drop"), MEDIA.index("file")


class WaitingFiles:
    """A file tier whose calls wait for their answers, and the cache of its images. Any number of threads may call."""

    def __init__(self, tier: FileTier, cache: ImageCache, metrics: TierMetrics | None = None,
                 events: TierEvents | None = None) -> None:
        self.tier, self._cache, self._metrics, self._events = tier, cache, metrics, events
        self._writes = threading.Lock()  # while the contents change
        self._numbers = threading.Lock()
        self._number = 0
        self._answers: dict[int, str] = {}
        self._answered = threading.Condition()
        found = tier.keys()
        attached = cache.attach("file", found)
        tier.remove(found[~attached])
        if events is not None:
            events.stored(found[attached], _FILE)
        self._look()

    def lookup(self, keys: Records) -> npt.NDArray[np.bool_]:
        """[n] whether each image can be read."""
        return self.tier.lookup(keys)

    def touch(self, keys: Records) -> None:
        """The first image is the last used one: of pages, those behind it need it."""
        self._cache.touch(keys)

    def write(self, keys: Records, images: Sequence[Bytes]) -> bool:
        """Writes images, giving up others for them. Answers whether all of them are there."""
        begun_s = time.monotonic()
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
                if status == "done" and self._events is not None:
                    self._events.stored(np.ascontiguousarray(stores["image"]), _FILE)
                ended = plan.ended
                self._count("to file", [status] * len(stores))
        self._observe("offload", begun_s)
        return ended[request] == 0

    def _give_up(self, request: int, stores: Records) -> None:
        """Answers that the images that are still to write have failed."""
        plan = self._cache.settle(transfer_results(stores["id"], "failed"))
        while request not in plan.ended:
            plan = self._cache.settle(transfer_results(self._drop(plan)["id"], "failed"))

    def _drop(self, plan: ImagePlan) -> Records:
        """Removes what a plan drops. Returns its other transfers: the images to write."""
        drops = plan.transfers["kind"] == _DROP
        self._forget(plan.transfers["image"][drops])
        if self._metrics is not None:
            for _ in range(int(drops.sum())):
                self._metrics.count_drop("file")
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
        begun_s = time.monotonic()
        numbers = [self._begin_read(keys[i:i + 1], image) for i, image in enumerate(images)]
        statuses = [self._answer(number) for number in numbers]
        self._count("load", statuses)
        self._observe("load", begun_s)
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
            self._forget(keys)

    def _forget(self, keys: Records) -> None:
        self.tier.remove(keys)
        if self._events is not None and len(keys):
            self._events.removed(np.ascontiguousarray(keys), _FILE)

    def clear(self) -> None:
        """Forgets every image that this tier sees."""
        self.remove(self.tier.keys())

    def _count(self, kind: str, statuses: Sequence[str]) -> None:
        if self._metrics is not None:
            for status in statuses:
                self._metrics.count_end(kind, status)

    def _observe(self, kind: str, begun_s: float) -> None:
        if self._metrics is not None:
            self._metrics.observe(kind, time.monotonic() - begun_s)
            self._look()

    def _look(self) -> None:
        if self._metrics is not None:
            info = self.tier.info()
            self._metrics.look({"file_images": info["images"], "file_bytes": info["file_bytes"]})

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        self.tier.close()
        self._cache.close()
