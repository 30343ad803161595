# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that share checkpoints through Valkey, where valkey-server or redis-server is in PATH."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import stateport as sp
from shared_ranks import Server
from shared_states import CASES, FAULTS, Case, a_store_that_is_killed_is_reported, exchange
from valkey_server import PROGRAM
from valkey_server import Server as ValkeyServer

pytestmark = [pytest.mark.skipif(not sp.has_device(), reason="a core-only build has no tiers"),
              pytest.mark.skipif(not PROGRAM, reason="neither valkey-server nor redis-server is here")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    started = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    started.start()
    try:
        started.client().close()
    except sp.InvalidState as problem:
        pytest.skip(str(problem))
    else:
        yield started
    finally:
        started.kill()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_ranks_store_other_ranks_load(server: Server, case: Case) -> None:
    print(f"{case.name}: {exchange(server, case)}")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_is_spoilt_is_a_miss_with_its_reason(server: Server, fault: Callable[[Server], None]) -> None:
    fault(server)


def test_a_store_that_is_killed_is_reported(server: Server) -> None:
    a_store_that_is_killed_is_reported(server, clients_go_on=True)
