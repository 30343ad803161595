#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""G1, G3, G4, G5 against Triton's kernels and torch's indexing, on the same torch tensors, in device time.

    torch_copy_bench.py --library libstateport-c.so [--benchmark_filter REGEX]     # JSON as of Google Benchmark
    torch_copy_bench.py --library libstateport-c.so --device cpu                   # a dry run: bytes, no figures

This library is called through <stateport.h>, with views of the tensors. Before each timed run its destinations are
poisoned (or restored) and the caches swept, after it every byte is compared. Without torch, Triton or a device it says
so and exits with 77 (skipped). The dry run needs a library of an OpenMP build and no device: Triton interprets."""
import argparse
import json
import os
import pathlib
import sys
from contextlib import closing

import comparison

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "c" / "python"))
import stateport_c  # noqa: E402
from stateport_c import BF16, CONV, FP32, RECURRENT  # noqa: E402

SKIPPED = 77
ROUNDS = 31
NOTHING_ROUNDS = 101  # a launch without work takes so little that more runs are cheap

# Tensors as (kind, type, *extents). Those of a device: 80 KiB and 2 MiB a layer; those of a dry run: small.
SIZES = {
    "cuda": {"conv": (CONV, BF16, 4, 10240), "recurrent": (RECURRENT, FP32, 32, 128, 128), "layers": 24,
             "requests": (1, 4, 16, 64, 256, 512), "converted_requests": 16, "step_requests": 512,
             "window": {"layers": 36, "window": 6, "dim": 8192, "requests": 64}, "limit_bytes": 1 << 30},
    "cpu": {"conv": (CONV, BF16, 4, 104), "recurrent": (RECURRENT, FP32, 3, 16, 48), "layers": 2,
            "requests": (1, 3), "converted_requests": 2, "step_requests": 5,
            "window": {"layers": 2, "window": 6, "dim": 272, "requests": 2}, "limit_bytes": 1 << 16},
}


class Skipped(Exception):
    """There is nothing here to measure with."""


def load(device_name, library_path):
    """Returns (library, device, torch_workloads). Raises Skipped."""
    if device_name == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise Skipped(f"Python has no torch and Triton here: {error}") from error
    if device_name == "cuda" and not torch.cuda.is_available():
        raise Skipped("torch finds no device")
    import torch_devices
    import torch_workloads
    try:
        library = stateport_c.Library(library_path)
    except OSError as error:
        raise Skipped(f"the library cannot be loaded: {error}") from error
    wanted = "OpenMP" if device_name == "cpu" else "HIP" if torch.version.hip else "CUDA"
    if library.text("backend") != wanted:
        raise Skipped(f"the library is built for {library.text('backend')}, torch here runs on {wanted}")
    device = torch_devices.Gpu() if device_name == "cuda" else torch_devices.Cpu()
    return library, device, torch_workloads


class Suite:
    def __init__(self, library, device, workloads):
        self._library, self._device, self._workloads = library, device, workloads
        self._size = SIZES[device.name]
        self._layers = [self._size["conv"], self._size["recurrent"]] * self._size["layers"]

    def benchmarks(self):
        """{name: function that returns counters, or raises MemoryError or WrongBytes}."""
        layers, size = self._layers, self._size
        found = {f"G1/{n}": lambda n=n: self._limited(self._copies(layers, n)) for n in size["requests"]}
        found["G3"] = self._nothing_to_do
        for layout in ("sd", "ds"):
            found[f"G4/{layout}"] = lambda layout=layout: self._limited(lambda: self._workloads.Shift(
                self._library, self._device, ds=layout == "ds", **size["window"]))
        found["G5"] = lambda: self._limited(
            self._copies([size["recurrent"]] * size["layers"], size["converted_requests"], to_bf16=True))
        return {name: self._in_memory(run) for name, run in found.items()}

    def _in_memory(self, run):
        def guarded():
            try:
                return run()
            except self._device.OutOfMemory as error:
                raise MemoryError(str(error)) from None

        return guarded

    def _copies(self, shapes, requests, to_bf16=False):
        return lambda: self._workloads.Copies(self._library, self._device, shapes, requests, self._device.free_bytes(),
                                              to_bf16)

    def _rounds(self, measured):
        return measured if self._device.name == "cuda" else 2

    def _limited(self, make):
        """Counters of a workload and of the limits: the time of its bytes at the speed of one contiguous copy."""
        with closing(self._workloads.ContiguousCopy(self._library, self._device, self._size["limit_bytes"])) as limit, \
                closing(make()) as workload:
            counters = comparison.compare([*workload.contenders(), *limit.contenders()], self._rounds(ROUNDS),
                                          self._device.time_ns)
            counters["limit_ns"] = limit.limit_ns(counters, workload.moved_bytes)
            counters["GB_per_s"] = workload.moved_bytes / counters["ours_ns"]
            return counters

    def _nothing_to_do(self):
        with closing(self._workloads.Step(self._library, self._device, self._layers, self._size["step_requests"],
                                          computed=5, blocks=4)) as step:
            counters = comparison.compare(step.contenders(), self._rounds(NOTHING_ROUNDS), self._device.time_ns)
            counters["excess_ns"] = counters["ours_ns"] - counters["empty_ns"]
            return counters


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="shared library of the C interface")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="torch's word; cuda for HIP too")
    parser.add_argument("--benchmark_filter", default="", metavar="REGEX")
    parser.add_argument("--benchmark_format", choices=("json",), default="json")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    try:
        library, device, workloads = load(options.device, options.library)
    except Skipped as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    runtime = library.make("runtime_create", None)
    suite = Suite(library, device, workloads)
    objects = comparison.run_all(suite.benchmarks(), options.benchmark_filter, lambda text: print(text, file=sys.stderr))
    library.runtime_destroy(runtime)
    if options.device == "cpu":
        for result in objects:
            print(f"dry run: {result['name']}: {result.get('error_message', 'every contender writes the right bytes')}")
        return 1 if any("error_message" in result for result in objects) else 0
    versions = {name: sys.modules[name].__version__ for name in ("torch", "triton")}
    print(json.dumps({"context": {"library_version": library.text("version"), **versions}, "benchmarks": objects}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
