#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault at a time in a copy of the project and asks the tests to notice it.

    plant.py [--only NAME…] [--check] [--folder FOLDER] [--configure ARGUMENT…]

mutants.json lists the faults: `name`, `file`, `old` (text that is there exactly once), `new`, and optionally `tests`, a
doctest filter of source files that is tried first (otherwise the tests of the wing that the file belongs to), and
`program`, the tests of another layer than core, which needs Kokkos. Each is planted alone; its program is built and
run: first those tests, then all, at last with all their seeds. A fault that no test notices is a survivor, and a
missing test. --check only looks whether every `old` is there exactly once.

Exit code 0, or 1 with a line for every survivor and every entry that does not fit the code. Standard library only."""
import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).with_name("mutants.json")
CORE_PROGRAM = "test-core"
# Most faults show at once; the others have all the seeds of the build. Some tests count what they have seen, and
# fail with fewer.
FEW_SEEDS = {"STATEPORT_TEST_SEEDS": "100"}
# A fault may make a loop endless. All tests together take a quarter of this, whatever else the machine does.
CPU_LIMIT_S = 180
CPU_LIMIT_OF_FEW_SEEDS_S = 60
CONFIGURE = ["-G", "Ninja", "-DSTATEPORT_BUILD_PERF=OFF", "-DCMAKE_BUILD_TYPE=Release",
             "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG"]
CONFIGURE_CORE = ["-DSTATEPORT_CORE_ONLY=ON"]
CONFIGURE_ALL = ["-DSTATEPORT_CORE_ONLY=OFF", "-DSTATEPORT_BACKEND=OPENMP"]


def read_list():
    mutants = json.loads(LIST.read_text(encoding="utf-8"))
    errors = []
    names = [mutant["name"] for mutant in mutants]
    for name in sorted({name for name in names if names.count(name) > 1}):
        errors.append(f"{name}: the name is there twice")
    for mutant in mutants:
        path = CHECKOUT / mutant["file"]
        found = path.read_text(encoding="utf-8").count(mutant["old"]) if path.is_file() else 0
        if found != 1:
            errors.append(f"{mutant['name']}: `old` is found {found} times in {mutant['file']}, not once")
        if mutant["old"] == mutant["new"]:
            errors.append(f"{mutant['name']}: `new` is the same as `old`")
    return mutants, errors


def copy_project(target):
    """Copies what has changed since the last copy, so that a later run compiles little, and removes what is gone."""
    def entries(root):
        skipped = {"build", ".git", "__pycache__"}
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in skipped]
            for name in files:
                yield pathlib.Path(folder, name).relative_to(root)
    wanted = set(entries(CHECKOUT))
    for path in set(entries(target)) - wanted:
        (target / path).unlink()
    for path in wanted:
        source, copy = CHECKOUT / path, target / path
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


class Bench:
    """A copy of the project, the build folder in it, and what is planted there now."""

    def __init__(self, folder, mutants, configure):
        # As copied: the checkout may change while this runs.
        self.original = {one["file"]: (CHECKOUT / one["file"]).read_text(encoding="utf-8") for one in mutants}
        self.tree = folder
        self.programs = sorted({program_of(one) for one in mutants})
        core_only = self.programs == [CORE_PROGRAM]
        self.build_folder = folder / "build" / ("mutants" if core_only else "mutants-all")
        self.planted = None
        self.tree.mkdir(parents=True, exist_ok=True)
        copy_project(self.tree)
        if not (self.build_folder / "build.ninja").is_file():
            subprocess.run(["cmake", "-S", self.tree, "-B", self.build_folder, *CONFIGURE,
                            *(CONFIGURE_CORE if core_only else CONFIGURE_ALL), *configure], check=True,
                           stdout=subprocess.DEVNULL)

    def plant(self, mutant):
        """Restores the file of the last fault only if the next one is elsewhere: two rebuilds become one."""
        if self.planted and (mutant is None or self.planted != mutant["file"]):
            self.write(self.planted, self.original[self.planted])
        self.planted = mutant["file"] if mutant else None
        if mutant:
            self.write(mutant["file"], self.original[mutant["file"]].replace(mutant["old"], mutant["new"]))

    def write(self, file, text):
        path = self.tree / file
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")

    def build(self, *programs):
        return subprocess.run(["ninja", "-C", self.build_folder, *programs], capture_output=True, text=True)

    def passes(self, program, *arguments, environment=None):
        """Whether the tests notice nothing. An endless loop and a crash are noticed."""
        limit_s = CPU_LIMIT_OF_FEW_SEEDS_S if environment else CPU_LIMIT_S

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        run = subprocess.run([self.build_folder / "bin" / program, "--abort-after=1", *arguments],
                             capture_output=True, preexec_fn=limit, env={**os.environ, **(environment or {})})
        return run.returncode == 0


def program_of(mutant):
    return mutant.get("program", CORE_PROGRAM)


def first_tests(mutant):
    wing = pathlib.PurePath(mutant["file"]).parent.name
    return mutant.get("tests", f"*/core/{wing}/*" if program_of(mutant) == CORE_PROGRAM else "*")


def judge(bench, mutant):
    bench.plant(mutant)
    program = program_of(mutant)
    built = bench.build(program)
    if built.returncode:
        return "does not compile:\n" + built.stdout[-2000:]
    survives = (bench.passes(program, f"--source-file={first_tests(mutant)}", environment=FEW_SEEDS) and
                bench.passes(program, environment=FEW_SEEDS) and bench.passes(program))
    return "survives" if survives else ""


def plant_all(options, mutants):
    """Returns how many are not noticed, or None if nothing can be said."""
    bench = Bench(options.folder, mutants, options.configure)
    built = bench.build(*bench.programs)
    if built.returncode or not all(bench.passes(program, environment=FEW_SEEDS) and bench.passes(program)
                                   for program in bench.programs):
        print(built.stdout[-2000:] + "without a fault the project does not build or its tests fail")
        return None
    survivors = 0
    for mutant in sorted(mutants, key=lambda one: one["file"]):
        began = time.monotonic()
        answer = judge(bench, mutant)
        survivors += bool(answer)
        print(f"{mutant['name']}: {answer or 'noticed'} ({time.monotonic() - began:.0f} s)", flush=True)
    bench.plant(None)
    return survivors


def main():
    parser = argparse.ArgumentParser(description="Plants faults in a copy of the project and runs its tests.")
    parser.add_argument("--check", action="store_true", help="only look whether the list fits the code")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the names, or beginnings of names, to plant")
    parser.add_argument("--folder", type=pathlib.Path, default=CHECKOUT / "build" / "mutants", help="of the copy")
    parser.add_argument("--configure", nargs="+", default=[], metavar="ARGUMENT", help="for cmake, beside ours")
    options = parser.parse_args()
    mutants, errors = read_list()
    print("\n".join(errors), end="\n" if errors else "")
    if options.check or errors:
        print(f"{len(mutants)} mutants, {len(errors)} entries do not fit")
        return 1 if errors else 0
    if options.only:
        mutants = [mutant for mutant in mutants if mutant["name"].startswith(tuple(options.only))]
    in_core = [mutant for mutant in mutants if program_of(mutant) == CORE_PROGRAM]
    others = [mutant for mutant in mutants if program_of(mutant) != CORE_PROGRAM]
    survivors = 0
    for group in (in_core, others):
        found = plant_all(options, group) if group else 0
        if found is None:
            return 1
        survivors += found
    print(f"{len(mutants)} mutants, {survivors} not noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
