# SPDX-License-Identifier: Apache-2.0
"""One group of ranks loads the checkpoints that another one stored, with any numbers of ranks, conv layouts and element
types, and gets the right status when the store has lost or damaged objects. One engine hits prefixes that another one
computed. Every rank and every engine is a process; the store is a server's."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from shared_engine import PROMPT_TOKENS
from shared_model import Model
from shared_ranks import FAMILIES, WAIT_S, Compared, Process, Ranks, Server, Side

INT8 = "int8_block32"
INT8_BOUND = 1 / 253
PROMPTS, UNKNOWN = [0, 1], 2
DONE = {"done"}


@dataclasses.dataclass(frozen=True)
class Case:
    writers: Side
    readers: Side
    shared: int = 2

    @property
    def name(self) -> str:
        def shown(side: Side) -> str:
            stages = f"{side.stages}x" if side.stages > 1 else ""
            return f"{stages}{side.ranks} {side.conv_layout} {side.recurrent}"

        encoding = "" if self.writers.encodings == ("default",) else f" as {self.writers.encodings[0]}"
        return f"{shown(self.writers)}{encoding} to {shown(self.readers)}"


BOTH = ("default", INT8)
CASES = [
    Case(Side(4), Side(2, conv_layout="ds")),
    Case(Side(2), Side(4, conv_layout="ds")),
    Case(Side(3), Side(1, conv_layout="ds"), shared=1),
    Case(Side(1, conv_layout="ds"), Side(3), shared=1),
    Case(Side(2, stages=2), Side(4, conv_layout="ds")),
    Case(Side(4, conv_layout="ds"), Side(2, stages=2)),
    Case(Side(4, encodings=(INT8,)), Side(2, conv_layout="ds", encodings=BOTH)),
    Case(Side(2, encodings=(INT8,)), Side(4, conv_layout="ds", recurrent=INT8)),
    Case(Side(3, encodings=(INT8,)), Side(1, conv_layout="ds", encodings=BOTH), shared=1),
    Case(Side(4, recurrent=INT8), Side(2, conv_layout="ds", encodings=BOTH)),
]


@dataclasses.dataclass(frozen=True)
class Exchanged:
    tensors: int  # that were compared
    bytes: int
    objects: int  # that the store has
    object_bytes: int
    error: float  # of rounded tensors; 0: every byte is the same


def all_of(answers: Sequence[Sequence[str]]) -> set[str]:
    return {status for answer in answers for status in answer}


def until(wanted: str, rank: Process, what: str, prompts: Sequence[int], families: Sequence[int] = FAMILIES) -> None:
    """Asks again: clients connect again, and remove objects, in their own time."""
    end = time.monotonic() + WAIT_S
    while (ended := set(rank.do(what, prompts, families))) != {wanted}:
        assert ended <= {"done", "gone", "failed"} and time.monotonic() < end, ended
        time.sleep(0.05)


def whole(compared: Sequence[Compared]) -> bool:
    return not any(one.wrong for one in compared)


def exchange(server: Server, case: Case) -> Exchanged:
    """The writers have ended when the readers begin."""
    has_int8 = INT8 in (*case.writers.encodings, case.writers.recurrent)
    model = Model(case.name, case.shared, any_bits=not has_int8)
    with Ranks(server, model, case.writers) as writers:
        writers.do("fill", PROMPTS)
        assert all_of(writers.do("put", PROMPTS)) == DONE
        object_bytes = sum(info["remote_written_bytes"] for info in writers.do("info"))
        names = [name for prompt in PROMPTS for family in FAMILIES for of in writers.do("names", prompt, family)
                 for name in of]
        assert len(names) == len(set(names))
        objects = writers[0].do("there", names)
        assert objects == len(names)
    with Ranks(server, model, case.readers) as readers:
        assert all_of(readers.do("find", PROMPTS)) == DONE
        assert all_of(readers.do("find", [UNKNOWN])) == {"gone"}
        assert all_of(readers.do("get", PROMPTS)) == DONE
        assert all_of(readers.do("get", [UNKNOWN])) == {"gone"}
        compared = readers.do("compare", PROMPTS, FAMILIES, has_int8)
        assert whole(compared), compared
        assert all(readers.do("untouched", [3]))
        assert not any(info["remote_removed_objects"] for info in readers.do("info"))
    error = max(one.error for one in compared)
    assert 0 < error <= INT8_BOUND if has_int8 else error == 0
    return Exchanged(sum(one.tensors for one in compared), sum(one.bytes for one in compared), objects, object_bytes,
                     error)


# --- Two readers, of which the second misses something ---------------------------------------------------------------

FAULTY = 1  # a family: gated delta net
OTHERS = [family for family in FAMILIES if family != FAULTY]


def write(server: Server, model: Model, prompts: Sequence[int] = PROMPTS) -> None:
    with Ranks(server, model, Side(1)) as writers:
        writers.do("fill", prompts)
        assert all_of(writers.do("put", prompts)) == DONE


def check_spoilt(readers: Ranks, reason: str, *, removes: bool) -> None:
    """Prompt 0 of the faulty family cannot be got by rank 1, for this reason. Everything else can."""
    assert all_of(readers.do("get", [1])) == DONE
    assert readers[0].do("get", [0]) == ["done"] * len(FAMILIES)
    assert readers[1].do("get", [0]) == [reason if family == FAULTY else "done" for family in FAMILIES]
    assert whole([readers[0].do("compare", PROMPTS), readers[1].do("compare", [1]),
                  readers[1].do("compare", [0], OTHERS)])
    removed = [info["remote_removed_objects"] for info in readers.do("info")]
    assert removed[0] == 0 and (removed[1] > 0) == removes
    # From now on it is not there, for this rank alone.
    assert readers[0].do("find", [0], [FAULTY]) == ["done"]
    until("gone", readers[1], "find", [0], [FAULTY])
    assert readers[1].do("get", [0], [FAULTY]) == ["gone"]


def spoil(server: Server, model: Model, action: str, arguments: Any, reason: str, *, removes: bool) -> None:
    """arguments(names): those of Rank.<action>, from the names of objects that only rank 1 reads."""
    write(server, model)
    with Ranks(server, model, Side(2, conv_layout="ds")) as readers:
        common, names = (set(readers[rank].do("names", 0, FAULTY)) for rank in (0, 1))
        assert names and not names & common
        readers[0].do(action, *arguments(sorted(names)))
        check_spoilt(readers, reason, removes=removes)
        write(server, model)  # writes damaged and missing objects again
        assert all_of(readers.do("get", [0])) == DONE
        assert whole(readers.do("compare", PROMPTS))


def a_damaged_byte_is_reported(server: Server) -> None:
    for offset in (60, 4096 + 17):  # of the header, and of the first tensor
        spoil(server, Model(f"damage at {offset}"), "replace", lambda names, at=offset: (names[4], names[4], at),
              "damaged", removes=True)


def a_missing_object_is_reported(server: Server) -> None:
    spoil(server, Model("a missing object"), "drop", lambda names: (names[-1],), "gone", removes=False)


def a_stale_object_is_reported(server: Server) -> None:
    """An object of another prompt has this one's name."""
    model = Model("a stale object")

    def arguments(names: list[str]) -> tuple[str, str]:
        return names[2], names[2].replace("/64/", "/128/").replace(f"/{0:016x}", f"/{1:016x}")

    spoil(server, model, "replace", arguments, "wrong_position", removes=True)


