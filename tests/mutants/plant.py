#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault at a time in a copy of the project and asks the tests to notice it.

    plant.py [--only NAME…] [--files FILE] [--check] [--programs] [--jobs N] [--minutes N] [--results FILE]
             [--folder FOLDER] [--python PROGRAM] [--configure ARGUMENT…]

mutants.json lists the faults: `name`, `file`, `old` (text that is there exactly once), `new`, and the tests that must
notice:

    program  tests that are built and run; without it test-core. All but test-core, test-parts and test-c-core need
             Kokkos. `python`: nothing is built, the tests run over the library of the project without a fault
    tests    of a program with doctest, a filter of source files that is tried first (otherwise the tests of the wing
             that the file belongs to); of `python`, the files in python/tests that must notice, separated by blanks

Each is planted alone. Of programs with doctest those tests are built and run alone, then all; of core at first with few
seeds. A fault that no test notices is a survivor, and a missing test. Tests that fail notice a fault only if they pass
without it: they run once without it when they first fail. Nothing is built before a fault needs it.

--check only looks whether every `old` is there exactly once; --programs prints which programs the faults need.

--files: only faults in the files that this file lists, one a line. --jobs: the number of faults at a time, each in a copy
of its own. --minutes: none is planted after this time. --results: a line of JSON for every fault; those that this
file says were noticed, of the same entry in the same file, are left out, so that a run can be ended and go on later.
--python: for tests of Python, one that has numpy, torch and pytest (and transformers, for its adapter).

