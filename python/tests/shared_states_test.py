# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that share checkpoints through Valkey, where valkey-server or redis-server is in PATH."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import pytest

import stateport as sp
from shared_ranks import Server
from shared_states import CASES, ENDS, FAULTS, Case, exchange
from valkey_server import PROGRAM
from valkey_server import Server as ValkeyServer

pytestmark = [pytest.mark.skipif(not sp.has_device(), reason="a core-only build has no tiers"),
              pytest.mark.skipif(not PROGRAM, reason="neither valkey-server nor redis-server is here")]


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[ValkeyServer]:
    started = ValkeyServer(folder)
    try:
        started.start()
        try:
            started.client().close()
        except sp.InvalidState as problem:
            pytest.skip(str(problem))
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with running(tmp_path_factory.mktemp("valkey")) as started:
        yield started


@pytest.fixture
def server_of_its_own(tmp_path: pathlib.Path) -> Iterator[ValkeyServer]:
    with running(tmp_path) as started:
        yield started


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ranks_load_checkpoints_that_other_ranks_stored(server: Server, case: Case) -> None:
    print(f"{case.name}: {exchange(server, case)}")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_damaged_object_is_a_miss_with_its_reason(server: Server, fault: Callable[[Server], None]) -> None:
    fault(server)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_ends_in_the_middle(server_of_its_own: Server, end: Callable[[Server], None]) -> None:
    end(server_of_its_own)
