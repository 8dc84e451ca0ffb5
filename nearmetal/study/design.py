# SPDX-License-Identifier: Apache-2.0
"""The study file: arms, workloads, number and order of the launches. Pure.

nearmetal-study(1) has the format. A block is one launch of every workload in every arm, in an order
drawn from the seed. Blocks are repeated until every interval is narrow enough, but at least `least`
and at most `most` times, and not beyond the budget.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from nearmetal.config.explain import load_yaml
from nearmetal.config.model import Model
from nearmetal.study.labels import ArmLabels
from nearmetal.study.stats import MIN_LAUNCHES, median_interval

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
Text = Annotated[str, Field(min_length=1, max_length=400)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Share = Annotated[float, Field(gt=0, le=100)]


class ArmDesign(ArmLabels):
    """One arm: the place of its jobs, the way of their messages, and its description."""

    cluster: Text | None = None
    """Cluster spec, or name of a running cluster."""
    start: Annotated[list[Text], Field(min_length=1)] | None = None
    """Or launcher of the site, for example [srun, -n, "@ranks@"]; the program follows it."""
    way: Name = "auto"
    """Arm of nearmetal-bench(1); `own`: the way of the MPI within a node; or the name of a way."""
    nodes: Annotated[list[Text], Field(min_length=1)] | None = None
    """Nodes that take ranks; None: all."""

    @model_validator(mode="after")
    def _cluster_or_launcher(self) -> ArmDesign:
        if (self.cluster is None) == (self.start is None):
            raise ValueError("has neither or both of cluster and start|give one of them")
        if self.start is not None and (self.nodes is not None or self.way != "auto"):
            raise ValueError("has nodes or way with start|remove them: the launcher decides")
        return self


class WorkloadDesign(Model):
    """One workload: the name of a known one, or a program with the format of its output."""

    use: Name | None = None
    program: Text | None = None
    args: list[str] = Field(default_factory=list)
    log_format: Name | None = None
    log: Literal["stdout", "stderr"] = "stdout"
    mpi: Name | None = None
    ranks: Count = 2
    input: Text | None = None
    """Directory with input for the workload; None: its own small input."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> WorkloadDesign:
        if (self.use is None) == (self.program is None):
            raise ValueError("has neither or both of use and program|give one of them")
        if self.program is not None and self.log_format is None:
            raise ValueError("has a program but no log_format|give the format of its output")
        if self.use is not None and self.log_format is not None:
            raise ValueError("has log_format with use|remove it: a known workload has its own")
        return self


class LaunchesDesign(Model):
    """The number of blocks: until every interval is narrow enough, within limits."""

    least: Annotated[int, Field(ge=1, le=1000)] = MIN_LAUNCHES
    most: Annotated[int, Field(ge=1, le=1000)] = 20
    interval_percent: Share = 5.0
    """Half the width of the interval of a median, in percent of it."""
    budget_minutes: Annotated[float, Field(gt=0, le=10_080)] = 60.0

    @model_validator(mode="after")
    def _fits(self) -> LaunchesDesign:
        if self.most < self.least:
            raise ValueError(f"least is {self.least}, most is {self.most}|make most at least least")
        return self


class Design(Model):
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
    design, document = load_yaml(path, Design, "a study")
    known, free = list(workloads), set(open_ended)
    for name, workload in design.workloads.items():
        if workload.use is not None and workload.use not in known:
            document.complain(
                document.where(("workloads", name, "use")),
                f"no workload {workload.use!r}",
                "the name is not known",
                f"known: {', '.join(known)}",
            )
        elif workload.use not in (None, *free) and workload.args and workload.input is None:
            document.complain(
                document.where(("workloads", name, "args")),
                f"workload {name} has args with use",
                "a known workload has its own",
                "give input, or remove args",
            )
    document.refuse_problems()
    return design


def block(design: Design, number: int) -> list[Turn]:
    """Return the launches of a block: workloads in a row, their arms in a new random order.

    The same seed gives the same order, so an interrupted study resumes where it stopped.
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
    """Return the cells without an interval, or with an interval that is too wide."""
    widths = {key: half_width_percent(values) for key, values in cells.items()}
    most = launches.interval_percent
    return [key for key, width in widths.items() if width is None or width > most]
