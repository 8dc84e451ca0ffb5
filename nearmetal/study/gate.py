# SPDX-License-Identifier: Apache-2.0
"""The comparability gate: other differences between arms block a comparison, or mark it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from nearmetal.evidence import Unit
from nearmetal.evidence.model import USUAL_DATATYPES, Setup
from nearmetal.study.model import LAUNCH, Arm, Cell, Point, SourceFile

FACTS = {
    "line_rate_gbit": "the line rate",
    "transport": "the transport that was used",
    "mtu": "the MTU",
    "mpi": "the MPI and its version",
    "compiler": "the compiler",
    "ranks_per_node": "the ranks per node",
    "binding": "the binding of ranks to cores",
    "firmware": "the adapter's firmware",
    "power_policy": "the power policy",
    "numa": "the NUMA placement",
    "latency_sensitivity": "the latency sensitivity",
    "processor": "the processor",
    "carried_by": "what carried the messages",
}
"""Facts of an arm or of its launches, in addition to platform, fabric and placement."""

_ONLY_RECORDED = ("carried_by",)
"""Facts that no label has."""

BANDWIDTHS = {
    Unit.MEGABYTES_PER_SECOND: 8e-3,
    Unit.MEBIBYTES_PER_SECOND: 8 * (1 << 20) / 1e9,
    Unit.GIGABYTES_PER_SECOND: 8.0,
    Unit.GIGABITS_PER_SECOND: 1.0,
    Unit.MEBIBITS_PER_SECOND: (1 << 20) / 1e9,
}
"""Gbit/s by unit."""

MEASURED = "measured_line_rate_gbit"
USUAL_RATES = (1, 10, 25, 40, 56, 100, 200, 400, 800)
ONE_WAY = ("osu_bw", "osu_mbw_mr", "send_bw", "rdma_write_bw", "rdma_read_bw", "PingPong")

SMALL = 64
"""Message size up to which the time on the wire is small against the latency, in bytes."""

TIMING_CHANGED = {"osu_mbw_mr": (7, 4), "osu_multi_lat": (7, 4)}
"""Tests whose timing is different from this version on."""


class Weight(IntEnum):
    """The weight of a difference."""

    NOTE = 0
    WATERMARK = 1
    BLOCK = 2


@dataclass(frozen=True)
class Difference:
    """One fact that differs, or is unknown."""

    weight: Weight
    what: str


@dataclass(frozen=True)
class Comparability:
    """The differences of one comparison, and their consequence."""

    differences: tuple[Difference, ...] = ()

    def _of(self, weight: Weight) -> tuple[str, ...]:
        return tuple(d.what for d in self.differences if d.weight is weight)

    @property
    def blocked(self) -> bool:
        """Whether no conclusion is possible."""
        return bool(self.reasons)

    @property
    def watermarks(self) -> tuple[str, ...]:
        """The differences that a figure must show."""
        return self._of(Weight.WATERMARK)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The differences that block the comparison."""
        return self._of(Weight.BLOCK)


VARIES = "varies: "
"""Prefix of a fact that differs between launches of a cell."""

_SHOWN = 3


