# SPDX-License-Identifier: Apache-2.0
"""Seeds of random tests, and the device."""
from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

import pytest

import stateport


def seeds(usual: int) -> range:
    """How many seeds a random test runs, from which one on: STATEPORT_TEST_SEEDS, STATEPORT_TEST_FIRST_SEED."""
    first = int(os.environ.get("STATEPORT_TEST_FIRST_SEED", "1"))
    return range(first, first + int(os.environ.get("STATEPORT_TEST_SEEDS", usual)))


@contextlib.contextmanager
def open_images(folder: pathlib.Path) -> Iterator[Callable[[], list[bool]]]:
    """Holds the image files of a folder open (another name would keep them from being scrubbed), and answers of each
    whether a byte of it is not zero: also when its name is gone."""
    with contextlib.ExitStack() as end:
        files = [end.enter_context(file.open("rb")) for file in folder.rglob("*.img")]

        def hold_bytes() -> list[bool]:
            for file in files:
                file.seek(0)
            return [any(file.read()) for file in files]

        assert files and all(hold_bytes())
        yield hold_bytes


@pytest.fixture
def weighed() -> None:
    """Of a test of the adapter for transformers: hits that are slow are not taken, as they are by default."""


@pytest.fixture(autouse=True)
def every_hit_is_taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models compute prompts in no time: which hits are slow would depend on the machine's mood."""
    if "transformers_adapter" in request.path.parts and "weighed" not in request.fixturenames:
        speed = pytest.importorskip("stateport.transformers.speed").Speed
        monkeypatch.setattr(speed, "is_slow", lambda *_: False)
        monkeypatch.setattr(speed, "tokens_per_s", lambda *_: 0.0)


@pytest.fixture(scope="session")
def runtime() -> Iterator[stateport.Runtime]:
    """The device, with two threads; skipped without one."""
    if not stateport.has_device():
        pytest.skip("a core-only build has no device")
    runtime = stateport.Runtime(host_threads=2)
    yield runtime
    runtime.close()
