# SPDX-License-Identifier: Apache-2.0
"""One thread that moves images between SGLang's device pools and stateport's tiers, as an ImageCache decides."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateport._arrays import IMAGE_KEY, Int32s, Records
from stateport.errors import BackendError, InvalidArgument, OutOfMemory
from stateport.image_cache import ImageCache, ImagePlan
from stateport.sglang._events import TierEvents
from stateport.sglang._metrics import TierMetrics
from stateport.tier_options import MEDIA, TRANSFER_KINDS, TRANSFER_STATUSES, transfer_results
from stateport.tiers import StateTiers

logger = logging.getLogger(__name__)

_POLL_S = 0.0003  # how long the thread sleeps while something is under way
_DROP, _LOAD = TRANSFER_KINDS.index("drop"), TRANSFER_KINDS.index("load")
_TIERS = (MEDIA.index("host"), MEDIA.index("file"))
_DROPPED = {MEDIA.index("host"): "dropped on the host", MEDIA.index("file"): "dropped in files"}


@dataclasses.dataclass
class Job:
    """What SGLang waits for as a whole. `images` (keys and slots) is called by the thread, when `ready` (events of the
    device) are over: it may wait for the device. `done` gets whether everything went well."""

    store: bool
    images: Callable[[], tuple[Records, Int32s]]
    done: Callable[[bool], None]
    ready: Sequence[Any] = ()
    begun_s: float = dataclasses.field(default_factory=time.monotonic)


class Mover:
    """Stores go to the fastest tier and from there to files, loads come from any tier."""

    def __init__(self, tiers: StateTiers, cache: ImageCache, device: torch.device,
                 metrics: TierMetrics | None = None, events: TierEvents | None = None) -> None:
        self.tiers, self.cache, self._metrics, self.events = tiers, cache, metrics, events
        self.counts: collections.Counter[str] = collections.Counter()
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = device
        self._under_way: dict[int, Any] = {}  # transfers by number
        self._requests: dict[int, Job] = {}  # of the cache, which have not ended
        self._dead = False  # the tiers failed: nothing is moved any more
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open_jobs = 0
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stateport", daemon=True)
        self._thread.start()

    # ---- of any thread

    def held(self, keys: Records) -> npt.NDArray[np.bool_]:
        """[n] whether each image can be loaded."""
        return (self.cache.lookup(keys) >= 0) & (not self._dead)

    def promise(self, keys: Records) -> bool:
        """Keeps images until they are unpinned. False, and nothing is kept: one is not there."""
        return not self._dead and self.cache.pin(keys)

    def start(self, job: Job) -> None:
        with self._idle:
            self._open_jobs += 1
        self._jobs.put(job)

    def wait(self) -> None:
        """Until all jobs are done. Copies from the host to files may go on."""
        with self._idle:
            self._idle.wait_for(lambda: self._open_jobs == 0)

    def wait_for_files(self) -> None:
        """Until the next process can find everything that files have room for."""
        with self._idle:
            self._idle.wait_for(lambda: self._open_jobs == 0 and self.cache.under_way() == 0)

    def close(self) -> None:
        self.wait_for_files()
        self._jobs.put(None)
        self._thread.join()
        if self.events is not None:
            self.events.close()
        self.tiers.close()
        self.cache.close()

    # ---- of the thread

    def _run(self) -> None:
        with torch.cuda.device(self._device) if self._stream else contextlib.nullcontext():
            while True:
                with contextlib.suppress(queue.Empty):
                    job = self._jobs.get(timeout=_POLL_S if self._under_way else None)
                    if job is None:
                        return
                    self._guarded(self._begin, job)
                self._guarded(self._settle)

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Exception:
            logger.exception("stateport: the tiers failed; nothing is kept or loaded any more")
            self._die()
        if self._dead:
            self._give_up()
        with self._idle:
            self._idle.notify_all()

    def _die(self) -> None:
        self._dead = True
        if self.events is not None:
            self.events.clear()

    def _give_up(self) -> None:
        """Ends what is under way. The tiers are not called again, so that nothing that ended here is written later."""
        if self._stream:
            with contextlib.suppress(Exception):
                self._stream.synchronize()
        while self._under_way:
            self._take(self._fail(list(self._under_way)))

    def _begin(self, job: Job) -> None:
        try:
            if self._dead:
                raise BackendError("the tiers failed")
            with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
                for event in job.ready:
                    self._stream.wait_event(event)
                keys, slots = job.images()
            plan = (self.cache.put if job.store else self.cache.get)(keys, slots)
        except Exception:
            logger.exception("stateport: a job failed")
            self._end(job, False)
        else:
            self._requests[plan.request] = job
            self._carry_out(plan)

    def _settle(self) -> None:
        if self._dead:
            return
        results = self.tiers.poll(self._stream)
        results = results[[number in self._under_way for number in results["id"].tolist()]]
        if not len(results):
            return
        plan = self.cache.settle(results)
        ended = []
        for number, status, _ in results.tolist():
            transfer = self._under_way.pop(number)
            self._count_end(transfer, TRANSFER_STATUSES[status])
            if transfer["kind"] == _LOAD and status:
                logger.warning("stateport: an image was not loaded: %s", TRANSFER_STATUSES[status])
            elif not status:
                ended.append(transfer)
        self._tell(ended, "to")
        if self._metrics is not None:
            self._metrics.look(self.tiers.info())
        self._carry_out(plan)

    def _fail(self, numbers: Sequence[int]) -> ImagePlan:
        plan = self.cache.settle(transfer_results(numbers, "failed"))
        for number in numbers:
            self._count_end(self._under_way.pop(number), "failed")
        return plan

    def _tell(self, transfers: Sequence[Any], end: str) -> None:
        """Announces that images came to a tier ("to"), or that they left one ("from")."""
        if self.events is None:
            return
        for medium in _TIERS:
            images = [transfer["image"] for transfer in transfers if transfer[end] == medium]
            if images:
                change = self.events.stored if end == "to" else self.events.removed
                change(np.array(images, IMAGE_KEY), medium)

    def _count_end(self, transfer: Any, status: str) -> None:
        what = "load" if transfer["kind"] == _LOAD else f"to {MEDIA[transfer['to']]}"
        self.counts[f"{what}: {status}"] += 1
        if self._metrics is not None:
            self._metrics.count_end(what, status)

    def _carry_out(self, plan: ImagePlan) -> None:
        self._take(plan)
        try:
            self.tiers.execute(plan.transfers, self._stream)
        except (InvalidArgument, OutOfMemory):
            # Nothing has begun. Its drops happen all the same: the cache counts on their room. The plan of the answers
            # is carried out.
            logger.exception("stateport: transfers cannot begin")
            drops = plan.transfers["kind"] == _DROP
            self.tiers.execute(plan.transfers[drops], self._stream)
            begun = plan.transfers["id"][~drops].tolist()
            if begun:
                self._carry_out(self._fail(begun))

    def _take(self, plan: ImagePlan) -> None:
        """Notes transfers, and ends jobs."""
        self._tell(plan.transfers[plan.transfers["kind"] == _DROP], "from")
        for transfer in plan.transfers:
            if transfer["kind"] == _DROP:
                self.counts[_DROPPED[int(transfer["from"])]] += 1
                if self._metrics is not None:
                    self._metrics.count_drop(MEDIA[int(transfer["from"])])
            else:
                self._under_way[int(transfer["id"])] = transfer
        for request, missing in plan.ended.items():
            self._end(self._requests.pop(request), missing == 0)

    def _end(self, job: Job, good: bool) -> None:
        try:
            if self._stream and not job.store:
                self._stream.synchronize()  # what was loaded is there
            job.done(good)
            if self._metrics is not None:
                self._metrics.observe("offload" if job.store else "load", time.monotonic() - job.begun_s)
        except Exception:
            logger.exception("stateport: the device failed; nothing is kept or loaded any more")
            self._die()
            with contextlib.suppress(Exception):
                job.done(False)
        finally:
            with self._idle:
                self._open_jobs -= 1
                self._idle.notify_all()
