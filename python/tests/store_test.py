# SPDX-License-Identifier: Apache-2.0
"""Specs, stores, views of other libraries' tensors, and copies."""
from __future__ import annotations

import ctypes
import dataclasses
import gc
import pathlib
import random
import weakref
from typing import Any, cast

import numpy as np
import pytest

import stateport as sp
from conftest import seeds
from stateport import _c, _tensors
from stateport._library import calls

pytestmark = pytest.mark.usefixtures("runtime")

CONV = sp.TensorSpec("conv", "float32", (4, 6), conv_layout="ds")
STATE = sp.TensorSpec("recurrent", "float32", (2, 3, 4))
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "tests/core/model/configs"


@pytest.fixture(scope="module")
def spec() -> sp.StateSpec:
    return sp.StateSpec([CONV, STATE])


def filled(slots: int, seed: int = 1) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(seed)
    return [draw.random((slots, *tensor.memory_shape()), np.float32) for tensor in (CONV, STATE)]


def test_a_spec_tells_its_tensors_bytes_and_fingerprint(spec: sp.StateSpec) -> None:
    assert [tensor.shape for tensor in spec] == [(4, 6), (2, 3, 4)]
    assert spec.slot_bytes == 4 * 48
    assert spec.fingerprint == sp.StateSpec(list(spec)).fingerprint != 0
    assert spec.fingerprint != sp.StateSpec([STATE]).fingerprint
    assert spec.image_bytes % 4096 == 0 and spec.image_bytes > spec.slot_bytes


def test_every_model_of_the_catalogue_has_a_spec() -> None:
    assert "qwen3-next-80b-a3b" in sp.models()
    for model in sp.models():
        spec = sp.StateSpec.find(model)
        assert spec.slot_bytes > 0
        assert sp.StateSpec(list(spec)).fingerprint == spec.fingerprint, model


def test_a_model_of_a_config_is_that_of_the_catalogue() -> None:
    for name in ("qwen3.5-27b", "kimi-k3", "lfm3-1.7b", "inkling", "qwen3.8-flash-next"):
        config = (CONFIGS / f"{name}.json").read_text(encoding="utf-8")
        row, model = sp.ModelInfo.find(name), sp.ModelInfo.from_config(config)
        assert dataclasses.replace(model, name=row.name, status=row.status) == row
        assert (row.name, model.status) == (name, "from its config.json")
        options: dict[str, Any] = {"drafts": 2, "conv_layout": "ds", "recurrent_dtype": "bfloat16"}
        spec = sp.StateSpec.from_config(config.encode(), **options)
        assert spec.fingerprint == sp.StateSpec.find(name, **options).fingerprint
        layout = sp.ModelLayout.from_config(config, **options)
        assert layout.fingerprint == sp.ModelLayout.find(name, **options).fingerprint
        assert layout.spec().fingerprint == spec.fingerprint
    assert sp.ModelInfo.find("kimi-k3").kv_bytes_per_token == 24 * 576 * 2
    assert sp.ModelInfo.find("qwen3.8-flash-next").kv_bytes_per_token is None
    kinds = [(tensor.kind, tensor.dtype, tensor.shape) for tensor in sp.StateSpec.find("qwen3.8-flash-next")][:4]
    assert kinds == [("conv", "bfloat16", (3, 10240)), ("conv", "bfloat16", (9, 10240)), ("conv", "int8", (2, 8)),
                     ("recurrent", "float32", (48, 128, 128))]


def test_a_quantised_spec_is_smaller() -> None:
    live = sp.StateSpec.find("qwen3-next-80b-a3b", recurrent_dtype="float32")
    assert live.quantised("int8_block32").slot_bytes < live.quantised("bfloat16").slot_bytes < live.slot_bytes


@pytest.mark.parametrize(("make", "text"), [
    (lambda: sp.TensorSpec("convolution", "float32", (4, 6)), "kind is 'convolution'"),
    (lambda: sp.TensorSpec("conv", "float31", (4, 6)), "dtype is 'float31'"),
    (lambda: sp.TensorSpec("conv", "float32", (4, 6, 2)), "shape is (4, 6, 2)"),
    (lambda: sp.StateSpec([]), "tensors"),
    (lambda: sp.ModelInfo.find("gpt-2"), "model = gpt-2"),
    (lambda: sp.ModelInfo.from_config("{}"), "model_type = absent"),
    (lambda: sp.ModelInfo.from_config(""), "config = byte 1"),
    (lambda: sp.ModelInfo.from_config(cast(Any, 5)), "config is 5"),
    (lambda: sp.StateSpec.from_config("[1]"), "config = list"),
    (lambda: sp.StateSpec.from_config("{}", conv_layout="sdd"), "conv_layout is 'sdd'"),
    (lambda: sp.ModelLayout.from_config('{"model_type": "llama"}'), 'model_type = "llama"'),
    (lambda: sp.StateSpec([sp.TensorSpec("recurrent", "float32", (0, 4))]), "0"),
    (lambda: sp.StateSpec.find("no-such-model"), "no-such-model"),
    (lambda: sp.StateSpec([STATE]).quantised("float64"), ""),
])
def test_bad_specs_are_refused(make: Any, text: str) -> None:
    with pytest.raises(sp.InvalidArgument) as raised:
        make()
    assert text in str(raised.value)


