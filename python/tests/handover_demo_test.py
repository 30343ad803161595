# SPDX-License-Identifier: Apache-2.0
"""Errors of the demo of hand-overs. tests/engines/nixl runs it with NIXL."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from stateport.demo import handover

pytestmark = pytest.mark.usefixtures("runtime")

# Enough of NIXL to begin; ranks that decode end before their first word, or after it came.
NIXL = """
import time

def nixl_agent_config(backends): ...

class nixl_agent:
    def __init__(self, name, config):
        if name.startswith("decode"):
            time.sleep({wait_s})
            raise RuntimeError("no NIXL here")

    def register_memory(self, ranges, kind): ...

    def get_agent_metadata(self):
        return b"x"
"""


@pytest.mark.parametrize("wait_s", [0, 1])
def test_a_rank_that_ends_too_early_is_reported(tmp_path: pathlib.Path, wait_s: int) -> None:
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl" / "__init__.py").touch()
    (tmp_path / "nixl" / "_api.py").write_text(NIXL.format(wait_s=wait_s))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-m", "stateport.demo.handover", "--prefill", "2", "--decode", "3"],
                          capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 2, done
    assert done.stderr.endswith("stateport.demo.handover: a rank ended too early\n")


@pytest.mark.parametrize("option", ["--prefill", "--decode", "--prompts"])
def test_there_is_at_least_one_of_each(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        handover.main([option, "0"])
    assert f"argument {option}: must be at least 1" in capsys.readouterr().err
