# SPDX-License-Identifier: Apache-2.0
"""Tiers of a request cache below the device: transfers as plain data. StateTiers carries them out, or an engine by its
own means."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from stateport import _c, _library
from stateport._arrays import IMAGE_KEY, TRANSFER, TRANSFER_RESULT, Records, address, copied, int64s, records
from stateport._library import calls
from stateport.cache_options import TierUsage, plain
from stateport.errors import Error
from stateport.tier_options import medium_number


@contextlib.contextmanager
def _telling(done: ctypes.c_size_t) -> Iterator[None]:
    try:
        yield
    except Error as error:
        error.done = done.value
        raise


NO_TRANSFERS, _NO_RESULTS = np.zeros(0, TRANSFER), np.zeros(0, TRANSFER_RESULT)
NO_TRANSFERS.flags.writeable = False


def answered_transfers(struct: Any) -> Records:
    """A copy of the transfers of an answer."""
    return copied(struct.transfers, struct.transfer_count, TRANSFER) if struct.transfer_count else NO_TRANSFERS


class SettledTransfers(NamedTuple):
    """ready_requests: number of requests that have all that was loaded for them, or will not get it. Some may wait for
    other requests now (ShareRunning). transfers: TRANSFER [n]."""

    ready_requests: int
    transfers: Records


class CacheTiers(_library.Object):
    """The part of RequestCache that speaks of tiers. An answer with the member `transfers` (of start, plan, insert,
    commit, settle, and of finish if it has copies) names all transfers that were decided since the last such answer.
    They must be enqueued before all else that the answer names. The order of calls is in stateport/c/cache_tiers.h."""

    def settle(self, results: Any = _NO_RESULTS) -> SettledTransfers:
        """These transfers ended: TRANSFER_RESULT [n]. Without results it asks for transfers of calls whose answers name
        none. Raises InvalidArgument, and settles nothing, for one that is not under way."""
        array, out = records("results", results, TRANSFER_RESULT), _c.SettledTransfers()
        with self._turn:
            calls.request_cache_settle(self.handle, address(array), len(array), ctypes.byref(out))
            return SettledTransfers(int(out.ready_requests), answered_transfers(out))

    def loading(self, requests: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[n] whether something is being asked or loaded for the request, or was being loaded when it ended. Until then
        no pass can run it."""
        rows = int64s("requests", requests)
        out = np.zeros(len(rows), np.uint8)
        calls.request_cache_loading(self.handle, address(rows), len(rows), address(out))
        return out.astype(np.bool_)

    def drain(self) -> Records:
        """Answers stores of all checkpoints, and copies of all that is on the host, to files, or without these to the
        remote tier: TRANSFER [n]. All is written when a call names nothing and nothing is under way."""
        out = _c.TransferPlan()
        with self._turn:
            calls.request_cache_drain(self.handle, ctypes.byref(out))
            return copied(out.transfers, out.count, TRANSFER)

    def attach(self, medium: str, images: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The tier has these images (IMAGE_KEY [n]) from before the cache was made. [n] False: the cache has no room or
        no number left for the image, and the caller removes it. A state of several groups is there once all of its
        images were attached, one after the other, as a file tier lists them; the images of an incomplete state are
        dropped. Raises InvalidArgument at the first image that this cache cannot use; the `done` ones before it are
        attached (a member of the exception)."""
        array = records("images", images, IMAGE_KEY)
        out, done = np.zeros(len(array), np.uint8), ctypes.c_size_t()
        with _telling(done):
            calls.request_cache_attach(self.handle, medium_number(medium), address(array), len(array), address(out),
                                       ctypes.byref(done))
        return out.astype(np.bool_)

    def set_speeds(self, *, host_bytes_per_s: float, file_bytes_per_s: float, tokens_per_s: float,
                   remote_bytes_per_s: float = 0.0, remote_latency_s: float = 0.0) -> None:
        """From now on loads are weighed by these; 0: not known, and no latency."""
        speeds = _c.TierSpeeds(host_bytes_per_s=host_bytes_per_s, file_bytes_per_s=file_bytes_per_s,
                               tokens_per_s=tokens_per_s, remote_bytes_per_s=remote_bytes_per_s,
                               remote_latency_s=remote_latency_s)
        calls.request_cache_set_speeds(self.handle, ctypes.byref(speeds))

    def tier_usage(self, medium: str) -> TierUsage:
        """Contents and counters of a tier. All zero for a medium that is no tier of this cache."""
        out = _c.TierUsage()
        calls.request_cache_tier_usage(self.handle, medium_number(medium), ctypes.byref(out))
        usage: TierUsage = plain(TierUsage, out)
        return usage
