# SPDX-License-Identifier: Apache-2.0
"""Hints of vLLM's requests: sessions that end, prompts that stay, and prompts that are loaded before they come."""
from __future__ import annotations

import dataclasses
import pathlib
import random
import types
from typing import Any

import numpy as np
import pytest

from conftest import seeds
from stateport.errors import InvalidArgument
from stateport.vllm.hints import Hints, read_hints
from stateport.vllm.options import ConnectorOptions

torch = pytest.importorskip("torch")
from vllm_stand_in import Engine, Request  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

SMALL = ConnectorOptions(host_bytes=80_000, checkpoint_tokens=0, decode_checkpoint_tokens=0)
LENGTH = 42


def prompt(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000) for _ in range(LENGTH)]


def action(kind: str, version: str = "1.0", **payload: Any) -> Any:
    return types.SimpleNamespace(action_id="a", action_type=kind, action_version=version, payload=payload)


def envelope(*actions: Any, version: str = "0.1") -> Any:
    return types.SimpleNamespace(protocol_version=version, message_id="m", actions=list(actions))


def serve(engine: Engine, seed: int, session: str | None = None, hints: Any = None, salt: str | None = None) -> int:
    """Tokens that a prompt restored."""
    one = Request("r 0", prompt(seed), LENGTH, salt, session, hints)
    engine.add(one)
    engine.drain()
    engine.side.cache.check_invariants()
    assert not engine.side._loads._loads
    return one.restored


def counted(engine: Engine) -> dict[str, int]:
    return {name.removeprefix("hints:"): count for name, count in engine.side.counters.values.items()
            if name.startswith("hints")}


def settle(engine: Engine) -> None:
    """Steps until all prefetches have ended."""
    while engine.side.cache.prefix_usage.prefetches:
        engine.step()


def fill(engine: Engine, first: int) -> None:
    """Serves other prompts until one more state is evicted."""
    evicted = engine.side.cache.stats().evicted_states
    while engine.side.cache.stats().evicted_states == evicted:
        serve(engine, first)
        first += 1


def engine_of(options: ConnectorOptions = SMALL, **more: Any) -> Engine:
    return Engine(options, chance=random.Random(1), **more)


@pytest.mark.parametrize("session", ["chat", None])
def test_a_demoted_prompt_goes_first(session: str | None) -> None:
    engine = engine_of()
    serve(engine, 1)
    serve(engine, 2, session, envelope(action("kv.demote")))
    fill(engine, 10)
    assert serve(engine, 1) == 40  # though it is older
    assert serve(engine, 2) == 0
    assert counted(engine) == {"demote": 1}
    engine.close()


def test_a_session_that_goes_on_is_not_demoted() -> None:
    engine = engine_of()
    serve(engine, 1, "one", envelope(action("demote")))
    serve(engine, 2, "two")
    serve(engine, 1, "one")
    fill(engine, 10)
    assert serve(engine, 1) == 40
    assert serve(engine, 2) == 0  # the oldest one
    engine.close()


def test_without_sessions_a_demotion_is_refused() -> None:
    engine = engine_of(dataclasses.replace(SMALL, sessions=0))
    serve(engine, 1)
    serve(engine, 2, "one", envelope(action("demote")))
    fill(engine, 10)
    assert serve(engine, 1) == 0
    assert counted(engine) == {"refused": 1}
    engine.close()


@pytest.mark.parametrize("kind", ["kv.pin", "kv.retain", "pin"])
def test_a_pinned_prompt_stays_until_its_time_is_over(kind: str) -> None:
    engine = engine_of(dataclasses.replace(SMALL, pinned_bytes=20_000))
    serve(engine, 1, hints=envelope(action(kind, lease_s=50)))
    for seed in range(10, 40):
        serve(engine, seed)
    assert serve(engine, 1) == 40
    assert counted(engine) == {"pin": 1}
    usage = engine.side.cache.prefix_usage
    assert (usage.pins, usage.pinned_kv_tokens, usage.pinned_states) == (1, 40, 1)
    engine.side._clock -= 51
    for seed in range(10, 40):
        serve(engine, seed)
    assert engine.side.cache.prefix_usage.ended_leases == 1
    assert serve(engine, 1) == 0
    engine.close()


def test_pins_last_no_longer_than_the_operator_allows_and_end_with_a_reset() -> None:
    engine = engine_of(dataclasses.replace(SMALL, pinned_bytes=20_000, pin_lease_s=10))
    serve(engine, 1, hints=envelope(action("pin")))
    serve(engine, 2, hints=envelope(action("pin", ttl_s=10_000)))
    assert engine.side.cache.prefix_usage.pins == 2
    engine.side._clock -= 11
    serve(engine, 3, hints=envelope(action("pin", duration_s=5)))
    assert engine.side.cache.prefix_usage.pins == 1
    engine.side.reset()
    assert engine.side.cache.prefix_usage.pins == 0
    engine.close()


