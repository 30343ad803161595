# SPDX-License-Identifier: Apache-2.0
"""Mistakes that ctypes alone would not notice: numbers that do not fit, memory that is gone, other objects."""
from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import combinations
import stateport as sp
from stateport import _arrays

BIG = 2**32


def make_cache(**options: Any) -> sp.RequestCache:
    defaults = {"max_requests": 2, "max_request_tokens": 256, "kv_tokens": 1024, "checkpoints": 4,
                "layout_fingerprint": 3, "scan_alignment_tokens": -1}
    return combinations.make_cache("tree_slots", **defaults | options)


NUMBERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: make_cache(max_requests=BIG + 2), f"max_requests is {BIG + 2}"),
    (lambda: make_cache(layout_fingerprint=-1), "layout_fingerprint is -1"),
    (lambda: make_cache(kv_tokens=2**64 + 512), f"kv_tokens is {2**64 + 512}"),
    (lambda: make_cache(checkpoints="4"), "checkpoints is '4', and must be an integer"),
    (lambda: make_cache(max_requests=True), "max_requests is True, and must be an integer"),
    (lambda: make_cache(eviction=sp.Eviction(samples=True)), "samples is True"),
    (lambda: make_cache(cost_linear=True), "cost_linear is True, and must be a number"),
    (lambda: make_cache().tokens(True), "True is no number"),
    (lambda: make_cache().start(np.ma.array([1, 2, 3], mask=[0, 1, 0])), "tokens has masked elements"),
    (lambda: make_cache(cost_linear="x"), "cost_linear is 'x', and must be a number"),
    (lambda: make_cache(eviction="lru"), "eviction is 'lru', and must be of Eviction"),
    (lambda: make_cache(tiers=5), "tiers is 5"),
    (lambda: make_cache().tokens(2**64), f"{2**64}"),
    (lambda: make_cache().tokens(None), "NoneType"),
    (lambda: make_cache().state_slots(2**64), f"{2**64}"),
    (lambda: make_cache().take_events(-1), "capacity is -1"),
    (lambda: make_cache().prometheus("a\0b"), "prefix is 'a\\x00b'"),
    (lambda: make_cache().start([1], hint=sp.ReuseHint(session=-1)), "session is -1"),
    (lambda: make_cache().start([1], namespace=sp.Namespace(salt="x")), "salt is 'x', and must be bytes"),  # type: ignore
    (lambda: make_cache().start([1], media=[sp.MediaKey(b"x", 2**64)]), f"first_token is {2**64}"),
    (lambda: make_cache().start([[1], [2, 3]]), "tokens cannot be read as an array"),
    (lambda: make_cache().start([2**70]), f"the first one is {2**70}"),
    (lambda: sp.PrefixTree(True), "slots is True"),
    (lambda: sp.PrefixTree(BIG + 8), f"slots is {BIG + 8}"),
    (lambda: sp.PrefixTree(8).lock(2**64 + 1), f"{2**64 + 1}"),
    (lambda: sp.PrefixTree(8).evict(states=2**64 + 1), f"states is {2**64 + 1}"),
    (lambda: sp.PrefixTree(8).allocate_slots(-1), "count is -1"),
    (lambda: sp.StateSpec([sp.TensorSpec("recurrent", "float32", (2**64 + 4,))]), f"the extent {2**64 + 4}"),
    (lambda: sp.StateSpec([sp.TensorSpec("recurrent", "float32", (4,), layer=BIG + 2)]), f"layer is {BIG + 2}"),
    (lambda: sp.TensorSpec("recurrent", "float32", 4), "shape is 4"),  # type: ignore[arg-type]
    (lambda: sp.AlignPlanner([sp.AlignGroup(BIG + 4, 9)], max_requests=2), f"block_size_tokens is {BIG + 4}"),
    (lambda: sp.image_keys([[0, 0]], [BIG * BIG], "state"), "tokens has elements"),
    (lambda: sp.image_keys([[0, 0]], [1.5], "state"), "tokens has elements of type float64"),
]


@pytest.mark.parametrize("number", range(len(NUMBERS)))
def test_a_number_that_does_not_fit_is_refused_by_name_and_value(number: int) -> None:
    use, text = NUMBERS[number]
    with pytest.raises(sp.InvalidArgument) as raised:
        use()
    assert text in str(raised.value)


def test_a_masked_array_without_a_masked_element_is_an_array() -> None:
    request = make_cache().start(np.ma.array([1, 2, 3], mask=False))
    assert request is not None


