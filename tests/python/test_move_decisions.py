# SPDX-License-Identifier: Apache-2.0
"""Phases of a move, the checks before it, and the plan that empties a host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearmetal.cluster.move.checks import FabricNeed, MovableMachine, MoveTarget, refusals
from nearmetal.cluster.move.drain import DrainPlan, plan_drain
from nearmetal.cluster.move.phases import ENDS, PHASES, MoveOutcome, MovePhase, resumed_phase
from nearmetal.core.errors import BackendError, StateError

GIB = 1 << 30
MACHINE = MovableMachine(
    name="n1",
    cpu="EPYC-Milan",
    features=frozenset({"avx2", "sse4.2"}),
    machine_type="pc-q35-10.0",
    memory=4 * GIB,
    image="sha256:1",
    device="ivshmem",
    part=64 << 20,
    segment=256 << 20,
    vf=FabricNeed("ib0", 0x8001),
    networks=frozenset({"lan"}),
    group="host1",
)
TARGET = MoveTarget(
    name="host2",
    cpu="EPYC-Milan",
    features=frozenset({"avx2", "sse4.2", "aes"}),
    machine_types=frozenset({"pc-q35-9.2", "pc-q35-10.0"}),
    memory=16 * GIB,
    images=frozenset({"sha256:1"}),
    device="ivshmem",
    parts=4,
    part=64 << 20,
    segment=256 << 20,
    vfs=(FabricNeed("ib0", 0x8001),) * 4,
    networks=frozenset({"lan", "wan"}),
)


def test_every_phase_has_an_end_on_both_outcomes() -> None:
    for phase in set(MovePhase) - ENDS:
        for outcome in MoveOutcome:
            at, seen = PHASES[phase, outcome], 0
            while at not in ENDS:
                at, seen = PHASES[at, MoveOutcome.DONE], seen + 1
                assert seen < len(MovePhase)
    assert not [phase for phase, _ in PHASES if phase in ENDS]


def test_the_source_keeps_its_machine_until_the_migration_is_done() -> None:
    before = (MovePhase.PLANNED, MovePhase.PREPARED, MovePhase.QUIESCED, MovePhase.DETACHED)
    for phase in before:
        at = PHASES[phase, MoveOutcome.FAILED]
        while at not in ENDS:
            at = PHASES[at, MoveOutcome.DONE]
        assert at is MovePhase.GIVEN_UP
    for phase in (MovePhase.ARRIVED, MovePhase.ATTACHED, MovePhase.RESUMED):
        assert PHASES[phase, MoveOutcome.FAILED] in {
            MovePhase.ATTACHED,
            MovePhase.RESUMED,
        }


@pytest.mark.parametrize(
    ("phase", "source", "destination", "after"),
    [
        (MovePhase.PLANNED, True, False, MovePhase.REOPENED),
        (MovePhase.PREPARED, True, False, MovePhase.REATTACHED),
        (MovePhase.QUIESCED, True, False, MovePhase.STAYED),
        (MovePhase.DETACHED, True, False, MovePhase.STAYED),
        (MovePhase.DETACHED, False, True, MovePhase.ARRIVED),
        (MovePhase.ARRIVED, False, True, MovePhase.ARRIVED),
        (MovePhase.RESUMED, False, True, MovePhase.RESUMED),
        (MovePhase.STAYED, True, False, MovePhase.STAYED),
        (MovePhase.RELEASED, False, True, MovePhase.RELEASED),
        (MovePhase.GIVEN_UP, True, False, MovePhase.GIVEN_UP),
    ],
)
def test_after_a_crash(phase: MovePhase, source: bool, destination: bool, after: MovePhase) -> None:
    assert resumed_phase(phase, at_source=source, at_destination=destination) is after


@pytest.mark.parametrize(
    ("phase", "source", "destination", "words"),
    [
        (MovePhase.DETACHED, True, True, "runs on both hosts"),
        (MovePhase.DETACHED, False, False, "runs on neither host"),
        (MovePhase.QUIESCED, False, True, "runs at the destination, but"),
        (MovePhase.REOPENED, False, True, "runs at the destination, but"),
        (MovePhase.ATTACHED, True, False, "runs at the source, but"),
    ],
)
def test_a_crash_that_cannot_be(
    phase: MovePhase, source: bool, destination: bool, words: str
) -> None:
    with pytest.raises(StateError, match=words):
        resumed_phase(phase, at_source=source, at_destination=destination)


def test_a_machine_that_can_move() -> None:
    assert refusals(MACHINE, TARGET) == ()


@pytest.mark.parametrize(
    ("machine", "target", "words"),
    [
        ({}, {"features": frozenset({"sse4.2"})}, "host host2: its processor lacks avx2"),
        ({}, {"cpu": "Skylake-Server"}, "its processor is Skylake-Server, not EPYC-Milan"),
        ({}, {"machine_types": frozenset({"pc-q35-9.2"})}, "no machine type pc-q35-10.0"),
        ({}, {"memory": 2 * GIB}, "2 GiB of memory are free, and 4 GiB are needed"),
        ({"hugepage": GIB}, {"hugepages": {GIB: 3}}, "3 huge pages of 1 GiB are free, and 4"),
        ({"hugepage": 2 << 20}, {}, "0 huge pages of 2 MiB are free, and 2048 are needed"),
        ({}, {"images": frozenset({"sha256:2"})}, "no image with the same content"),
        ({"disk": GIB}, {}, "a copy needs 1 GiB of 0"),
        ({"disk": GIB, "storage": "nfs"}, {"storages": frozenset({"ceph"})}, "does not see"),
        ({}, {"parts": 0}, "its segment has no free part"),
        ({"part": 128 << 20}, {}, "parts of its segment have 64 MiB, and 128 MiB are needed"),
        ({"part": 32 << 20}, {}, "parts of its segment have 64 MiB, and 32 MiB are needed"),
        ({}, {"segment": GIB}, "its segment has 1 GiB, and the machine has room for 256 MiB"),
        ({}, {"device": ""}, "the device of its segment is none, and that of the machine ivshmem"),
        ({"device": ""}, {}, "is ivshmem, and that of the machine none"),
        ({}, {"vfs": ()}, "no VF of fabric ib0 and partition key 0x8001 is free"),
        ({}, {"vfs": (FabricNeed("ib0", 0x8002),)}, "partition key 0x8001"),
        ({"vf": FabricNeed("eth")}, {}, "no VF of fabric eth is free"),
        ({}, {"networks": frozenset()}, "it has no network lan"),
        ({"pinned_to_host": ("a GPU",)}, {}, "the machine has a GPU"),
    ],
)
def test_a_refusal(machine: dict[str, object], target: dict[str, object], words: str) -> None:
    changed = replace(MACHINE, **machine)  # type: ignore[arg-type]
    (why,) = refusals(changed, replace(TARGET, **target))  # type: ignore[arg-type]
    assert words in why


def test_all_refusals_at_once() -> None:
    target = replace(TARGET, features=frozenset(), memory=0, parts=0, networks=frozenset())
    assert len(refusals(MACHINE, target)) == 4


def test_an_emulated_processor_needs_no_model() -> None:
    machine = replace(MACHINE, cpu="", features=frozenset({"TCG of QEMU 10.0.2"}))
    (why,) = refusals(machine, TARGET)
    assert "lacks TCG of QEMU 10.0.2" in why
    assert refusals(machine, replace(TARGET, features=machine.features)) == ()


def test_a_shared_disk_needs_no_copy() -> None:
    machine = replace(MACHINE, disk=GIB, storage="nfs")
    assert refusals(machine, replace(TARGET, storages=frozenset({"nfs"}))) == ()
    assert refusals(machine, replace(TARGET, disk=GIB)) == ()


def named(*names: str, **fields: object) -> list[MovableMachine]:
    return [replace(MACHINE, name=name, **fields) for name in names]  # type: ignore[arg-type]


def goals(plan: DrainPlan) -> dict[str, str]:
    return {move.machine: move.target for wave in plan.waves for move in wave}


def test_neighbours_stay_together() -> None:
    one, two = replace(TARGET, name="small", parts=1), replace(TARGET, name="large")
    plan = plan_drain(named("a", "b"), [one, two], at_once=2)
    assert goals(plan) == {"a": "large", "b": "large"}
    assert plan.notes == ()


def test_a_first_choice_is_taken_back_if_another_group_needs_the_place() -> None:
    """The larger group fits on both hosts, and the smaller one only on the first."""
    pair = named("a", "b", group="x", vf=None)
    other = named("c", group="y")
    first = replace(TARGET, name="first", parts=2)
    second = replace(TARGET, name="second", parts=2, vfs=())
    plan = plan_drain([*pair, *other], [first, second], at_once=8)
    assert goals(plan) == {"a": "second", "b": "second", "c": "first"}


def test_neighbours_part_only_if_they_must() -> None:
    small = [replace(TARGET, name=name, parts=2) for name in ("h1", "h2")]
    whole = named("x1", "x2", group="x")
    parted = [replace(TARGET, name="h3", parts=1), replace(TARGET, name="h4", parts=1)]
    plan = plan_drain([*whole, *named("y1", "y2", group="y")], [small[0], *parted], at_once=4)
    assert goals(plan)["x1"] == goals(plan)["x2"] or goals(plan)["y1"] == goals(plan)["y2"]
    (note,) = plan.notes
    assert "neighbours part" in note


def test_resources_are_counted_over_all_moves() -> None:
    machines = named("a", "b", "c", "d", "e")
    for short in ({"parts": 4}, {"memory": 19 * GIB}, {"vfs": TARGET.vfs}):
        fields: dict[str, object] = {"parts": 5, "memory": 20 * GIB, "vfs": TARGET.vfs * 2}
        target = replace(TARGET, **fields | short)  # type: ignore[arg-type]
        with pytest.raises(BackendError, match="do not fit on the other hosts together"):
            plan_drain(machines, [target], at_once=1)
    disks = named("a", "b", disk=2 * GIB)
    with pytest.raises(BackendError, match="together"):
        plan_drain(disks, [replace(TARGET, disk=3 * GIB)], at_once=1)
    pages = named("a", "b", hugepage=GIB)
    with pytest.raises(BackendError, match="together"):
        plan_drain(pages, [replace(TARGET, hugepages={GIB: 7})], at_once=1)


def test_the_limit_of_moves_at_a_time() -> None:
    plan = plan_drain(named("a", "b", "c"), [TARGET], at_once=2)
    assert [len(wave) for wave in plan.waves] == [2, 1]
    assert plan_drain([], [TARGET], at_once=1) == DrainPlan(())


def test_trials_have_a_bound() -> None:
    """Many groups that fit nowhere together end soon, and the error says so."""
    machines = [m for i in range(20) for m in named(f"m{i}", group=f"g{i}", vf=None)]
    hosts = [replace(TARGET, name=f"h{i}", memory=12 * GIB) for i in range(6)]
    with pytest.raises(BackendError, match="5000 trials"):
        plan_drain(machines, hosts, at_once=1)


@pytest.mark.parametrize(
    ("machines", "targets", "at_once", "words"),
    [
        (named("a"), [TARGET], 0, "use 1 or more"),
        (named("a", "a"), [TARGET], 1, "two machines have one name"),
        (named("a"), [], 1, "no host is left to move to"),
        (named("a"), [replace(TARGET, parts=0)], 1, "a: host host2: its segment has no free part"),
    ],
)
def test_bad_input(
    machines: list[MovableMachine], targets: list[MoveTarget], at_once: int, words: str
) -> None:
    with pytest.raises(BackendError, match=words):
        plan_drain(machines, targets, at_once=at_once)
