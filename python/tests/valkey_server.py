# SPDX-License-Identifier: Apache-2.0
"""A server of Valkey of one's own, on a free port of the loopback device and on a socket in a folder."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from typing import Any

import stateport as sp

PROGRAM = os.environ.get("STATEPORT_VALKEY_SERVER") or shutil.which("valkey-server") or shutil.which("redis-server")
PASSWORD = "open sesame"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """A server that was killed is empty when it starts again."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._port = folder, free_port()
        self.socket = str(folder / "socket")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> tuple[str, dict[str, Any]]:
        """For ranks; see shared_ranks.py."""
        return "valkey", {"host": "127.0.0.1", "port": self._port, "password": PASSWORD}

    def start(self) -> None:
        assert PROGRAM
        self._process = subprocess.Popen(
            [PROGRAM, "--bind", "127.0.0.1", "--port", str(self._port), "--unixsocket", self.socket, "--requirepass",
             PASSWORD, "--save", "", "--dir", str(self._folder), "--logfile", str(self._folder / "log")])
        while self._process.poll() is None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.socket)
                return
            time.sleep(0.01)
        raise RuntimeError((self._folder / "log").read_text())

    def freeze(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def client(self, **options: Any) -> sp.ValkeyStore:
        return sp.ValkeyStore(unix_socket=self.socket, password=PASSWORD, **options)
