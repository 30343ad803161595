#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if the options of a request cache have other names or other defaults in C++, in C and in Python.

An option that C++ has under one name can have several in C and Python: RENAMED lists them. A member of C is 0 by
default. If that is not the default of C++, the comment of the member must say it: "0: 16". An enumerator that is the
default must be the first one of its enum in C. The library must read each member of C. Members of `eviction` and
costs are left out: C has them in a struct that other objects take, too. A member of C++ of a type in FLAT has one name
for each of its members in C and Python."""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE, TIERS = "core/include/stateport/core/serve/cache_options.hpp", "core/include/stateport/core/tier/tier_options.hpp"
MOVES = "core/include/stateport/core/pool/memory_move.hpp"
C, PYTHON = "c/include/stateport/c", "python/stateport"
# The struct of C++ and its header, the struct of C and its header, the class of Python and its module, and the source
# that reads the struct of C.
STRUCTS = [
    ("SlotLayout", CACHE, "stateport_slot_layout", "cache_options.h", "SlotLayout", "cache_options.py",
     "c/src/request_cache.cpp"),
    ("ArenaOptions", CACHE, "stateport_arena", "cache_options.h", "Arena", "cache_options.py", "c/src/cache_arena.cpp"),
    ("StateGroup", CACHE, "stateport_state_group", "cache_options.h", "StateGroup", "cache_options.py",
     "c/src/request_cache.cpp"),
    ("ColumnLayout", CACHE, "stateport_column_layout", "cache_options.h", "ColumnLayout", "cache_options.py",
     "c/src/request_cache.cpp"),
    ("ShareRunning", CACHE, "stateport_share_running", "cache_options.h", "ShareRunning", "cache_options.py",
     "c/src/request_cache.cpp"),
    ("PrefixOptions", CACHE, "stateport_prefix_options", "cache_options.h", "PrefixOptions", "cache_options.py",
     "c/src/request_cache.cpp"),
    ("SessionOptions", CACHE, "stateport_session_options", "cache_options.h", "SessionOptions", "cache_options.py",
     "c/src/request_cache.cpp"),
    ("RequestCacheOptions", CACHE, "stateport_request_cache_options", "cache_options.h", "CacheOptions",
     "cache_options.py", "c/src/request_cache.cpp"),
    ("TierOptions", TIERS, "stateport_tier_options", "transfers.h", "TierOptions", "tier_options.py",
     "c/src/cache_tiers.cpp"),
]
# By name in C++: the names in C, and in Python.
RENAMED = {
    "groups": ("groups group_count", "groups"),
    "layout": ("slots columns", "layout"),
    "eviction": ("eviction", "eviction"),
    "eviction_options": ("", ""),  # members of `eviction`
    "memory": ("", ""),            # members of `eviction`
    "cost": ("cost_linear cost_quadratic", "cost_linear cost_quadratic"),
    "kv_elsewhere": ("leading_blocks leading_blocks_context", "leading_blocks"),
}
# By type of a member of C++: its header, and what stands between the names of the member and of a member of the type.
FLAT = {"ExtentShape": (MOVES, "_extent_")}
# Defaults of C++ that are objects, with their text in Python.
OBJECTS = {"layout": "SlotLayout()", "eviction": "None", "tiers": "None", "kv_elsewhere": "None", "groups": "()",
           "arena": "None", "share_running": "None", "prefixes": "None", "sessions": "None"}
NO_LIMIT = "std::numeric_limits<std::int64_t>::max()"


def members(path, pattern):
    """By name of a member: its type, its default ("0" where none is given), and its comments."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.search(pattern, text, flags=re.S)
    if not found:
        raise SystemExit(f"{path} has no struct that fits {pattern}")
    result, comment = {}, ""
    for line in found[1].split("\n"):
        code, _, behind = line.partition("//")
        comment += " " + behind.strip("/< ")
        member = re.fullmatch(r"\s*([\w:<>,*\s]+?)[\s*]+(\w+)(?:\s*=(?!=)\s*([^;]+))?;\s*", code)
        callback = re.fullmatch(r"\s*\w+ \(\*(\w+)\)\(.*\);\s*", code)
        if member:
            result[member[2]] = (member[1], member[3] or "0", comment)
        elif callback:
            result[callback[1]] = ("callback", "0", comment)
        if member or callback:
            comment = ""
    return result


