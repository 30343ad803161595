#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_sbom.py FILE: whether a build's bill of materials is whole. Everything linked has a licence, a version and a
SHA-256; every package that CMake looks for is listed in cmake/dependencies.json; nothing names a folder of the machine.

Exit code 0, or 1 with a line for every fault. Standard library only."""
import json
import pathlib
import re
import sys

CMAKE = pathlib.Path(__file__).resolve().parents[2] / "cmake"
# Parts of the compiler or of CMake, not packages of their own; the bill names the compiler.
OF_THE_TOOLCHAIN = {"CUDAToolkit", "OpenMP", "Python3", "Threads"}


def faults_of_list(listed):
    """Dependencies that CMake looks for and the list lacks, and entries that are not complete."""
    faults = []
    for path in sorted(CMAKE.glob("Stateport*.cmake")):
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        names = re.findall(r"(?:find_package|stateport_find|stateport_need|stateport_fetch|stateport_sbom_add\w*)\((\w[\w.-]*)", text)
        for name in sorted(set(names) - {"name"} - OF_THE_TOOLCHAIN - set(listed)):
            faults.append(f"{path.name} uses {name}, which dependencies.json does not list")
    for name, entry in listed.items():
        for field in ("part", "license", "project"):
            if not entry.get(field):
                faults.append(f"dependencies.json: {name} has no {field}")
        if "url" in entry and not (re.fullmatch(r"[0-9a-f]{64}", entry.get("sha256", "")) and entry.get("version")):
            faults.append(f"dependencies.json: {name} has a url without a version or a sha256")
    return faults


def faults_of_bill(bill, listed):
    """Dependencies that the bill of a build leaves out."""
    faults = []
    components = {component["name"]: component for component in bill["components"]}
    if len(components) != len(bill["components"]):
        faults.append("a component is there twice")
    linked = {name for name, component in components.items() if component["scope"] == "required"}
    if linked != set(bill["dependencies"][0]["dependsOn"]):
        faults.append("the dependencies of stateport are not the required ones")
    for name in ("fmt", "tsl-robin-map", "xxHash", "nlohmann_json", "OpenSSL"):
        if name not in linked:
            faults.append(f"{name} is missing")
    for name in sorted(set(components) - set(listed)):
        faults.append(f"{name} is in the bill and not in dependencies.json")
    for name, component in components.items():
        if name not in listed:
            continue
        if component["licenses"] != [{"expression": listed[name]["license"]}]:
            faults.append(f"{name} has the licence {component['licenses']}")
        if name in linked and listed[name]["part"] == "library":
            if not re.match(r"\d+\.", component.get("version", "")):
                faults.append(f"{name} has the version '{component.get('version', '')}'")
            if not re.fullmatch(r"[0-9a-f]{64}", component.get("hashes", [{}])[0].get("content", "")):
                faults.append(f"{name} has no SHA-256")
    for folder in re.findall(r'"(/[^"]*)"', json.dumps(bill)):
        faults.append(f"a folder of this machine: {folder}")
    return faults


def main():
    listed = json.loads((CMAKE / "dependencies.json").read_text(encoding="utf-8"))["dependencies"]
    bill = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    faults = faults_of_list(listed) + faults_of_bill(bill, listed)
    for fault in faults:
        print(f"check_sbom: {fault}")
    print(f"check_sbom: {len(bill['components'])} components, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
