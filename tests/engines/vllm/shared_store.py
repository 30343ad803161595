# SPDX-License-Identifier: Apache-2.0
"""A Mooncake Store for two engines: shared_store.py FOLDER. It writes where it is to FOLDER/address, and ends, with all
that it holds, when FOLDER/store.stop is there or its parent process has ended; then it writes FOLDER/store.stopped."""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "mooncake"))
from master import Master  # noqa: E402


def main() -> None:
    folder, starter = pathlib.Path(sys.argv[1]), os.getppid()
    with Master(folder / "master.log") as master:
        lender = master.lender()
        (folder / "address.part").write_text(master.address)
        (folder / "address.part").rename(folder / "address")
        while not (folder / "store.stop").exists() and os.getppid() == starter:
            time.sleep(0.02)
        master.kill()  # the lender's memory lives on, but its directory is lost
        (folder / "store.stopped").touch()
        lender.close()


if __name__ == "__main__":
    main()
