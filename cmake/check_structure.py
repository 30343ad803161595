#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at how the code is built up, and prints every place that breaks a rule of the house.

    check_structure.py [FOLDER]

  * Layers and wings: a file includes only files of its own layer or wing and of those before it in LAYERS, WINGS and
    TIER_WINGS.
  * Public headers include nothing of Kokkos, CUDA or HIP, and core includes none of it anywhere.
  * No circle of includes, neither of files (a header and its source are one room) nor of folders.
  * Sizes: lines of a public header, lines of a function, methods of a class with those of its bases.
  * Plain English: comments, docstrings and documents name their subjects (NO_NOUN).

Exit code 0, or 1 with a line for everything found. Standard library only."""
import pathlib
import posixpath
import re
import sys
from collections import defaultdict

LAYERS = ["core", "parts", "backends", "kernels", "tiers", "c"]
# Reasons of lost hits (stats) and orders of victims (evict) are named by every index and by the block pool.
WINGS = ["model", "containers", "hash", "stats", "evict", "pool", "slots", "tree", "align", "tier", "serve"]
# Of private code; the public headers of tiers are few, and lie beside each other.
TIER_WINGS = ["image", "host", "file", "remote", "move"]
USERS = ["perf", "apps", "tests", "examples"]
SCRIPTS = [*LAYERS, *USERS, "python", "cmake", "docs"]  # folders with files of Python
SUFFIXES = {".hpp", ".h", ".cpp"}
VENDOR = re.compile(r"^(Kokkos_|cuda|hip|nv|rocm|cub/|thrust/)")
HEADER_LINES_MAX = 300
FUNCTION_LINES_MAX = 70
CLASS_METHODS_MAX = 40  # with those that bases add
# Larger ones, which may not grow.
CLASS_METHODS_KNOWN = {"DeviceWorld": 47}

# A noun that is left out, of 10,000 words in comments. RMM, Celeritas, RocksDB and ArborX have 0.4 to 3.8.
NO_NOUN = re.compile(r"\b(?:what|so many|whoever)\b", re.IGNORECASE)
PYTHON_COMMENT = re.compile(r'#[^\n]*|""".*?"""', re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`|^    [^\n]*$", re.DOTALL | re.MULTILINE)  # in a document
NO_NOUN_MAX = {"public headers": 5, "documents": 5, "sources": 10, "Python": 10, "tests and perf": 20}

NO_FUNCTION_NAMES = {"alignas", "decltype", "noexcept", "requires", "explicit"}

TOKEN = re.compile(r"""(?P<space>[ \t\r\f]+|\\\n)|(?P<line>\n)|(?P<comment>//[^\n]*|/\*.*?\*/)
  |(?P<text>(?:u8|[uUL])?R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
  |(?P<name>[A-Za-z_]\w*|[0-9](?:[\w.]|'[0-9a-fA-F]|[eEpP][+-])*)|(?P<mark2>::|->|\[\[|.)""", re.VERBOSE | re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def without_directives(text):
    """Blanks directives, and every branch of an #if but the first: braces then balance."""
    pieces, at, skipping = [], 0, []
    for found in DIRECTIVE.finditer(text):
        before = text[at:found.start()]
        pieces.append(re.sub(r"[^\n]", " ", before) if any(skipping) else before)
        pieces.append(re.sub(r"[^\n]", " ", found.group()))
        at = found.end()
        kind = found.group(1)
        if kind in ("if", "ifdef", "ifndef"):
            skipping.append(False)
        elif kind in ("else", "elif"):
            skipping[-1] = True
        elif kind == "endif":
            skipping.pop()
    return "".join(pieces) + text[at:]


def tokens_of(text):
    """(word, line) without comments; a literal is the word "."""
    line, tokens = 1, []
    for found in TOKEN.finditer(without_directives(text)):
        if found.lastgroup in ("text", "mark"):
            tokens.append(('"', line))
        elif found.lastgroup in ("name", "mark2"):
            tokens.append((found.group(), line))
        line += found.group().count("\n")
    return tokens


class Declarations:
    """Functions with their lines and classes with their methods, of one file. No compiler: it knows declarations from
    their shape, and takes a body as a whole."""

    CLOSE = {"(": ")", "[": "]", "[[": "]", "{": "}", "<": ">"}

    def __init__(self, text):
        self.tokens = tokens_of(text)
        self.at = 0
        self.functions = []  # (name, first line, last line)
        self.classes = []  # (name, line, names of methods, names of bases)
        self.scope(None)

    def skip(self):
        """Over a group, from its opening mark to behind its closing one."""
        opening = self.tokens[self.at][0]
        waiting = [self.CLOSE[opening]] + (["]"] if opening == "[[" else [])
        self.at += 1
        while waiting and self.at < len(self.tokens):
            word = self.tokens[self.at][0]
            if word == waiting[-1]:
                waiting.pop()
            elif word in "([{" or word == "[[" or (word == "<" and waiting[-1] == ">"):
                waiting.extend(["]"] * (word == "[["))
                waiting.append(self.CLOSE[word])
            self.at += 1

    def scope(self, owner):
        """Declarations up to the end of a namespace (owner None) or of the class whose methods `owner` lists."""
        head, first = [], 0
        while self.at < len(self.tokens):
            word, line = self.tokens[self.at]
            if not head:
                first = line
            if word == "}":
                self.at += 1
                return
            if word == ";" or (word == ":" and head and head[-1] in ("public", "private", "protected")):
                if word == ";":
                    self.note_method(owner, head)
                head = []
                self.at += 1
            elif word == "{":
                head = self.braces(owner, head, first)
            elif word in ("(", "[", "[[") or (word == "<" and self.opens_template(head)):
                self.skip()
                # `operator()` has its name in the first pair.
                if not (word == "(" and head and head[-1] == "operator"):
                    head.append({"(": "()", "<": "<>"}.get(word, "[]"))
                else:
                    head[-1] = "operator call"
            else:
                head.append(word)
                self.at += 1

    @staticmethod
    def opens_template(head):
        return bool(head) and (head[-1][0].isalpha() or head[-1][0] == "_") and head[-1] != "operator"

    def braces(self, owner, head, first):
        """At an opening brace: enters a namespace or class, notes a function, passes an initialiser. Returns the head
        of the declaration that goes on behind it."""
        words = [word for word in head if word != "[]"]
        if "namespace" in words or words == ["extern", '"']:
            self.at += 1
            self.scope(None)
            return []
        kinds = [word for word in words if word in ("class", "struct", "union", "enum")]
        if kinds and not self.is_function(words):
            return self.class_body(kinds, words, first)
        if self.is_function(words) and not self.initialises_member(words):
            begin = first
            self.skip()
            self.note_method(owner, head)
            self.functions.append((self.name_of(words), begin, self.tokens[self.at - 1][1]))
            return []
        self.skip()
        return [*head, "{}"]

    def class_body(self, kinds, words, first):
        if "enum" in kinds:
            self.skip()
            return ["enum"]
        names = words[words.index(kinds[-1]) + 1:]
        bases = names[names.index(":") + 1:] if ":" in names else []
        names = names[:names.index(":")] if ":" in names else names
        named = [word for word in names if word not in ("final", "<>", "()", "alignas", "::")]
        methods = []
        self.at += 1
        self.scope(methods)
        bases = [word for word in bases if word[0].isalpha() and word not in ("public", "private", "protected", "virtual")]
        self.classes.append((named[-1] if named else "unnamed", first, methods, bases))
        return ["class"]

    @staticmethod
    def call(words):
        """Where the parentheses of a function are: behind its name, and no value before them. -1: it is none."""
        for i, word in enumerate(words):
            if word == "=" and "operator" not in words[max(i - 3, 0):i]:
                return -1
            if word == "()" and i > 0 and words[i - 1] not in NO_FUNCTION_NAMES:
                return i
        return -1

    @classmethod
    def is_function(cls, words):
        return cls.call(words) > 0

    @classmethod
    def initialises_member(cls, words):
        """In `Type::Type(…) : a{1}, b(2) {` a brace behind a name is not the body."""
        return ":" in words[cls.call(words):] and re.match(r"[A-Za-z_<]", words[-1]) is not None

    @classmethod
    def name_of(cls, words):
        return words[cls.call(words) - 1]

    def note_method(self, owner, head):
        if owner is None or not head or head[0] in ("friend", "using", "static_assert", "typedef", "class", "enum"):
            return
        words = [word for word in head if word != "[]"]
        if "friend" in words or not self.is_function(words):
            return
        if words[-2:] in (["=", "default"], ["=", "delete"]):
            return
        owner.append(self.name_of(words))


class Project:
    def __init__(self, root):
        self.root = root
        self.found = []
        self.files = {}
        for top in LAYERS + USERS:
            for path in sorted((root / top).rglob("*")):
                if path.suffix in SUFFIXES and path.is_file():
                    self.files[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
        self.documents = {}
        below = (path for top in [*LAYERS, *USERS, "python", "docs"] for path in (root / top).rglob("*.md"))
        for path in sorted([*root.glob("*.md"), *below]):
            if path.name != "CHANGELOG.md":
                self.documents[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
        self.scripts = {}
        for path in sorted(path for top in SCRIPTS for path in (root / top).rglob("*.py")):
            self.scripts[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
        self.public = {name.split("/include/", 1)[1]: name for name in self.files if "/include/" in name}
        self.by_name = defaultdict(list)
        for name in self.files:
            self.by_name[name.rsplit("/", 1)[-1]].append(name)

    def say(self, name, text, line=0):
        self.found.append(f"{name}{f':{line}' if line else ''}: {text}")

    def target(self, name, quoted, include):
        """The file of the project that an include means, or None."""
        if not quoted:
            return self.public.get(include) or (self.only_end(include) if include.startswith("stateport/") else None)
        folder = pathlib.PurePosixPath(name).parent
        for place in [folder, *folder.parents]:
            for middle in ("", "src/", "support/"):
                candidate = posixpath.normpath((place / middle / include).as_posix())
                if candidate in self.files:
                    return candidate
        return self.only_end(include)

    def only_end(self, include):
        """The one file whose path ends like that, for folders that the build adds to the search path."""
        ends = [one for one in self.by_name[include.rsplit("/", 1)[-1]] if one.endswith("/" + include)]
        return ends[0] if len(ends) == 1 else None

    def includes(self):
        """(file, include as written, file that it means or None)"""
        for name, text in self.files.items():
            for found in INCLUDE.finditer(text):
                yield name, found.group(2), self.target(name, found.group(1) == '"', found.group(2))

    @staticmethod
    def folder(name):
        """Headers and sources of one wing are one folder: core/include/stateport/core/tree and core/src/tree are
        core/tree. The headers that a layer shows to the project alone, in src/internal, stand beside its sources."""
        folder = name.rsplit("/", 1)[0]
        return re.sub(r"^(\w+)/(?:include/stateport/\1|src(?:/internal/stateport/\1/internal)?)", r"\1", folder)

    @classmethod
    def room(cls, name):
        """A header, its source and the private half of its class (x_impl.hpp) are one room."""
        return cls.folder(name) + "/" + name.rsplit("/", 1)[-1].rsplit(".", 1)[0].removesuffix("_impl")

    @staticmethod
    def rank(name):
        """Where a file stands in the order of layers and wings; users of the library come last and are not ordered."""
        layer = name.split("/", 1)[0]
        if layer not in LAYERS:
            return len(LAYERS), 0
        wings = {"core": WINGS, "tiers": TIER_WINGS}.get(layer, [])
        wing = Project.folder(name).split("/")[1:2]
        if not wing:
            return LAYERS.index(layer), -1
        return LAYERS.index(layer), wings.index(wing[0]) if wing[0] in wings else len(wings)

    def check_order(self):
        for name in self.files:
            for layer, wings in (("core", WINGS), ("tiers", TIER_WINGS)):
                if name.startswith(f"{layer}/") and "/" in Project.folder(name) and self.rank(name)[1] == len(wings):
                    self.say(name, f"is in no wing of {layer}: {', '.join(wings)}")
        for name, include, target in self.includes():
            if VENDOR.match(include) and ("/include/" in name or name.startswith("core/")):
                self.say(name, f"includes {include}, which engines may not have")
            if target and self.rank(target) > self.rank(name):
                self.say(name, f"includes {include}, which comes after it in the order of layers and wings")

    def check_circles(self):
        for what, place in (("files", self.room), ("folders", self.folder)):
            edges = defaultdict(set)
            for name, _, target in self.includes():
                if target and place(name) != place(target):
                    edges[place(name)].add(place(target))
            for circle in circles(edges):
                self.found.append(f"circle of {what}: {' -> '.join(circle)}")

    def check_sizes(self):
        declared = {name: Declarations(text) for name, text in self.files.items()}
        classes = defaultdict(list)  # by name: (file, methods, bases)
        for name, declarations in declared.items():
            for owner, _, methods, bases in declarations.classes:
                classes[owner].append((name, methods, bases))
        seen = defaultdict(set)  # by file: itself and the files that it includes
        for name, _, target in self.includes():
            seen[name] |= {name, target}
        for name, declarations in declared.items():
            lines = self.files[name].count("\n")
            if name.endswith((".h", ".hpp")) and lines > HEADER_LINES_MAX:
                self.say(name, f"has {lines} lines; a header has at most {HEADER_LINES_MAX}")
            for function, first, last in declarations.functions:
                if last - first + 1 > FUNCTION_LINES_MAX:
                    self.say(name, f"{function} has {last - first + 1} lines, at most {FUNCTION_LINES_MAX}", first)
            for owner, line, methods, bases in declarations.classes:
                count = len(methods) + len(inherited(classes, seen[name], {owner}, set(methods), bases))
                most = CLASS_METHODS_KNOWN.get(owner, CLASS_METHODS_MAX)
                if count > most:
                    self.say(name, f"class {owner} has {count} methods with those of its bases, at most {most}", line)


    def check_words(self):
        words = defaultdict(int)
        hits = defaultdict(list)  # by kind: (number, file)

        def count(kind, name, text):
            words[kind] += len(text.split())
            hits[kind].append((len(NO_NOUN.findall(text)), name))

        for name, text in self.files.items():
            comments = [found["comment"].strip("/*!< \n") for found in TOKEN.finditer(text) if found["comment"]]
            kind = "public headers" if "/include/" in name else "sources"
            count(kind if name.split("/")[0] in LAYERS else "tests and perf", name, " ".join(comments))
        for name, text in self.scripts.items():
            count("Python", name, " ".join(PYTHON_COMMENT.findall(text)))
        for name, text in self.documents.items():
            count("documents", name, CODE.sub(" ", text))
        for kind, most in NO_NOUN_MAX.items():
            found = sum(number for number, _ in hits[kind])
            if 10_000 * found > most * words[kind]:
                self.say(max(hits[kind])[1], f'has most of the comments that say "what", "so many" or "whoever" in place of '
                         f"a noun: {found} of {words[kind]} words in {kind}, at most {most} of 10,000")


def inherited(classes, seen, passed, hidden, bases):
    """Methods that a class has of its bases and theirs, beside the `hidden` names that it declares itself. Of several
    classes with the name of a base it is one in the files `seen`, else the largest. Names in `passed` are no bases."""
    found = []
    for base in bases:
        if base in passed or base not in classes:
            continue
        near = [one for one in classes[base] if one[0] in seen] or classes[base]
        _, methods, more = max(near, key=lambda one: len(one[1]))
        found += [method for method in methods if method not in hidden and method != base]
        found += inherited(classes, seen, passed | {base}, hidden | set(methods), more)
    return found


def circles(edges):
    """One circle of each set of places that reach each other, as a closed path."""
    def reachable(start):
        seen, waiting = {}, [start]
        while waiting:
            place = waiting.pop(0)
            for target in sorted(edges.get(place, ())):
                if target not in seen:
                    seen[target] = place
                    waiting.append(target)
        return seen
    named = set()
    for place in sorted(edges):
        came_from = reachable(place)
        if place in named or place not in came_from:
            continue
        path = [came_from[place]]
        while path[-1] != place:
            path.append(came_from[path[-1]])
        path.reverse()
        named.update(other for other in came_from if place in reachable(other))
        yield [*path, place]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1])
    project = Project(root)
    if not project.files:
        print(f"{root} holds no sources")
        return 1
    project.check_order()
    project.check_circles()
    project.check_sizes()
    project.check_words()
    print("\n".join(project.found) if project.found else f"{len(project.files)} files keep to the rules")
    return 1 if project.found else 0


if __name__ == "__main__":
    sys.exit(main())