@pytest.mark.parametrize("layout", ["layer_major", "slot_major"])
def test_an_owned_store_is_seen_as_arrays(spec: sp.StateSpec, layout: str) -> None:
    store = sp.StateStore(spec, 3, layout=layout)
    store.clear(range(3))
    sp.synchronize()
    arrays = [store.tensor(0), store.tensor(1)]
    assert [array.shape for array in arrays] == [(3, 6, 4), (3, 2, 3, 4)]
    for array, values in zip(arrays, filled(3), strict=True):
        assert not array.any()
        array[...] = values
    store.copy([[2, 0]])
    sp.synchronize()
    for array, values in zip(arrays, filled(3), strict=True):
        assert np.array_equal(array[[0, 1, 2]], values[[2, 1, 2]])


def test_an_array_of_a_store_outlives_it(spec: sp.StateSpec) -> None:
    store = sp.StateStore(spec, 2)
    store.clear([0, 1])
    sp.synchronize()
    array = store.tensor(1)
    del store
    gc.collect()
    array[...] = 3
    assert array.sum() == 3 * array.size


def test_a_store_goes_with_the_last_array_of_it(spec: sp.StateSpec) -> None:
    store = sp.StateStore(spec, 2)
    handle, array, out = store.handle, store.tensor(1), _c.TensorMemory()
    store.close()
    gc.collect()
    calls.store_tensor(handle, 1, ctypes.byref(out))
    assert out.base == array.ctypes.data
    del array
    gc.collect()
    with pytest.raises(sp.Error, match="a handle that was destroyed"):
        calls.store_tensor(handle, 1, ctypes.byref(out))


def test_a_view_keeps_tensors_until_the_last_user_is_gone(spec: sp.StateSpec) -> None:
    tensors = filled(3)
    seen = weakref.ref(tensors[1])
    view = sp.StateStore.view(spec, tensors)
    copier = sp.SlotCopier(view, sp.StateStore(spec, 3))
    del tensors, view
    gc.collect()
    assert seen() is not None
    copier.copy([[0, 1]])
    sp.synchronize()
    del copier
    gc.collect()
    assert seen() is None


def test_views_take_any_strides_that_a_spec_describes() -> None:
    """A conv state within a wider tensor, and a step from slot to slot that is no slot's size."""
    pool = np.zeros((4, 2, 9, 5), np.float32)
    spec = sp.StateSpec([sp.TensorSpec("conv", "float32", (4, 9), conv_layout="ds", token_stride=1, channel_stride=5)])
    view = sp.StateStore.view(spec, [pool[:, 1, :, :4]])
    pool[...] = np.random.default_rng(2).random(pool.shape, np.float32)
    before = pool.copy()
    view.copy([[0, 3], [1, 2]])
    sp.synchronize()
    before[[3, 2], 1, :, :4] = before[[0, 1], 1, :, :4]
    assert np.array_equal(pool, before)


