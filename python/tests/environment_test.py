# SPDX-License-Identifier: Apache-2.0
"""Environment variables with any value: it is used, or refused by an error of the package."""
from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys

import pytest

import stateport as sp
from conftest import seeds
from stateport import _library
from stateport.vllm.sharing import open_store


def any_bytes(rng: random.Random, most: int) -> bytes:
    return bytes(rng.randint(1, 255) for _ in range(rng.randint(1, most)))


@pytest.mark.parametrize("seed", seeds(40))
def test_a_library_that_is_none_of_ours_is_refused_by_its_name(seed: int, tmp_path: pathlib.Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    text = tmp_path / "text.so"
    text.write_bytes(any_bytes(rng, 5000))
    link = tmp_path / "link.so"
    link.symlink_to(link)
    for named in (b"libc.so.6", b"libm.so.6", b"/", os.fsencode(text), os.fsencode(tmp_path), os.fsencode(link),
                  any_bytes(rng, 8), any_bytes(rng, 8000)):
        monkeypatch.setitem(os.environb, b"STATEPORT_LIBRARY", named)
        with pytest.raises(sp.BackendError) as refusal:
            _library.library.__wrapped__()
        assert str(pathlib.Path(os.fsdecode(named))) in str(refusal.value)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_variable_of_a_password_is_read_or_refused_without_showing_it(seed: int,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for name in ("", "=", "a=b", "sesame\0", "sesame\ud800", "sesame" * 9999, os.fsdecode(b"sesame\xff")):
        with pytest.raises(sp.InvalidArgument) as refusal:
            open_store({"store": "valkey", "unix_socket": "no/socket", "password_variable": name})
        assert "sesame" not in str(refusal.value)
    secret = b"sesame" + any_bytes(rng, 3000 if seed % 2 else 1)
    monkeypatch.setitem(os.environb, b"STATEPORT_TEST_PASSWORD", secret)
    with pytest.raises(sp.Error) as problem:  # no server listens there
        open_store({"store": "valkey", "unix_socket": "no/socket", "password_variable": "STATEPORT_TEST_PASSWORD"})
    assert "sesame" not in str(problem.value)


@pytest.mark.parametrize("others", [["stateport_cu13"], ["stateport_rocm", "stateport_cu12"]])
def test_two_distributions_in_one_folder_are_refused_by_name(tmp_path: pathlib.Path, others: list[str]) -> None:
    (tmp_path / "stateport").symlink_to(pathlib.Path(sp.__file__).parent)
    program = ("import stateport\ntry:\n    print(stateport.version())\n"
               "except stateport.BackendError as error:\n    print(error)")

    def said(*names: str) -> str:
        for name in names:
            (tmp_path / f"{name}-0.1.0.dist-info").mkdir()
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "STATEPORT_LIBRARY": str(sp.library_path())}
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                              env=environment).stdout.strip()

    # Neither a report's package nor one distribution alone is refused.
    assert said("stateport", "stateport_report") == sp.version()
    refusal = said(*others)
    names = sorted(name.replace("_", "-") for name in [*others, "stateport"])
    assert f"pip uninstall {' '.join(names)}`" in refusal and str(tmp_path) in refusal