Exit code 0; 1 with a line for every survivor and every entry that does not fit the code, or if tests fail without a
fault; 75 if the time was up before all were planted. Standard library only."""
import argparse
import concurrent.futures
import dataclasses
import fnmatch
import hashlib
import json
import os
import pathlib
import queue
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).with_name("mutants.json")
CORE_PROGRAM = "test-core"
WITHOUT_DEVICE = {CORE_PROGRAM, "test-parts", "test-c-core"}
PYTHON = "python"
# They check themselves in C, and have no filter.
WITHOUT_FILTER = {"test-c", "test-c-core", "test-c-device-memory"}
# The library that the Python tests load.
LIBRARY = "stateport_c_loadable"
# Most faults of core show at once; the others have all the seeds of the build, with which other programs are quick.
# Some of their tests count cases, and fail with fewer seeds.
FEW_SEEDS = {"STATEPORT_TEST_SEEDS_MAX": "100"}
# A fault may make a loop endless. All tests together take a quarter of this, whatever else the machine does.
CPU_LIMIT_S = 700
CPU_LIMIT_OF_FEW_SEEDS_S = 240
# A fault may make threads wait for ever: the program has used no processor for so long. No test waits longer.
IDLE_LIMIT_S = 120
# They may wait in a loop. All tests together take a tenth of this on a machine that does little else.
TIME_LIMIT_S = 1800
# Each source alone: a fault changes one.
CONFIGURE = ["-G", "Ninja", "-DCMAKE_UNITY_BUILD=OFF", "-DCMAKE_BUILD_TYPE=Release",
             "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG", f"-DSTATEPORT_SHARED_DIR={CHECKOUT.parent / 'shared'}"]
CONFIGURE_CORE = ["-DSTATEPORT_CORE_ONLY=ON", "-DSTATEPORT_BUILD_APPS=OFF", "-DSTATEPORT_BUILD_PERF=OFF"]
CONFIGURE_ALL = ["-DSTATEPORT_CORE_ONLY=OFF", "-DSTATEPORT_BACKEND=OPENMP"]


def read_list():
    mutants = json.loads(LIST.read_text(encoding="utf-8"))
    errors = []
    sources = [str(path) for path in (CHECKOUT / "tests").rglob("*_test.cpp")]
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
        if program_of(mutant) == PYTHON:
            errors += [f"{mutant['name']}: there is no {test}" for test in python_tests(CHECKOUT, mutant)
                       if not test.is_file()]
        elif "tests" in mutant and not any(fnmatch.fnmatch(source, mutant["tests"]) for source in sources):
            errors.append(f"{mutant['name']}: {mutant['tests']} is no source file of tests")
    return mutants, errors


def program_of(mutant):
    return mutant.get("program", CORE_PROGRAM)


def python_tests(tree, mutant):
    return [tree / "python" / "tests" / test for test in mutant.get("tests", "").split()]


def first_tests(mutant):
    """A filter of source files, or None: there are none but all."""
    wing = pathlib.PurePath(mutant["file"]).parent.name
    return mutant.get("tests", f"*/core/{wing}/*" if program_of(mutant) == CORE_PROGRAM else None)


@dataclasses.dataclass(frozen=True)
class Check:
    """Tests of one program that may notice a fault."""
    program: str
    first: str | None = None  # a filter of source files; None: all tests of the program
    files: tuple = ()         # of `python`: in python/tests
    few_seeds: bool = False


def checks_of(mutant):
    """The quickest first."""
    program = program_of(mutant)
    if program == PYTHON:
        return [Check(program, files=tuple(mutant.get("tests", "").split()))]
    in_core = program == CORE_PROGRAM
    checks = [Check(program)]
    if in_core:
        checks.insert(0, Check(program, few_seeds=True))
    if program not in WITHOUT_FILTER and first_tests(mutant):
        checks.insert(0, Check(program, first=first_tests(mutant), few_seeds=in_core))
    return checks


class DoesNotCompile(Exception):
    pass


class FailsWithoutFault(Exception):
    pass


def copy_project(target):
    """Copies the files that have changed since the last copy, so that a later run compiles little, and removes those
    that are gone."""
    def entries(root):
        skipped = {"build", ".git", "__pycache__", ".mypy_cache", ".ruff_cache"}
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
    """A copy of the project, the build folder in it, and the fault that is planted there now."""

    def __init__(self, folder, mutants, options):
        # As copied: the checkout may change while this runs.
        self.original = {one["file"]: (CHECKOUT / one["file"]).read_text(encoding="utf-8") for one in mutants}
        self.tree = folder.resolve()
        self.python = options.python
        self.programs = sorted({program_of(one) for one in mutants})
        core_only = set(self.programs) <= WITHOUT_DEVICE
        self.build_folder = self.tree / "build" / ("mutants" if core_only else "mutants-all")
        self.planted = None
        self.tree.mkdir(parents=True, exist_ok=True)
        copy_project(self.tree)
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build_folder, *CONFIGURE,
                        *(CONFIGURE_CORE if core_only else CONFIGURE_ALL), *options.configure], check=True,
                       stdout=subprocess.DEVNULL)
        if PYTHON in self.programs:
            calls = self.tree / "python" / "stateport" / "_c.py"
            calls.unlink(missing_ok=True)
            calls.symlink_to("../../c/python/stateport_c.py")

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

    def ninja(self, *arguments):
        done = subprocess.run(["ninja", "-C", self.build_folder, "--quiet", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise DoesNotCompile(done.stdout[-2000:])
        return done.stdout

    def build(self, program):
        self.ninja(LIBRARY if program == PYTHON else program)
        return self.build_folder / "bin" / program

    def build_first(self, program, pattern):
        """A program of nothing but the tests in these sources and the files that all tests share. None: no test is in
        them, and nothing is compiled."""
        link = shlex.split(self.ninja("-t", "commands", "-s", f"bin/{program}"))
        link = [word for word in link if word not in (":", "&&") and not word.startswith("-Wl,--dependency-file")]
        tests = [word for word in link if word.endswith("_test.cpp.o")]
        source = re.compile(r"CMakeFiles/[^/]*\.dir/|\.o$")
        first = [test for test in tests if fnmatch.fnmatch(source.sub("", test), pattern)]
        if not first:
            return None
        link = [word for word in link if word not in tests or word in first]
        self.ninja(*(word for word in link if word.endswith(".o") or word.startswith("lib/")))
        path = self.build_folder / "bin" / f"{program}-first"
        link[link.index(f"bin/{program}")] = str(path)
        linked = subprocess.run(link, cwd=self.build_folder, capture_output=True, text=True)
        if linked.returncode:
            raise DoesNotCompile(linked.stderr[-2000:])
        return path

    def passes(self, check):
        """Builds the tests and runs them."""
        if check.program == PYTHON:
            self.build(PYTHON)
            return self.passes_python(check.files)
        path = self.build_first(check.program, check.first) if check.first else self.build(check.program)
        if path is None:
            return True
        command = [path] if check.program in WITHOUT_FILTER else [path, "--abort-after=1"]
        return runs(command, CPU_LIMIT_OF_FEW_SEEDS_S if check.few_seeds else CPU_LIMIT_S,
                    FEW_SEEDS if check.few_seeds else {}, self.build_folder)

    def passes_python(self, tests):
        folders = [str(self.tree / "python"), str(self.tree / "python" / "tests")]
        # -B: of a file that was written twice within a second, old code would be taken.
        return runs([self.python, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                     *(self.tree / "python" / "tests" / test for test in tests)], CPU_LIMIT_S,
                    {"PYTHONPATH": os.pathsep.join(folders),
                     "STATEPORT_LIBRARY": str(self.build_folder / "lib" / f"lib{LIBRARY}.so")})


class Baseline:
    """Which checks pass without a fault. Each runs once, when it first fails with one."""

    def __init__(self):
        self.good = set()

    def confirm(self, bench, check):
        if check in self.good:
            return
        bench.plant(None)
        try:
            passes = bench.passes(check)
        except DoesNotCompile as error:
            raise FailsWithoutFault(f"without a fault the project does not build:\n{error}") from error
        if not passes:
            raise FailsWithoutFault(f"without a fault tests fail: {check}")
        self.good.add(check)


def runs(command, cpu_limit_s, environment, folder=None):
    """Whether a command ends well. An endless loop, threads that wait for ever and a crash do not."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limit,
                          start_new_session=True, env={**os.environ, **environment}) as process:
        try:
            return ends(process) and process.returncode == 0
        finally:
            # Processes that the tests have started end with them.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def ends(process):
    """Waits for its end, as long as it may still come."""
    began = worked = time.monotonic()
    used = 0
    while time.monotonic() - began < TIME_LIMIT_S and time.monotonic() - worked < IDLE_LIMIT_S:
        try:
            process.wait(5)
            return True
        except subprocess.TimeoutExpired:
            # utime and stime, behind the name, which may have blanks.
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            before, used = used, int(fields[11]) + int(fields[12])
            if used > before:
                worked = time.monotonic()
    return False


