# SPDX-License-Identifier: Apache-2.0
"""c/python/check_options.py names options that C++, C and Python do not have alike."""
import contextlib
import io
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "c" / "python"))
import check_options  # noqa: E402

HEADERS = "core/include/stateport/core"
FILES = [f"{HEADERS}/serve/cache_options.hpp", f"{HEADERS}/tier/tier_options.hpp", f"{HEADERS}/pool/memory_move.hpp",
         "c/src/request_cache.cpp", "c/src/cache_arena.cpp", "c/src/cache_tiers.cpp", "python/stateport/cache_options.py", "python/stateport/tier_options.py",
         *(str(path.relative_to(ROOT)) for path in (ROOT / "c/include/stateport/c").glob("*.h"))]
CHANGES = [
    ("python/stateport/cache_options.py", "position_tokens: int = 64", "position_tokens: int = 32",
     "CacheOptions.position_tokens is 32 by default, and RequestCacheOptions::position_tokens is 64"),
    ("python/stateport/cache_options.py", "    scrub: bool = False", "    scrubs: bool = False",
     "CacheOptions lacks scrub"),
    ("python/stateport/tier_options.py", "write_through: bool = False", "write_through: bool = True",
     "TierOptions.write_through is True by default"),
    ("c/include/stateport/c/cache_options.h", "int64_t budget_bytes;", "int64_t budget;",
     "stateport_slot_layout lacks budget_bytes"),
    ("c/include/stateport/c/cache_options.h", "of a page; 0: 16", "of a page; 0: 32",
     'stateport_request_cache_options.block_size_tokens does not say "0: 16"'),
    (f"{HEADERS}/serve/cache_options.hpp", "placement = CheckpointPlacement::passes", "placement = CheckpointPlacement::last",
     "SlotLayout.placement is 'passes' by default"),
    (f"{HEADERS}/tier/tier_options.hpp", "max_finds = 4096", "max_finds = 1024", "TierOptions.max_finds is 4096"),
    ("c/src/request_cache.cpp", ".spare_checkpoint_tokens = given.spare_checkpoint_tokens,", "",
     "does not read stateport_slot_layout.spare_checkpoint_tokens"),
    (f"{HEADERS}/pool/memory_move.hpp", "int32_t count = 1;", "int32_t count = 2;",
     "Arena.states_extent_count is 1 by default, and ArenaOptions::states_extent_count is 2"),
    ("c/include/stateport/c/cache_options.h", "int64_t kv_extent_bytes;", "int64_t extent_bytes;",
     "stateport_arena lacks kv_extent_bytes"),
    ("c/include/stateport/c/cache_options.h", "0: 0.5; STATEPORT_NONE", "STATEPORT_NONE",
     'stateport_arena.state_share does not say "0: 0.5"'),
    ("python/stateport/cache_options.py", "    arena: Arena | None = None\n", "", "SlotLayout lacks arena"),
]


class CheckOptions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for file in FILES:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.root / file)
        self.addCleanup(setattr, check_options, "ROOT", check_options.ROOT)
        check_options.ROOT = self.root

    def found(self):
        with contextlib.redirect_stderr(io.StringIO()) as problems, contextlib.redirect_stdout(io.StringIO()):
            return check_options.main(), problems.getvalue()

    def test_the_options_agree(self):
        self.assertEqual(self.found(), (0, ""))

    def test_each_difference_is_named(self):
        for file, old, new, text in CHANGES:
            with self.subTest(text):
                before = (self.root / file).read_text(encoding="utf-8")
                self.assertEqual(before.count(old), 1)
                (self.root / file).write_text(before.replace(old, new), encoding="utf-8")
                status, problems = self.found()
                (self.root / file).write_text(before, encoding="utf-8")
                self.assertEqual(status, 1)
                self.assertIn(text, problems)


if __name__ == "__main__":
    unittest.main()
