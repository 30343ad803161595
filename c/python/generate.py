#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations of <stateport.h> into stateport_c.py, behind its line MARK.

    generate.py           rewrites the file
    generate.py --check   changes nothing, and fails if the file differs from the headers

The headers keep to a few forms: enums that count from 0, structs of plain members, pointers and callbacks, opaque
structs, and functions that answer a status or a text. Anything else is refused. A struct is named as in C, without
stateport_ and in CamelCase. A member whose name is a keyword of Python ends in _. An enumerator is a number, named as
in C without STATEPORT_. For each enum there is a tuple of the names of its values, too, in lower case and without the
words that all of them begin with."""
import argparse
import keyword
import os
import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).parent
INCLUDE = HERE.parent / "include"
TARGET = HERE / "stateport_c.py"
MARK = "# --- Generated from the headers by generate.py: do not edit below this line. ---\n"
NUMBERS = {"int32_t": "c_int32", "int64_t": "c_int64", "uint8_t": "c_uint8", "uint64_t": "c_uint64",
           "size_t": "c_size_t", "double": "c_double", "stateport_flag": "FLAG"}
LETTERS = {"int32_t": "i", "int64_t": "l", "uint64_t": "u", "size_t": "z", "double": "d"}


def read_headers(path, seen):
    """The text of a header behind that of the headers that it includes, each once."""
    if path in seen:
        return ""
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    included = re.findall(r"#include <(stateport/c/\w+\.h)>", text)
    return "".join(read_headers(INCLUDE / name, seen) for name in included) + text


def camel(name):
    return "".join(word.capitalize() for word in name.removeprefix("stateport_").split("_"))


class Declarations:
    def __init__(self, text):
        self.constants = {name: int(value) for name, value in
                          re.findall(r"^(?:#define|enum \{) STATEPORT_(\w+)(?: =)? \(?(-?\d+)\)?", text, flags=re.M)}
        self.text = re.sub(r"//[^\n]*|^\s*#[^\n]*", "", text, flags=re.M)
        self.structs = set(re.findall(r"typedef struct (\w+) \{", self.text))
        self.handles = set(re.findall(r"typedef struct (\w+) \1;", self.text)) - self.structs
        self.enums = []
        self.lines = []

    def value(self, text):
        name = text.strip().removeprefix("STATEPORT_")
        return self.constants[name] if name in self.constants else int(name)

    def kind(self, text):
        """The ctypes of a member, of an argument of a callback, or of its result."""
        words = text.replace("*", " * ").split()
        base = next(word for word in words if word not in ("const", "*"))
        stars = words.count("*")
        if base == "char" and stars == 1:
            return "c_char_p"
        if stars and (base == "void" or base in self.handles):
            kind, stars = "c_void_p", stars - 1
        elif base == "void":
            return "None"
        elif base == "char":
            kind = "c_char"
        elif base in self.structs:
            kind = camel(base)
        elif base in NUMBERS:
            kind = NUMBERS[base]
        else:
            raise SystemExit(f"generate.py knows no type {base}: {text}")
        if stars and kind in ("c_int32", "c_int64"):
            kind, stars = kind[2:].upper() + "S", stars - 1
        return "POINTER(" * stars + kind + ")" * stars

    def member(self, text):
        callback = re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", text, flags=re.S)
        if callback:
            result, name, arguments = callback.groups()
            kinds = [self.kind(re.sub(r"\w+$", "", argument.strip())) for argument in arguments.split(",")]
            return name, f"CFUNCTYPE({', '.join([self.kind(result), *kinds])})"
        kind, name, extent = re.fullmatch(r"(.*?)(\w+)(?:\[(\w+)\])?", text, flags=re.S).groups()
        return name, self.kind(kind) + (f" * {self.value(extent)}" if extent else "")

    def add_list(self, start, items, end):
        """Lines of at most 120 characters, broken between items."""
        text = start + ", ".join(item.replace(" ", "\0") for item in items) + end.replace(" ", "\0")
        self.lines += textwrap.wrap(text.replace(" =", "\0="), 120, subsequent_indent=" " * len(start),
                                    break_long_words=False)

    def add(self, name, maker, arguments):
        self.add_list(f"{name} = {maker}(", arguments, ")")

    def add_struct(self, name, body):
        python = camel(name)
        members = [self.member(" ".join(text.split())) for text in body.split(";") if text.strip()]
        names = [member for member, _ in members]
        # A text with a number of bytes may hold zero bytes.
        members = [(member, "c_void_p" if kind == "c_char_p" and f"{member}_bytes" in names else kind)
                   for member, kind in members]
        sized = members[0] == ("size", "c_size_t")
        self.add(python, "struct" if sized else "plain_struct",
                 [f'"{python}"', *(f"{member}_={kind}" if keyword.iskeyword(member) else f"{member}={kind}"
                                   for member, kind in members[sized:])])

    def add_enum(self, name, body):
        values, value = {}, -1
        for enumerator in filter(str.strip, body.split(",")):
            name_of, _, given = enumerator.partition("=")
            value = self.value(given) if given else value + 1
            values[name_of.strip().removeprefix("STATEPORT_")] = value
        common = os.path.commonprefix(list(values))
        common = common[:common.rfind("_") + 1]
        self.add_list("(", values, f") = range({len(values)})")
        if list(values.values()) != list(range(len(values))):
            raise SystemExit(f"{name} does not count from 0")
        self.add(name.removeprefix("stateport_").upper(), "",
                 [f'"{value.removeprefix(common).lower()}"' for value in values])

    def write(self):
        """The declarations in their order, then the functions."""
        self.lines += [f"{name} = {value}" for name, value in self.constants.items()]
        functions = []

        def add(found):
            kind, name, body, function, arguments = found.groups()
            if function:
                letters = "".join(self.letter(argument) for argument in arguments.split(","))
                functions.append(f'"{function}": "{letters}"')
            elif body:
                (self.add_struct if kind == "struct" else self.add_enum)(name, body)
            return ""

        rest = re.sub(r"typedef (struct|enum) (\w+) \{(.*?)\} \2;|\bstateport_status stateport_(\w+)\((.*?)\);", add,
                      self.text, flags=re.S)
        known = [r"typedef struct (\w+) \1;", r"typedef int32_t stateport_flag;", r"enum \{ \w+ = \d+ \};",
                 r"const char\* \w+\([^)]*\);", r'extern "C" \{|\}']
        rest = re.sub("|".join(known), "", rest).split()
        if rest:
            raise SystemExit(f"generate.py does not know this form: {' '.join(rest)[:200]}")
        self.lines += ["FUNCTIONS = {", *textwrap.wrap(", ".join(text.replace(" ", "\0") for text in functions), 119,
                                                       initial_indent="    ", subsequent_indent="    "), "}"]
        return "\n".join(self.lines).replace("\0", " ") + "\n"

    def letter(self, argument):
        """The type of an argument of a function: one of LETTERS, p for an address, t for text, empty for none."""
        words = argument.replace("*", " * ").split()
        if words == ["void"]:
            return ""
        base = next(word for word in words if word not in ("const", "*"))
        if "*" in words or "[" in argument:
            return "t" if base == "char" and words.count("*") == 1 and "const" in words else "p"
        return LETTERS[base]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = TARGET.read_text(encoding="utf-8")
    if MARK not in old:
        raise SystemExit(f"{TARGET} has no line {MARK}")
    new = old[:old.index(MARK) + len(MARK)] + Declarations(read_headers(INCLUDE / "stateport.h", set())).write()
    if options.check:
        if new != old:
            raise SystemExit(f"{TARGET} differs from the headers: run c/python/generate.py")
    elif new != old:
        TARGET.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
