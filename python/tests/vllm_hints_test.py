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
