# SPDX-License-Identifier: Apache-2.0
"""The words of `nearmetal check`: checks, what they see on a node, and findings of many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from nearmetal.check.expect import Expectations
    from nearmetal.check.snapshot import Snapshot


class Gravity(IntEnum):
    """The severity of a finding; an analysis fails from one of them on."""

    NOTE = 0
    WARNING = 1
    FAULT = 2

    @property
    def word(self) -> str:
        """The name in texts and files."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Spotted:
    """What a check has found wrong on one node, or on several at once.

    Findings that agree in all of it are one finding of several nodes. `about`: the part of the
    node, for example a port. `source`: of the expectation; "": that of the check.
    """

    value: str
    expected: str
    reason: str
    remedy: str
    about: str = ""
    source: str = ""
    grade: Gravity | None = None
    """Of this finding; None: that of the check."""


Judge = Callable[["Snapshot", "Expectations"], Iterable[Spotted]]


class AcrossNodes(Protocol):
    """A check over all nodes: it takes one after the other and keeps little of each."""

    def add(self, node: Snapshot) -> None:
        """Take a node."""

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        """Return the findings, each with its nodes."""


@runtime_checkable
class Partial(Protocol):
    """A comparison that may leave something out."""

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yield the places that were not compared, and why."""


@dataclass(frozen=True)
class HealthCheck:
    """One check. Its name never changes: suppressions and monitoring depend on it.

    Either `judge` looks at one node, or `compare` makes a comparison of all of them.
    """

    name: str
    grade: Gravity
    title: str
    source: str
    judge: Judge | None = None
    compare: Callable[[Expectations], AcrossNodes] | None = None

    @property
    def family(self) -> str:
        """The family, for example `base`."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class CheckFinding:
    """A finding: one check, the same on all of its nodes."""

    check: str
    grade: Gravity
    nodes: tuple[str, ...]
    folded: str
    about: str
    value: str
    expected: str
    source: str
    reason: str
    remedy: str

    @property
    def key(self) -> str:
        """The check and the part of the node, for example `fabric.state mlx5_0/1`."""
        return f"{self.check} {self.about}".strip()


@dataclass(frozen=True)
class Muted:
    """A finding that a suppression hides, and the reason of that."""

    finding: CheckFinding
    reason: str
    until: str


@dataclass
class Analysis:
    """The result for all nodes."""

    profile: str
    nodes: tuple[str, ...] = ()
    findings: list[CheckFinding] = field(default_factory=list)
    muted: list[Muted] = field(default_factory=list)
    checks: tuple[str, ...] = ()
    """The names of the checks that ran."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Parts of the profile that did not run, with the reason."""

    def fails(self, least: Gravity) -> bool:
        """Whether a finding has at least this grade."""
        return any(finding.grade >= least for finding in self.findings)
