# SPDX-License-Identifier: Apache-2.0
"""ValkeyStore against a server of its own, where valkey-server or redis-server is in PATH."""

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stateport as sp
from remote_store_conformance import CASES, behaves_like_a_map, bytes_of_seed, exists, get, put
from valkey_server import PROGRAM, Server

pytestmark = [pytest.mark.skipif(not sp.has_device(), reason="a core-only build has no tiers"),
              pytest.mark.skipif(not PROGRAM, reason="neither valkey-server nor redis-server is here")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("valkey"))
    started.start()
    try:
        started.client().close()
    except sp.InvalidState as problem:
        pytest.skip(str(problem))
    else:
        yield started
    finally:
        started.kill()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(server: Server, case: Any) -> None:
    with server.client(piece_bytes=65536) as store, server.client(lanes=1) as other:
        case(store, other)


def test_it_behaves_like_a_map(server: Server) -> None:
    for seed in range(5):
        behaves_like_a_map(lambda: server.client(piece_bytes=4096), seed, 40)


def test_a_wrong_password_is_refused_without_naming_it(server: Server) -> None:
    with pytest.raises(sp.BackendError) as problem:
        sp.ValkeyStore(unix_socket=server.socket, password="hunter2")
    assert "hunter2" not in str(problem.value) and "WRONGPASS" in str(problem.value)


def test_an_age_and_a_prefix(server: Server) -> None:
    with server.client(lifetime_s=0.001, prefix="brief") as store, server.client() as other:
        assert put(store, "a", bytes_of_seed(1, 10)) == "done"
        time.sleep(0.02)
        assert exists(store, "a") == "gone"
        assert put(other, "a", bytes_of_seed(1, 10)) == "done"
        assert exists(store, "a") == "gone"


def test_a_server_that_comes_back_serves_again(tmp_path: pathlib.Path) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        with server.client() as store:
            server.kill()
            assert put(store, "a", bytes_of_seed(1, 10)) == "failed"
            assert store.valkey_info()["last_error"]
            server.start()
            while put(store, "a", bytes_of_seed(1, 10)) != "done":
                time.sleep(0.01)
            assert np.array_equal(get(store, "a", 10)[1], bytes_of_seed(1, 10))
    finally:
        server.kill()
