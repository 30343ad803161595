# SPDX-License-Identifier: Apache-2.0
"""Images in files, from and to memory of the host."""

import contextlib
import gc
import pathlib
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import stateport as sp
from conftest import open_images
from stateport._library import calls

STATE = [sp.TensorSpec("conv", "bfloat16", (3, 64), conv_layout="ds"), sp.TensorSpec("recurrent", "float32", (4, 8))]
KV = [sp.TensorSpec("recurrent", "int8", (5000,))]
ROOM = 1 << 20

pytestmark = pytest.mark.skipif(not sp.has_device(), reason="a core-only build has no tiers")


def open_tier(folder: pathlib.Path, model: str = "a model", room: int = ROOM) -> sp.FileTier:
    return sp.FileTier(folder / "images", states=[sp.StateSpec(STATE)], kv=sp.StateSpec(KV), model=model,
                       file_bytes=room)


def keys_of(content: str, *numbers: int) -> np.ndarray:
    return sp.image_keys([(number, 7) for number in numbers], [number * 16 for number in numbers], content)


def images_of(tier: sp.FileTier, content: str, *seeds: int) -> np.ndarray:
    images = tier.layout(content).new_images(len(seeds))
    for image, seed in zip(images, seeds, strict=True):
        image[:] = np.random.default_rng(seed).integers(0, 256, image.size, np.uint8)
    return images


def sections(tier: sp.FileTier, content: str, image: np.ndarray) -> list[bytes]:
    return [image[begin:begin + size].tobytes() for begin, size in tier.layout(content).sections]


def answers(tier: sp.FileTier) -> dict[int, str]:
    tier.wait()
    return {int(number): sp.TRANSFER_STATUSES[status] for number, status, _ in tier.poll()}


def read(tier: sp.FileTier, key: np.ndarray, content: str) -> tuple[str, list[bytes]]:
    image = tier.layout(content).new_images(1)[0]
    tier.read(99, key, image)
    return answers(tier)[99], sections(tier, content, image)


def test_an_image_has_a_section_for_each_tensor(tmp_path: pathlib.Path) -> None:
    with open_tier(tmp_path) as tier:
        layout = tier.layout("state")
        assert [size for _, size in layout.sections] == [3 * 64 * 2, 4 * 8 * 4]
        assert all(begin % 4096 == 0 for begin, _ in layout.sections)
        assert layout.image_bytes == sp.StateSpec(STATE).image_bytes
        assert layout.new_images(3).ctypes.data % 4096 == 0


@pytest.mark.parametrize("scrub", [False, True])
def test_a_scrubbing_tier_overwrites_images_that_it_removes(tmp_path: pathlib.Path, scrub: bool) -> None:
    with sp.FileTier(tmp_path / "images", states=[sp.StateSpec(STATE)], model="a model", file_bytes=ROOM,
                     scrub=scrub) as tier:
        tier.write(1, keys_of("state", 1), images_of(tier, "state", 1))
        assert answers(tier) == {1: "done"}
        with open_images(tmp_path / "images") as hold_bytes:
            tier.remove(keys_of("state", 1))
            tier.wait()
            assert not list((tmp_path / "images").glob("*.img"))
            assert any(hold_bytes()) != scrub


def test_an_image_is_read_also_by_the_next_tier_of_the_folder(tmp_path: pathlib.Path) -> None:
    keys = np.concatenate([keys_of("state", 1, 2), keys_of("kv_block", 1)])
    with open_tier(tmp_path) as tier:
        states, blocks = images_of(tier, "state", 1, 2), images_of(tier, "kv_block", 3)
        wanted = [sections(tier, "state", image) for image in states] + [sections(tier, "kv_block", blocks[0])]
        tier.write(5, keys, [*states, *blocks])
        assert answers(tier) == {5: "done"}
    with open_tier(tmp_path) as tier:
        assert tier.info()["found_images"] == 3 and tier.lookup(keys).tolist() == [True] * 3
        assert sorted(tier.keys().tobytes()) == sorted(keys.tobytes())
        for i, content in enumerate(("state", "state", "kv_block")):
            assert read(tier, keys[i:i + 1], content) == ("done", wanted[i])
        tier.check_invariants()
        assert "3 images" in repr(tier)


def test_another_model_finds_nothing(tmp_path: pathlib.Path) -> None:
    with open_tier(tmp_path) as tier:
        tier.write(1, keys_of("state", 1), list(images_of(tier, "state", 1)))
        assert answers(tier) == {1: "done"}
    with open_tier(tmp_path, "another model") as tier:
        assert tier.info()["foreign_images"] == 1
        assert tier.lookup(keys_of("state", 1)).tolist() == [False] and len(tier.keys()) == 0


