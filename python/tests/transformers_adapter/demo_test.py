# SPDX-License-Identifier: Apache-2.0
"""python -m stateport.demo, as a person runs it."""
from __future__ import annotations

import io
import pathlib
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("transformers", reason="the demonstration needs transformers (python/engines.toml)")

from stateport.demo.__main__ import main  # noqa: E402
from stateport.demo.svg import Series, bars, lines  # noqa: E402


def reused(output: str) -> list[int]:
    return [int(found) for found in re.findall(r"(\d+) of \d+ tokens reused", output)]


def test_chat_reuses_tokens_of_earlier_turns(capsys: pytest.CaptureFixture[str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nand then?\n/back\nor else?\n/quit\nnever said\n"))
    assert main(["chat", "--architecture", "lfm2", "--tokens", "5"]) == 0
    output = capsys.readouterr().out
    first, second, third = reused(output)
    assert first == 0 < second
    assert 0 < third <= second  # it branches off before the second turn
    assert "never said" not in output


def test_chat_goes_on_from_a_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                                    tmp_path: pathlib.Path) -> None:
    for run in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
        assert main(["chat", "--architecture", "lfm2", "--tokens", "20", "--folder", str(tmp_path)]) == 0
        output = capsys.readouterr().out
        assert (reused(output)[0] > 0) == (run == 1)
        assert ("of them from file" in output) == (run == 1)


def test_the_page_is_one_file_that_loads_nothing(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateport.demo.page._CONVERSATIONS", 2)
    monkeypatch.setattr("stateport.demo.page._TURNS", 2)
    out = tmp_path / "page.html"
    assert main(["page", "--architecture", "lfm2", "--out", str(out), "--host", "1 MiB"]) == 0
    assert reused(capsys.readouterr().out.replace(",", ""))[-1] > 0
    text = out.read_text()
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.append(tag)
            assert not {"src", "href"} & {name for name, _ in attributes}

    Reader().feed(text)
    assert found.count("svg") >= 2
    assert found.count("polyline") == 2
    assert found.count("rect") >= 4 * 3
    assert not re.search(r"[^a-z](nan|inf)[^a-z]", text)


def test_errors_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--architecture", "lfm2", "--memory", "10"]) == 2
    assert "memory is 10 bytes" in capsys.readouterr().err


def test_plots_of_nothing_and_of_zeros() -> None:
    assert bars([], unit="s", x="request") == lines([Series("none", [], "hit")], unit="s", x="request") == ""
    assert "<rect" in bars([Series("zero", [0.0], "hit")], unit="s", x="request")
