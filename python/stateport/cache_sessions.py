# SPDX-License-Identifier: Apache-2.0
"""Sessions of a request cache."""

from __future__ import annotations

import ctypes
import dataclasses

from stateport import _c, _library
from stateport._arguments import integer
from stateport._library import calls


@dataclasses.dataclass(frozen=True)
class SessionUsage:
    """The contents of the device that one session alone has used. is_open: False: it was closed, or the cache does not
    know it (any more). kv_tokens: of whole blocks. states: checkpoints; in columns: blocks of states. bytes: of
    both."""

    is_open: bool
    kv_tokens: int
    states: int
    bytes: int


class CacheSessions(_library.Object):
    """The part of RequestCache for sessions, by their numbers (ReuseHint.session of a prompt). A session owns the KV
    and the states that its requests make, until a request of another session, or of none, reuses them. Contents of a
    closed session are demoted: an eviction takes them before all other contents, whatever the order of eviction is.
    Nothing is evicted as long as there is room. A session that starts a request is open again, and all that is left of
    its contents competes as before. Pinned contents, those of running requests and those within a tenant's floor stay.
    These methods raise InvalidState without CacheOptions.sessions, and InvalidArgument for 0, which is no session."""

    def close_session(self, session: int) -> bool:
        """The session expects no further prompt. The end of a request closes its session, too, if the hint that holds
        for the end has last_turn. False: it is unknown, or was closed already."""
        out = ctypes.c_uint8()
        calls.request_cache_close_session(self.handle, integer("session", session, 0, (1 << 64) - 1),
                                          ctypes.byref(out))
        return bool(out.value)

    def session_usage(self, session: int) -> SessionUsage:
        out = _c.SessionUsage()
        calls.request_cache_session_usage(self.handle, integer("session", session, 0, (1 << 64) - 1),
                                          ctypes.byref(out))
        return SessionUsage(bool(out.is_open), out.kv_tokens, out.states, out.bytes)
