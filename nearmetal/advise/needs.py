# SPDX-License-Identifier: Apache-2.0
"""Needs of an adapter: the model of a needs file and of the command line, and what feeds it.

The message sizes come from a summary of an MPI trace, a CSV file with the columns `size_B,count`.
The reports of tracers contain them (mpiP: message size histograms; TAU, Score-P: distributions).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nearmetal.advise.cards import CardModel, find_card
from nearmetal.core.errors import NearmetalError
from nearmetal.core.files import read_named

SMALL_B = 1024
LARGE_B = 64 * 1024
SHARE = 0.9

_TRACE = ("size_B", "count")
_MAX_BYTES = 16 << 20
_MAX_NUMBER = 1 << 60
_MAX_DIGITS = 40
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}([uU]\d{1,3}[a-z]?)?")


class Platform(StrEnum):
    """Platform of the virtual machines."""

    VSPHERE = "vsphere"
    KVM = "kvm"
    ANY = "any"


class Fabric(StrEnum):
    """Protocol of the network in the guest."""

    IB = "ib"
    ROCE = "roce"
    RDMA = "rdma"
    """Either of the two."""
    TCP = "tcp"
    ANY = "any"


class Messages(StrEnum):
    """Size of most messages of a program."""

    SMALL = "small"
    """Many messages of at most a kibibyte: latency and message rate decide."""
    MIXED = "mixed"
    LARGE = "large"
    """Nearly all bytes in messages of 64 KiB and more: bandwidth decides."""


_NOT_ON = {
    Platform.KVM: ("vsphere", "hardware_version", "guest_kernel", "ranks_per_node"),
    Platform.VSPHERE: ("kernel", "qemu", "libvirt"),
}
"""Needs that decide nothing on a platform: they are refused there."""

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Version = Annotated[str, Field(min_length=1, max_length=40)]


class Needs(BaseModel):
    """Hard conditions and context. An unknown value is never assumed."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    platform: Platform = Platform.ANY
    vsphere: Version | None = None
    kernel: Version | None = None
    """Version of the KVM host."""
    qemu: Version | None = None
    libvirt: Version | None = None
    guest_kernel: Version | None = None
    hardware_version: Count | None = None
    """Hardware version of the virtual machine, on vSphere."""
    adapter: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}$")] | None = None
    """Model of the card, for example ConnectX-6."""
    fabric: Fabric = Fabric.ANY
    live_migration: bool = False
    snapshots: bool = False
    """Snapshot, suspend and resume with the adapter attached."""
    ha: bool = False
    """Restart on another host after a host failure."""
    drs: bool = False
    """Placement by the cluster at power-on; live balancing is `live_migration`."""
    vms_per_adapter: Count = 1
    ranks_per_node: Count | None = None
    messages: Messages | None = None
    cores: Count | None = None
    """Cores of a node."""
    reserved_cores: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Cores of the node that the hypervisor keeps."""

    @field_validator("adapter")
    @classmethod
    def _is_known(cls, text: str | None) -> str | None:
        if text is not None:
            find_card(text)
        return text

    @field_validator("vsphere", "kernel", "qemu", "libvirt", "guest_kernel")
    @classmethod
    def _is_version(cls, text: str | None) -> str | None:
        if text is not None:
            parse_version(text)
        return text

    @model_validator(mode="after")
    def _fits(self) -> Needs:
        for platform, names in _NOT_ON.items():
            given = [name for name in names if getattr(self, name) is not None]
            if self.platform is platform and given:
                what = f"on {platform} no adapter depends on {' or '.join(given)}"
                raise ValueError(f"{what}|remove it, or the platform")
        if self.reserved_cores is not None and (
            self.cores is None or self.reserved_cores >= self.cores
        ):
            raise ValueError(
                "reserved_cores needs cores, and must be less|for 44 of 48 use cores 48, reserved_cores 4"
            )
        if self.cores is not None and self.reserved_cores is None:
            raise ValueError("cores needs reserved_cores|use reserved_cores 0 for none")
        return self

    @property
    def card(self) -> CardModel | None:
        """What is known about the card; None: no card was named."""
        return None if self.adapter is None else find_card(self.adapter)

    @property
    def core_loss(self) -> float | None:
        """Share of the cores of a node that the hypervisor keeps; None: not known."""
        if self.cores is None or self.reserved_cores is None:
            return None
        return self.reserved_cores / self.cores


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version without zeros at the end: 8.0U2 > 8.0, and 6.7 < 6.12.

    Raises ValueError if the text is not a version, for example `8.0U2` or `6.12.5`.
    """
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a version|use for example 8.0U2 or 6.12")
    main, _, update = text.lower().partition("u")
    numbers = [int(part) for part in main.split(".")]
    if update:
        # An update takes the place of a third number: 7.0U3 is 7.0.3.
        numbers = [*[*numbers, 0][:2], int(re.sub(r"\D", "", update))]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def load_trace(path: Path) -> Messages:
    """Read a summary of a trace; raises NearmetalError with file and line."""
    return profile([_message(row, where) for row, where in read_rows(path, _TRACE)], str(path))


def _message(row: list[str], where: str) -> tuple[int, int]:
    numbers = [int(cell) for cell in row if cell.strip().isdecimal() and len(cell) <= _MAX_DIGITS]
    if len(numbers) != len(_TRACE) or max(numbers) > _MAX_NUMBER:
        text = ",".join(row)[:40]
        hint = "use for example 1024,2000000"
        raise NearmetalError(f"{where}: {text!r} is not a size and a count", hint)
    return numbers[0], numbers[1]


def profile(messages: list[tuple[int, int]], file: str = "<trace>") -> Messages:
    """Return small if 90 % of the messages are small, large if 90 % of the bytes are in large."""
    number = sum(count for _, count in messages)
    volume = sum(size * count for size, count in messages)
    if number == 0:
        raise NearmetalError(f"{file}: no messages", "give counts by size")
    if sum(count for size, count in messages if size <= SMALL_B) >= SHARE * number:
        return Messages.SMALL
    if sum(size * count for size, count in messages if size >= LARGE_B) >= SHARE * volume:
        return Messages.LARGE
    return Messages.MIXED


def read_rows(path: Path, columns: Sequence[str]) -> list[tuple[list[str], str]]:
    """Return the rows of a CSV file with `file:line` of each.

    Raises NearmetalError for a file without these columns, and for a row without as many cells.
    """
    try:
        raw = read_named(path, _MAX_BYTES)
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise NearmetalError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NearmetalError(f"{path}:{line}: not UTF-8 text", "save it as CSV in UTF-8") from error
    lines = csv.reader(text.splitlines())
    hint = f"columns: {','.join(columns)}"
    try:
        if next(lines, None) != list(columns):
            raise NearmetalError(f"{path}:1: wrong columns", hint)
        rows = [(row, f"{path}:{lines.line_num}") for row in lines if row]
    except csv.Error as error:
        raise NearmetalError(f"{path}:{lines.line_num}: not CSV: {error}", hint) from error
    for row, where in rows:
        if len(row) != len(columns):
            raise NearmetalError(f"{where}: {len(row)} columns, not {len(columns)}", hint)
    return rows
