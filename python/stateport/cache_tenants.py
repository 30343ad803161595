# SPDX-License-Identifier: Apache-2.0
"""Shares of tenants in the memory of a request cache."""

from __future__ import annotations

import ctypes
import dataclasses

from stateport import _library
from stateport._arguments import struct_of
from stateport._library import calls
from stateport.hashing import Namespace


@dataclasses.dataclass(frozen=True)
class TenantUsage:
    """Bytes of KV and of states that a tenant has on the device, cached or held by running requests."""

    kv_bytes: int
    state_bytes: int


class CacheTenants(_library.Object):
    """The part of RequestCache for shares of tenants. A tenant is a Namespace.salt, whatever the extra key; None: the
    tenant without a name. Bytes are counted by state_bytes and kv_bytes_per_token of CacheOptions.eviction. These
    methods raise InvalidState without CacheOptions.tenant_quotas."""

    def set_quota(self, tenant: Namespace | None, floor_bytes: int = 0, most_bytes: int = 0) -> None:
        """Sets the quota of a tenant, also while requests run. Content that is cached already counts.

        floor_bytes: no eviction for another tenant leaves the tenant with less of what it had, even if a row then finds
        no room. most_bytes: 0: no limit; else at least floor_bytes: content of a tenant with more is evicted before all
        other content, at the next commit or end even while memory is free; memory of running requests counts and
        stays. Both 0: the quota is taken back. Raises InvalidArgument for more tenants than tenant_quotas, and for
        floors that together could leave less than the KV and the state of one request of max_request_tokens."""
        name = struct_of("tenant", tenant, Namespace)
        calls.request_cache_set_quota(self.handle, name and ctypes.byref(name), floor_bytes, most_bytes)

    def tenant_usage(self, tenant: Namespace | None) -> TenantUsage:
        """The bytes of any tenant. Fast for one with a quota, else O(all)."""
        kv_bytes, state_bytes = ctypes.c_int64(), ctypes.c_int64()
        name = struct_of("tenant", tenant, Namespace)
        calls.request_cache_tenant_usage(self.handle, name and ctypes.byref(name), ctypes.byref(kv_bytes),
                                         ctypes.byref(state_bytes))
        return TenantUsage(kv_bytes.value, state_bytes.value)
