# SPDX-License-Identifier: Apache-2.0
"""Numbers that studies have published, as data: each with the line of the text it stands in.

`line` counts in the plain text of the study, `printed` are the characters there, and `value` is in
`unit`. A number without variance or raw values supports no verdict. Figures whose values are not in
the text are listed as plots, and nothing was read off them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Study:
    """Where numbers come from."""

    name: str
    title: str
    publisher: str
    year: int
    runs: int | None
    """How many runs a number is the mean of, where the study says it."""


STUDIES = {
    study.name: study
    for study in (
        Study(
            "vmw-ib",
            "InfiniBand SR-IOV Setup and Performance Study on vSphere 7.x",
            "VMware",
            2022,
            5,
        ),
        Study(
            "vmw-adapter",
            "Virtualizing HPC on vSphere: Choosing a Best Method for RDMA HCA/NIC "
            "Deployment for MPI Workloads",
            "VMware",
            2023,
            5,
        ),
        Study(
            "vmw-gdr",
            "Scaling HPC and ML with GPUDirect RDMA on vSphere 6.7 (Part 2 of 2)",
            "VMware",
            2018,
            None,
        ),
        Study(
            "sdsc",
            "SR-IOV: Performance Benefits for Virtualized Interconnects",
            "San Diego Supercomputer Center, XSEDE",
            2014,
            None,
        ),
        Study(
            "osu",
            "Building HPC Cloud with InfiniBand",
            "The Ohio State University, MUG",
            2018,
            None,
        ),
    )
}


@dataclass(frozen=True)
class Number:
    """One number. `bound` is empty for a value, or `about`, `at most`, `at least`.

    `metric` says what it is of `arm` against `base`: `loss` and `gain` are percent of performance.
    `scale` is a size, a number of nodes, or a set of nodes.
    """

    study: str
    line: int
    printed: str
    value: float
    bound: str
    unit: str
    test: str
    arm: str
    base: str
    scale: str
    metric: str
    origin: str

    @property
    def digits(self) -> int:
        """The digits behind the point that were printed: the value is rounded there."""
        number = "".join(c for c in self.printed.replace(",", ".") if c.isdigit() or c == ".")
        return len(number.rpartition(".")[2]) if "." in number.strip(".") else 0


@dataclass(frozen=True)
class Plot:
    """A figure whose values are not in the text: unavailable."""

    study: str
    line: int
    figure: str
    test: str
    shows: str


@dataclass(frozen=True)
class AdapterFact:
    """One cell of the adapter table of VMW-ADAPTER (table 2), as printed."""

    line: int
    adapter: str
    property: str
    printed: str


def _rows(name: str) -> list[dict[str, str]]:
    file = resources.files(__name__).joinpath(f"{name}.csv")
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


@cache
def numbers(study: str) -> tuple[Number, ...]:
    """Return the numbers of a study, in the order of its text; raises KeyError for an unknown one."""
    name = STUDIES[study].name
    return tuple(
        Number(
            name,
            int(row["line"]),
            row["printed"],
            float(row["value"]),
            row["bound"],
            row["unit"],
            row["test"],
            row["arm"],
            row["base"],
            row["scale"],
            row["metric"],
            row["origin"],
        )
        for row in _rows(name)
    )


@cache
def plots() -> tuple[Plot, ...]:
    """Return every figure whose values are unavailable."""
    return tuple(
        Plot(row["study"], int(row["line"]), row["figure"], row["test"], row["shows"])
        for row in _rows("plots")
    )


@cache
def adapters() -> tuple[AdapterFact, ...]:
    """Return the adapter table."""
    return tuple(
        AdapterFact(int(row["line"]), row["adapter"], row["property"], row["printed"])
        for row in _rows("adapters")
    )


def find(study: str, **wanted: object) -> list[Number]:
    """Return the numbers whose fields have these values."""
    return [n for n in numbers(study) if all(getattr(n, k) == v for k, v in wanted.items())]