def test_a_damaged_image_is_refused(tmp_path: pathlib.Path) -> None:
    with open_tier(tmp_path) as tier:
        tier.write(1, keys_of("state", 1), list(images_of(tier, "state", 1)))
        tier.wait()
        file = max((path for path in (tmp_path / "images").rglob("*")), key=lambda path: path.stat().st_size)
        begin, size = tier.layout("state").sections[1]
        with file.open("r+b") as opened:
            opened.seek(begin + size // 2)
            byte = opened.read(1)[0]
            opened.seek(begin + size // 2)
            opened.write(bytes([byte ^ 1]))
        tier.poll()
        assert read(tier, keys_of("state", 1), "state")[0] == "damaged"
        assert tier.lookup(keys_of("state", 1)).tolist() == [False]


def test_a_full_tier_refuses_until_something_is_removed(tmp_path: pathlib.Path) -> None:
    with open_tier(tmp_path, room=sp.StateSpec(STATE).image_bytes) as tier:
        tier.write(1, keys_of("state", 1), list(images_of(tier, "state", 1)))
        assert answers(tier) == {1: "done"}
        with pytest.raises(sp.NoCapacity):
            tier.write(2, keys_of("state", 2), list(images_of(tier, "state", 2)))
        tier.remove(keys_of("state", 1))
        tier.write(2, keys_of("state", 2), list(images_of(tier, "state", 2)))
        assert answers(tier) == {2: "done"} and tier.lookup(keys_of("state", 1, 2)).tolist() == [False, True]


def test_memory_lives_though_an_interrupt_follows_the_call(tmp_path: pathlib.Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    real = calls.file_tier_read

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(calls, "file_tier_read", interrupted)
    with open_tier(tmp_path) as tier:
        image = images_of(tier, "state", 1)[0].copy()
        seen = weakref.ref(image)
        with contextlib.suppress(KeyboardInterrupt):
            tier.read(1, keys_of("state", 1), image)
        del image
        gc.collect()
        assert seen() is not None
        tier.wait()
        assert answers(tier) == {1: "gone"}
        assert seen() is None


def test_a_read_goes_into_writable_memory_alone(tmp_path: pathlib.Path) -> None:
    with open_tier(tmp_path) as tier:
        image = images_of(tier, "state", 1)[0].copy()
        tier.write(1, keys_of("state", 1), [image])
        tier.wait()
        assert answers(tier) == {1: "done"}
        before, image.flags.writeable = image.copy(), False
        with pytest.raises(sp.InvalidArgument, match="^image is read-only, and must be writable$"):
            tier.read(2, keys_of("state", 1), image)
        tier.wait()
        assert answers(tier) == {} and np.array_equal(image, before)
        tier.write(3, keys_of("state", 1, 2), [image, image])  # a write only reads
        tier.wait()
        assert answers(tier) == {3: "done"}


def test_threads_write_and_read_at_once(tmp_path: pathlib.Path) -> None:
    failures: list[str] = []

    def work(first: int) -> None:
        for number in range(first, first + 8):
            image = images_of(tier, "state", number)[0]
            tier.write(number, keys_of("state", number), [image])
            while not tier.lookup(keys_of("state", number))[0]:
                pass
            found = tier.layout("state").new_images(1)[0]
            tier.read(1000 + number, keys_of("state", number), found)
            tier.wait()
            if sections(tier, "state", image) != sections(tier, "state", found):
                failures.append(f"image {number}")

    with open_tier(tmp_path) as tier:
        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert answers(tier) == {number + base: "done" for i in range(1, 5) for number in range(100 * i, 100 * i + 8)
                                 for base in (0, 1000)}


def test_mistakes_name_argument_and_value(tmp_path: pathlib.Path) -> None:
    with pytest.raises(sp.InvalidArgument, match="file_bytes is -1"):
        open_tier(tmp_path, room=-1)
    with open_tier(tmp_path) as tier:
        image = images_of(tier, "state", 1)[0]
        with pytest.raises(sp.InvalidArgument, match=r"images has 1 elements, and keys has 2"):
            tier.write(1, keys_of("state", 1, 2), [image])
        with pytest.raises(sp.InvalidArgument, match=r"images\[0\] has the type uint8 and the shape \[100\]"):
            tier.write(1, keys_of("state", 1), [image[:100]])
        with pytest.raises(sp.InvalidArgument, match="content is 'kv'"):
            tier.layout("kv")
        with pytest.raises(sp.InvalidArgument, match="group 3"):
            tier.read(1, sp.image_keys([(1, 1)], 16, "state", 3), image)
        with pytest.raises(sp.InvalidArgument, match="tokens"):
            tier.write(1, sp.image_keys([(1, 1)], -5, "state"), [image])
        tier.write(1, keys_of("state", 1), [image])
        tier.wait()
        with pytest.raises(sp.InvalidArgument, match="number is 1"):
            tier.read(1, keys_of("state", 1), image)
        assert answers(tier) == {1: "done"}
    with pytest.raises(sp.ClosedError):
        tier.info()
