# SPDX-License-Identifier: Apache-2.0
"""Contents of a request cache that no later prompt may find."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stateport import _c, _library
from stateport._arguments import integer, struct_of
from stateport._arrays import FORGET_RECORD, Records, address, records
from stateport._library import calls
from stateport.errors import InvalidArgument
from stateport.hashing import Namespace

FORGET_BY: tuple[str, ...] = _c.FORGET_BY
_RECORDS_MAX = 1024


class CacheEpochs(_library.Object):
    """The part of RequestCache for weights that change, and for namespaces to forget. Nothing waits for requests that
    run: they go on with the KV and the states that they hold, and are stale from then on. A stale request publishes
    nothing. All other contents of the device, of the host and of files are gone at once. The next answer with transfers
    names the drops. Contents of the remote tier stay there, under names that no prompt of this cache asks for. Nor does
    one of another cache that adopted the records of this one, a later process or another machine:
    StateTiers.share_forgotten keeps them in the store. Ranks of a group make these calls at the same point of their
    sequence of calls."""

    def advance_epoch(self, epoch: int = 0) -> int:
        """The weights change: no later `start` finds anything that was made before, neither on the device nor in a
        tier, a file or a store. epoch: the number of the new weights; 0: the current number plus 1. Answers the new
        epoch. Raises InvalidArgument for a number that is not greater than the current one."""
        out = ctypes.c_uint64()
        number = integer("epoch", epoch, 0, (1 << 64) - 1)
        calls.request_cache_advance_epoch(self.handle, number, ctypes.byref(out))
        return out.value

    @property
    def epoch(self) -> int:
        """The number of the weights, at first CacheOptions.epoch. Caches with equal numbers find each other's contents
        in a shared store: so equal numbers must mean equal weights."""
        out = ctypes.c_uint64()
        calls.request_cache_epoch(self.handle, ctypes.byref(out))
        return out.value

    def forget(self, namespace: Namespace | None = None, by: str = "name_space") -> None:
        """The same as advance_epoch, for the contents of some namespaces: an adapter gets new weights, or a tenant
        leaves. The epoch stays. by: one of FORGET_BY, the names that are compared: "name_space", both; "extra_key", the
        adapter alone; "salt", the tenant alone; "all", neither: all namespaces.

        Files: contents of earlier processes go as well, of any namespace, unless a request has used them since. From
        then on contents of these namespaces have other names, which follow from the record of this call (forgotten):
        the cache shares them with those that adopt it, and with no others. A later process with the same epoch that
        does not adopt the record may find the old contents in the remote tier, and in files after a crash before
        FileTier.wait returned, which comes after the drops of the forgotten contents. After 1,024 calls with different
        arguments, those of adopted records included, the next such call forgets all namespaces, and the cache is alone
        (adopt_forgotten).

        For weights of an adapter that machines change at different times, name the version in extra_key instead."""
        if by not in FORGET_BY:
            raise InvalidArgument(f"by is {by!r}, and must be one of {', '.join(FORGET_BY)}")
        name = struct_of("namespace", namespace, Namespace)
        calls.request_cache_forget(self.handle, name and ctypes.byref(name), FORGET_BY.index(by))

    def forgotten(self) -> Records:
        """All that this cache has forgotten by name, and all namespaces at once where a reset forgot while requests
        ran: of each cache and each arguments the last call (FORGET_RECORD [n]). An engine keeps them for later
        processes, and hands them to other caches."""
        out, count = np.zeros(_RECORDS_MAX, FORGET_RECORD), ctypes.c_size_t()
        calls.request_cache_forgotten(self.handle, address(out), len(out), ctypes.byref(count))
        return out[:count.value]

    def adopt_forgotten(self, forgotten: Any) -> bool:
        """Forgets the contents that these calls of other caches forgot (FORGET_RECORD [n]), as if they had been made
        here, unless their records are here already. Prompts then have the names that they have in those caches. An
        engine calls it before it attaches files and serves. The ranks of a group give the records of the first rank's
        forget to all others. False: together there are more than 1,024, or were once; all namespaces are forgotten, and
        this cache is alone: it shares names with no other cache from then on, and adopts nothing. Raises
        InvalidArgument for a record that no cache has made."""
        array, adopted = records("forgotten", forgotten, FORGET_RECORD), ctypes.c_uint8()
        calls.request_cache_adopt_forgotten(self.handle, address(array), len(array), ctypes.byref(adopted))
        return bool(adopted.value)

    def is_stale(self, request: int) -> bool:
        """The request started before its contents were forgotten. An engine that has only new weights preempts it and
        starts it again. Raises InvalidArgument for a request that does not run."""
        out = ctypes.c_uint8()
        calls.request_cache_is_stale(self.handle, request, ctypes.byref(out))
        return bool(out.value)
