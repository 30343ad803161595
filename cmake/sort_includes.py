#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the includes of C++ files into the one order of the project, in blocks: the file's own header, public headers of
stateport, its private headers, other libraries, the standard library. Comments and conditions end a run of includes.

    sort_includes.py [--check] [FILE…]     --check changes nothing and names the files that are not in order (exit code 1)

Without files: all of the project.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("core", "parts", "backends", "kernels", "tiers", "c", "tests", "perf", "apps", "examples")
SUFFIXES = ("hpp", "cpp", "h", "c")
INCLUDE = re.compile(r'#include ([<"])([^>"]+)[>"](.*)$')


def block(path, bracket, name):
    """The number of the block that an include of `path` stands in."""
    stem = pathlib.PurePath(name).stem
    own = path.suffix == ".cpp" and stem == re.sub(r"_test$|_bench$", "", path.stem)
    if own and (bracket == '"' or name.startswith("stateport/")):
        return 0
    if name.startswith(("stateport/", "stateport.")):
        return 1
    if bracket == '"':
        return 2
    return 4 if re.fullmatch(r"[a-z_]+", name) else 3


def sorted_run(path, lines):
    """The lines of a run, sorted: blocks are parted by an empty line, names are in order of the alphabet."""
    blocks = {}
    for line in lines:
        bracket, name, _ = INCLUDE.match(line).groups()
        blocks.setdefault(block(path, bracket, name), set()).add((name, line))
    return "\n\n".join("\n".join(line for _, line in sorted(blocks[at])) for at in sorted(blocks)).split("\n")


def sort_text(path, text):
    lines, out, run, gap = text.split("\n"), [], [], []
    for line in lines + [None]:
        if line is not None and INCLUDE.match(line):
            run.append(line)
            gap = []
        elif line == "" and run:
            gap.append(line)
        else:
            if run:
                out += sorted_run(path, run) + gap
            run, gap = [], []
            if line is not None:
                out.append(line)
    return "\n".join(out + gap if run else out)


def project_files():
    return sorted(path for folder in FOLDERS for suffix in SUFFIXES for path in (ROOT / folder).rglob(f"*.{suffix}"))


def main(arguments):
    check = "--check" in arguments
    wrong = []
    files = [pathlib.Path(argument) for argument in arguments if argument != "--check"]
    for path in files or project_files():
        text = path.read_text(encoding="utf-8")
        ordered = sort_text(path, text)
        if ordered == text:
            continue
        wrong.append(path)
        if not check:
            path.write_text(ordered, encoding="utf-8")
    if check:
        for path in wrong:
            print(f"{path}: includes are not in order (cmake/sort_includes.py {path} sorts them)")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