def objects_of(server: Server, model: Model) -> list[str]:
    """Of prompt 0, in the store."""
    write(server, model)
    with Ranks(server, model, Side(1)) as ranks:
        return list(ranks[0].do("names", 0, FAULTY))


def an_object_of_another_model_is_reported(server: Server) -> None:
    """It has the name of this model's object: the header decides."""
    names_of_another = {name.split("/", 2)[2]: name for name in objects_of(server, Model("another model"))}
    spoil(server, Model("this model"), "replace",
          lambda names: (names[0], names_of_another[names[0].split("/", 2)[2]]), "foreign_layout", removes=True)


def another_model_or_layout_finds_nothing(server: Server) -> None:
    """A layout counts for its own family alone."""
    model = Model("a model of its own")
    write(server, model)
    for other, strange in ((dataclasses.replace(model, name="a model of its own!"), list(FAMILIES)),
                           (dataclasses.replace(model, conv_heads=24), [3])):
        with Ranks(server, other, Side(2)) as readers:
            expected = ["gone" if family in strange else "done" for family in FAMILIES]
            assert readers.do("find", [0]) == readers.do("get", [0]) == [expected] * 2
            known = [family for family in FAMILIES if family not in strange]
            assert whole(readers.do("compare", [0], known))


# --- Ends in the middle ----------------------------------------------------------------------------------------------


