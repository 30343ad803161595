# SPDX-License-Identifier: Apache-2.0
"""The examples of python/README.md run."""
from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

TEXT = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def _run(tmp_path: pathlib.Path, examples: list[str]) -> list[str]:
    program = tmp_path / "examples.py"
    program.write_text("\n".join(examples), encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_scheduler_runs(tmp_path: pathlib.Path) -> None:
    first, second = map(int, _run(tmp_path, EXAMPLES[:1]))
    assert first == 0 and second >= 128


def test_the_examples_run_one_after_the_other(tmp_path: pathlib.Path) -> None:
    assert len(EXAMPLES) >= 2
    pytest.importorskip("torch")
    first, second = map(int, _run(tmp_path, EXAMPLES)[:2])
    assert first == 0 and second >= 128