@pytest.mark.parametrize("use", [copy.copy, copy.deepcopy, pickle.dumps])
def test_objects_are_neither_copied_nor_pickled(use: Any) -> None:
    cache = make_cache()
    with pytest.raises(TypeError, match="a RequestCache cannot be copied or pickled"):
        use(cache)
    assert cache.stats().requests == 0


def test_a_plan_belongs_to_its_cache() -> None:
    first, second = make_cache(), make_cache()
    plans = []
    for cache in (first, second):
        request = cache.start([1, 2, 3])
        assert request is not None
        plans.append(cache.plan([request.request], [3]))
    for use in (lambda: second.commit(plans[0], [1], [5]), lambda: second.cancel(plans[0]),
                lambda: second.commit(None, [1], [5])):  # type: ignore[arg-type]
        with pytest.raises(sp.InvalidArgument, match="must be one of this cache"):
            use()
    with pytest.raises(sp.InvalidArgument, match="first is -4"):
        plans[0].kv(0, -4)


def test_copies_of_an_end_are_never_dropped() -> None:
    cache = make_cache(separate_checkpoints=True)
    with pytest.raises(sp.InvalidArgument, match="separate_checkpoints is set"), cache.serving([1, 2, 3]):
        pass
    assert cache.running_requests == 0


def test_an_object_that_goes_in_its_own_callback_is_destroyed_later() -> None:
    """A lock that is dropped while its tree evicts would hold its path for ever."""
    held: list[sp.Lock] = []

    def on_victim(_: sp.Victim) -> bool:
        held.clear()
        gc.collect()
        sp.PrefixTree(1)  # tries to destroy it, too early
        return False

    tree = sp.PrefixTree(4, eviction=sp.Eviction("lru"), on_victim=on_victim)
    for branch in range(2):
        slot = int(tree.allocate_slots(1)[0])
        tree.tag_slot(slot, [branch])
        node = tree.insert([branch], [branch], slot=slot).node
    held.append(tree.lock(node))
    tree.evict(states=1)
    gc.collect()
    assert not held and tree.sizes().protected_tokens == 1
    sp.PrefixTree(1)
    assert tree.sizes().protected_tokens == 0


def test_an_exception_tells_how_many_were_done() -> None:
    cache = make_cache(tiers=sp.TierOptions(host_bytes=1 << 20, state_image_bytes=4096, kv_image_bytes=4096))
    with pytest.raises(sp.InvalidArgument) as raised:
        cache.attach("host", np.zeros(1, sp.IMAGE_KEY))
    assert raised.value.done == 0


def test_threads_plan_and_read_without_tearing() -> None:
    """Calls of other threads do not change the arrays that a thread reads of its own request."""
    cache = sp.RequestCache("hash", sp.SlotLayout(layout_fingerprint=1, checkpoints=8), max_requests=4,
                            max_request_tokens=512, kv_tokens=1 << 14, events=True)
    failed: list[BaseException] = []

    def serve(thread: int) -> None:
        try:
            for turn in range(60):
                prompt = np.arange(100) + 1000 * (thread + 4 * turn)
                started = cache.start(prompt)
                assert started is not None
                assert np.array_equal(cache.tokens(started.request), prompt)
                assert len(cache.kv(started.request)) >= 0
                cache.take_events(16)
                cache.abort(started.request)
        except BaseException as error:  # raised by the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    cache.check_invariants()


# --- Memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spec(runtime: sp.Runtime) -> sp.StateSpec:
    assert not runtime.closed
    return sp.StateSpec([sp.TensorSpec("recurrent", "float32", (64,))])


def test_an_array_may_be_used_after_its_store_was_closed(spec: sp.StateSpec) -> None:
    for _ in range(20):
        with sp.StateStore(spec, 1 << 12) as store:
            array = store.tensor(0)
        array[...] = 2
        assert array.sum() == 2 * array.size


def test_trailing_extents_of_one_stay(runtime: sp.Runtime) -> None:
    assert not runtime.closed
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (4, 1))])
    assert sp.StateStore(spec, 3).tensor(0).shape == (3, 4, 1)
    sp.StateStore.view(spec, [np.zeros((3, 4, 1), np.float32)])


def test_a_quantised_view_has_whole_rows(runtime: sp.Runtime) -> None:
    assert not runtime.closed
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (64,))]).quantised("int8_block32")
    row = spec.slot_bytes
    sp.StateStore.view(spec, [np.zeros((3, row), np.uint8)])
    for tensor in (np.zeros((3, row - 1), np.uint8), np.zeros((3, 2 * row), np.uint8)[:, ::2], np.zeros((), np.uint8),
                   np.zeros(row, np.uint8)):
        with pytest.raises(sp.InvalidArgument):
            sp.StateStore.view(spec, [tensor])