def a_store_that_is_killed_is_reported(server: Server) -> None:
    """In the middle of puts and of gets. Loaded states stay, and the next server serves the same clients."""
    model = Model("a store that is killed")
    with Ranks(server, model, Side(2)) as writers, Ranks(server, model, Side(1, conv_layout="ds")) as readers:
        writers.do("fill", [0, 1, 2])
        assert all_of(writers.do("put", [0, 1])) == DONE
        assert all_of(readers.do("get", [0])) == DONE
        server.freeze()
        readers.begin("get", [1])
        writers.begin("put", [2])
        time.sleep(0.2)
        server.kill()
        assert all_of(readers.end()) == {"failed"}
        assert all_of(writers.end()) == {"failed"}
        assert all_of(readers.do("find", [0])) == {"failed"}
        assert whole(readers.do("compare", [0])) and whole(writers.do("compare", [0, 1, 2]))
        assert all(readers.do("untouched", [1, 2, 3]))
        server.start()
        for rank in writers.all_ranks:
            until("done", rank, "put", [1, 2])
        for rank in readers.all_ranks:
            until("done", rank, "get", [1, 2])
            until("gone", rank, "find", [0])
        assert whole(readers.do("compare", [0, 1, 2]))
    with Ranks(server, model, Side(2, conv_layout="ds")) as readers:
        assert all_of(readers.do("find", [0])) == {"gone"}
        write(server, model, [0])
        assert all_of(readers.do("get", [0])) == DONE
        assert whole(readers.do("compare", [0]))


def a_writer_that_is_killed_leaves_no_object(server: Server) -> None:
    """Of two writers the second one dies in the middle of its puts: readers of its part miss, the others do not."""
    model = Model("a writer that is killed")
    with Ranks(server, model, Side(2)) as writers, Ranks(server, model, Side(4, conv_layout="ds")) as readers:
        writers.do("fill", [0])
        assert set(writers[0].do("put", [0])) == DONE
        server.freeze()
        writers[1].begin("put", [0])
        time.sleep(0.2)
        writers[1].kill()
        server.thaw()
        writers.all_ranks.pop()
        found, got = readers.do("find", [0]), readers.do("get", [0])
        assert all_of(found[:2]) == all_of(got[:2]) == DONE
        assert all_of(found[2:]) == all_of(got[2:]) == {"gone"}
        assert whole(readers.do("compare", [0])[:2])
        end = time.monotonic() + WAIT_S
        while True:  # Mooncake keeps the names of unfinished puts for a while
            write(server, model, [0])
            if (ended := all_of(readers.do("get", [0]))) == DONE:
                break
            assert ended == {"done", "gone"} and time.monotonic() < end
        assert whole(readers.do("compare", [0]))


def engine(server: Server) -> Process:
    return Process("Engine", server.store, module="shared_engine")


def what_one_engine_computed_another_one_hits(server: Server) -> None:
    """At its first request. The store is killed while a third one loads: it computes."""
    with engine(server) as first:
        assert first.do("serve", 1)[:2] == (PROMPT_TOKENS, 0)
        first.do("drain")
    with engine(server) as second:
        computed, hit, lost = second.do("serve", 1)
        assert computed + hit == PROMPT_TOKENS and hit >= 64 and not lost
        assert second.do("serve", 2)[:2] == (PROMPT_TOKENS, 0)
    with engine(server) as third:
        server.freeze()
        third.begin("serve", 1)
        time.sleep(0.2)
        server.kill()
        assert third.end()[:2] == (PROMPT_TOKENS, 0)
        server.start()
        assert third.do("serve", 1)[0] <= PROMPT_TOKENS - 64  # from its own device


FAULTS = [a_damaged_byte_is_reported, a_missing_object_is_reported, a_stale_object_is_reported,
          an_object_of_another_model_is_reported, another_model_or_layout_finds_nothing]
ENDS = [a_writer_that_is_killed_leaves_no_object, a_store_that_is_killed_is_reported,
        what_one_engine_computed_another_one_hits]  # these freeze or kill the server
