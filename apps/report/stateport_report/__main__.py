# SPDX-License-Identifier: Apache-2.0
"""Draws results of stateport-replay as one page of HTML that fetches nothing.

    stateport-report FILE.json… --out page.html

Each FILE is written by `stateport-replay COMMAND --json FILE`; several become chapters of one page."""
import argparse
import json
import pathlib
import sys
from typing import Any

Data = dict[str, Any]


class Results(Data):
    """An object of a file, which remembers the key that was read last."""

    last: str | None = None

    def __getitem__(self, key: str) -> Any:
        Results.last = key
        return super().__getitem__(key)


def read(path: pathlib.Path) -> Data:
    """The results in a file. Raises ValueError with its name and the reason."""
    from stateport_report.chapters import CHAPTERS

    try:
        data: Data = json.loads(path.read_text(encoding="utf-8"), object_hook=Results)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    command = data.get("command") if isinstance(data, dict) else None
    if command not in CHAPTERS:
        raise ValueError(f"{path}: command = {command!r} (must be one of {', '.join(CHAPTERS)}: a file that "
                         "stateport-replay has written)")
    return data


def page_of(paths: list[pathlib.Path]) -> str:
    """Raises ValueError with the name of the file and the key that is absent, or the last one that was read."""
    from stateport_report.chapters import CHAPTERS
    from stateport_report.page import Page

    page = Page()
    results = [read(path) for path in paths]
    for path, data in zip(paths, results, strict=True):
        try:
            CHAPTERS[data["command"]](page, data)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = (f"key {Results.last!r} is absent" if error.args == (Results.last,) else
                      f"key {Results.last!r}, or one before it, has a wrong value: {error}")
            raise ValueError(f"{path}: {reason} (must be a complete file of this version of "
                             "stateport-replay)") from error
    return page.html(results[0]["workload"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="stateport-report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the page to write")
    arguments = parser.parse_args()
    try:
        arguments.out.write_text(page_of(arguments.files), encoding="utf-8")
    except ModuleNotFoundError as error:
        print(f"stateport-report: {error.name} is not installed (Debian: python3-matplotlib; PyPI: matplotlib)",
              file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"stateport-report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
