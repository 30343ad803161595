# SPDX-License-Identifier: Apache-2.0
"""A master of Mooncake of one's own, on free ports of the loopback device, and clients of it. As a program, with the
address of a master: a process that lends it memory until its input ends."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time

import mooncake

import stateport as sp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python" / "tests"))
from shared_ranks import interpreter  # noqa: E402

SEGMENT_BYTES = 512 << 20
READY = "lends\n"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Master:
    """Use it in a `with` statement. Its clients' memory is all that there is: lender() brings some. options: flags of
    mooncake_master."""

    def __init__(self, log: pathlib.Path, **options: int) -> None:
        self._log = log
        self._flags = {"rpc_port": free_port(), "metrics_port": free_port(), **options}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._flags['rpc_port']}"

    def start(self) -> None:
        program = pathlib.Path(mooncake.__file__).parent / "mooncake_master"
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
        loader = interpreter()[:-1]  # of this Python: it finds libibverbs
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*loader, program, *(f"--{name}={value}" for name, value in self._flags.items())],
                stdout=log, stderr=log, env=environment)
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the master ended: {self._log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._flags["rpc_port"])):
                return
            time.sleep(0.02)

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

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


class Lender:
    """A process that is such a client."""

    def __init__(self, master: Master) -> None:
        self._process = subprocess.Popen([*interpreter(), __file__, master.address], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != READY:
            if not line:
                raise RuntimeError("a lender ended")

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    with sp.MooncakeStore.connect(sys.argv[1], segment_bytes=SEGMENT_BYTES):
        print(READY, end="", flush=True)
        sys.stdin.read()
