# SPDX-License-Identifier: Apache-2.0
"""The core-only wheel: it decides, and says clearly that it moves nothing."""
from __future__ import annotations

import pathlib
import subprocess

import numpy as np
import pytest

import stateport as sp


def test_a_core_only_wheel_has_no_device_and_needs_no_kokkos() -> None:
    assert not sp.has_device()
    assert sp.backend() is None
    needed = subprocess.run(["readelf", "-d", sp.library_path()], capture_output=True, text=True, check=True).stdout
    assert "kokkos" not in needed.lower() and "libgomp" not in needed


def test_calls_that_need_a_device_are_refused_by_name() -> None:
    spec = sp.StateSpec.find("qwen3-next-80b-a3b")
    for use in (lambda: sp.StateStore(spec, 2), sp.Runtime, sp.synchronize,
                lambda: sp.StateTiers(host_bytes=1 << 20)):
        with pytest.raises(sp.BackendError, match="this build of stateport has no device: stateport_"):
            use()


@pytest.mark.parametrize("index", ["hash", "tree"])
def test_a_scheduler_serves_requests(index: str) -> None:
    with sp.RequestCache(index, sp.SlotLayout(layout_fingerprint=1, checkpoints=4, scan_alignment_tokens=-1),
                         max_requests=1, max_request_tokens=256, kv_tokens=1024) as cache:
        reused = []
        for _ in range(2):
            started = cache.start(np.arange(100))
            assert started is not None
            reused.append(started.reused_tokens)
            while (left := 100 - cache.computed(started.request)) > 0:
                tokens = cache.chunk([started.request], [64])
                plan = cache.plan([started.request], tokens)
                last = int(tokens[0]) == left
                cache.commit(plan, [int(last)], [1] if last else [])
            cache.finish(started.request)
        cache.check_invariants()
    assert reused[0] == 0 and reused[1] >= 64


def test_headers_of_the_core_are_there() -> None:
    include = pathlib.Path(sp.library_path()).parents[1] / "include" / "stateport"
    assert (include / "c" / "core.h").exists()
    assert not (include / "kernels").exists()