def test_a_single_slot_may_have_any_stride(spec: sp.StateSpec) -> None:
    tensor = np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (1, 64), (4, 4))
    sp.StateStore.view(spec, [tensor]).clear([0])
    sp.synchronize()


def test_memory_that_is_only_read_may_be_read_only(spec: sp.StateSpec) -> None:
    scratch, steps = np.ones((2, 3, 64), np.float32), np.zeros(2, np.int32)
    scratch.flags.writeable = steps.flags.writeable = False
    store = sp.StateStore(spec, 2)
    sp.StepCommitter([scratch], store, steps=3).commit(steps, np.arange(2, dtype=np.int32))
    sp.synchronize()
    assert store.tensor(0).sum() == 128


class OnDevice:
    """A tensor that says it lies on a GPU."""

    def __init__(self, shape: tuple[int, ...], typestr: str) -> None:
        self.__cuda_array_interface__ = {"data": (4096, False), "shape": shape, "typestr": typestr, "version": 3}


@pytest.mark.skipif("sp.backend() != 'OpenMP'")
def test_no_call_follows_an_address_of_another_device(spec: sp.StateSpec) -> None:
    store = sp.StateStore(spec, 2)
    rows = OnDevice((2,), "<i4")
    committer = sp.StepCommitter([np.zeros((2, 3, 64), np.float32)], store, steps=3)
    context = sp.AlignContext([sp.AlignGroup(4, 2)], max_requests=2)
    for use in (lambda: committer.commit(rows, rows), lambda: context.bind([store], [OnDevice((2, 3), "<i4")]),
                lambda: sp.SlotCopier(store, store).copy_on_device(OnDevice((1, 4), "<i4")),
                lambda: sp.StepCommitter([OnDevice((2, 3, 64), "<f4")], store, steps=3),
                lambda: context.pre_step(rows, rows, rows)):
        with pytest.raises(sp.InvalidArgument, match="lies on a device of DLPack's type 2"):
            use()


def test_a_batch_has_no_more_rows_than_its_tables(spec: sp.StateSpec) -> None:
    context = sp.AlignContext([sp.AlignGroup(4, 3)], max_requests=4)
    store = sp.StateStore(spec, 3)
    context.bind([store], [np.ones((1, 3), np.int32)])
    two = np.zeros(2, np.int32)
    with pytest.raises(sp.InvalidArgument, match="request has 2 elements, and the block tables 1 rows"):
        context.pre_step(two, two, two, two)


@pytest.mark.parametrize("dtype", [np.dtype(np.int32), sp.TRANSFER_RESULT])
def test_arrays_are_where_c_expects_them(dtype: Any) -> None:
    """Bytes of a message begin anywhere; C may read whole words."""
    data = np.arange(1 + 4 * dtype.itemsize, dtype=np.uint8)
    for offset in range(2):
        given = np.frombuffer(data, dtype, 4, offset)
        taken = _arrays.ints("x", given, dtype) if dtype.kind == "i" else _arrays.records("x", given, dtype)
        assert taken.ctypes.data % (4 if dtype.kind == "i" else 8) == 0
        assert taken.tobytes() == given.tobytes()


def test_objects_of_another_kind_are_refused(spec: sp.StateSpec) -> None:
    store = sp.StateStore(spec, 2)
    tiers = sp.StateTiers(states=[store], host_bytes=1 << 20)
    for use, text in ((lambda: sp.SlotCopier(spec, store), "source is a StateSpec, and must be a StateStore"),
                      (lambda: sp.StateStore(store, 2), "spec is a StateStore"),
                      (lambda: sp.StateTiers(states=[spec], host_bytes=1), r"states\[0\] is a StateSpec"),
                      (lambda: tiers.begin_transfers(store, []), "cache is a StateStore, and must be a RequestCache"),
                      (lambda: sp.SlotCopier(store, store).copy([[0, 1]], layers=(0, 1, 9)), r"layers is \(0, 1, 9\)"),
                      (lambda: store.copy([[0, 1]], stream=True), "stream is a bool"),
                      (lambda: sp.StateTiers(states=[store], host_bytes=1, staging_bytes=-1), "staging_bytes is -1"),
                      (lambda: sp.StateTiers(states=[store], folder="a\0b", file_bytes=9), "must have no zero byte")):
        with pytest.raises(sp.InvalidArgument, match=text):
            use()