def cpp_members(path, name):
    """Members of a struct of C++; those of a type in FLAT as the members of that type."""
    result = {}
    for member, (kind, default, comment) in members(path, rf"struct {name} \{{\n(.*?)\n\}};").items():
        if kind in FLAT:
            header, between = FLAT[kind]
            result |= {member + between + inner: value for inner, value in cpp_members(header, kind).items()}
        else:
            result[member] = (kind, default, comment)
    return result


def python_members(path, name):
    """By name of a field: its default as text; none: it must be given."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    result = {}
    for node in body:
        if isinstance(node, ast.AnnAssign):
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "dataclasses.field":
                value = next(word.value for word in value.keywords if word.arg == "default")
            result[node.target.id] = value and ast.unparse(value)
    return result


def first_enumerators():
    """By enum: its first enumerator in lower case."""
    result = {}
    for path in (ROOT / C).glob("*.h"):
        for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\}", path.read_text(encoding="utf-8"), flags=re.S):
            result[name] = re.search(r"^\s*STATEPORT_(\w+)", body, re.M)[1].lower()
    return result


def read_members(path):
    """Names of members that a source of the C interface reads."""
    return set(re.findall(r"\b(?:given|group|tiers)\.(\w+)", (ROOT / path).read_text(encoding="utf-8")))


def same_default(name, cpp, python):
    if name in OBJECTS:
        return python == OBJECTS[name]
    if "::" in cpp and cpp != NO_LIMIT:
        return python == repr(cpp.rsplit("::", 1)[1])
    plain = {"false": "False", "true": "True", NO_LIMIT: "0"}.get(cpp, cpp)
    return python in (plain, plain + ".0")


def check(found, enumerators):
    cpp_name, header, c_name, c_header, class_name, module, reader = found
    cpp = cpp_members(header, cpp_name)
    c = members(f"{C}/{c_header}", rf"typedef struct {c_name} \{{\n(.*?)\n\}}")
    python = python_members(f"{PYTHON}/{module}", class_name)
    del c["size"]
    expected_c, expected_python = [], []
    for name, (_, default, _) in cpp.items():
        in_c, in_python = (names.split() for names in RENAMED.get(name, (name, name)))
        expected_c += in_c
        expected_python += in_python
        for other in in_python:
            given = python.get(other)
            if name != "cost" and given is not None and not same_default(name, default, given):
                yield f"{class_name}.{other} is {given} by default, and {cpp_name}::{name} is {default}"
        for other in in_c:
            if other not in c or name in OBJECTS or default in ("0", "false"):
                continue
            said = "no limit" if default == NO_LIMIT else default.rsplit("::", 1)[-1]
            named = [first for enum, first in enumerators.items() if enum in c[other][2]]
            if not any(first.endswith("_" + said) for first in named) and f"0: {said}" not in c[other][2]:
                yield f"the comment of {c_name}.{other} does not say \"0: {said}\", the default of C++"
    for name in sorted(c.keys() - read_members(reader)):
        yield f"{reader} does not read {c_name}.{name}"
    for kind, expected, present in ((c_name, expected_c, c), (class_name, expected_python, python)):
        for name in sorted(set(expected) ^ set(present)):
            yield f"{kind} {'has' if name in present else 'lacks'} {name}, and {cpp_name} does not agree"


def main():
    enumerators = first_enumerators()
    problems = [problem for found in STRUCTS for problem in check(found, enumerators)]
    for problem in problems:
        print(f"options: {problem}", file=sys.stderr)
    if not problems:
        print("options agree in C++, C and Python")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
