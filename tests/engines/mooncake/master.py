# SPDX-License-Identifier: Apache-2.0
"""A master of Mooncake of one's own, on free ports of the loopback device, and clients of it."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time

import mooncake

import stateport as sp

SEGMENT_BYTES = 512 << 20


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Master:
    """Use it in a `with` statement. Its clients' memory is all that there is: lender() brings some."""

    def __init__(self, log: pathlib.Path) -> None:
        self._log = log
        self._ports = {"rpc_port": free_port(), "metrics_port": free_port()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports['rpc_port']}"

    def start(self) -> None:
        program = pathlib.Path(mooncake.__file__).parent / "mooncake_master"
        # What the tests' own loader found is not for this program.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, *(f"--{name}={port}" for name, port in self._ports.items())],
                stdout=log, stderr=log, env=environment)
        while True:
            if self._process.poll() is not None:
                sys.exit(f"the master ended: {self._log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._ports["rpc_port"])):
                return
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> "Master":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def client(self, segment_bytes: int = 0, **options: int) -> sp.MooncakeStore:
        return sp.MooncakeStore.connect(self.address, segment_bytes=segment_bytes, **options)

    def lender(self) -> sp.MooncakeStore:
        """A client whose memory the store uses."""
        return self.client(SEGMENT_BYTES)