def test_pins_beyond_their_bytes_are_refused() -> None:
    for bytes_, kept in ((0, 0), (9000, 2)):
        engine = engine_of(dataclasses.replace(SMALL, pinned_bytes=bytes_))
        for seed in range(4):
            serve(engine, seed, hints=envelope(action("pin")))
        made = counted(engine).get("pin", 0)
        assert made == kept
        assert made + counted(engine)["refused"] == 4
        assert bytes_ == 0 or engine.side.cache.prefix_usage.pinned_bytes <= bytes_
        engine.close()


def test_a_prompt_is_loaded_before_it_comes(tmp_path: pathlib.Path) -> None:
    options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, folder=str(tmp_path / "images"),
                               file_bytes=1 << 22)
    first = engine_of(options)
    serve(first, 1)
    serve(first, 2, salt="tenant")
    first.close()
    engine = engine_of(options)
    serve(engine, 5, hints=envelope(action("kv.prefetch", token_ids=prompt(1)),
                                    action("kv.prefetch", token_ids=np.asarray(prompt(2)))))
    settle(engine)
    assert serve(engine, 1) == 40
    assert engine.side.counters.values["hit_tokens:host"] == 40
    assert engine.side.cache.prefix_usage.prefetched_tokens == 40  # prompts of another salt are not found
    serve(engine, 6, salt="tenant", hints=envelope(action("kv.prefetch", token_ids=prompt(2))))
    settle(engine)
    assert engine.side.cache.prefix_usage.prefetched_tokens == 80
    assert serve(engine, 2, salt="tenant") == 40
    assert engine.side.counters.values["hit_tokens:host"] == 80
    assert counted(engine) == {"prefetch": 3}
    engine.close()


def test_without_files_a_prefetch_is_refused() -> None:
    engine = engine_of()
    serve(engine, 1, hints=envelope(action("prefetch", token_ids=prompt(2)),
                                    action("prefetch", token_ids=list(range(10_000)))))
    assert counted(engine) == {"refused": 2}
    engine.close()


class Raises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def named(place: str, value: Any) -> dict[str, Any]:
    """Arguments of a request that names breakpoints."""
    extra = {"stateport_breakpoints": value, "another": 1}
    return {"kv_transfer_params": extra} if place == "kv_transfer_params" else {
        "sampling_params": types.SimpleNamespace(extra_args=extra)}


def serve_named(engine: Engine, **arguments: Any) -> Request:
    one = Request("r 0", prompt(1), LENGTH, **arguments)
    engine.add(one)
    engine.drain()
    return one


@pytest.mark.parametrize("place", ["kv_transfer_params", "sampling_params"])
def test_a_prompt_leaves_states_at_the_breakpoints_that_its_request_names(place: str) -> None:
    engine = engine_of(dataclasses.replace(SMALL, host_bytes=1 << 20))
    first = serve_named(engine, **named(place, [3, 13, 30, LENGTH]))  # of 4 tokens to a block: 0, 12, 28, 40
    assert first.stops == [12, 28, 40, 42]
    assert counted(engine) == {"breakpoints": 1}
    for shared, wanted in ((13, 12), (27, 12), (29, 28)):
        branch = Request("b 0", prompt(1)[:shared] + prompt(9), shared + LENGTH)
        engine.add(branch)
        engine.drain()
        assert branch.restored == wanted
    engine.close()


@pytest.mark.parametrize("value", [
    "12", {"at": 12}, 12, [0], [-4, 12], [12, 12], [28, 12], [12.0], [True], ["12"], [[12]], [LENGTH + 1],
    list(range(1, 10)), np.arange(3)], ids=str)
def test_breakpoints_that_are_none_are_counted_and_change_nothing(value: Any) -> None:
    engine = engine_of()
    assert serve_named(engine, **named("sampling_params", value)).stops == [40, 42]
    assert counted(engine) == {"malformed": 1}
    engine.close()


@pytest.mark.parametrize("value", [None, []], ids=str)
def test_no_breakpoints_are_no_hint(value: Any) -> None:
    for arguments in (named("kv_transfer_params", value), {"kv_transfer_params": "text"},
                      {"sampling_params": types.SimpleNamespace(extra_args=None)}):
        engine = engine_of()
        assert serve_named(engine, **arguments).stops == [40, 42]
        assert counted(engine) == {}
        engine.close()


def test_breakpoints_and_kv_hints_are_read_both() -> None:
    read = read_hints(types.SimpleNamespace(kv_hints=envelope(action("pin")), num_prompt_tokens=40,
                                            **named("kv_transfer_params", [8])))
    assert (read.pins, read.breakpoints, read.ignored) == ((0.0,), (8,), ())
    read = read_hints(types.SimpleNamespace(kv_hints=envelope(action("pin")), **named("kv_transfer_params", [8])))
    assert (read.pins, read.breakpoints, read.ignored) == ((0.0,), (), ("malformed",))  # of no known length


