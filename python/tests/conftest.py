# SPDX-License-Identifier: Apache-2.0
"""Seeds of random tests, and the device."""
from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import stateport


def seeds(usual: int) -> range:
    """How many seeds a random test runs, from which one on: STATEPORT_TEST_SEEDS, STATEPORT_TEST_FIRST_SEED."""
    first = int(os.environ.get("STATEPORT_TEST_FIRST_SEED", "1"))
    return range(first, first + int(os.environ.get("STATEPORT_TEST_SEEDS", usual)))


@pytest.fixture(scope="session")
def runtime() -> Iterator[stateport.Runtime]:
    """The device, with two threads; skipped without one."""
    if not stateport.has_device():
        pytest.skip("a core-only build has no device")
    runtime = stateport.Runtime(host_threads=2)
    yield runtime
    runtime.close()
