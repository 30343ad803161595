# SPDX-License-Identifier: Apache-2.0
"""Ranks that share checkpoints through a store, and copies between ranks that share a model differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stateport
from served import Served
from stateport import (
    IMAGE_KEY,
    SLOT_IMAGE,
    InProcessObjects,
    InProcessStore,
    ModelLayout,
    ObjectEncoding,
    RemoteOptions,
    Resharder,
    Shard,
    SharedLayout,
    SplitBand,
    StateSpec,
    StateStore,
    StateTiers,
    TensorSpec,
    TensorSplit,
)
from stateport._library import calls

HEADS = 12


def whole_spec() -> StateSpec:
    tensors = []
    for layer in range(2):
        tensors.append(TensorSpec("conv", "float16", (3, 2 * HEADS + 8), layer))
        tensors.append(TensorSpec("recurrent", "float32", (HEADS, 2, 32), layer))
    return StateSpec(tensors)


def layout() -> ModelLayout:
    group = SplitBand(4, 1)  # that all ranks hold
    conv = TensorSplit(1, (SplitBand(2 * HEADS, HEADS), group, group))
    return ModelLayout(whole_spec(), [conv, TensorSplit(0, (SplitBand(HEADS, HEADS),))] * 2)


def shard(rank: int, ranks: int) -> Shard:
    return Shard(0, 2, rank, ranks)


def stores(model: ModelLayout, ranks: int) -> list[tuple[StateStore, Shard]]:
    return [(StateStore(model.spec(shard(rank, ranks)), 3), shard(rank, ranks)) for rank in range(ranks)]


def words(store: StateStore) -> list[Any]:
    """The words of slot 1, by tensor."""
    return [store.tensor(i)[1].copy() for i in range(4)]


def fill(store: StateStore, seed: int) -> None:
    random = np.random.default_rng(seed)
    for i in range(4):
        view = store.tensor(i)
        view[...] = random.standard_normal(view.shape).astype(view.dtype)


def wait(tiers: StateTiers) -> list[str]:
    """How all that is under way ended, in the order of numbers."""
    answers: dict[int, str] = {}
    while tiers.info()["in_flight"]:
        for result in tiers.poll():
            answers[int(result["id"])] = stateport.TRANSFER_STATUSES[result["status"]]
    return [status for _, status in sorted(answers.items())]


def key(prefix: int) -> Any:
    keys = np.zeros(1, IMAGE_KEY)
    keys["prefix"], keys["tokens"], keys["content"] = (prefix, 1), 64, 1
    return keys


def image(prefix: int, slot: int) -> Any:
    images = np.zeros(1, SLOT_IMAGE)
    images["key"], images["slot"] = key(prefix), slot
    return images


def tiers_of(objects: InProcessObjects, model: ModelLayout, store: StateStore, part: Shard,
             **options: Any) -> StateTiers:
    remote = RemoteOptions(InProcessStore(objects), [SharedLayout(model, part)], head_groups=HEADS,
                           staging_bytes=4 << 20, **options)
    return StateTiers(states=[store], model="a model", remote=remote)


def test_ranks_of_any_number_hold_one_state() -> None:
    model = layout()
    whole = StateStore(model.spec(), 3)
    fill(whole, 1)
    first, second = stores(model, 4), stores(model, 3)
    back = StateStore(model.spec(), 3)
    Resharder(model, [(whole, Shard())], first).copy([[1, 2]])
    Resharder(model, first, second).copy([[2, 0]])
    Resharder(model, second, [(back, Shard())]).copy([[0, 1]])
    stateport.synchronize()
    for got, expected in zip(words(back), words(whole), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 4), (3, 1)])
def test_one_group_of_ranks_loads_checkpoints_of_another_one(writers: int, readers: int) -> None:
    model, objects = layout(), InProcessObjects(1 << 30)
    whole, back = StateStore(model.spec(), 3), StateStore(model.spec(), 3)
    fill(whole, 2)
    from_ranks, to_ranks = stores(model, writers), stores(model, readers)
    Resharder(model, [(whole, Shard())], from_ranks).copy([[1, 0]])
    stateport.synchronize()
    writing = [tiers_of(objects, model, store, part) for store, part in from_ranks]
    reading = [tiers_of(objects, model, store, part) for store, part in to_ranks]
    for tiers in reading:
        tiers.find(key(5))
        assert wait(tiers) == ["gone"]
    for tiers in writing:
        tiers.put(image(5, 0), "remote")
        assert wait(tiers) == ["done"]
    for tiers in reading:
        tiers.find(np.concatenate([key(5), key(6)]))
        assert wait(tiers) == ["done", "gone"]
        tiers.get(np.concatenate([image(5, 2), image(6, 1)]))
        assert wait(tiers) == ["done", "gone"]
        info = tiers.info()
        assert (info["remote_asked_images"], info["remote_found_images"]) == (3, 1)
        assert info["remote_read_bytes"] > 0
    Resharder(model, to_ranks, [(back, Shard())]).copy([[2, 1]])
    stateport.synchronize()
    for got, expected in zip(words(back), words(whole), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_int8_objects_are_read_by_tiers_with_that_option() -> None:
    model, objects = layout(), InProcessObjects(1 << 30)
    store, reader = StateStore(model.spec(), 3), StateStore(model.spec(), 3)
    fill(store, 3)
    int8 = ObjectEncoding(recurrent="int8_block32")
    writing = tiers_of(objects, model, store, Shard(), encodings=[int8])
    writing.put(image(1, 1), "remote")
    assert wait(writing) == ["done"]
    exact = tiers_of(objects, model, reader, Shard())
    exact.get(image(1, 1))
    assert wait(exact) == ["gone"]
    both = tiers_of(objects, model, reader, Shard(), encodings=[ObjectEncoding(), int8])
    both.get(image(1, 1))
    assert wait(both) == ["done"]
    for got, expected in zip(words(reader), words(store), strict=True):
        bound = 0 if got.dtype != np.float32 else np.abs(expected).max() / 253
        assert np.abs(got.astype(np.float64) - expected.astype(np.float64)).max() <= bound


def test_the_catalogue_knows_how_its_models_are_shared() -> None:
    for name in stateport.models():
        model = ModelLayout.find(name)
        whole = StateSpec.find(name)
        assert model.spec().fingerprint == whole.fingerprint
        half = model.spec(Shard(0, 1 + max(tensor.layer for tensor in whole), 1, 2))
        if name == "zaya1-8b":  # each rank has its states whole: no engine shares them yet
            assert half.slot_bytes == whole.slot_bytes
        else:
            assert whole.slot_bytes <= 2 * half.slot_bytes <= whole.slot_bytes * 1.1
        assert model.fingerprint == ModelLayout.find(name, conv_layout="ds").fingerprint


def test_arguments_that_do_not_fit_are_refused_by_name() -> None:
    model, objects = layout(), InProcessObjects(1 << 30)
    store = StateStore(model.spec(), 3)
    with pytest.raises(stateport.InvalidArgument, match="head_groups"):
        model.spec(Shard(0, 2, 0, 5))
    with pytest.raises(stateport.InvalidArgument, match="sources"):
        Resharder(model, [(store, shard(0, 2))], [(store, Shard())])
    with pytest.raises(stateport.InvalidArgument, match="remote.states"):
        StateTiers(states=[store], model="a", remote=RemoteOptions(InProcessStore(objects)))
    with pytest.raises(stateport.InvalidArgument, match="model_bytes"):
        StateTiers(states=[store], remote=RemoteOptions(InProcessStore(objects), [SharedLayout(model)]))
    client = InProcessStore(objects)
    used = StateTiers(states=[store], model="a", remote=RemoteOptions(client, [SharedLayout(model)]))
    with pytest.raises(stateport.InvalidState, match="used by state tiers"):
        client.poll()
    with pytest.raises(stateport.InvalidState, match="used by other tiers"):
        StateTiers(states=[store], model="a", remote=RemoteOptions(client, [SharedLayout(model)]))
    used.close()
    assert len(client.poll()) == 0
    client.exists([0], ["a"])
    with pytest.raises(stateport.InvalidState, match="remote.store.*not answered"):
        StateTiers(states=[store], model="a", remote=RemoteOptions(client, [SharedLayout(model)]))
    assert len(client.poll()) == 1
    StateTiers(states=[store], model="a", remote=RemoteOptions(client, [SharedLayout(model)])).close()
    plain = StateTiers(states=[store], host_bytes=1 << 20)
    with pytest.raises(stateport.InvalidState, match="no remote tier"):
        plain.find(key(1))


def share(served: Served) -> str:
    """Until the exchange of records has ended."""
    while (status := served.tiers.share_forgotten(served.cache)) is None:
        served.tiers.end_transfers(served.cache)
    return status


def test_no_machine_and_no_later_process_finds_what_one_machine_has_forgotten() -> None:
    objects, prompt, ann = InProcessObjects(1 << 30), np.arange(100, dtype=np.int32), stateport.Namespace(salt=b"ann")
    machines = {name: Served(remote=InProcessStore(objects)) for name in ("one", "other", "early", "later")}

    def computed(name: str, namespace: stateport.Namespace | None = ann) -> int:
        machine = machines[name]
        before = machine.computed_tokens
        machine.serve(prompt, namespace)
        while machine.cache.transfers_under_way:
            machine.tiers.end_transfers(machine.cache)
        return machine.computed_tokens - before

    assert (computed("one"), computed("one", None)) == (100, 100)
    assert computed("other") < 100
    assert share(machines["other"]) == "done" and len(machines["other"].cache.forgotten()) == 0
    machines["one"].cache.forget(ann, by="salt")
    assert share(machines["one"]) == "done"
    assert computed("early") < 100  # it has not asked
    for name in ("other", "early", "later"):
        assert share(machines[name]) == "done"
        np.testing.assert_array_equal(machines[name].cache.forgotten(), machines["one"].cache.forgotten())
    assert computed("other") == 100
    for name in ("one", "early", "later"):  # what the other one has made since is everybody's
        assert computed(name) < 100 and computed(name, None) < 100
    for machine in machines.values():
        machine.cache.close()
        machine.tiers.close()


def test_records_of_forgotten_contents_need_a_remote_tier() -> None:
    with pytest.raises(stateport.InvalidState, match="no remote tier"):
        share(Served())
    with pytest.raises(stateport.InvalidArgument, match="cache is a int"):
        Served().tiers.share_forgotten(OTHER)


OTHER: Any = 5


@pytest.mark.parametrize(("use", "text"), [
    (lambda model, store: Resharder(model, [(store, OTHER)], [(store, Shard())]), "sources[0][1] is a int"),
    (lambda model, store: Resharder(model, [(store, Shard())], [store]), "destinations[0] is a StateStore"),
    (lambda model, store: Resharder(model, [(OTHER, Shard())], []), "sources[0][0] is a int"),
    (lambda model, store: model.spec(OTHER), "shard is a int"),
    (lambda model, store: ModelLayout(whole_spec(), [OTHER] * 4), "splits[0] is a int"),
    (lambda model, store: ModelLayout(whole_spec(), [TensorSplit(0, (OTHER,))] * 4), "splits[0].bands[0] is a int"),
    (lambda model, store: StateTiers(states=[store], model="a", folder=OTHER, file_bytes=1 << 20), "folder is 5"),
    (lambda model, store: stateport.TierOptions(leading_blocks=OTHER).struct(), "leading_blocks is 5"),
    (lambda model, store: ModelLayout.find("falcon-h1-0.5b\0x"), "model must be a text"),
    (lambda model, store: ModelLayout.find(OTHER), "model is a int"),
    (lambda model, store: StateSpec.find("falcon-h1-0.5b\0x"), "model must be a text"),
    (lambda model, store: StateTiers(states=[store], model=OTHER), "model is 5"),
    (lambda model, store: StateTiers(states=[store], shard=OTHER), "shard is a int"),
    (lambda model, store: StateTiers(states=[store], model="a", remote=OTHER), "remote is a int"),
    (lambda model, store: StateTiers(states=[store], model="a", remote=RemoteOptions(OTHER)), "remote.store is a int"),
    (lambda model, store: StateTiers(states=[store], model="a", remote=RemoteOptions(OTHER, [OTHER])),
     "remote.states[0] is a int"),
    (lambda model, store: StateTiers(states=[store], model="a", remote=RemoteOptions(
        OTHER, [SharedLayout(model, OTHER)])), "remote.states[0].shard is a int"),
    (lambda model, store: StateTiers(states=[store], model="a", remote=RemoteOptions(OTHER, encodings=[OTHER])),
     "remote.encodings[0] is a int"),
    (lambda model, store: stateport.plan_handover(model, OTHER, {0: Shard()}, stateport.Handover("a")),
     "sources is a int"),
    (lambda model, store: stateport.plan_handover(model, {0: Shard()}, {0: OTHER}, stateport.Handover("a")),
     "destinations[0] is a int"),
    (lambda model, store: stateport.plan_handover(model, {2**31: Shard()}, {0: Shard()}, stateport.Handover("a")),
     f"a rank of sources is {2**31}"),
    (lambda model, store: stateport.plan_handover(model, {0: Shard()}, {0: Shard()}, stateport.Handover(OTHER)),
     "handover.model is 5"),
    (lambda model, store: stateport.HandoverEnd(store, OTHER, stateport.Handover("a")), "shared is a int"),
    (lambda model, store: stateport.HandoverEnd(store, SharedLayout(OTHER), stateport.Handover("a")),
     "shared.layout is a int"),
    (lambda model, store: stateport.HandoverEnd(store, SharedLayout(model), OTHER), "handover is a int"),
    (lambda model, store: stateport.HandoverEnd(store, SharedLayout(model), stateport.Handover("a"), 0), "places is 0"),
])
def test_arguments_of_another_kind_are_refused_by_name(use: Any, text: str) -> None:
    model = layout()
    with pytest.raises(stateport.InvalidArgument) as raised:
        use(model, StateStore(model.spec(), 3))
    assert text in str(raised.value)


def end_of(places: int = 1) -> tuple[StateStore, stateport.HandoverEnd]:
    model = layout()
    store = StateStore(model.spec(), 3)
    fill(store, 1)
    return store, stateport.HandoverEnd(store, SharedLayout(model), stateport.Handover("a", head_groups=1), places)


def test_the_key_of_a_hand_over_lives_as_long_as_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of one record becomes an array to which only the call holds a reference."""
    _, end = end_of()
    end.pack([[0, 0]])
    stateport.synchronize()

    def busy(real: Any) -> Any:
        def call(*arguments: Any) -> None:
            others = [np.full(IMAGE_KEY.itemsize, 255, np.uint8) for _ in range(100)]
            real(*arguments)
            del others

        return call

    for name in ("handover_end_seal", "handover_end_check"):
        monkeypatch.setattr(calls, name, busy(getattr(calls, name)))
    end.seal(0, [key(5)[0]])
    assert end.check(0, [key(5)[0]]) == "done"