def test_hints_count_once_though_a_prompt_is_looked_up_again_and_again(tmp_path: pathlib.Path) -> None:
    options = ConnectorOptions(host_bytes=1 << 20, checkpoint_tokens=8, folder=str(tmp_path / "images"),
                               file_bytes=1 << 22)
    engine = engine_of(options)
    asked: list[int] = []
    prefetch = engine.side.cache.prefetch

    def count(tokens: Any, **arguments: Any) -> Any:
        asked.append(len(tokens))
        return prefetch(tokens, **arguments)

    engine.side.cache.prefetch = count  # type: ignore[method-assign]
    one = Request("r 0", prompt(1), LENGTH, kv_hints=envelope(action("prefetch", token_ids=prompt(2)), action("x")))
    for _ in range(3):  # as for a prompt without room, which was taken, refused, or preempted
        engine.side.match(one, 0)
        engine.side.end("r 0")
    assert asked == [LENGTH] and counted(engine)["unknown"] == 1
    engine.side.finished(one)
    engine.side.match(one, 0)  # another request of this name
    assert asked == [LENGTH] * 2 and counted(engine)["unknown"] == 2
    engine.side.end("r 0")
    engine.close()


NONSENSE: list[tuple[Any, dict[str, int]]] = [
    (envelope(action("kv.fetch", source_control_endpoint="a", block_hashes=[1], mode="copy")), {"unknown": 1}),
    (envelope(action("pin", version="2.0"), action("kv.share")), {"unknown": 2}),
    (envelope(action("pin"), version="1.0"), {"unknown": 1}),
    (envelope(action("pin", lease_s="soon"), action("pin", lease_s=-1), action("pin", lease_s=float("nan")),
              action("pin", lease_s=True)), {"malformed": 4}),
    (envelope(*(action("prefetch", token_ids=tokens) for tokens in (
        [], [-1], [2**40], [1.5], "text", [[1]], None, [None]))), {"malformed": 8}),
    (envelope(action("prefetch")), {"malformed": 1}),
    (envelope(None, 7, "text", {}), {"unknown": 4}),
    ({"actions": [{"action_type": "demote"}]}, {"demote": 1}),
    (types.SimpleNamespace(actions=None), {}), (7, {}), ("text", {}), ({"actions": 3}, {}),
    (Raises(), {"malformed": 1}), (envelope(Raises()), {"malformed": 1}),
]


@pytest.mark.parametrize(("hints", "wanted"), NONSENSE, ids=range(len(NONSENSE)))
def test_hints_that_say_nothing_are_counted_and_never_raise(hints: Any, wanted: dict[str, int]) -> None:
    engine = engine_of()
    assert serve(engine, 1, hints=hints) == 0
    assert serve(engine, 1) == 40
    assert counted(engine) == wanted
    engine.close()


def test_random_envelopes_never_raise() -> None:
    values: list[Any] = [None, 0, -1, 1.5, "pin", "0.1", "kv.prefetch", [], [1, 2], {}, {"lease_s": 3}, b"x", Raises(),
                         {"token_ids": [5, 6]}, float("inf"), True, "kv.demote"]
    for seed in seeds(2000):
        draw = random.Random(seed)

        def any_value(draw: random.Random = draw) -> Any:
            return draw.choice(values)

        names = ("action_id", "action_type", "action_version", "payload")
        actions = [{name: any_value() for name in names if draw.random() < 0.8} for _ in range(draw.randrange(4))]
        hints = {"actions": draw.choice([actions, tuple(actions), any_value()])}
        if draw.random() < 0.5:
            hints["protocol_version"] = any_value()
        read = read_hints(types.SimpleNamespace(kv_hints=hints, session_id=any_value()))
        assert isinstance(read, Hints), f"STATEPORT_TEST_FIRST_SEED={seed}"
        assert 0 <= read.session < 2**64
        given = hints["actions"] if isinstance(hints["actions"], (list, tuple)) else []
        assert len(read.pins) + len(read.prefetches) + len(read.ignored) <= max(len(given), 1)


def test_sessions_of_another_salt_are_others() -> None:
    numbers = {read_hints(types.SimpleNamespace(session_id=name, cache_salt=salt)).session
               for name in ("a", "b") for salt in (None, "a", "b")}
    assert len(numbers) == 6
    assert 0 not in numbers
    assert read_hints(types.SimpleNamespace(session_id="")) == Hints()


@pytest.mark.parametrize("values", [{"pinned_bytes": -1}, {"pinned_bytes": 5 << 30}, {"pin_lease_s": 0.0},
                                    {"pin_lease_s": float("inf")}, {"sessions": -1}])
def test_options_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(values))):
        ConnectorOptions(**values)
