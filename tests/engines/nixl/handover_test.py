# SPDX-License-Identifier: Apache-2.0
"""Hand-overs that NIXL moves between processes, over the loopback device."""

from __future__ import annotations

import pytest

from stateport.demo import handover

MODEL = "falcon-h1-0.5b"  # 24 heads


@pytest.mark.parametrize(("prefill", "decode"), [(2, 3), (4, 2), (2, 4), (3, 1)])
def test_every_rank_gets_the_state_that_it_would_have_computed(prefill: int, decode: int,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    status = handover.main(["--model", MODEL, "--prefill", str(prefill), "--decode", str(decode), "--prompts", "2",
                            "--decode-dtype", "bfloat16" if decode == 3 else "float32"])
    out = capsys.readouterr().out.splitlines()
    assert status == 0, out
    assert len(out) == 2 * decode and all(": done, moved in " in line for line in out)


def test_a_state_that_was_damaged_on_the_way_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status = handover.main(["--model", MODEL, "--prefill", "2", "--decode", "2", "--prompts", "2", "--damage"])
    out = capsys.readouterr().out
    assert status == 1
    assert "rank 0, prompt 0: damaged" in out
    assert out.count(": done") == 3