def test_the_memory_of_a_closed_end_is_not_given_away() -> None:
    store, end = end_of(2)
    array = end.memory(1)
    end.pack([[0, 1]])
    stateport.synchronize()
    end.seal(1, key(3))
    before = array.copy()
    assert before.any()
    end.close()
    store.close()
    with pytest.raises(stateport.ClosedError, match="this HandoverEnd is closed"):
        end.memory(0)
    for _ in range(20):
        end_of(2)[1].memory(1)[...] = 7
    np.testing.assert_array_equal(array, before)
    array[...] = 1
    for place in (-1, 2, 0.5, None):
        with pytest.raises(stateport.InvalidArgument, match="place is"):
            end_of(2)[1].memory(place)  # type: ignore[arg-type]


def test_a_hand_over_brings_the_same_as_a_reshard() -> None:
    model = layout()
    whole, back = StateStore(model.spec(), 3), StateStore(model.spec(), 3)
    fill(whole, 4)
    prefill, decode = stores(model, 4), stores(model, 3)
    Resharder(model, [(whole, Shard())], prefill).copy([[1, 0]])
    what, ranges = stateport.plan_handover(model, {rank: part for rank, (_, part) in enumerate(prefill)},
                                           {10 + rank: part for rank, (_, part) in enumerate(decode)},
                                           stateport.Handover("a model"))
    assert (what.head_groups, len(ranges)) == (HEADS, HEADS)
    ends = {rank: stateport.HandoverEnd(store, SharedLayout(model, part), what, places=2)
            for rank, (store, part) in [*enumerate(prefill), *((10 + i, pair) for i, pair in enumerate(decode))]}
    for rank in range(4):
        ends[rank].pack([[0, 1]])
    stateport.synchronize()
    for rank in range(4):
        ends[rank].seal(1, key(8))
    assert ends[10].check(0, key(8)) == "damaged"
    for span in ranges:
        length = int(span["bytes"])
        source = ends[int(span["src_rank"])].memory(1)[int(span["src_offset"]):][:length]
        ends[int(span["dst_rank"])].memory(0)[int(span["dst_offset"]):][:length] = source
    for rank in (10, 11, 12):
        assert ends[rank].check(0, key(8)) == "done"
        assert ends[rank].check(0, key(9)) == "wrong_position"
        ends[rank].unpack([[0, 2]])
    Resharder(model, decode, [(back, Shard())]).copy([[2, 1]])
    stateport.synchronize()
    for got, expected in zip(words(back), words(whole), strict=True):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(stateport.InvalidArgument, match="sources"):
        stateport.plan_handover(model, {0: shard(0, 2)}, {1: Shard()}, what)
    with pytest.raises(stateport.InvalidArgument, match="place"):
        ends[0].seal(2, key(1))
    with pytest.raises(stateport.InvalidArgument, match="place"):
        ends[0].memory(2)
