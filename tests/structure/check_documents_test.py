#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/check.py on small checkouts: each rule is broken once."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "docs/check.py"
PROGRAM = "// docs: part\nint main() {}\n// docs end\n"


SHOWN = """# A heading

```sh
make all
```

```{literalinclude} ../examples/a/main.cpp
:start-after: "docs: part"
```
"""


def found_in(document, name="docs/page.md", commands=None, shown=SHOWN):
    """The lines that the check prints for one document beside an example, a command, and a page that shows both."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        files = {name: document, "examples/a/main.cpp": PROGRAM, "src/main.cpp": PROGRAM, "run.sh": "make all\n",
                 "cmake/check-install.sh": "", "docs/other.md": shown,
                 "docs/commands.json": json.dumps(commands or {"make all": ["run.sh", "make all"]})}
        for place, text in files.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(text, encoding="utf-8")
        shutil.copy(CHECK, root / "docs/check.py")
        done = subprocess.run([sys.executable, "-B", root / "docs/check.py"], cwd=root, capture_output=True, text=True,
                              check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("docs/", "README.md", "guide", "examples/"))]
        assert (done.returncode != 0) == bool(lines), done.stdout + done.stderr
        return lines


class CheckDocuments(unittest.TestCase):
    def one(self, text, document, **options):
        lines = found_in(document, **options)
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(text, lines[0])

    def test_good_documents(self):
        self.assertEqual(found_in("```cpp\nint main() {}\n```\n", name="README.md"), [])
        self.assertEqual(found_in("```{literalinclude} ../examples/a/main.cpp\n```\n"), [])
        self.assertEqual(found_in("```sh\nmake \\\n  all   # everything\n```\n"), [])
        self.assertEqual(found_in("[there](other.md#a-heading), `examples/a/main.cpp`\n\n```text\na -> b\n```\n"), [])

    def test_code_that_nothing_builds(self):
        self.one("no part of a file", "```cpp\nint main() { return 1; }\n```\n")
        self.one("which no test builds", "```{literalinclude} ../src/main.cpp\n```\n")
        self.one("which no test builds", "```{literalinclude} ../examples/a/gone.cpp\n```\n")

    def test_blocks_without_a_known_language(self):
        self.one("has the language 'console'", "```console\n$ make all\n```\n")
        self.one("has no language", "Text:\n\n    int main() {}\n\nMore.\n")

    def test_commands(self):
        self.one("does not say what runs: make some", "```sh\nmake some\n```\n")
        self.one("has no 'make none'", "", commands={"make all": ["run.sh", "make none"]})
        self.one("there is no gone.sh", "", commands={"make all": ["gone.sh", "make all"]})

    def test_commands_that_people_run(self):
        by_hand = {"make all": ["run.sh", "make all", "by hand: with other options"]}
        self.assertEqual(found_in("", commands=by_hand), [])
        self.one("does not begin with 'by hand'", "", commands={"make all": ["run.sh", "make all", "later"]})

    def test_examples_and_commands_that_nobody_sees(self):
        part = SHOWN[SHOWN.index("```{literal"):]
        self.one("no document shows: make all", "", shown="# A heading\n" + part)
        self.one("no document shows the part 'docs: part'", "", shown=SHOWN.removesuffix(part))
        self.assertEqual(found_in("", shown=SHOWN.replace(':start-after: "docs: part"\n', "")), [])

    def test_links_and_paths(self):
        self.one("links to gone.md", "[there](gone.md)\n")
        self.one("has no such heading", "[there](other.md#another)\n")
        self.one("names examples/b", "`examples/b`\n")


if __name__ == "__main__":
    unittest.main()
