# SPDX-License-Identifier: Apache-2.0
"""Whether a machine can move to a host: every reason against it, before anything moves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nearmetal.config.size import format_size


@dataclass(frozen=True)
class FabricNeed:
    """What the VF of a machine is connected to. `pkey`: the partition key; 0 for none."""

    fabric: str
    pkey: int = 0


@dataclass(frozen=True)
class MovableMachine:
    """Facts of a running machine. Sizes in bytes."""

    name: str
    cpu: str
    """The model of its processor; "": an emulated one, which its features name."""
    features: frozenset[str]
    machine_type: str
    memory: int
    image: str
    """The content that it boots from, by its hash."""
    hugepage: int = 0
    """Size of the pages of its memory; 0: ordinary ones."""
    disk: int = 0
    """Size of the disk that it writes to, which must be shared or copied; 0: it has none."""
    storage: str = ""
    """Name of the storage of that disk; "": no other host sees it."""
    device: str = ""
    """The device of its segment; "": it shares none."""
    part: int = 0
    """Size of its part of the segment; 0: none."""
    segment: int = 0
    """Size of the whole segment, for which it has room."""
    vf: FabricNeed | None = None
    networks: frozenset[str] = frozenset()
    pinned_to_host: tuple[str, ...] = ()
    """Devices that no move supports, in words: a GPU, a directory by 9p."""
    group: str = ""
    """The segment that it shares; machines of one group are neighbours."""


@dataclass(frozen=True)
class MoveTarget:
    """Facts of a host to move to. Sizes in bytes."""

    name: str
    cpu: str
    features: frozenset[str]
    machine_types: frozenset[str]
    memory: int
    """What is free."""
    hugepages: dict[int, int] = field(default_factory=dict)
    """Free pages, by their size."""
    images: frozenset[str] = frozenset()
    storages: frozenset[str] = frozenset()
    disk: int = 0
    """Free room for copies of disks."""
    device: str = ""
    """The device of its segment; "": it has none."""
    parts: int = 0
    """Free parts of its segment."""
    part: int = 0
    """Size of a part."""
    segment: int = 0
    """Size of the whole segment."""
    vfs: tuple[FabricNeed, ...] = ()
    """Free ones, each with what it is connected to."""
    no_vf: Mapping[str, str] = field(default_factory=dict)
    """Why a machine of this name gets none of them."""
    networks: frozenset[str] = frozenset()


def _processor(machine: MovableMachine, target: MoveTarget) -> Iterable[str]:
    missing = sorted(machine.features - target.features)
    if missing:
        yield f"its processor lacks {', '.join(missing)}"
    elif machine.cpu and machine.cpu != target.cpu:
        yield f"its processor is {target.cpu}, not {machine.cpu}"
    if machine.machine_type not in target.machine_types:
        yield f"its QEMU has no machine type {machine.machine_type}"


def _memory(machine: MovableMachine, target: MoveTarget) -> Iterable[str]:
    if machine.hugepage:
        free = target.hugepages.get(machine.hugepage, 0)
        wanted = -(-machine.memory // machine.hugepage)
        if free < wanted:
            size = format_size(machine.hugepage)
            yield f"{free} huge pages of {size} are free, and {wanted} are needed"
    elif target.memory < machine.memory:
        free_now, needed = format_size(target.memory), format_size(machine.memory)
        yield f"{free_now} of memory are free, and {needed} are needed"


def must_copy(machine: MovableMachine, target: MoveTarget) -> bool:
    """Whether the disk of MACHINE is copied to TARGET."""
    return bool(machine.disk) and machine.storage not in target.storages


def _storage(machine: MovableMachine, target: MoveTarget) -> Iterable[str]:
    if machine.image not in target.images:
        yield "it has no image with the same content"
    if must_copy(machine, target) and target.disk < machine.disk:
        yield (
            "it does not see the storage of the disk, and a copy needs "
            f"{format_size(machine.disk)} of {format_size(target.disk)}"
        )


def _devices(machine: MovableMachine, target: MoveTarget) -> Iterable[str]:
    if machine.device != target.device:
        have, want = target.device or "none", machine.device or "none"
        yield f"the device of its segment is {have}, and that of the machine {want}"
    elif machine.part and not target.parts:
        yield "its segment has no free part"
    elif machine.part != target.part:
        # The room on the bus was reserved when the machine started.
        have, want = format_size(target.part), format_size(machine.part)
        yield f"parts of its segment have {have}, and {want} are needed"
    elif machine.segment < target.segment:
        have, want = format_size(target.segment), format_size(machine.segment)
        yield f"its segment has {have}, and the machine has room for {want}"
    if machine.vf is not None and machine.name in target.no_vf:
        yield f"it has no VF for the machine: {target.no_vf[machine.name]}"
    elif machine.vf is not None and machine.vf not in target.vfs:
        key = f" and partition key {machine.vf.pkey:#06x}" if machine.vf.pkey else ""
        yield f"no VF of fabric {machine.vf.fabric}{key} is free"
    for network in sorted(machine.networks - target.networks):
        yield f"it has no network {network}"


def refusals(machine: MovableMachine, target: MoveTarget) -> tuple[str, ...]:
    """Return every reason why MACHINE cannot move to TARGET; () if it can."""
    own = tuple(f"the machine has {device}" for device in machine.pinned_to_host)
    checks = (_processor, _memory, _storage, _devices)
    there = tuple(why for check in checks for why in check(machine, target))
    return own + tuple(f"host {target.name}: {why}" for why in there)