def judge(bench, baseline, mutant):
    bench.plant(mutant)
    try:
        failed = next((check for check in checks_of(mutant) if not bench.passes(check)), None)
    except DoesNotCompile as error:
        return f"does not compile:\n{error}"
    if failed is None:
        return "survives"
    baseline.confirm(bench, failed)
    return ""


class Results:
    """The results, in a file if there is one."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        self.survivors = 0
        self.skipped = 0
        self.noticed = set()
        if path and path.is_file():
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self.noticed = {line["content"] for line in lines if line["answer"] == "noticed"}

    @staticmethod
    def content(mutant):
        text = (CHECKOUT / mutant["file"]).read_text(encoding="utf-8")
        return hashlib.sha256(json.dumps([mutant, text], sort_keys=True).encode()).hexdigest()[:16]

    def open(self, mutants):
        return [mutant for mutant in mutants if self.content(mutant) not in self.noticed]

    def skip(self, mutants=1):
        with self.lock:
            self.skipped += mutants

    def add(self, mutant, content, answer, took_s):
        with self.lock:
            self.survivors += bool(answer)
            print(f"{mutant['name']}: {answer or 'noticed'} ({took_s:.0f} s)", flush=True)
            if self.path:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"name": mutant["name"], "content": content,
                                           "answer": answer or "noticed"}) + "\n")


def plant_all(options, mutants, results):
    """Throws FailsWithoutFault."""
    contents = {mutant["name"]: results.content(mutant) for mutant in mutants}
    waiting = queue.SimpleQueue()
    for file in sorted({mutant["file"] for mutant in mutants}):
        waiting.put([mutant for mutant in mutants if mutant["file"] == file])
    baseline = Baseline()

    def work(number):
        bench = Bench(options.folder / str(number) if options.jobs > 1 else options.folder, mutants, options)
        while True:
            try:
                group = waiting.get_nowait()
            except queue.Empty:
                break
            for mutant in group:
                began = time.monotonic()
                if began > options.deadline:
                    results.skip()
                    continue
                answer = judge(bench, baseline, mutant)
                results.add(mutant, contents[mutant["name"]], answer, time.monotonic() - began)
        bench.plant(None)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as workers:
        for done in concurrent.futures.as_completed([workers.submit(work, number) for number in range(options.jobs)]):
            if done.exception():
                while not waiting.empty():  # the other workers end, too
                    waiting.get()
            done.result()


def main():
    parser = argparse.ArgumentParser(description="Plants faults in a copy of the project and runs its tests.")
    parser.add_argument("--check", action="store_true", help="only look whether the list fits the code")
    parser.add_argument("--programs", action="store_true", help="only print which programs the faults need")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the names, or beginnings of names, to plant")
    parser.add_argument("--files", type=pathlib.Path, metavar="FILE", help="lists the files whose faults to plant")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="N", help="plant none after this time")
    parser.add_argument("--results", type=pathlib.Path, metavar="FILE", help="results; a later run continues there")
    parser.add_argument("--folder", type=pathlib.Path, default=CHECKOUT / "build" / "mutants", help="of the copy")
    parser.add_argument("--python", default=sys.executable, metavar="PROGRAM", help="for tests of Python")
    parser.add_argument("--configure", nargs="+", default=[], metavar="ARGUMENT", help="for cmake, beside ours")
    options = parser.parse_args()
    options.deadline = time.monotonic() + 60 * options.minutes
    mutants, errors = read_list()
    print("\n".join(errors), end="\n" if errors else "")
    if options.check or errors:
        print(f"{len(mutants)} mutants, {len(errors)} entries do not fit")
        return 1 if errors else 0
    if options.only:
        mutants = [mutant for mutant in mutants if mutant["name"].startswith(tuple(options.only))]
    if options.files:
        files = set(options.files.read_text(encoding="utf-8").splitlines())
        mutants = [mutant for mutant in mutants if mutant["file"] in files]
    results = Results(options.results)
    wanted = results.open(mutants)
    if options.programs:
        print("\n".join(sorted({program_of(mutant) for mutant in wanted})))
        return 0
    # Without Kokkos, and without the tiny engine, which plants mistakes in the same files.
    without_device = [mutant for mutant in wanted if program_of(mutant) in WITHOUT_DEVICE]
    try:
        for group in (without_device, [mutant for mutant in wanted if mutant not in without_device]):
            if group and time.monotonic() > options.deadline:
                results.skip(len(group))
            elif group:
                plant_all(options, group, results)
    except FailsWithoutFault as error:
        print(error)
        return 1
    earlier = f" ({len(mutants) - len(wanted)} of them noticed earlier)" if len(wanted) < len(mutants) else ""
    left = f", {results.skipped} not planted: the time was up" if results.skipped else ""
    print(f"{len(mutants)} mutants, {results.survivors} not noticed{earlier}{left}")
    return 1 if results.survivors else 75 if results.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
