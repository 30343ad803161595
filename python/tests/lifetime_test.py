# SPDX-License-Identifier: Apache-2.0
"""Closed objects, forks, threads and the end of the interpreter: exceptions, never a crash."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stateport as sp


def make_cache(**options: Any) -> sp.RequestCache:
    return sp.RequestCache("tree", sp.SlotLayout(checkpoints=8),
                           **{"max_requests": 4, "max_request_tokens": 1024, "kv_tokens": 4096,
                              "unchecked_layout": True, **options})


def closed(value: Any) -> Any:
    value.close()
    return value


USES: list[Callable[[], Any]] = [
    lambda: closed(make_cache()).start([1, 2, 3]),
    lambda: closed(make_cache()).stats(),
    lambda: closed(sp.StateSpec([sp.TensorSpec("recurrent", "float32", (4,))])).image_bytes,
]


@pytest.mark.parametrize("use", USES)
def test_a_closed_object_is_refused(use: Callable[[], Any]) -> None:
    with pytest.raises(sp.ClosedError, match="is closed"):
        use()


def test_closing_twice_is_fine_and_with_closes() -> None:
    with make_cache() as cache:
        assert not cache.closed
    assert cache.closed and repr(cache) == "<RequestCache, closed>"
    cache.close()


@pytest.mark.usefixtures("runtime")
def test_closed_stores_are_refused() -> None:
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (4,))])
    store, gone = sp.StateStore(spec, 2), closed(sp.StateStore(spec, 2))
    for use in (lambda: gone.copy([[0, 1]]), lambda: gone.tensor(0), lambda: sp.SlotCopier(store, gone),
                lambda: sp.StateTiers(states=[gone], host_bytes=1 << 20)):
        with pytest.raises(sp.ClosedError):
            use()
    copier = sp.SlotCopier(store, store)
    store.close()
    copier.copy([[0, 1]])  # the stores that a copier needs live on
    sp.synchronize()


def run(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120,
                          env=environment)


FORK = """
import os, stateport as sp
{before}
child = os.fork()
if child == 0:
    try:
        {use}
    except sp.InvalidState as error:
        print(error, flush=True)
        {after}
        os._exit(7)
    os._exit(1)
_, status = os.waitpid(child, 0)
{again}
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_objects_of_the_parent_are_refused_after_a_fork() -> None:
    cache = ("sp.RequestCache('tree', sp.SlotLayout(checkpoints=2), max_requests=1, max_request_tokens=64, "
             "kv_tokens=256, unchecked_layout=True)")
    done = run(FORK.format(before=f"cache = {cache}", use="cache.start([1, 2, 3])",
                           after=f"assert {cache}.start([1, 2])", again="assert cache.start([1, 2, 3])"))
    assert done.returncode == 7, done
    assert "before the process forked" in done.stdout


def test_objects_of_the_parent_have_a_name_after_a_fork() -> None:
    """It is written into logs."""
    done = run("""
import os, stateport as sp
tree, books = sp.PrefixTree(2), sp.SlotAllocator(2, 2)
cache = sp.RequestCache('tree', sp.SlotLayout(checkpoints=2), max_requests=1, max_request_tokens=64, kv_tokens=256,
                        unchecked_layout=True)
assert "closed" not in repr((tree, books, cache))
child = os.fork()
if child == 0:
    print(tree, books, cache, flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert done.stdout == "<PrefixTree, closed> <SlotAllocator, closed> <RequestCache, closed>\n", done


@pytest.mark.usefixtures("runtime")
def test_a_device_of_the_parent_is_refused_after_a_fork() -> None:
    make = "sp.StateStore(sp.StateSpec([sp.TensorSpec('recurrent', 'float32', (4,))]), 2)"
    done = run(FORK.format(before=f"store = {make}", use=make, after="", again="store.clear([0])"))
    assert done.returncode == 7, done
    assert "the device was started before this process forked" in done.stdout


@pytest.mark.usefixtures("runtime")
def test_objects_may_be_left_open_at_the_end_of_the_interpreter() -> None:
    done = run("import stateport as sp\nspec = sp.StateSpec([sp.TensorSpec('recurrent', 'float32', (4,))])\n"
               "store = sp.StateStore(spec, 2)\ntiers = sp.StateTiers(states=[store], host_bytes=1 << 20)\n"
               "cycle = [store]\ncycle.append(cycle)\nprint('left')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.mark.usefixtures("runtime")
def test_a_remote_tier_may_be_left_open_with_a_request_under_way() -> None:
    """Its thread calls the client, which is in Python: at the end of the interpreter it would wait for ever."""
    done = run("""
import time, numpy as np, stateport as sp

class Client:
    needs_registration = False

    def register(self, address, size): ...
    def unregister(self, address, size): ...

    def put(self, requests):
        time.sleep(0.3)
        return ["done"] * len(requests)

    get = exists = remove = put

    def close(self):
        print("closed")

spec = sp.StateSpec([sp.TensorSpec('recurrent', 'float32', (64,))])
whole = sp.SharedLayout(sp.ModelLayout(spec, [sp.TensorSplit(0, (sp.SplitBand(64, 8),))]))
remote = sp.RemoteOptions(sp.ClientStore(Client()), [whole], staging_bytes=4 << 20)
tiers = sp.StateTiers(states=[sp.StateStore(spec, 2)], model="a", remote=remote)
image = np.zeros(1, sp.SLOT_IMAGE)
image["key"] = sp.image_keys([[1, 1]], 64, "state")
tiers.put(image, "remote")
while not remote.store.info()["accepted_requests"]:
    tiers.poll()
assert tiers.info()["in_flight"]
print("left")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\nclosed\n", "")


def test_a_child_does_not_destroy_the_leftovers_of_its_parent() -> None:
    done = run("""
import os, stateport as sp
from stateport import _library
told = []
_library._leftovers.append((told.append, 7))
child = os.fork()
if child == 0:
    sp.PrefixTree(1)
    os._exit(len(told))
_, status = os.waitpid(child, 0)
sp.PrefixTree(1)
assert told == [7]
raise SystemExit(os.waitstatus_to_exitcode(status))
""")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("runtime")
def test_a_child_ends_without_the_threads_of_its_parent(tmp_path: pathlib.Path) -> None:
    """Tiers with files end when their threads have: a child has none of them."""
    done = run(f"""
import os, signal, stateport as sp
spec = sp.StateSpec([sp.TensorSpec('recurrent', 'float32', (4,))])
tiers = sp.StateTiers(states=[sp.StateStore(spec, 2)], model="a", folder={str(tmp_path / "images")!r},
                      file_bytes=1 << 20)
child = os.fork()
if child == 0:
    signal.alarm(30)
    tiers.close()
    os._exit(7)
_, status = os.waitpid(child, 0)
tiers.check_invariants()
raise SystemExit(os.waitstatus_to_exitcode(status))
""")
    assert done.returncode == 7, done


def test_threads_share_a_cache() -> None:
    """Requests of four threads interleave in one cache; its own checks find nothing."""
    cache = make_cache(max_requests=4, kv_tokens=1 << 14)
    failed: list[BaseException] = []

    def serve(thread: int) -> None:
        try:
            for turn in range(50):
                with cache.serving(np.arange(40) + 1000 * thread + turn) as request:
                    assert cache.computed(request.request) == 0
                    assert list(cache.tokens(request.request)[:1]) == [1000 * thread + turn]
        except BaseException as error:  # raised by the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    cache.check_invariants()
    assert cache.stats().requests == 200
    assert cache.running_requests == 0
