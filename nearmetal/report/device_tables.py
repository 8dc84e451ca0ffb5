# SPDX-License-Identifier: Apache-2.0
"""Messages from and to memory of a GPU, beside the copies of the GPU that limit them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nearmetal.evidence import Fact
from nearmetal.report import numbers
from nearmetal.report.analysis import Evidence, RawLine, Which, rows_of
from nearmetal.report.page import Grid, GridCell
from nearmetal.report.sections import RawLinks

PROGRAM, _PREFIX, _BOTH = "device", "fabric_device_", "_both"
_SIDES = {"D": "GPU", "H": "host"}
_SIZES = {8: "8 B", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB"}
_SHARES = {"of_copy": "the GPU's copy", "of_pinned": "pinned copies"}
_SMALL = 4096
"""Of a smaller message, the time is shown."""

_CAPTION = (
    "The time of 8 B and the GB/s of larger messages until their answer, with the shares of two copies of "
    "the same bytes, which took turns with them: on the GPU from device to device, and through pinned "
    "memory of the host. The median of the launches, with the least and the highest share in brackets."
)


def device_tables(evidence: Evidence, links: RawLinks) -> Iterator[Grid]:
    """Yield a table for each pair of memories and one or both directions."""
    arms = dict.fromkeys(launch.arm for launch in evidence.run.manifest.launches)
    for test, _ in evidence.tests(PROGRAM):
        rows = [
            (GridCell(arm), *(_cell(evidence, links, arm, test, size) for size in _SIZES))
            for arm in arms
        ]
        if any(cell.href for row in rows for cell in row):
            yield Grid(_title(test), ("path", *_SIZES.values()), tuple(rows), _CAPTION)


def _title(test: str) -> str:
    pair = test.removeprefix(_PREFIX).removesuffix(_BOTH)
    names = [_SIDES.get(side, side) for side in pair]
    return f"{' to '.join(names)}{', both directions' if test.endswith(_BOTH) else ''}"


def _cell(evidence: Evidence, links: RawLinks, arm: str, test: str, size: int) -> GridCell:
    launches = rows_of(evidence.facts(Which(arm, "", PROGRAM, test)))
    metric = "time_p50" if size < _SMALL else "bandwidth_p50"
    needed = {metric} if size < _SMALL else {metric, *_SHARES}
    rows = [row for (_, of_size), row in launches.items() if of_size == size and needed <= {*row}]
    found = sorted((row[metric] for row in rows), key=lambda fact: fact.value)
    if not found:
        return GridCell("not measured")
    middle = found[(len(found) - 1) // 2]
    href = links.href(RawLine(middle.file, middle.line))
    if size < _SMALL:
        return GridCell(numbers.microseconds(middle.value), href)
    shares = [
        f"{_spread(row[metric] for row in rows)} of {words}" for metric, words in _SHARES.items()
    ]
    return GridCell(f"{middle.value / 1e3:.3g}", href, ", ".join(shares))


def _spread(facts: Iterable[Fact]) -> str:
    values = sorted(fact.value for fact in facts)
    middle = f"{values[(len(values) - 1) // 2]:.2f}"
    return middle if len(values) == 1 else f"{middle} [{values[0]:.2f}, {values[-1]:.2f}]"
