# SPDX-License-Identifier: Apache-2.0
"""The design of a study: arms, workloads, how many launches, in which order. Pure.

    format: 1
    name: near-or-far
    arms:
      near: {cluster: examples/two-nodes.yaml, way: auto, platform: container,
             fabric: shared memory, placement: two nodes}
      tcp: {cluster: examples/two-nodes.yaml, way: stock, platform: container,
            fabric: TCP, placement: two nodes}
    workloads:
      latency: {use: imb-pingpong, mpi: mpich5}
    launches: {least: 6, most: 20, interval_percent: 5, budget_minutes: 10}

A block is one launch of every workload in every arm, in an order drawn from the seed. Blocks are
repeated until every interval is narrow enough, but at least `least` and at most `most` times, and
not beyond the budget.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearmetal.config.explain import load_yaml
from nearmetal.core.errors import Problem, SpecError
from nearmetal.study.labels import ArmLabels
from nearmetal.study.stats import MIN_LAUNCHES, median_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

WHAT = "a study"

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
Text = Annotated[str, Field(min_length=1, max_length=400)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Share = Annotated[float, Field(gt=0, le=100)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ArmDesign(ArmLabels):
    """One arm: where its jobs run, which way their messages go, and what it is."""

    cluster: Text | None = None
    """A cluster spec, or the name of a cluster that is up."""
    start: Annotated[list[Text], Field(min_length=1)] | None = None
    """Or the site's own launcher, as [srun, -n, "@ranks@"]: the program comes behind it."""
    way: Name = "auto"
    """An arm of nearmetal-bench(1); `own`, what the MPI does within a node; or one of its ways by name."""
    nodes: Annotated[list[Text], Field(min_length=1)] | None = None
    """Only these nodes take ranks."""

    @model_validator(mode="after")
    def _cluster_or_launcher(self) -> ArmDesign:
        if (self.cluster is None) == (self.start is None):
            msg = "names neither or both of cluster and start|say where its jobs run"
            raise ValueError(msg)
        if self.start is not None and (self.nodes is not None or self.way != "auto"):
            msg = "has nodes or way beside start|the launcher decides about them"
            raise ValueError(msg)
        return self


class WorkloadDesign(_Model):
    """One workload: one that is known by name, or a program with the format of its output."""

    use: Name | None = None
    program: Text | None = None
    args: list[str] = []
    log_format: Name | None = None
    log: Literal["stdout", "stderr"] = "stdout"
    mpi: Name | None = None
    ranks: Count = 2
    input: Text | None = None
    """A directory with the workload's input, instead of the small one that it has."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> WorkloadDesign:
        if (self.use is None) == (self.program is None):
            msg = "names neither or both of use and program|name a known workload, or a program"
            raise ValueError(msg)
        if self.program is not None and self.log_format is None:
            msg = "has a program but no log_format|say how its output is to be read"
            raise ValueError(msg)
        if self.use is not None and self.log_format is not None:
            msg = "has log_format beside use|a known workload has its own"
            raise ValueError(msg)
        return self


class LaunchesDesign(_Model):
    """How many blocks: until every interval is as narrow as wanted, within limits."""

    least: Annotated[int, Field(ge=1, le=1000)] = MIN_LAUNCHES
    most: Annotated[int, Field(ge=1, le=1000)] = 20
    interval_percent: Share = 5.0
    """Half the width of the interval of a median, in percent of it."""
    budget_minutes: Annotated[float, Field(gt=0, le=10_080)] = 60.0

    @model_validator(mode="after")
    def _fits(self) -> LaunchesDesign:
        if self.most < self.least:
            msg = f"at most {self.most} launches are fewer than at least {self.least}"
            raise ValueError(msg)
        return self


class Design(_Model):
    """The whole file."""

    format: Literal[1]
    name: Name
    seed: Annotated[int, Field(ge=0)] = 1
    arms: Annotated[dict[Name, ArmDesign], Field(min_length=1)]
    workloads: Annotated[dict[Name, WorkloadDesign], Field(min_length=1)]
    launches: LaunchesDesign = LaunchesDesign()


class Turn(NamedTuple):
    """One launch to make."""

    block: int
    workload: str
    arm: str


def load_design(path: Path, workloads: Iterable[str], open_ended: Iterable[str] = ()) -> Design:
    """Read a study; `workloads` are known by name, and it may give the arguments of `open_ended`.

    Raises NearmetalError or SpecError.
    """
    design, document = load_yaml(path, Design, WHAT)
    known, free = list(workloads), set(open_ended)
    problems = []

    def refuse(name: str, key: str, *words: str) -> None:
        line, column = document.where(("workloads", name, key))
        problems.append(Problem(document.file, line, column, *words))

    for name, workload in design.workloads.items():
        if workload.use is None:
            continue
        if workload.use not in known:
            refuse(
                name,
                "use",
                f"no workload {workload.use!r}",
                "only some are known by name",
                f"known: {', '.join(known)}",
            )
        elif workload.args and workload.input is None and workload.use not in free:
            refuse(
                name,
                "args",
                f"workload {name} has args beside use",
                "a known workload has its own",
                "give input, or leave args out",
            )
    if problems:
        raise SpecError(problems)
    return design


def block(design: Design, number: int) -> list[Turn]:
    """Return the launches of a block: workloads in a row, their arms in an order drawn anew.

    The same seed gives the same order, so that a study that was killed goes on where it stood.
    """
    dice = random.Random(f"{design.seed}/{number}")  # noqa: S311 - an order, no secret
    workloads = dice.sample(list(design.workloads), len(design.workloads))
    return [
        Turn(number, workload, arm)
        for workload in workloads
        for arm in dice.sample(list(design.arms), len(design.arms))
    ]


def half_width_percent(values: Sequence[float]) -> float | None:
    """Return half the width of the median's interval in percent of it; None: too few values."""
    interval = median_interval(values)
    if interval is None:
        return None
    middle = (interval.high + interval.low) / 2
    return (interval.high - interval.low) / 2 / middle * 100 if middle > 0 else None


def unsettled(
    cells: Mapping[tuple[object, ...], Sequence[float]], launches: LaunchesDesign
) -> list[tuple[object, ...]]:
    """Return the cells whose interval is not there yet, or wider than wanted."""
    found = []
    for key, values in cells.items():
        width = half_width_percent(values)
        if width is None or width > launches.interval_percent:
            found.append(key)
    return found
