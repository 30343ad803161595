#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the instructions of the copy kernels, as check-vendor-compile.sh leaves them in the build folder.

    check_isa.py cuda|hip FOLDER

FOLDER holds, for every source of the kernels, NAME.ptx and NAME.ptxas (what ptxas -v says) or NAME.s (gfx942). PTX
serves for sm_90: ptxas keeps the width of accesses, and says itself what became of the registers. Of each kernel it must be true that
  * it keeps to its registers and has no stack, where spilled registers and arrays lie;
  * its fast path is there: one basic block with so many independent 16-byte loads before the first 16-byte store, as
    many 16-byte stores, and no narrower access to memory, so that no byte loop has taken its place.
Exit code 0, or 1 with a line for every rule that is broken. Standard library only."""
import pathlib
import re
import sys
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Rule:
    kernel: str  # in the mangled name
    loads: int  # 16-byte loads in flight in the fast path
    stores: int
    registers: int = 64
    stack_bytes: int = 0


# The align step keeps the counters of its two outer loops in memory on sm_90: two accesses a pass, none beside a copy.
ALIGN_STACK_BYTES = 8
# The second launch bound of HIP leaves 96 vector registers of 512 to each of five waves; see gpu/copy_tile.hpp.
HIP_REGISTERS = 96
RULES = [
    Rule("CopyRowsILb0E", loads=4, stores=4),
    Rule("CopyRowsILb1E", loads=4, stores=4),
    Rule("CopyRowsOnDeviceILb0E", loads=4, stores=4),
    Rule("CopyRowsOnDeviceILb1E", loads=4, stores=4),
    Rule("AlignStepKernel", loads=4, stores=4, stack_bytes=ALIGN_STACK_BYTES),
    Rule("ClearRows", loads=0, stores=1),
    Rule("CommitStep", loads=4, stores=4),
]


@dataclass
class Kernel:
    name: str
    registers: int = -1
    stack_bytes: int = -1
    blocks: list = field(default_factory=lambda: [[]])  # of accesses: (is a store, bytes)


def access_bytes_ptx(line):
    """(is a store, bytes) of an access to global memory, or None."""
    found = re.match(r"\s*(?:@!?%p\d+\s+)?(ld|st)((?:\.\w+)*)\s", line)
    if not found:
        return None
    parts = found.group(2).split(".")[1:]
    if any(part in ("param", "shared", "const", "local") for part in parts):
        return None
    lanes = next((int(part[1:]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    bits = next(int(part[1:]) for part in parts if re.fullmatch(r"[subf]\d+", part))
    return found.group(1) == "st", lanes * bits // 8


def read_ptx(text):
    """Kernels of one PTX file."""
    kernels = []
    for line in text.splitlines():
        entry = re.search(r"\.entry\s+(\w+)", line)
        if entry:
            kernels.append(Kernel(entry.group(1)))
        elif not kernels:
            continue
        elif re.match(r"\$?\w+:|\s+(@!?%p\d+\s+)?bra", line):
            kernels[-1].blocks.append([])
        elif access := access_bytes_ptx(line):
            kernels[-1].blocks[-1].append(access)
    return kernels


def add_ptxas(kernels, text):
    """Registers and spills from what ptxas -v said."""
    by_name = {kernel.name: kernel for kernel in kernels}
    kernel = None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = by_name[found.group(1)]
        elif found := re.search(r"(\d+) bytes stack frame", line):
            kernel.stack_bytes = int(found.group(1))
        elif found := re.search(r"Used (\d+) registers", line):
            kernel.registers = int(found.group(1))


GFX_BYTES = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4, "dwordx2": 8,
             "dwordx3": 12, "dwordx4": 16, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}


def read_gfx(text):
    """Kernels of one gfx942 assembly file, with registers and scratch memory from its metadata."""
    kernels = []
    for line in text.splitlines():
        if entry := re.match(r"(_Z\w+):", line):
            kernels.append(Kernel(entry.group(1)))
        elif not kernels:
            continue
        elif re.match(r"\.LBB\w+:|\s+s_c?branch", line):
            kernels[-1].blocks.append([])
        elif found := re.match(r"\s+(?:flat|global|buffer)_(load|store)_(\w+)", line):
            width = found.group(2).removesuffix("_d16").removesuffix("_d16_hi")
            kernels[-1].blocks[-1].append((found.group(1) == "store", GFX_BYTES[width]))
    by_name = {kernel.name: kernel for kernel in kernels}
    for entry in re.split(r"\n  - \.agpr_count:", text)[1:]:
        number = {key: int(value) for key, value in re.findall(r"\n    \.(\w+):\s+(\d+)\n", entry.replace("\n", "\n\n"))}
        kernel = by_name[re.search(r"\n    \.name:\s+(\w+)", entry).group(1)]
        kernel.registers = number["vgpr_count"]
        # Scratch memory is where spilled vector registers and arrays go. Spilled scalars go to lanes of vector
        # registers: they cost no memory access and are counted as registers.
        kernel.stack_bytes = number["private_segment_fixed_size"]
    return kernels


def fast_path(block):
    """(16-byte loads before the first store, 16-byte stores) of a block with nothing narrower; (0, 0) otherwise."""
    if any(size < 16 for _, size in block):
        return 0, 0
    stores = [store for store, _ in block]
    return stores.index(True) if True in stores else len(stores), sum(stores)


def broken_rules(kernels, rules):
    """Yields a sentence for everything that is not as the rules want it."""
    for rule in rules:
        found = [kernel for kernel in kernels if rule.kernel in kernel.name]
        if not found:
            yield f"{rule.kernel}: no such kernel was compiled"
        for kernel in found:
            if not 0 <= kernel.registers <= rule.registers:
                yield f"{rule.kernel}: {kernel.registers} registers, at most {rule.registers} are allowed"
            if not 0 <= kernel.stack_bytes <= rule.stack_bytes:
                yield f"{rule.kernel}: {kernel.stack_bytes} bytes of registers or arrays go to memory"
            paths = [fast_path(block) for block in kernel.blocks]
            if not any(loads >= rule.loads and stores >= rule.stores for loads, stores in paths):
                yield (f"{rule.kernel}: no block with {rule.loads} loads of 16 bytes before {rule.stores} such stores "
                       f"and nothing narrower; best: {max(paths)}")


def read_folder(vendor, folder):
    kernels = []
    for path in sorted(folder.glob("*.ptx" if vendor == "cuda" else "*.s")):
        found = read_ptx(path.read_text()) if vendor == "cuda" else read_gfx(path.read_text())
        if vendor == "cuda":
            add_ptxas(found, path.with_suffix(".ptxas").read_text())
        kernels += found
    return kernels


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("cuda", "hip"):
        raise SystemExit(__doc__)
    vendor, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    rules = RULES if vendor == "cuda" else [replace(rule, registers=HIP_REGISTERS, stack_bytes=0) for rule in RULES]
    kernels = read_folder(vendor, folder)
    broken = list(broken_rules(kernels, rules))
    for kernel in kernels:
        if name := next((rule.kernel for rule in rules if rule.kernel in kernel.name), None):
            print(f"check-isa: {name:24}{kernel.registers:4} registers, {kernel.stack_bytes} bytes of stack")
    for sentence in broken:
        print(f"check-isa: {vendor}: BROKEN: {sentence}", file=sys.stderr)
    if not broken:
        print(f"check-isa: {vendor}: {len(rules)} kernels keep the rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
