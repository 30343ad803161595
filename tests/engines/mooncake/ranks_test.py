# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that share checkpoints through Mooncake. Every process here is one of its own: the master, the client
whose memory the store uses, and every rank."""

import contextlib
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from master import Lender, Master

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python" / "tests"))
from shared_ranks import Server  # noqa: E402
from shared_states import CASES, ENDS, FAULTS, Case, exchange  # noqa: E402


class MooncakeServer:
    def __init__(self, folder: pathlib.Path) -> None:
        # The name of an object whose writer was killed is free again after a second, not 30.
        self._master = Master(folder / "log", put_start_discard_timeout_sec=1)
        self._lender: Lender | None = None

    @property
    def store(self) -> tuple[str, dict[str, Any]]:
        return "mooncake", {"master": self._master.address, "buffer_bytes": 16 << 20}

    def start(self) -> None:
        self._master.start()
        self._lender = Lender(self._master)

    def _send(self, number: int) -> None:
        assert self._lender
        for process in (self._lender, self._master):
            process.send_signal(number)

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        if self._lender:
            self._lender.kill()
        self._master.kill()


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[MooncakeServer]:
    started = MooncakeServer(folder)
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeServer]:
    with running(tmp_path_factory.mktemp("mooncake")) as started:
        yield started


@pytest.fixture
def server_of_its_own(tmp_path: pathlib.Path) -> Iterator[MooncakeServer]:
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
