# SPDX-License-Identifier: Apache-2.0
"""The records of moves that have begun: one file per node, on disk before each action."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nearmetal.cluster.move.phases import MovePhase
from nearmetal.core.errors import StateError
from nearmetal.core.files import read_regular, replace_file

_MAX = 1 << 16

_Word = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")]


class Move(BaseModel):
    """One node on its way from a host of the spec to another one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: _Word
    source: _Word
    target: _Word
    phase: MovePhase = MovePhase.PLANNED
    near: bool = True
    """Whether it is to get its devices, those of the segment and its VF."""

    def at(self, phase: MovePhase) -> Move:
        """Return the move in another phase."""
        return self.model_copy(update={"phase": phase})


@dataclass(frozen=True)
class MoveRecords:
    """The records in the directory of a cluster."""

    directory: Path

    @property
    def _moves(self) -> Path:
        return self.directory / "moves"

    def write(self, move: Move) -> None:
        """Record a move, in place of its earlier record; raises OSError."""
        self._moves.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._moves / f"{move.node}.json", move.model_dump_json() + "\n")

    def forget(self, node: str) -> None:
        """Remove the record of a node; no error if there is none."""
        (self._moves / f"{node}.json").unlink(missing_ok=True)

    def all(self) -> list[Move]:
        """Return every move that has begun and not ended; StateError if a record is damaged."""
        found = []
        for path in sorted(self._moves.glob("*.json")):
            try:
                found.append(Move.model_validate_json(read_regular(path, _MAX)))
            except (OSError, ValidationError) as error:
                raise StateError(
                    f"{path} is damaged: {str(error).splitlines()[0]}",
                    "find the machine with `virsh list` on both hosts, then remove this file",
                ) from error
        return found
