# SPDX-License-Identifier: Apache-2.0
"""The files of a wheel, and that it depends on no folder of the machine that built it."""
from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

import stateport

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    path = os.environ.get("STATEPORT_WHEEL")
    if not path:
        pytest.skip("STATEPORT_WHEEL names no wheel")
    return zipfile.ZipFile(path)


def test_the_package_under_test_is_the_installed_one() -> None:
    assert CHECKOUT / "python" not in pathlib.Path(stateport.__file__).parents
    assert pathlib.Path(sys.prefix) in stateport.library_path().parents


def test_a_wheel_holds_one_library_headers_package_and_types(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in ("py.typed", "_c.py", "include/stateport/c/core.h", "lib/cmake/stateport/stateportConfig.cmake"):
        assert f"stateport/{name}" in names
    library = "libstateport-c.so" if stateport.has_device() else "libstateport-c-core.so"
    assert [name for name in names if name.startswith("stateport/lib/") and ".so" in name] == [
        f"stateport/lib/{library}"]
    assert ("stateport/include/stateport.h" in names) == stateport.has_device()
    assert not [name for name in names if "__pycache__" in name or name.endswith((".cpp", ".hpp", ".a", ".pc"))]
    tag = wheel.filename.rsplit("-", 3)[1:] if wheel.filename else []
    assert tag[:2] == ["py3", "none"]


def test_a_wheel_names_its_dependencies(wheel: zipfile.ZipFile) -> None:
    """A bill of materials lies where PEP 770 looks for it."""
    names = [name for name in wheel.namelist() if name.endswith(".dist-info/sboms/stateport.cdx.json")]
    assert len(names) == 1
    bill = json.loads(wheel.read(names[0]))
    assert bill["metadata"]["component"]["version"] == stateport.version()
    components = {component["name"]: component for component in bill["components"]}
    assert {"fmt", "OpenSSL", "xxHash", "tsl-robin-map", "nlohmann_json", "numpy"} <= set(components)
    assert ("Kokkos" in components) == stateport.has_device()
    assert "doctest" not in components
    for name in set(components) - {"numpy"}:
        assert components[name]["version"] and len(components[name]["hashes"][0]["content"]) == 64, name


def test_a_wheel_holds_no_absolute_path(wheel: zipfile.ZipFile) -> None:
    """Neither of the checkout nor of the machine's libraries."""
    for name in wheel.namelist():
        data = wheel.read(name)
        assert os.fsencode(CHECKOUT) not in data, name
        if name.endswith(".cmake"):
            # CMake's own prefix search compares with these; nothing else of a package may be absolute.
            found = set(re.findall(rb'"(/[^"$]+)"', data)) - {b"/usr/lib", b"/lib64", b"/lib"}
            assert not found, (name, found)


def test_the_library_needs_no_other_of_stateport_and_exports_nothing_else() -> None:
    library = stateport.library_path()
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert any(name.startswith("libc.so") for name in needed)
    assert not [name for name in needed if "stateport" in name]
    if "manylinux" in os.environ.get("STATEPORT_WHEEL", ""):  # one for other machines holds the rest
        assert not [name for name in needed
                    if not re.match(r"lib(c|m|gcc_s)\.so|ld-linux|libgomp-[0-9a-f]+\.so", name)]
    symbols = subprocess.run(["nm", "-D", "--defined-only", "--without-symbol-versions", library], capture_output=True,
                             text=True, check=True).stdout
    # Kinds: A is the name of a version.
    exported = [line.split()[-1] for line in symbols.splitlines() if " A " not in line]
    assert "stateport_version" in exported
    assert not [name for name in exported if "stateport" not in name]


def test_sglang_finds_the_plugin_of_the_wheel() -> None:
    (found,) = importlib.metadata.entry_points(group="sglang.srt.plugins", name="stateport_record")
    found.load()()  # nothing, without its environment variable


def test_cmake_finds_the_package_of_the_wheel(tmp_path: pathlib.Path) -> None:
    """A C program links the library of the wheel, and runs."""
    prefix = stateport.library_path().parents[1]
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES C CXX)\n"
        "find_package(stateport REQUIRED)\nadd_executable(user main.c)\n"
        f"target_link_libraries(user PRIVATE stateport::{'c' if stateport.has_device() else 'c_core'})\n")
    (tmp_path / "main.c").write_text("#include <stateport/c/core.h>\n#include <stdio.h>\n"
                                     "int main(void) { return puts(stateport_version()) < 0; }\n")
    for command in (["cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
                    ["cmake", "--build", tmp_path / "build"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    said = subprocess.run([tmp_path / "build" / "user"], capture_output=True, text=True, check=True).stdout
    assert said.strip() == stateport.version()


def test_importing_the_package_imports_neither_torch_nor_an_engine() -> None:
    program = ("import sys, stateport; stateport.version(); "
               "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'vllm', 'sglang')])")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_a_library_that_is_not_there_is_named() -> None:
    program = ("import stateport\ntry:\n    stateport.version()\n"
               "except stateport.BackendError as error:\n    print(error)")
    environment = {**os.environ, "STATEPORT_LIBRARY": "no/such/library.so"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert "no/such/library.so" in said.stdout
