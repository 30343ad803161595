#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the instructions of the copy kernels, as check-vendor-compile.sh leaves them in the build folder.

    check_isa.py cuda|hip FOLDER

FOLDER holds, for every source of the kernels, NAME.ptx and NAME.ptxas (the output of ptxas -v) or NAME.s (gfx942). PTX
serves for sm_90: ptxas keeps the width of accesses, and reports registers and spills itself. Of each kernel it must be
true that
  * it keeps to its registers and has no stack, where spilled registers and arrays lie;
  * each of its paths is there: one basic block with the expected number of independent loads of a width, then as many
    stores, and no other access to memory, so that no byte loop has taken its place. A path that reads, waits at a
    barrier and then writes has no store in its block;
  * it accesses the copied memory as global memory, has no more barriers and fences than it needs, and divides no 64-bit
    numbers. The limits include everything that Kokkos adds to every kernel of teams.
Exit code 0, or 1 with a line for every rule that is broken. Standard library only."""
import pathlib
import re
import sys
from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Path:
    loads: int  # of `width` bytes, all before the first store of the block
    stores: int
    width: int = 16
    widths: tuple = ()  # of all accesses, where they differ


COPY = Path(loads=4, stores=4)
# A tile's remainder: its stores are in blocks of their own, each under its condition.
REMAINDER = Path(loads=4, stores=1)
# All words of a lane of an aligned tile; see aligned_shape in gpu/launch_shape.hpp.
ALIGNED = Path(loads=2, stores=2)
# Four fp32 that become bf16, or four bf16 that become fp32.
QUADS = Path(loads=4, stores=4, widths=(16,) * 4 + (8,) * 4)
SHIFT_SD = tuple(Path(loads=tokens, stores=tokens) for tokens in (3, 5))  # 1, 2 and 4 kept tokens have four loads, as COPY
# Rows of ds on their way to the memory that a team shares.
SHIFT_DS = Path(loads=4, stores=0)
# Two packs of eight fp32, each of which becomes 16 bytes.
CONVERT = Path(loads=4, stores=2)
CLEAR = Path(loads=0, stores=1)
# Words that are read to be summed.
SUM = Path(loads=4, stores=0)


@dataclass(frozen=True)
class Rule:
    kernel: str  # in the mangled name, where a number after it is a CopyCode
    paths: tuple
    barriers: int
    fences: int = 0
    registers: int = 64
    generic: int = 0  # accesses that look up where an address lies
    divisions: int = 2  # of 64 bits; Kokkos has two in its kernels of teams


# A pack of eight fp32 that becomes eight values, and of values that becomes eight bf16; two of each are in flight.
# Loads alone: divisions branch off before the stores.
ENCODE = Path(loads=4, stores=0)
DECODE = Path(loads=4, stores=0, widths=(8, 8, 2, 2))
# Registers of a thread that the second launch bound leaves, see gpu/launch_shape.hpp: CUDA shares 65,536 among the
# threads of a multiprocessor, HIP 512 among the waves of a SIMD.
CUDA_GENERAL_REGISTERS = 80
HIP_REGISTERS = 96
HIP_GENERAL_REGISTERS = 128
HIP_DECIDING_REGISTERS = 168
# Tables of a group are found through pointers in memory: their entries are looked at once a tile.
ALIGN_GENERIC = 90
BYTES = (COPY, REMAINDER, *SHIFT_SD, SHIFT_DS)
RULES = [
    Rule("CopyAlignedILb0E", (ALIGNED,), barriers=2, registers=32),
    Rule("CopyAlignedILb1E", (COPY, QUADS), barriers=2, registers=40),
    Rule("SumAligned", (ALIGNED,), barriers=11, registers=32),
    Rule("SumRows", (SUM,), barriers=11),
    Rule("SettleChecks", (), barriers=11, fences=1, registers=48, generic=4),
    Rule("CopyRows0", BYTES, barriers=4, registers=48),
    Rule("CopyRows1", (*BYTES, CONVERT), barriers=4, registers=CUDA_GENERAL_REGISTERS),
    Rule("CopyRows2", (*BYTES, CONVERT, ENCODE, DECODE), barriers=4, registers=CUDA_GENERAL_REGISTERS),
    Rule("CopyRowsOnDevice0", BYTES, barriers=11),
    Rule("CopyRowsOnDevice1", (*BYTES, CONVERT), barriers=11, registers=CUDA_GENERAL_REGISTERS),
    Rule("CopyRowsOnDevice2", (*BYTES, CONVERT, ENCODE, DECODE), barriers=11, registers=128),
    Rule("AlignStepKernel0", BYTES, barriers=19, fences=2, generic=ALIGN_GENERIC),
    Rule("AlignStepKernel1", (*BYTES, CONVERT), barriers=19, fences=2, registers=CUDA_GENERAL_REGISTERS,
         generic=ALIGN_GENERIC),
    Rule("ClearRows", (CLEAR,), barriers=2),
    Rule("CommitStep0", (COPY, REMAINDER), barriers=9),
    Rule("CommitStep1", (COPY, REMAINDER, CONVERT), barriers=9, registers=CUDA_GENERAL_REGISTERS),
]


def is_kernel(rule, name):
    """Whether a rule is about the kernel of this mangled name. Template arguments of enumerators are IL<type>E<n>E."""
    return re.search(re.sub(r"(\d)$", r"IL\\w{1,20}8CopyCodeE\1E", rule.kernel), name) is not None


@dataclass
class Kernel:
    name: str
    registers: int = -1
    stack_bytes: int = -1
    blocks: list = field(default_factory=lambda: [[]])  # of accesses: (is a store, bytes)
    counts: Counter = field(default_factory=Counter)  # barriers, fences, generic, divisions

    def widths(self, store):
        """How many accesses of each width: "16x4 8x2"."""
        found = Counter(size for block in self.blocks for is_store, size in block if is_store == store)
        return " ".join(f"{size}x{count}" for size, count in sorted(found.items(), reverse=True))


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


PTX_COUNTED = {
    "barriers": r"\s+(bar|barrier)(\.cta)?\.(sync|red)",
    "fences": r"\s+(membar|fence\.\w+)\.(gl|gpu|sys)",
    "generic": r"\s*(@!?%p\d+\s+)?(ld|st)\.(v\d\.)?[subf]\d+\s",
    "divisions": r"\s+(div|rem)\.[su]64",
}


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
        else:
            kernels[-1].counts.update(what for what, pattern in PTX_COUNTED.items() if re.match(pattern, line))
            if access := access_bytes_ptx(line):
                kernels[-1].blocks[-1].append(access)
    return kernels


def add_ptxas(kernels, text):
    """Registers and spills from the output of ptxas -v."""
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


GFX_COUNTED = {
    "barriers": r"\s+s_barrier",
    "fences": r"\s+buffer_wbl2",
    "generic": r"\s+flat_(load|store)_",
    # A constant that divisions of 64 bits alone multiply by; each does once.
    "divisions": r"\s+v_mul_f32.*0x5f7ffffc",
}


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
        else:
            kernels[-1].counts.update(what for what, pattern in GFX_COUNTED.items() if re.match(pattern, line))
            if found := re.match(r"\s+(?:flat|global|buffer)_(load|store)_(\w+)", line):
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


def has_path(kernel, path):
    """Whether a block of the kernel is the path."""
    for block in kernel.blocks:
        stores = [store for store, _ in block]
        loads = stores.index(True) if True in stores else len(stores)
        wanted = path.widths or (path.width,) * len(block)
        if (loads, sum(stores)) == (path.loads, path.stores) and sorted(size for _, size in block) == sorted(wanted):
            return True
    return False


def broken_rules(kernels, rules):
    """Yields a sentence for everything that is not as the rules want it."""
    for rule in rules:
        found = [kernel for kernel in kernels if is_kernel(rule, kernel.name)]
        if not found:
            yield f"{rule.kernel}: no such kernel was compiled"
        for kernel in found:
            if not 0 <= kernel.registers <= rule.registers:
                yield f"{rule.kernel}: {kernel.registers} registers, at most {rule.registers} are allowed"
            if kernel.stack_bytes != 0:
                yield f"{rule.kernel}: {kernel.stack_bytes} bytes of registers or arrays go to memory"
            for what in ("barriers", "fences", "generic", "divisions"):
                if kernel.counts[what] > getattr(rule, what):
                    yield f"{rule.kernel}: {what}: {kernel.counts[what]}, at most {getattr(rule, what)} are allowed"
            for path in rule.paths:
                if not has_path(kernel, path):
                    yield (f"{rule.kernel}: no block with {path.loads} loads of {path.widths or path.width} bytes then "
                           f"{path.stores} such stores and no other access")


# Teams have fewer lanes there, so that a lane has more of an aligned tile.
HIP_PATHS = {ALIGNED: Path(loads=8, stores=8), QUADS: Path(loads=2, stores=2, widths=(16, 16, 8, 8))}


def for_hip(rule):
    """The rule on gfx942. The two stores of CommitStep's conversion are in blocks of their own there."""
    paths = [HIP_PATHS.get(path, path) for path in rule.paths]
    if "CommitStep" in rule.kernel:
        paths = [path for path in paths if path != CONVERT]
    if "CopyAlignedILb1E" in rule.kernel:
        paths.remove(COPY)  # a part of a tile is two words a lane
    decides = re.match("CopyRowsOnDevice|AlignStep|CommitStep", rule.kernel)
    registers = HIP_REGISTERS
    if re.search("[12]$", rule.kernel):
        registers = HIP_DECIDING_REGISTERS if decides else HIP_GENERAL_REGISTERS
    return replace(rule, paths=tuple(paths), registers=registers)


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
    rules = RULES if vendor == "cuda" else [for_hip(rule) for rule in RULES]
    kernels = read_folder(vendor, folder)
    broken = list(broken_rules(kernels, rules))
    for kernel in kernels:
        if name := next((rule.kernel for rule in rules if is_kernel(rule, kernel.name)), None):
            print(f"check-isa: {name:24}{kernel.registers:4} registers, {kernel.stack_bytes} bytes of stack, "
                  + ", ".join(f"{kernel.counts[what]} {what}" for what in PTX_COUNTED)
                  + f"; loads {kernel.widths(False)}; stores {kernel.widths(True)}")
    for sentence in broken:
        print(f"check-isa: {vendor}: BROKEN: {sentence}", file=sys.stderr)
    if not broken:
        print(f"check-isa: {vendor}: {len(rules)} kernels keep the rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
