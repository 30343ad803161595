#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether cmake/check_structure.py finds each kind of offence, and nothing in code that keeps to the rules."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import check_structure


def found_in(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        project = check_structure.Project(pathlib.Path(folder))
        project.check_order()
        project.check_circles()
        project.check_sizes()
        project.check_words()
        return project.found


def functions_of(text):
    return check_structure.Declarations(text).functions


def classes_of(text):
    return check_structure.Declarations(text).classes


POOL = "core/include/stateport/core/pool/slot_pool.hpp"
TREE = "core/include/stateport/core/tree/prefix_tree.hpp"
INCLUDE_POOL = "#include <stateport/core/pool/slot_pool.hpp>\n"
INCLUDE_TREE = "#include <stateport/core/tree/prefix_tree.hpp>\n"


class Order(unittest.TestCase):
    def test_a_later_wing_may_include_an_earlier_one(self):
        self.assertEqual(found_in({POOL: "\n", TREE: INCLUDE_POOL}), [])

    def test_an_earlier_wing_may_not_include_a_later_one(self):
        self.assertEqual(len(found_in({POOL: INCLUDE_TREE, TREE: "\n"})), 1)

    def test_a_later_layer_is_not_included(self):
        kernels = "kernels/include/stateport/kernels/state_store.hpp"
        found = found_in({kernels: "\n", "backends/src/stream.cpp": "#include <stateport/kernels/state_store.hpp>\n"})
        self.assertEqual(len(found), 1)

    def test_a_library_does_not_include_tests(self):
        found = found_in({"tests/support/random.hpp": "\n", "c/src/store.cpp": '#include "random.hpp"\n'})
        self.assertEqual(len(found), 1)

    def test_a_wing_has_a_name(self):
        for layer in ("core", "tiers"):
            self.assertEqual(len(found_in({f"{layer}/src/attic/old.cpp": "\n"})), 1)

    def test_folders_of_tiers_have_an_order_and_its_public_headers_have_none(self):
        file, move = "tiers/src/file/image_io.hpp", "tiers/src/move/copy_lane.hpp"
        public = {"tiers/include/stateport/tiers/state_tiers.hpp": "\n"}
        self.assertEqual(found_in({**public, file: "#include <stateport/tiers/state_tiers.hpp>\n",
                                   move: '#include "file/image_io.hpp"\n'}), [])
        self.assertEqual(len(found_in({file: '#include "move/copy_lane.hpp"\n', move: "\n"})), 1)

    def test_public_headers_and_core_have_no_vendor(self):
        for name in ("backends/include/stateport/backends/stream.hpp", "core/src/pool/slot_pool.cpp"):
            for header in ("Kokkos_Core.hpp", "cuda_runtime.h", "hip/hip_runtime.h"):
                self.assertEqual(len(found_in({name: f"#include <{header}>\n"})), 1, header)
        self.assertEqual(found_in({"backends/src/stream.cpp": "#include <Kokkos_Core.hpp>\n"}), [])


class Circles(unittest.TestCase):
    def test_a_header_and_its_source_are_one_room(self):
        self.assertEqual(found_in({POOL: "\n", "core/src/pool/slot_pool.cpp": INCLUDE_POOL}), [])

    def test_the_private_half_of_a_class_is_in_its_room(self):
        impl = "core/src/pool/slot_pool_impl.hpp"
        self.assertEqual(found_in({POOL: "\n", impl: INCLUDE_POOL,
                                   "core/src/pool/slot_pool.cpp": '#include "slot_pool_impl.hpp"\n'}), [])

    def test_files(self):
        found = found_in({"perf/a.hpp": '#include "b.hpp"\n', "perf/b.cpp": '#include "a.hpp"\n', "perf/b.hpp": "\n"})
        self.assertEqual(found, ["circle of files: perf/a -> perf/b -> perf/a"])

    def test_folders(self):
        found = found_in({"perf/replay/a.hpp": '#include "../b.hpp"\n', "perf/b.hpp": "\n", "perf/replay/d.hpp": "\n",
                          "perf/c.cpp": '#include "replay/d.hpp"\n'})
        self.assertEqual(found, ["circle of folders: perf -> perf/replay -> perf"])


class Sizes(unittest.TestCase):
    def test_a_header(self):
        self.assertEqual(found_in({POOL: "\n" * 300}), [])
        self.assertEqual(len(found_in({POOL: "\n" * 301})), 1)

    def test_a_function(self):
        body = "  work();\n" * 68
        self.assertEqual(found_in({"perf/a.cpp": "void run() {\n" + body + "}\n"}), [])
        self.assertEqual(len(found_in({"perf/a.cpp": "void run() {\n" + body + "  work();\n}\n"})), 1)

    def test_a_class(self):
        def owner(methods):
            return "class Owner {\n" + "".join(f"  void method{i}();\n" for i in range(methods)) + "};\n"
        most = check_structure.CLASS_METHODS_MAX
        self.assertEqual(found_in({POOL: owner(most)}), [])
        self.assertEqual(len(found_in({POOL: owner(most + 1)})), 1)

    def test_a_class_with_its_bases(self):
        def owner(base, methods):
            own = "".join(f"  void method{i}();\n" for i in range(methods))
            return (f"class First {{\n  void first();\n}};\nclass Second : First {{\n  void second();\n}};\n"
                    f"class Owner final : public {base} {{\n{own}}};\n")
        most = check_structure.CLASS_METHODS_MAX
        self.assertEqual(found_in({POOL: owner("stranger::Other", most)}), [])
        self.assertEqual(found_in({POOL: owner("Second", most - 2)}), [])
        self.assertEqual(len(found_in({POOL: owner("Second", most - 1)})), 1)
        # In any file. An override counts once.
        base = "class Second {\n  virtual void method0() = 0;\n  void second();\n};\n"
        own = owner("Second", most - 1)
        own = own[own.index("class Owner"):]
        self.assertEqual(found_in({TREE: base, POOL: own}), [])
        self.assertEqual(len(found_in({TREE: base.replace("method0", "other"), POOL: own})), 1)

    def test_a_base_whose_name_others_have_too(self):
        def base(methods):
            return "class Base {\n" + "".join(f"  void base{i}();\n" for i in range(methods)) + "};\n"
        own = "class Owner : public Base {\n  void own();\n};\n"
        most = check_structure.CLASS_METHODS_MAX
        near = '#include "stateport/core/tree/prefix_tree.hpp"\n'.replace('"', "<", 1).replace('"', ">")
        # One that it includes comes before a larger one.
        self.assertEqual(found_in({TREE: base(1), POOL: base(most), "perf/a.cpp": near + own}), [])
        self.assertEqual(len(found_in({TREE: base(most), POOL: base(1), "perf/a.cpp": near + own})), 1)
        # Without an include it is the largest.
        self.assertEqual(len(found_in({TREE: base(1), POOL: base(most), "perf/a.cpp": own})), 1)
        self.assertEqual(found_in({"perf/a.cpp": "class Owner : public other::Owner {\n  void own();\n};\n"}), [])

    def test_known_classes_do_not_grow(self):
        name, most = next(iter(check_structure.CLASS_METHODS_KNOWN.items()))
        def owner(methods):
            return f"class {name} {{\n" + "".join(f"  void method{i}();\n" for i in range(methods)) + "};\n"
        self.assertEqual(found_in({POOL: owner(most)}), [])
        self.assertEqual(len(found_in({POOL: owner(most + 1)})), 1)


class Shapes(unittest.TestCase):
    def test_methods(self):
        text = """class [[nodiscard]] Owner final : public Base<int()> {
         public:
          explicit Owner(int a) : a_{a}, b_(a) { check(); }
          Owner(const Owner&) = delete;
          template <class T> [[nodiscard]] auto get(T&& t) const noexcept -> decltype(t()) { return t(); }
          bool operator<(const Owner& o) const { return a_ < o.a_; }
          void operator()(int) const;
          friend bool operator==(Owner, Owner) = default;
          using Function = void(int);
          std::function<void(int)> call;
          struct Inner { void one(); void two() {} };
          static constexpr auto value = make(1);
          virtual void last() = 0;
         private:
          int a_ = f(2);
          Index b_{3};
        };"""
        self.assertEqual([(name, len(methods), bases) for name, _, methods, bases in classes_of(text)],
                         [("Inner", 2, []), ("Owner", 5, ["Base"])])

    def test_functions(self):
        text = """namespace a::b {
        struct Point { int x = 0; };
        constexpr auto table = std::to_array<Point>({{1}, {2}});
        #if ONE
        int first(int x) {
        #else
        int first(long x) {
        #endif
          // not a brace: }
          return x + "}"[0] + '}';
        }
        template <class T>
          requires(sizeof(T) > 1)
        T second() { return {}; }
        Owner::Owner() : a_{1}, b_(2) { run([] { return 1; }); }
        extern "C" int third(void) { return 3; }
        }
        TEST_CASE("a name with (brackets) {") { CHECK(true); }
        """
        names = [name for name, _, _ in functions_of(text)]
        self.assertEqual(names, ["first", "second", "Owner", "third", "TEST_CASE"])


class Words(unittest.TestCase):
    PLAIN = "/// Copies the slots of a plan.\n"

    def test_comments_that_name_their_subjects_are_good(self):
        self.assertEqual(found_in({POOL: self.PLAIN * 100}), [])

    def test_a_header_leaves_no_noun_out(self):
        for word in ("What", "whoever", "so many"):
            found = found_in({POOL: self.PLAIN * 100 + f"/// {word} is copied.\n"})
            self.assertEqual(len(found), 1)
            self.assertIn(POOL, found[0])

    def test_the_file_with_most_is_named(self):
        found = found_in({POOL: self.PLAIN + "/// What is copied.\n", TREE: "/// What is kept, and what goes.\n"})
        self.assertEqual(len(found), 1)
        self.assertIn(TREE, found[0])

    def test_a_few_are_no_offence(self):
        lines = "/// Copies the slots of a plan, in the order of its rows.\n" * 250
        self.assertEqual(found_in({POOL: lines + "/// What is copied.\n"}), [])

    def test_a_document_leaves_no_noun_out(self):
        self.assertEqual(len(found_in({POOL: self.PLAIN, "README.md": "What is copied.\n"})), 1)
        code = "It copies slots:\n\n    what()\n\nand `what`.\n"
        self.assertEqual(found_in({POOL: self.PLAIN, "core/README.md": code, "CHANGELOG.md": "What is new.\n"}), [])

    def test_code_and_strings_do_not_count(self):
        code = 'const char* what = "what"; // Copies the slots.\n'
        script = 'what = "what"  # copies the slots\n'
        self.assertEqual(found_in({"core/src/pool/slot_pool.cpp": code, "python/stateport/copier.py": script}), [])

    def test_tests_and_python_have_limits_of_their_own(self):
        plain = "Copies the slots of a plan, in the order of its rows. " * 85  # 935 words
        for name, mark in (("tests/pool_test.cpp", "//"), ("apps/replay/main.cpp", "//"), ("cmake/check.py", "#")):
            most = check_structure.NO_NOUN_MAX["Python" if mark == "#" else "tests and perf"] // 10
            text = f"{mark} {plain}\n" + f"{mark} Says what.\n" * most
            self.assertEqual(found_in({POOL: self.PLAIN, name: text + f"{mark} {plain}\n"}), [])
            found = found_in({POOL: self.PLAIN, name: text + f"{mark} Says what.\n"})
            self.assertEqual(len(found), 1)
            self.assertIn(name, found[0])
        docstring = '"""What is copied."""\n'
        self.assertEqual(len(found_in({POOL: self.PLAIN, "python/stateport/copier.py": docstring})), 1)


if __name__ == "__main__":
    unittest.main()
