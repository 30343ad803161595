#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the fixed bookkeeping workloads with callgrind and holds them against instructions.json.

    check_instructions.py PROGRAM FACT=VALUE… [--update]

Exit code: 0 no workload grew by more than 3 %; 1 one did (if that is meant, run with --update and commit the new
baseline with the change); 77 not checked: no valgrind, or the facts (compiler, machine, build) are not those of the
baseline, whose counts then mean nothing."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BASELINE = pathlib.Path(__file__).with_name("instructions.json")
GROWTH_MAX = 0.03
SKIPPED = 77


def count(program, workload):
    """Instructions inside stateport::perf::counted."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=stateport::perf::counted*",
                   f"--callgrind-out-file={out}", program, workload]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{workload}: exit code {done.returncode}\n{done.stderr}")
        total = int(re.search(r"^(?:summary|totals): (\d+)$", out.read_text(), re.MULTILINE).group(1))
    if total == 0:
        raise SystemExit(f"{workload}: nothing was counted")
    return total


def grown(baseline, counts):
    """Yields a sentence for every workload that grew too much or is not in the baseline."""
    for workload, now in counts.items():
        before = baseline.get(workload)
        if before is None:
            yield f"{workload}: not in the baseline"
        elif now > before * (1 + GROWTH_MAX):
            yield f"{workload}: {before:,} -> {now:,} instructions, {now / before - 1:+.1%}"


def main(arguments):
    update = "--update" in arguments
    program, *facts = [argument for argument in arguments if argument != "--update"]
    facts = dict(fact.partition("=")[::2] for fact in facts)
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not here")
        return SKIPPED
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"facts": facts, "instructions": {}}
    if baseline["facts"] != facts and not update:
        print(f"skipped: the baseline is of {baseline['facts']}, this is {facts}")
        return SKIPPED
    usage = subprocess.run([program], capture_output=True, text=True, check=False).stdout
    counts = {workload: count(program, workload) for workload in re.findall(r"^  (\S+)$", usage, re.MULTILINE)}
    for workload, now in counts.items():
        before = baseline["instructions"].get(workload)
        print(f"{workload:24}{now:12,} instructions" + (f"  {now / before - 1:+.2%}" if before else ""))
    if update:
        BASELINE.write_text(json.dumps({"facts": facts, "instructions": counts}, indent=1) + "\n")
        return 0
    sentences = list(grown(baseline["instructions"], counts))
    for sentence in sentences:
        print(f"GREW: {sentence}")
    return 1 if sentences or not counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
