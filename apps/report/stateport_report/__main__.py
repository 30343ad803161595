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


def read(path: pathlib.Path) -> Data:
    """The results in a file. Raises ValueError with its name and the reason."""
    from stateport_report.chapters import CHAPTERS

    try:
        data: Data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    command = data.get("command") if isinstance(data, dict) else None
    if command not in CHAPTERS:
        raise ValueError(f"{path}: command = {command!r} (must be one of {', '.join(CHAPTERS)}: a file that "
                         "stateport-replay has written)")
    return data


def page_of(results: list[Data]) -> str:
    from stateport_report.chapters import CHAPTERS
    from stateport_report.page import Page

    page = Page()
    for data in results:
        CHAPTERS[data["command"]](page, data)
    return page.html(results[0]["workload"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="stateport-report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the page to write")
    arguments = parser.parse_args()
    try:
        arguments.out.write_text(page_of([read(path) for path in arguments.files]), encoding="utf-8")
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
