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


def test_the_examples_run_one_after_the_other(tmp_path: pathlib.Path) -> None:
    assert len(EXAMPLES) >= 2
    pytest.importorskip("torch")
    program = tmp_path / "examples.py"
    program.write_text("\n".join(EXAMPLES), encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = map(int, done.stdout.split()[:2])
    assert first == 0 and second >= 128
