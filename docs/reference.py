# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of the API reference: a page for each layer, wing and module, as the folders have them."""
from __future__ import annotations

import ast
import pathlib

import stateport

LAYERS = ["core", "parts", "backends", "kernels", "tiers", "integrations/llamacpp"]
# Of a file and of a class, in this order: neither friends nor private members.
SECTIONS = ("briefdescription detaileddescription define typedef enum innerclass innernamespace public-type "
            "public-func public-static-func public-attrib public-static-attrib protected-func func var user-defined")
ADAPTERS = ["transformers", "vllm", "sglang", "megatron", "record"]


def write(root: pathlib.Path, folder: pathlib.Path) -> None:
    """Files that have not changed are not touched, so that Sphinx reads them once."""
    pages = {}
    for layer in LAYERS:
        top = root / layer / "include/stateport" / pathlib.Path(layer).name
        for place in sorted({path.parent for path in top.rglob("*.hpp")}):
            name = "/".join(place.relative_to(top.parent).parts)
            pages[f"cpp-{name.replace('/', '-')}"] = _headers(name, sorted(place.glob("*.hpp")), top.parents[1], "cpp")
    includes = root / "c/include"
    headers = [includes / "stateport.h", *sorted((includes / "stateport/c").glob("*.h"))]
    for path in headers:
        name = path.relative_to(includes).as_posix()
        pages[f"c-{path.stem}"] = _headers(name, [path], includes, "c")
    pages |= _python(root / "python/stateport")
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.rst"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _headers(title: str, headers: list[pathlib.Path], includes: pathlib.Path, project: str) -> str:
    text = _title(title, "=")
    for path in headers:
        name = path.relative_to(includes).as_posix()
        if len(headers) > 1:
            text += _title(path.name, "-")
        text += f"``#include <{name}>``\n\n.. doxygenfile:: {path.name}\n   :project: {project}\n"
        text += f"   :sections: {SECTIONS}\n\n"
    return text


def _python(package: pathlib.Path) -> dict[str, str]:
    """Names that a module defines and `stateport` or the adapter exports."""
    pages = {}
    exported = _exports(package / "__init__.py")
    for module in sorted(set(exported.values())):
        names = [name for name, place in exported.items() if place == module]
        pages[f"python-{module}"] = _title(f"stateport: {module.strip('_')}", "=") + "".join(map(_object, names))
    for adapter in ADAPTERS:
        names = _all(package / adapter / "__init__.py") or ["MambaSlotAllocator"]
        text = _title(f"stateport.{adapter}", "=") + f".. automodule:: stateport.{adapter}\n\n"
        pages[f"python-stateport-{adapter}"] = text + "".join(_object(name, f"stateport.{adapter}") for name in names)
    return pages


def _all(init: pathlib.Path) -> list[str]:
    """The list __all__ of an adapter, which is not imported: it needs its engine."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body if init.exists() else ():
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def _exports(init: pathlib.Path) -> dict[str, str]:
    """By name, in the order of the imports: the module that defines it."""
    tree = ast.parse(init.read_text(encoding="utf-8"))
    return {alias.name: node.module.split(".", 1)[1] for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module.startswith("stateport.") for alias in node.names}


def _object(name: str, module: str = "stateport") -> str:
    if name.isupper():
        return _constant(name)
    if name[0].isupper():
        return (f".. autoclass:: {module}.{name}\n   :members:\n   :undoc-members:\n"
                "   :inherited-members: object, Exception, BaseException, Enum, tuple\n\n")
    return f".. autofunction:: {module}.{name}\n\n"


def _constant(name: str) -> str:
    value = getattr(stateport, name)
    fields = ", ".join(f"`{field}`" for field in getattr(value, "names", None) or ())
    text = f"A numpy dtype with the fields {fields}." if fields else f"`{value!r}`"
    return f".. py:data:: stateport.{name}\n\n   {text}\n\n"
