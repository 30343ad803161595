# SPDX-License-Identifier: Apache-2.0
"""One thread that moves images between SGLang's device pools and stateport's tiers, and what lies where."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stateport.errors import BackendError
from stateport.sglang._keys import Recency, keys_of, names_of, slot_images, transfers
from stateport.sglang._options import Options
from stateport.tier_options import MEDIA, TRANSFER_STATUSES
from stateport.tiers import StateTiers

logger = logging.getLogger(__name__)

_POLL_S = 0.0003  # how long the thread sleeps while something is under way
_FILE_BYTES_UNDER_WAY = 128 << 20
_VAIN_MAX = 200  # looks, _POLL_S apart
_PIECES = 16  # a tier without room for what should fit gives up such a part of what it holds
_HOST, _FILE = MEDIA.index("host"), MEDIA.index("file")


@dataclasses.dataclass(frozen=True)
class Place:
    """An image and its slot on the device."""

    name: bytes  # of its key
    slot: int
    size: int  # bytes of the image


@dataclasses.dataclass
class Job:
    """What SGLang waits for as a whole. `places` is called by the thread, when `ready` (events of the device) are over:
    it may wait for the device. `done` gets whether everything went well."""

    store: bool
    places: Callable[[], list[Place]]
    done: Callable[[bool], None]
    ready: Sequence[Any] = ()
    left: int = 0
    good: bool = True


class Mover:
    """Stores go to host memory and from there to files, or straight to files if there is no host memory. The longest
    unused images of a full tier go, but for those that a load was promised."""

    def __init__(self, tiers: StateTiers, options: Options, device: torch.device, sizes: Callable[[int], int]) -> None:
        """sizes: bytes of an image by its content."""
        self.tiers = tiers
        self._lock = threading.Lock()  # of what is held, of promises and of counts
        self._host = Recency(int(tiers.info()["host_bytes"]))
        self._files = Recency(options.file_bytes)
        self._promised: collections.Counter[bytes] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        if options.folder:
            found = tiers.keys("file")
            for name, content in zip(names_of(found), found["content"].tolist(), strict=True):
                self._files.add(name, sizes(content))
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = device
        self._number = 0  # of the last copy between tiers
        self._under_way: dict[int, tuple[Job | None, Place, str]] = {}  # by number: job, image, what happens to it
        self._to_file: collections.deque[tuple[Job | None, Place]] = collections.deque()
        self._copying: set[bytes] = set()  # on the host, on their way to a file or waiting for it
        self._storing: set[bytes] = set()  # for a job
        self._writing: set[bytes] = set()  # into a file
        self._dead = False  # the tiers failed: nothing is moved any more
        self._pieces = 0  # that files gave up in vain
        self._vain = 0  # looks at what is about to go
        self._file_bytes_under_way = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open_jobs = 0
        self._idle = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="stateport", daemon=True)
        self._thread.start()

    # ---- of any thread

    def held(self, names: Sequence[bytes]) -> list[bool]:
        """Whether each image can be loaded."""
        with self._lock:
            return [self._can_load(name) for name in names]

    def _can_load(self, name: bytes) -> bool:
        if name in self._storing:
            return False
        return name in self._host or (name in self._files and name not in self._copying)

    def touch(self, names: Sequence[bytes]) -> None:
        """The first image is the last used one: of pages, those behind it need it."""
        with self._lock:
            for name in reversed(names):
                self._host.touch(name)
                self._files.touch(name)

    def promise(self, names: Sequence[bytes]) -> bool:
        """Keeps images until `release`. False, and nothing is kept: one is not there."""
        with self._lock:
            if not all(self._can_load(name) for name in names):
                return False
            self._promised.update(names)
            return True

    def release(self, names: Sequence[bytes]) -> None:
        with self._lock:
            self._promised.subtract(names)
            for name in names:
                if self._promised[name] <= 0:
                    del self._promised[name]

    def start(self, job: Job) -> None:
        with self._lock:
            self._open_jobs += 1
        self._jobs.put(job)

    def wait(self) -> None:
        """Until all jobs are done. Copies from the host to files may go on."""
        with self._idle:
            self._idle.wait_for(lambda: self._open_jobs == 0)

    def wait_for_files(self) -> None:
        """Until the next process can find everything that files have room for."""
        with self._idle:
            self._idle.wait_for(lambda: self._open_jobs == 0 and not self._copying)

    def close(self) -> None:
        self.wait_for_files()
        self._jobs.put(None)
        self._thread.join()
        self.tiers.close()

    # ---- of the thread

    def _run(self) -> None:
        with torch.cuda.device(self._device) if self._stream else contextlib.nullcontext():
            while True:
                busy = bool(self._under_way or self._to_file)
                try:
                    job = self._jobs.get(timeout=_POLL_S if busy else None)
                    if job is None:
                        return
                    self._begin(job)
                except queue.Empty:
                    pass
                self._go_on()

    def _go_on(self) -> None:
        try:
            if not self._dead:
                self._begin_files()
                for number, status, _ in self.tiers.poll(self._stream).tolist():
                    if number in self._under_way:
                        self._end(*self._under_way.pop(number), TRANSFER_STATUSES[status])
        except Exception:
            logger.exception("stateport: the tiers failed; nothing is kept or loaded any more")
            self._dead = True
        if self._dead:
            self._give_up()

    def _give_up(self) -> None:
        """Ends what is under way. The tiers are not called again, so that nothing that ended here is written later."""
        if self._stream:
            with contextlib.suppress(Exception):
                self._stream.synchronize()
        under_way, self._under_way = list(self._under_way.values()), {}
        waiting, self._to_file = [(job, place, "to file") for job, place in self._to_file], collections.deque()
        for job, place, what in under_way + waiting:
            self._end(job, place, what, "failed")
        with self._idle:
            self._host.clear()
            self._files.clear()
            self._copying.clear()
            self._idle.notify_all()

    def _begin(self, job: Job) -> None:
        job.left = 1  # this call
        try:
            if self._dead:
                raise BackendError("the tiers failed")
            with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
                for event in job.ready:
                    self._stream.wait_event(event)
                places = job.places()
            (self._begin_stores if job.store else self._begin_loads)(job, places)
        except Exception:
            logger.exception("stateport: a job failed")
            job.good = False
        self._job_part_done(job)

    def _begin_loads(self, job: Job, places: list[Place]) -> None:
        job.left += len(places)
        self._try(job, places, "load", lambda: self.tiers.get(_images(places), self._stream))

    def _begin_stores(self, job: Job, places: list[Place]) -> None:
        with self._lock:
            # An image that is on its way already is of equal bytes, and of an earlier job.
            new = [place for place in reversed(places) if place.name not in self._host
                   and place.name not in self._files and place.name not in self._storing]
            victims = self._host.take_victims(sum(place.size for place in new), self._kept())
            if victims is not None:
                for place in new:
                    self._host.add(place.name, place.size)
            self._storing |= {place.name for place in new}
        job.left += len(new)
        if victims is None:  # no room on the host, or no host memory
            self._to_file.extend((job, place) for place in new)
        else:
            self._try(job, new, "to host", lambda: self._put(new, _HOST, victims))

    def _kept(self) -> set[bytes]:
        """What no tier may give up now."""
        return self._storing | self._copying | self._promised.keys()

    def _put(self, places: Sequence[Place], medium: int, victims: Sequence[bytes]) -> int:
        self._drop(victims, medium)
        return self.tiers.put(_images(places), MEDIA[medium], self._stream)

    def _copy(self, place: Place) -> int:
        self._number += 1
        self.tiers.execute(transfers([place.name], "copy", _HOST, _FILE, self._number), self._stream)
        return self._number

    def _try(self, job: Job | None, places: Sequence[Place], what: str, begin: Callable[[], int]) -> None:
        """Begins transfers. `begin` answers the number of the first one."""
        if not places:
            return
        try:
            first = begin()
        except Exception:
            logger.exception("stateport: transfers cannot begin (%s)", what)
            for place in places:
                self._end(job, place, what, "failed")
        else:
            self._under_way.update({first + i: (job, place, what) for i, place in enumerate(places)})

    def _begin_files(self) -> None:
        """From the device or the host to files, as much as there is staging memory and room for."""
        while self._to_file:
            job, place = self._to_file[0]
            if self._file_bytes_under_way and self._file_bytes_under_way + place.size > _FILE_BYTES_UNDER_WAY:
                return
            room = self._room_in_files(place.size)
            if room == "later":
                return
            self._to_file.popleft()
            self._file_bytes_under_way += place.size
            if room == "no_room":
                self._end(job, place, "to file", room)
                continue
            with self._lock:
                self._files.add(place.name, place.size)
                self._writing.add(place.name)
            self._try(job, [place], "to file", lambda job=job, place=place:  # type: ignore[misc]
                      self._copy(place) if job is None else self._put([place], _FILE, ()))

    def _room_in_files(self, size: int) -> str:
        """Gives up images until `size` bytes fit: "done", "later" or "no_room". What was given up is gone a little
        later, and leaves its header until the last image of its file goes; so more may have to go than `size` bytes."""
        capacity = self._files.capacity_bytes
        with self._lock:
            victims = self._files.take_victims(size + capacity * self._pieces // _PIECES, self._kept())
            settled = len(self._files) - len(self._writing)
        if victims is None:
            self._pieces = self._vain = 0
            return "no_room"
        self._drop(victims, _FILE)
        info = self.tiers.info()
        if info["file_bytes"] + self._file_bytes_under_way + size <= capacity:  # some of these it counts itself
            self._pieces = self._vain = 0
            return "done"
        self._vain += not self._writing
        if not self._writing and (info["file_images"] <= settled or self._vain > _VAIN_MAX):
            self._pieces, self._vain = self._pieces + 1, 0  # nothing more is about to go, or it takes too long
        return "later"

    def _drop(self, names: Sequence[bytes], medium: int) -> None:
        if names:
            self.counts["dropped on the host" if medium == _HOST else "dropped in files"] += len(names)
            self.tiers.execute(transfers(names, "drop", medium, medium, 0), self._stream)

    def _end(self, job: Job | None, place: Place, what: str, status: str) -> None:
        """A transfer has ended, or could not begin."""
        good, name = status == "done", place.name
        self.counts[f"{what}: {status}"] += 1
        tier, medium = (self._files, _FILE) if what == "to file" else (self._host, _HOST)
        victims: list[bytes] = []
        with self._idle:
            if what == "to file":
                self._file_bytes_under_way -= place.size
                self._copying.discard(name)
                self._writing.discard(name)
            if job is not None and job.store:
                self._storing.discard(name)
            if not good and what != "to file":
                self._host.drop(name)
            if not good and what != "to host":
                self._files.drop(name)
            if status == "no_room" and not self._dead:  # memory is in pieces, or the disk is full
                victims = tier.take_victims(tier.capacity_bytes - tier.held_bytes + tier.held_bytes // _PIECES,
                                            self._kept()) or []
            if what == "to host" and good and not self._dead and self._files.capacity_bytes:
                self._copying.add(name)
                self._to_file.append((None, place))
            self._idle.notify_all()
        if job is not None:
            job.good &= good
            self._job_part_done(job)
        self._drop(victims, medium)
        if what == "load" and not good and not self._dead:
            logger.warning("stateport: an image was not loaded: %s", status)
            self.tiers.remove(keys_of([name]), self._stream)

    def _job_part_done(self, job: Job) -> None:
        job.left -= 1
        if job.left:
            return
        try:
            if self._stream and not job.store:
                self._stream.synchronize()  # what was loaded is there
            job.done(job.good)
        except Exception:
            logger.exception("stateport: the device failed; nothing is kept or loaded any more")
            self._dead = True
            with contextlib.suppress(Exception):
                job.done(False)
        finally:
            with self._idle:
                self._open_jobs -= 1
                self._idle.notify_all()


def _images(places: Sequence[Place]) -> Any:
    return slot_images([place.name for place in places], [place.slot for place in places])
