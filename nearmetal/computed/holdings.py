# SPDX-License-Identifier: Apache-2.0
"""Records: the segments of this hypervisor, and the servers that have their parts.

They lie in /run: a reboot of the host ends the servers, the segments and the records together.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from nearmetal.computed.domains import ID_FORM, MAX_PART, MIN_PART, PROJECT_FORM
from nearmetal.computed.settings import MAX_PARTS
from nearmetal.config.model import Model
from nearmetal.core.errors import StateError
from nearmetal.core.files import MAX_STATE, read_regular, replace_file

_Id = Annotated[str, Field(pattern=f"^{ID_FORM}$")]


class PartPhase(StrEnum):
    """The state of a part that is not free."""

    GIVING = "giving"
    """The devices are plugged in, or about to be."""
    GIVEN = "given"
    TAKING = "taking"
    """The guest is asked to let the devices go."""
    RESTING = "resting"
    """The server has gone. Neighbours may read a last time, then the part is zeroed."""


class PartHolding(Model):
    """A part that is not free. `run`: libvirt's number of the start of the server."""

    part: Annotated[int, Field(ge=0, lt=MAX_PARTS)]
    server: _Id
    run: int
    phase: PartPhase = Field(strict=False)
    since: float = 0.0

    def at(self, phase: PartPhase, since: float = 0.0) -> PartHolding:
        """Return this in another phase."""
        return self.model_copy(update={"phase": phase, "since": since})


class GroupSegment(Model):
    """The segment of the servers of one group and one project."""

    project: Annotated[str, Field(pattern=f"^{PROJECT_FORM}$")]
    group: _Id
    name: Annotated[str, Field(pattern=r"^nearmetal-computed-[0-9a-f]{16}$")]
    part_size: Annotated[int, Field(ge=MIN_PART, le=MAX_PART)]
    nr_parts: Annotated[int, Field(ge=1, le=MAX_PARTS)]
    holdings: list[PartHolding] = Field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Two projects never share, also if an administrator gives both one group."""
        return self.project, self.group

    @property
    def live(self) -> list[PartHolding]:
        """The parts of servers that run."""
        return [held for held in self.holdings if held.phase is not PartPhase.RESTING]

    @property
    def resting(self) -> list[PartHolding]:
        """The parts of servers that have gone."""
        return [held for held in self.holdings if held.phase is PartPhase.RESTING]

    def free_part(self) -> int | None:
        """Return the first free part."""
        taken = {held.part for held in self.holdings}
        return next((part for part in range(self.nr_parts) if part not in taken), None)

    def with_part(self, holding: PartHolding) -> GroupSegment:
        """Return this with a part in a new state."""
        return self._with([*self._others(holding.part), holding])

    def without(self, part: int) -> GroupSegment:
        """Return this with a free part."""
        return self._with(self._others(part))

    def _others(self, part: int) -> list[PartHolding]:
        return [held for held in self.holdings if held.part != part]

    def _with(self, holdings: list[PartHolding]) -> GroupSegment:
        return self.model_copy(update={"holdings": sorted(holdings, key=lambda h: h.part)})


class _Records(Model):
    version: Literal[1] = 1
    segments: list[GroupSegment] = Field(default_factory=list)


class Holdings:
    """The records in a file, which is replaced as a whole before each step."""

    def __init__(self, directory: Path) -> None:
        """Read the records; raises StateError if they are damaged."""
        self.path = directory / "segments.json"
        self._segments: dict[tuple[str, str], GroupSegment] = {}
        hint = f"stop the servers that have a segment, remove {self.path}, and start the service"
        try:
            found = _Records.model_validate_json(read_regular(self.path, MAX_STATE))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}", hint) from error
        except ValidationError as error:
            raise StateError(f"{self.path} is damaged", hint) from error
        self._segments = {segment.key: segment for segment in found.segments}

    def __iter__(self) -> Iterator[GroupSegment]:
        return iter(list(self._segments.values()))

    def get(self, key: tuple[str, str]) -> GroupSegment | None:
        """Return the segment of a project and group."""
        return self._segments.get(key)

    def holder(self, server: str) -> tuple[GroupSegment, PartHolding] | None:
        """Return the part of a server that runs."""
        for segment in self:
            for held in segment.live:
                if held.server == server:
                    return segment, held
        return None

    def memory(self, project: str | None = None) -> int:
        """Return the bytes of all segments, or of those of a project."""
        some = (one for one in self if project in {None, one.project})
        return sum(segment.part_size * segment.nr_parts for segment in some)

    def put(self, segment: GroupSegment) -> None:
        """Record a segment."""
        self._write({**self._segments, segment.key: segment})

    def drop(self, segment: GroupSegment) -> None:
        """Remove the record of a segment."""
        self._write({key: one for key, one in self._segments.items() if key != segment.key})

    def _write(self, segments: dict[tuple[str, str], GroupSegment]) -> None:
        records = _Records(segments=list(segments.values()))
        replace_file(self.path, records.model_dump_json(indent=1))
        self._segments = segments