def bad_views() -> list[Any]:
    conv, state = filled(3)
    read_only = state.copy()
    read_only.flags.writeable = False
    return [
        ([conv], "tensors has 1 elements, and the spec has 2"),
        ([conv, 3], "tensors[1] is a int"),
        ([conv, state.astype(np.float64)], "tensors[1] has elements of type float64, and must have float32"),
        ([conv.astype("c8"), state], "tensors[0] has elements of DLPack's type"),
        ([conv, state[:2]], "tensors[1] has the shape [2, 2, 3, 4], and must have [3, 2, 3, 4]"),
        ([conv, state[0]], "tensors[1] has the shape [2, 3, 4]"),
        ([conv.transpose(0, 2, 1).copy().transpose(0, 2, 1), state], "tensors[0] has strides of"),
        ([conv, np.broadcast_to(state[:1], state.shape)], "tensors[1]"),
        ([conv, read_only], "tensors[1]"),
        ([conv[:0], state[:0]], "slots is 0"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_tensors_that_do_not_fit_are_refused(spec: sp.StateSpec, number: int) -> None:
    tensors, text = bad_views()[number]
    with pytest.raises(sp.InvalidArgument) as raised:
        sp.StateStore.view(spec, tensors)
    assert text in str(raised.value)


def test_tensors_of_torch_are_viewed() -> None:
    torch = pytest.importorskip("torch")
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "bfloat16", (8, 8))])
    tensor = torch.randn(4, 8, 8).bfloat16()
    wanted = tensor.clone()
    wanted[3] = wanted[1]
    view = sp.StateStore.view(spec, [tensor])
    view.copy([[1, 3]])
    sp.synchronize()
    assert torch.equal(tensor.view(torch.int16), wanted.view(torch.int16))
    with pytest.raises(sp.InvalidArgument, match="tensors\\[0\\] has elements of type float16"):
        sp.StateStore.view(spec, [tensor.half()])
    with pytest.raises(sp.InvalidArgument, match="require gradient"):
        sp.StateStore.view(spec, [tensor.clone().requires_grad_()])
    with pytest.raises(sp.InvalidArgument, match="tensors\\[0\\]"):
        sp.StateStore.view(spec, [torch.empty(4, 8, 8, device="meta", dtype=torch.bfloat16)])


class Exported:
    """Floats by DLPack. Their data begin `byte_offset` bytes behind the address that DLPack names."""

    def __init__(self, array: np.ndarray[Any, Any], byte_offset: int, *, versioned: bool = True,
                 flags: int = 0) -> None:
        self._array = array
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        dense = _tensors._DLTensor(data=array.ctypes.data - byte_offset, device_type=_tensors.CPU, ndim=array.ndim,
                                   code=2, bits=32, lanes=1, shape=self._shape, byte_offset=byte_offset)
        self._name = b"dltensor_versioned" if versioned else b"dltensor"
        self._tensor = _tensors._Versioned(major=1, flags=flags, tensor=dense) if versioned else dense

    def __dlpack_device__(self) -> tuple[int, int]:
        return _tensors.CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes, new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
        return new(ctypes.addressof(self._tensor), self._name, None)


@pytest.mark.parametrize("versioned", [True, False])
def test_a_tensor_may_begin_behind_its_address(versioned: bool) -> None:
    spec = sp.StateSpec([STATE])
    room = np.arange(5 * 24, dtype=np.float32).reshape(5, 2, 3, 4)
    before = room.copy()
    view = sp.StateStore.view(spec, [Exported(room[1:4], 4 * 24, versioned=versioned)])
    assert np.array_equal(view.tensor(0), before[1:4])
    view.copy([[0, 2]])
    view.clear([1])
    sp.synchronize()
    before[3], before[2] = before[1], 0
    assert np.array_equal(room, before)


