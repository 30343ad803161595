# SPDX-License-Identifier: Apache-2.0
"""Names that tell the states of two models apart in files."""
from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

import pytest

import stateport as sp
from stateport.vllm import identity, prompts
from stateport.vllm.identity import model_name
from stateport.vllm.prompts import namespace_of


class Config(types.SimpleNamespace):
    """A configuration of transformers: the commit is not in to_dict."""

    def to_dict(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size}


def engine(model: str = "org/model", commit: str | None = "c1", **changes: Any) -> Any:
    values = {"dtype": "bfloat16", "quantization": None, "revision": None, "seed": 0, "hf_overrides": None, **changes}
    hf_config = Config(hidden_size=values.pop("hidden_size", 64), _commit_hash=commit)
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(model=model, hf_config=hf_config, **values),
        load_config=types.SimpleNamespace(load_format="auto"),
        cache_config=types.SimpleNamespace(cache_dtype="auto", mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto"))


def test_a_fact_that_changes_a_state_changes_the_name() -> None:
    names = [model_name(made, 16) for made in (engine(), engine(commit="c2"), engine(model="org/other"),
                                              engine(dtype="float16"), engine(hidden_size=65),
                                              engine(revision="v2"), engine(quantization="fp8"))]
    for name in ("cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype"):
        other = engine()
        setattr(other.cache_config, name, "float32")
        names.append(model_name(other, 16))
    for drafts in ({"method": "mtp"}, {"model": "org/draft"}, {"model": "org/draft", "revision": "v2"}):
        other = engine()
        other.speculative_config = types.SimpleNamespace(**drafts)
        names.append(model_name(other, 16))
    names += [model_name(engine(), 32), model_name(engine(), 16, rank="1/2"), model_name(engine(), 16, named="mine")]
    assert len(set(names)) == len(names)
    assert model_name(engine(), 16) == names[0]


def test_weights_of_which_nothing_is_known_are_not_written_to_files() -> None:
    with pytest.raises(sp.InvalidArgument, match="model is 'org/model', of which neither files nor a commit"):
        model_name(engine(commit=None), 16)
    model_name(engine(commit=None), 16, outlives=False)
    model_name(engine(commit=None), 16, named="revision 3")


def test_random_weights_are_those_of_their_seed() -> None:
    names = set()
    for seed in (0, 1):
        made = engine(seed=seed)
        made.load_config.load_format = "dummy"
        names.add(model_name(made, 16))
    assert len(names) == 2


@pytest.mark.parametrize("place", [lambda folder: folder, lambda folder: folder / "model.gguf"])
def test_weights_that_were_trained_again_have_another_name(tmp_path: pathlib.Path,
                                                           place: Callable[[pathlib.Path], pathlib.Path]) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"1234")
    before = model_name(engine(str(place(tmp_path)), None), 16)
    assert model_name(engine(str(place(tmp_path)), None), 16) == before
    os.utime(weights, ns=(1, 1))
    assert model_name(engine(str(place(tmp_path)), None), 16) != before


def request(path: str, salt: str | None = None) -> Any:
    return types.SimpleNamespace(cache_salt=salt, lora_request=types.SimpleNamespace(
        lora_name="adapter", lora_int_id=1, lora_path=path))


def test_an_adapter_that_was_trained_again_shares_nothing(tmp_path: pathlib.Path) -> None:
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"1234")
    before = namespace_of(request(str(tmp_path)))
    assert namespace_of(request(str(tmp_path))) == before
    weights.write_bytes(b"12345")
    assert namespace_of(request(str(tmp_path))) != before
    assert namespace_of(request("org/adapter")) == namespace_of(request("org/adapter"))
    assert namespace_of(request("org/adapter", "tenant")) != namespace_of(request("org/adapter"))


def test_after_a_reset_prompts_share_nothing_with_earlier_ones_or_other_processes(
        monkeypatch: pytest.MonkeyPatch) -> None:
    lora = types.SimpleNamespace(lora_name="a", lora_int_id=1, lora_path="nowhere")
    asked = [types.SimpleNamespace(), types.SimpleNamespace(cache_salt="s"), types.SimpleNamespace(lora_request=lora)]
    names = [namespace_of(request, resets) for request in asked for resets in range(3)]
    monkeypatch.setattr(prompts, "_PROCESS", "another one")
    names += [namespace_of(request, 1) for request in asked]
    assert len({repr(name) for name in names}) == len(names)


def test_a_fact_that_changes_the_packing_of_pages_changes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    names = [model_name(made, 16, outlives=False)]
    for place, member, value in ((made, "speculative_config", types.SimpleNamespace(model="draft")),
                                 (made, "attention_config", types.SimpleNamespace(backend="OTHER")),
                                 (made.cache_config, "kv_cache_layout", "HND")):
        setattr(place, member, value)
        names.append(model_name(made, 16, outlives=False))
    monkeypatch.setattr(identity.platform, "machine", lambda: "another")
    names.append(model_name(made, 16, outlives=False))
    assert len(set(names)) == len(names)


def test_an_adapter_with_files_is_the_same_whatever_number_an_engine_gives_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1234")
    first, second = (request(str(tmp_path)) for _ in range(2))
    second.lora_request.lora_int_id = 7
    assert namespace_of(first) == namespace_of(second)


def test_named_weights_have_one_name_wherever_they_lie() -> None:
    here, there = engine("/a/model", None), engine("/b/model", None)
    for one in (here, there):
        path = one.model_config.model
        one.model_config.hf_config.to_dict = lambda path=path: {"hidden_size": 64, "_name_or_path": path}
    assert model_name(here, 16, named="mine") == model_name(there, 16, named="mine")
    assert model_name(here, 16, outlives=False) != model_name(there, 16, outlives=False)
