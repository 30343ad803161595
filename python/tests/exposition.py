# SPDX-License-Identifier: Apache-2.0
"""Reads the text exposition format of Prometheus as strictly as it is specified."""
from __future__ import annotations

import math
import re

_NAME, _LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
Labels = frozenset[tuple[str, str]]


class Exposition:
    """types: by family. values: by the name of a sample and its labels. Fails for a text that breaks a rule: a family
    twice or without help, a sample of no family or twice, buckets that do not add up."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.values: dict[tuple[str, Labels], float] = {}
        self._helped: set[str] = set()
        assert text.endswith("\n")
        family = ""
        for line in text.splitlines():
            if found := re.fullmatch(rf"# HELP ({_NAME}) (\S.*)", line):
                family = found[1]
                assert family not in self._helped, f"{family} has two helps"
                self._helped.add(family)
            elif found := re.fullmatch(rf"# TYPE ({_NAME}) (counter|gauge|histogram)", line):
                assert found[1] == family and family not in self.types, line
                assert family.endswith("_total") == (found[2] == "counter"), line
                self.types[family] = found[2]
            else:
                self._add(family, line)
        self._check_histograms()

    def _add(self, family: str, line: str) -> None:
        found = _SAMPLE.fullmatch(line)
        assert found, line
        name, labels = found[1], frozenset(re.findall(_LABEL, found[2] or ""))
        suffixes = {"_bucket", "_sum", "_count"} if self.types[family] == "histogram" else {""}
        assert name.removeprefix(family) in suffixes, line
        assert (name, labels) not in self.values, line
        self.values[name, labels] = float(found[found.re.groups].replace("Inf", "inf"))

    def _check_histograms(self) -> None:
        for family in (name for name, kind in self.types.items() if kind == "histogram"):
            for name, labels in [*self.values]:
                if name != f"{family}_count":
                    continue
                buckets = {float(dict(more)["le"].replace("Inf", "inf")): value
                           for (other, more), value in self.values.items()
                           if other == f"{family}_bucket" and {one for one in more if one[0] != "le"} == labels}
                counts = [buckets[bound] for bound in sorted(buckets)]
                assert counts == sorted(counts) and math.inf in buckets, family
                assert counts[-1] == self.values[name, labels], family
                assert (f"{family}_sum", labels) in self.values, family

    @property
    def names(self) -> set[str]:
        """Of samples."""
        return {name for name, _ in self.values}

    def get(self, metric: str, **labels: str) -> float:
        """Raises KeyError for a sample that is not there. for_: the label "for"."""
        return self.values[metric, frozenset((name.rstrip("_"), value) for name, value in labels.items())]
