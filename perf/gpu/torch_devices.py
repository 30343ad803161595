# SPDX-License-Identifier: Apache-2.0
"""Where the benchmarks of torch_copy_bench run: a GPU, timed by its own events, or the CPU, for a dry run."""
import gc
import time

import torch


class Gpu:
    """Work goes to a stream of its own. A run is enqueued behind a kernel that waits, so that the device has all of it
    before it begins: the time of the Python calls is not counted, for any contender."""

    name = "cuda"  # torch's word, for HIP too
    waiting_cycles = 10_000_000  # some 5 ms; 96 launches of torch are enqueued in less
    swept_bytes = 1 << 30  # four times the last-level cache of today's GPUs
    OutOfMemory = torch.cuda.OutOfMemoryError

    def __init__(self):
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._swept = torch.zeros(self.swept_bytes // 4, dtype=torch.int32, device=self.name)
        self.synchronize()

    @property
    def stream(self):
        return self._stream.cuda_stream

    def synchronize(self):
        self._stream.synchronize()

    def free_bytes(self):
        gc.collect()
        torch.cuda.empty_cache()
        return int(0.85 * torch.cuda.mem_get_info()[0])  # the rest: room to compare and to index

    def time_ns(self, run):
        self._swept.amax()  # reading leaves no lines in the caches that the run would have to write back
        self.synchronize()
        torch.cuda._sleep(self.waiting_cycles)
        self._begin.record()
        run()
        self._end.record()
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) * 1e6

    def graph(self, enqueue):
        """Returns a function that replays the work of `enqueue`."""
        enqueue()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            enqueue()
        return graph.replay


class Cpu:
    """Runs everything, and its times mean nothing: Triton interprets its kernels here."""

    name = "cpu"
    stream = None
    OutOfMemory = MemoryError

    def synchronize(self):
        pass

    def free_bytes(self):
        return 1 << 20

    def time_ns(self, run):
        begin = time.perf_counter_ns()
        run()
        return max(1, time.perf_counter_ns() - begin)

    def graph(self, enqueue):
        return enqueue
