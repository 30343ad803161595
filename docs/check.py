#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the documents, and prints every place that breaks a rule. Standard library only.

  * Code that README.md, docs/ and the guides in folders show is code that a test builds or runs. A page of docs/
    includes it (literalinclude) from a folder of BUILT; elsewhere a block equals a part of a file there, between
    "docs: NAME" and "docs end". Every such part is shown somewhere.
  * Every shell command that they show is in docs/commands.json, with a file that runs it and the text by which it does;
    or, where no test can run it, with a script of people's and how that differs ("by hand: …"). Every entry is shown.
  * Blocks of other languages are text: figures and output.
  * Links between documents, their anchors, and paths of the checkout that stand in backticks are there.

    check.py                    checks
    check.py --replays PROGRAM  runs the commands of stateport-replay that are listed with "check.py", on a small trace

Exit code 0, or 1 with a line for everything found."""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Folders whose sources are built or run, and the file that does it.
BUILT = {
    "examples/": "cmake/check-install.sh",
    "examples/llamacpp/": "tests/engines/llamacpp/run.sh",
    "examples/python/": "python/tests/examples_test.py",
    "tests/c/": "tests/c/CMakeLists.txt",
    "tests/engine/": "tests/engine/CMakeLists.txt",
    "tests/install/": "cmake/check-install.sh",
}
GUIDES = ["README.md", "python/README.md", "c/README.md"]  # beside docs/
CODE = {"cpp", "c", "cmake", "python"}
SHELL = {"sh"}
PLAIN = {"text"}
DIRECTIVES = {"toctree", "literalinclude", "figure", "image", "list-table", "note", "glossary", "eval-rst", "include"}

FENCE = re.compile(r"^(`{3,}|~{3,}|:{3,})([^\n]*)\n(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^|\n)[ \t]*\n((?:    [^\n]*\n)+)")
MARKED = re.compile(r"^[^\n]*\b(docs: [^\n]*)\n(.*?)^[^\n]*\bdocs end\b", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+[ \t]+(.*?)[ \t]*$", re.MULTILINE)
TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
PATH = re.compile(r"`((?:core|parts|backends|kernels|tiers|c|python|tests|perf|apps|docs|examples|cmake|presets|\.ci)/"
                  r"[\w./+-]*)`")

found = []


def say(path, text, line=0):
    found.append(f"{path}{f':{line}' if line else ''}: {text}")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def documents():
    """All documents but the changelog."""
    known = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True,
                           text=True, check=False).stdout.split()
    names = known or [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.md")]
    return sorted(name for name in names if name != "CHANGELOG.md" and not name.startswith("build/")
                  and (ROOT / name).exists())


def without_indent(text):
    return re.sub(r"^[ \t]+", "", text.strip(), flags=re.MULTILINE)


def marked_parts():
    """{text without indents: where it stands and its name}."""
    parts = {}
    for folder in BUILT:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                for name, part in MARKED.findall(path.read_text(encoding="utf-8")):
                    parts[without_indent(part)] = (path.relative_to(ROOT).as_posix(), name)
    return parts


def commands_of(block):
    """Commands of a shell block, without comments. A backslash or an open quote goes on in the next line."""
    commands, open_one = [], ""
    for line in re.sub(r"\\\n[ \t]*", "", block).split("\n"):
        open_one += re.sub(r"(^|[ \t]+)#( .*)?$", "", line).strip()
        if open_one and open_one.count("'") % 2 == 0:
            commands.append(open_one)
            open_one = ""
    return commands


class Blocks:
    """Checks the blocks of one document."""

    def __init__(self, name, parts, listed):
        self.name, self.parts, self.listed = name, parts, listed
        self.shown = set()  # commands, and parts as (file, name)
        self.text = read(name)
        for block in FENCE.finditer(self.text):
            self.check(block.group(2).strip(), block.group(3), self.text[:block.start()].count("\n") + 1)
        for block in INDENTED.finditer(FENCE.sub("", self.text)):
            if not re.match(r"\s*(?:[-*:]|\d+\.) ", block.group(1)):
                say(name, f"an indented block has no language: {block.group(1).strip().splitlines()[0]}")

    def check(self, kind, block, line):
        directive = re.match(r"\{([\w:-]+)\}[ \t]*(.*)", kind)
        if directive:
            self.check_directive(directive.group(1), directive.group(2), block, line)
        elif kind in SHELL:
            for command in commands_of(block):
                self.shown.add(command)
                if command not in self.listed:
                    say(self.name, f"docs/commands.json does not say what runs: {command}", line)
        elif kind in CODE:
            part = without_indent(block)
            self.shown.add(self.parts.get(part))
            if part not in self.parts:
                say(self.name, "this block is no part of a file that is built: "
                    f"{block.strip().splitlines()[0]} …", line)
        elif kind not in PLAIN:
            languages = ", ".join(sorted(CODE | SHELL | PLAIN))
            say(self.name, f"a block has the language '{kind}', not one of {languages}", line)

    def check_directive(self, directive, argument, options, line):
        if directive not in DIRECTIVES:
            say(self.name, f"no directive {directive} is known here", line)
        elif directive == "literalinclude":
            target = (ROOT / self.name).parent.joinpath(argument).resolve()
            place = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else argument
            if not target.is_file() or not place.startswith(tuple(BUILT)):
                say(self.name, f"includes {place}, which no test builds", line)
            part = re.search(r"^:start-after: \"(.*)\"[ \t]*$", options, re.MULTILINE)
            self.shown.add((place, part.group(1) if part else ""))


def check_commands(listed):
    for folder, place in BUILT.items():
        if (ROOT / folder).is_dir() and not (ROOT / place).is_file():
            say("docs/check.py", f"there is no {place}, which builds or runs {folder}")
    for command, (place, evidence, *differs) in listed.items():
        if differs and not differs[0].startswith("by hand"):
            say("docs/commands.json", f"'{differs[0]}' does not begin with 'by hand': {command}")
        if not (ROOT / place).is_file():
            say("docs/commands.json", f"there is no {place}, which runs: {command}")
        elif place != "docs/check.py" and evidence not in read(place):
            say("docs/commands.json", f"{place} has no '{evidence}', which runs: {command}")


def anchors_of(text):
    """As GitHub makes them of headings; and the targets of MyST."""
    plain = FENCE.sub("", text)
    names = set(TARGET.findall(plain))
    for heading in HEADING.findall(plain):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).lower()
        names.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return names


def check_links(name, text):
    for match in LINK.finditer(FENCE.sub("", text)):
        link = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists():
            say(name, f"links to {path}, which is not there")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text(encoding="utf-8")):
            say(name, f"links to {link}, which has no such heading")
    if name.startswith("docs/") or name in GUIDES:
        for path in PATH.findall(text):
            if not (ROOT / path).exists():
                say(name, f"names {path}, which is not there")


TRACE = "".join(json.dumps({"timestamp": 1000 * i, "input_length": 512 * (1 + i % 7), "output_length": 8,
                            "session": i % 11, "hash_ids": [1000 * (i % 3) + j if j else 0 for j in range(1 + i % 7)]})
                + "\n" for i in range(40))


HEADER = json.dumps({"stateport_trace": 1, "block": 512, "state_bytes": 77266944, "kv_bytes_per_token": 24576}) + "\n"


def run_replays(program, listed):
    """Runs them one after the other in one folder: a later one may read the file that an earlier one wrote."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "conversation.jsonl").write_text(TRACE, encoding="utf-8")
        for number in (1, 2):
            (pathlib.Path(folder) / f"traffic-00000{number}.jsonl").write_text(HEADER + TRACE, encoding="utf-8")
        for command, (place, *_) in listed.items():
            words = shlex.split(command)
            if place != "docs/check.py":
                continue
            arguments = words[2:] if words[:2] == ["cmake/bootstrap.sh", "replay"] else words[1:]
            if "--trace" not in arguments:
                arguments += ["--requests", "40"]
            done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                say("docs/commands.json", f"{command}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    print(f"{sum(place == 'docs/check.py' for place, *_ in listed.values())} commands were run")


def main():
    listed = json.loads(read("docs/commands.json"))
    if len(sys.argv) == 3 and sys.argv[1] == "--replays":
        run_replays(str(pathlib.Path(sys.argv[2]).resolve()), listed)
    else:
        parts = marked_parts()
        names = documents()
        check_commands(listed)
        shown = set()
        for name in names:
            if name.startswith("docs/") or name in GUIDES:
                shown |= Blocks(name, parts, listed).shown
            check_links(name, read(name))
        for command in listed.keys() - shown:
            say("docs/commands.json", f"no document shows: {command}")
        for place, name in set(parts.values()) - shown:
            if (place, "") not in shown:  # no page includes the whole file
                say(place, f"no document shows the part '{name}'")
        print(f"{len(found)} places break a rule" if found else f"{len(names)} documents keep to the rules")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