class Copying:
    """A tensor that cannot be exported without a copy."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return _tensors.CPU, 0

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("copy") is False:
            raise BufferError("it cannot be exported without a copy")
        return self._array.__dlpack__(**{**options, "copy": True})


def test_a_copy_is_no_view() -> None:
    """The engine would never see bytes that are written into a copy."""
    spec, array = sp.StateSpec([STATE]), filled(3)[1]
    sp.StateStore.view(spec, [Exported(array, 0)])
    for tensor in (Exported(array, 0, flags=_tensors._COPIED), Copying(array)):
        with pytest.raises(sp.InvalidArgument, match=r"tensors\[0\] cannot be viewed by DLPack.*without a copy"):
            sp.StateStore.view(spec, [tensor])
    with pytest.raises(sp.InvalidArgument, match=r"tensors\[0\] is read-only"):
        sp.StateStore.view(spec, [Exported(array, 0, flags=_tensors._READ_ONLY)])


class OnDevice:
    """A tensor that says it lies on a GPU."""

    def __init__(self, read_only: bool = False) -> None:
        self.__cuda_array_interface__ = {"data": (4096, read_only), "shape": (3, 2, 3, 4), "typestr": "<f4",
                                         "version": 3}


@pytest.mark.skipif("sp.backend() != 'OpenMP'")
def test_a_tensor_on_another_device_is_refused() -> None:
    with pytest.raises(sp.InvalidArgument, match=r"tensors\[0\] lies on a device of DLPack's type 2"):
        sp.StateStore.view(sp.StateSpec([STATE]), [OnDevice()])
    with pytest.raises(sp.InvalidArgument, match=r"tensors\[0\] is read-only"):
        sp.StateStore.view(sp.StateSpec([STATE]), [OnDevice(read_only=True)])


@pytest.mark.parametrize(("copies", "text"), [
    ([[0, 3]], "3"), ([[-5, 4]], "4"), ([[0, 1], [2, 1]], "1"), ([[0, 1], [1, 2]], "1"), ([[0, 1, 2]], "shape"),
    ([[0.5, 1]], "float64"), ([[2**31, 1]], "2147483648"), ("ab", ""),
])
def test_bad_copies_are_refused_and_change_nothing(spec: sp.StateSpec, copies: Any, text: str) -> None:
    tensors = filled(3)
    view = sp.StateStore.view(spec, tensors)
    with pytest.raises(sp.InvalidArgument) as raised:
        view.copy(copies)
    assert text in str(raised.value)
    sp.synchronize()
    for tensor, wanted in zip(tensors, filled(3), strict=True):
        assert np.array_equal(tensor, wanted)


def test_random_copies_between_stores_match_numpy(spec: sp.StateSpec) -> None:
    for seed in seeds(60):
        print("seed", seed)
        draw = random.Random(seed)
        slots = draw.randint(2, 9), draw.randint(1, 9)
        source, destination = filled(slots[0], seed), filled(slots[1], seed + 1)
        wanted = [tensor.copy() for tensor in destination]
        owned = sp.StateStore(spec, slots[0], layout=draw.choice(["layer_major", "slot_major"]))
        for i, tensor in enumerate(source):
            owned.tensor(i)[...] = tensor
        copier = sp.SlotCopier(owned, sp.StateStore.view(spec, destination))
        targets = draw.sample(range(slots[1]), draw.randint(0, slots[1]))
        copies = np.array([[draw.randint(-1, slots[0] - 1), target] for target in targets], np.int32).reshape(-1, 2)
        copier.copy(copies)
        sp.synchronize()
        for from_, to in copies:
            for i in range(2):
                if from_ >= 0:
                    wanted[i][to] = source[i][from_]
        assert all(np.array_equal(a, b) for a, b in zip(destination, wanted, strict=True)), (seed, copies)


def test_a_shifted_copy_moves_the_end_of_the_window() -> None:
    spec = sp.StateSpec([sp.TensorSpec("conv", "float32", (4, 2))])
    tensor = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    wanted = tensor.copy()
    wanted[1, :3] = wanted[0, 1:]
    view = sp.StateStore.view(spec, [tensor])
    sp.SlotCopier(view, view).copy_shifted([[0, 1, 1, 0]])
    sp.synchronize()
    assert np.array_equal(tensor, wanted)


def test_copies_are_read_from_device_memory(spec: sp.StateSpec) -> None:
    tensors = filled(3)
    view = sp.StateStore.view(spec, tensors)
    copier = sp.SlotCopier(view, view)
    copies = np.array([[0, 2, 0, 0]], np.int32)
    copier.copy_on_device(copies)
    sp.synchronize()
    assert np.array_equal(tensors[1][2], filled(3)[1][0])
    with pytest.raises(sp.InvalidArgument, match="copies has the shape"):
        copier.copy_on_device(copies.astype(np.int64))


def test_scratch_and_live_states_are_committed_in_one_call(spec: sp.StateSpec) -> None:
    scratch, live, kept = (sp.StateStore.view(spec, filled(3, seed)) for seed in (1, 2, 3))
    destination = filled(3, 3)
    kept = sp.StateStore.view(spec, destination)
    sp.SlotCopier(scratch, kept, live=live).commit_scratch([[1, 0]], [[2, 1]])
    sp.synchronize()
    assert np.array_equal(destination[1][0], filled(3, 1)[1][1])
    assert np.array_equal(destination[1][1], filled(3, 2)[1][2])
    assert np.array_equal(destination[1][2], filled(3, 3)[1][2])


def test_layers_are_copied_alone() -> None:
    spec = sp.StateSpec([sp.TensorSpec("recurrent", "float32", (4,), layer=layer) for layer in range(3)])
    tensors = [np.full((2, 4), [[layer + 1], [0]], np.float32) for layer in range(3)]
    view = sp.StateStore.view(spec, tensors)
    copier = sp.SlotCopier(view, view)
    copier.copy([[0, 1]], layers=(1, 2))
    sp.synchronize()
    assert [tensor[1, 0] for tensor in tensors] == [0, 2, 0]
    with pytest.raises(sp.InvalidArgument):
        copier.copy([[0, 1]], layers=(1, 4))


@pytest.mark.parametrize("stream", ["text", 1.5, object()])
def test_a_value_that_is_no_stream_is_refused(spec: sp.StateSpec, stream: Any) -> None:
    with pytest.raises(sp.InvalidArgument, match="stream is a"):
        sp.StateStore.view(spec, filled(2)).copy([[0, 1]], stream=stream)
