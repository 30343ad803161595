# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the manual; docs/build.sh runs it."""
import builtins
import importlib.util
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build/docs"
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT / "python"))

project = "stateport"
author = "the authors of stateport"
copyright = "the authors of stateport. Apache-2.0"
project_line = re.search(r"project\(stateport VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
version = release = project_line.group(1)

extensions = ["breathe", "myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"stateport {release}"
html_static_path = ["_static"]
html_css_files = ["stateport.css"]
html_show_sphinx = False
html_copy_source = False
templates_path = []
pygments_style = "friendly"
highlight_language = "none"
toc_object_entries = False  # with them half of the time of the build is spent on tables of contents
default_role = "code"
smartquotes = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

breathe_projects = {"cpp": str(OUT / "xml/cpp"), "c": str(OUT / "xml/c")}
breathe_default_project = "cpp"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_default_members = ("members",)
breathe_show_include = False

# The package reads its declarations of C from the module that the build copies there.
spec = importlib.util.spec_from_file_location("stateport._c", ROOT / "c/python/stateport_c.py")
sys.modules["stateport._c"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
autodoc_mock_imports = ["torch", "transformers", "vllm", "sglang", "mooncake", "nixl"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"

import reference  # noqa: E402
from sphinx import addnodes  # noqa: E402
from sphinx.util import logging  # noqa: E402

log = logging.getLogger(__name__)
reference.write(ROOT, HERE / "api/generated")


NAMED = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): ")  # begins the description of parameters


def plain_text(_app, _kind, _name, _object, _options, lines):
    """Docstrings are plain text, with names in backticks and code that is indented."""
    text, indented = [], False
    for line in lines:
        starts_block = line.startswith("  ") and not indented and not (text and text[-1])
        indented = (indented and not line) or line.startswith("  ")
        if indented:
            text += ["::", "", line] if starts_block else [line]
            continue
        named = NAMED.match(line) if not text or not text[-1] or text[-1].endswith((".", ":")) else None
        line = re.sub(r"(?<=\w)_(?!\w)|[*|]", r"\\\g<0>", line)
        text += ["", f"**{named.group(1)}**: {line[named.end():]}"] if named else [line]
    lines[:] = text


def missing_reference(_app, _env, node, _content):
    """Names of the library that a page refers to are there. Pages of the reference name types of other libraries."""
    if not node.get("refdoc", "").startswith("api/generated/"):
        log.warning("no %s is called %s", node.get("reftype"), node.get("reftarget"), location=node)


def keep_builtin_types(_app, doctree):
    """A type such as bytes is Python's own, also where a class of the library has an attribute of that name."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("refdomain") == "py" and hasattr(builtins, node.get("reftarget", "")):
            node.replace_self(node.children)


def setup(app):
    app.connect("doctree-read", keep_builtin_types)
    app.connect("autodoc-process-docstring", plain_text)
    app.connect("missing-reference", missing_reference)