def fold(headers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the recorded facts of some sources by name."""
    found: dict[str, dict[str, None]] = {}
    for header in headers:
        for key, value in header.items():
            if key.startswith(LAUNCH):
                found.setdefault(key.removeprefix(LAUNCH), {})[value] = None
    return {name: _one(list(values)) for name, values in found.items()}


def _one(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    more = f" | and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return VARIES + " | ".join(values[:_SHOWN]) + more


class RecordedFacts:
    """The recorded facts of cells; facts of common sources are folded once."""

    def __init__(self, sources: Mapping[str, SourceFile]) -> None:
        """`sources` by their paths."""
        self._sources = sources
        self._known: dict[tuple[str, ...], dict[str, str]] = {}

    def __call__(self, cell: Cell) -> dict[str, str]:
        """Return the facts of a cell's launches by name."""
        key = tuple(dict.fromkeys(seen.source for seen in cell.observations))
        if key not in self._known:
            self._known[key] = fold(self._sources[name].header for name in key)
        return self._known[key]

    def versions(self, cell: Cell) -> set[str]:
        """Return the versions of the benchmark that the logs of a cell name."""
        logs = (self._sources[seen.source] for seen in cell.observations)
        return {log.header["version"] for log in logs if log.header.get("version")}


def with_line_rate(arm: Arm, cells: Iterable[Cell]) -> Arm:
    """Return the arm with the slowest usual line rate that can carry the measured bandwidth."""
    carried = [
        max(cell.values) * BANDWIDTHS[cell.point.unit]
        for cell in cells
        if cell.point.unit in BANDWIDTHS and cell.point.test in ONE_WAY
    ]
    most = max(carried, default=0.0)
    rate = next((rate for rate in USUAL_RATES if most <= rate), None)
    if not most or rate is None:
        return arm
    return replace(arm, facts={**arm.facts, MEASURED: f"{rate:g}"})


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _line_rate(base: Arm, test: Arm, point: Point) -> Iterator[Difference]:
    known = [arm.facts.get("line_rate_gbit") for arm in (base, test)]
    measured = [arm.facts.get(MEASURED) for arm in (base, test)]
    if None not in known:
        if known[0] != known[1]:
            small = point.size is None or (point.size <= SMALL and point.unit not in BANDWIDTHS)
            weight = Weight.WATERMARK if small else Weight.BLOCK
            rates = f"{known[0]} against {known[1]} Gbit/s"
            yield Difference(weight, f"the line rates differ: {rates}")
    elif None not in measured and measured[0] != measured[1]:
        fits = f"the measured bandwidths fit {measured[0]} against {measured[1]} Gbit/s"
        yield Difference(Weight.WATERMARK, f"the line rates may differ: {fits}")


def _versions(base: Iterable[str], test: Iterable[str], point: Point) -> Iterator[Difference]:
    ours, theirs = sorted(set(base)), sorted(set(test))
    if len({*ours, *theirs}) < 2:  # noqa: PLR2004 - one version, or none known
        return
    words = f"versions of {point.program}: {', '.join(ours)} against {', '.join(theirs)}"
    changed = TIMING_CHANGED.get(point.test)
    if changed and len({_version(v) >= changed for v in (*ours, *theirs)}) > 1:
        timing = f"{point.test} changed its timing in {'.'.join(map(str, changed))}"
        yield Difference(Weight.BLOCK, f"{words}: {timing}")
    else:
        yield Difference(Weight.WATERMARK, words)


SETUP_WORDS = {
    "mode": "the mode",
    "buffers": "the place of the buffers",
    "synchronization": "the synchronization",
    "datatype": "the datatype",
    "window": "the window size",
    "iterations": "the iterations",
    "pair": "the pairs",
    "flags": "the options",
}
"""Parts of a configuration; `version` and `placement` have their own rules."""

USUAL = {"datatype": set(USUAL_DATATYPES)}
"""Values of a part that older versions use without a word."""


GPU, NO_GPU = "gpu", "none"
"""Fact of an arm: how messages of a GPU go, for example `staged` or `direct`; `none`: without GPU."""
_ON_HOST = ("", "H H")
"""Places of buffers that are the memory of the host. perftest says nothing of it."""


def _setups(base: Setup, test: Setup, gpu: tuple[str | None, ...]) -> Iterator[Difference]:
    """Compare the configurations of a benchmark that two cells carry from their logs.

    `gpu`: that fact of both arms. If one of them is without a GPU, and its logs agree, the place of
    the buffers is what they compare.
    """
    if base.placement != test.placement:
        words = " against ".join(s.placement or "as the labels say" for s in (base, test))
        yield Difference(Weight.BLOCK, f"the placement that the logs show: {words}")
    for name, words in SETUP_WORDS.items():
        ours, theirs = getattr(base, name), getattr(test, name)
        if ours == theirs:
            continue
        weight = Weight.BLOCK
        if name == "buffers" and _compares_places(gpu, (ours, theirs)):
            weight = Weight.NOTE
        elif not ours or not theirs:
            usual = {ours, theirs} <= USUAL.get(name, set())
            weight = Weight.NOTE if usual else Weight.WATERMARK
        elif name == "iterations":
            weight = Weight.WATERMARK
        elif name == "flags":
            parts = [set(part.split("; ")) for part in (ours, theirs)]
            ours, theirs = ("; ".join(sorted(s - o)) for s, o in (parts, parts[::-1]))
            marked = all(word.startswith("mtu ") for word in parts[0] ^ parts[1])
            weight = Weight.WATERMARK if marked else Weight.BLOCK
        yield Difference(weight, f"{words}: {ours or 'not known'} against {theirs or 'not known'}")


def _compares_places(gpu: tuple[str | None, ...], places: tuple[str, ...]) -> bool:
    on_host = tuple(place in _ON_HOST for place in places)
    return None not in gpu and tuple(way == NO_GPU for way in gpu) == on_host


def _facts(base: Arm, test: Arm, seen: tuple[Mapping[str, str], ...]) -> Iterator[Difference]:
    """Compare the facts of the labels, else the recorded facts of the launches."""
    for name, words in FACTS.items():
        if name == "line_rate_gbit":
            continue
        arms = zip((base, test), seen, strict=True)
        facts = [arm.facts.get(name, recorded.get(name)) for arm, recorded in arms]
        varying = [value for value in facts if value and value.startswith(VARIES)]
        if varying:
            yield Difference(Weight.WATERMARK, f"{words} {varying[0]}")
        elif None in facts:
            if name not in _ONLY_RECORDED:
                yield Difference(Weight.NOTE, f"{words} is not known of both")
        elif facts[0] != facts[1]:
            weight = _weight(name, same_fabric=base.fabric == test.fabric)
            yield Difference(weight, f"{words}: {facts[0]} against {facts[1]}")


def _weight(name: str, *, same_fabric: bool) -> Weight:
    """Return the weight of a fact. The carrier of messages may differ if the fabric does."""
    if name == "carried_by":
        return Weight.BLOCK if same_fabric else Weight.NOTE
    return Weight.BLOCK if name == "transport" else Weight.WATERMARK


def check(
    base: Arm,
    test: Arm,
    cells: tuple[Cell, Cell],
    versions: tuple[Iterable[str], Iterable[str]],
    *,
    same_sizes: bool = True,
    seen: tuple[Mapping[str, str], ...] = ({}, {}),
) -> Comparability:
    """Return the differences between two cells of two arms.

    `versions` are those of the benchmark in the logs of each cell, `seen` the facts of the launches.
    Platform and fabric may differ, the placement of ranks may not.
    """
    point = cells[0].point
    logs = [cell.point.setup.version for cell in cells]
    known = [{*said, own} - {""} for said, own in zip(versions, logs, strict=True)]
    found = [*_line_rate(base, test, point), *_versions(known[0], known[1], point)]
    gpu = tuple(arm.facts.get(GPU) for arm in (base, test))
    found += _setups(cells[0].point.setup, cells[1].point.setup, gpu)
    if base.placement != test.placement:
        words = f"the placement: {base.placement} against {test.placement}"
        found.append(Difference(Weight.BLOCK, words))
    ranks = [cell.point.ranks for cell in cells]
    if ranks[0] != ranks[1]:
        cores = [arm.cores_per_node for arm in (base, test)]
        explained = None not in cores and cores[0] != cores[1]
        words = f"the ranks: {ranks[0]} against {ranks[1]}"
        found.append(Difference(Weight.NOTE if explained else Weight.WATERMARK, words))
    if not same_sizes:
        found.append(Difference(Weight.NOTE, "the sets of message sizes differ"))
    return Comparability((*found, *_facts(base, test, seen)))
