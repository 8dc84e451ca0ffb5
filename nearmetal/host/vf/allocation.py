# SPDX-License-Identifier: Apache-2.0
"""Gives VFs to virtual machines and takes them back: the ledger and the steps together.

Everything happens under the ledger's lock. What a VF was like is on disk before its first step,
and what is to be done is always planned from what is found, so whatever dies in the middle is
taken up by the next call: by the same owner to the end, otherwise by giving back.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearmetal.core.errors import HostError, NoVfError
from nearmetal.core.journal import Journal
from nearmetal.host.vf.choose import VFIO, Choice, candidates, choose
from nearmetal.host.vf.facts import read_machine
from nearmetal.host.vf.kernel import Kernel, LinuxKernel, execute
from nearmetal.host.vf.ledger import Book, Claim, Ledger, Owner, PfRecord
from nearmetal.host.vf.model import INFINIBAND, Machine, PfFacts, Use, VfFacts, VfSettings
from nearmetal.host.vf.steps import (
    Step,
    assuming,
    before_pf,
    before_vf,
    configure_host_vf,
    configure_vf,
    prepare_pf,
    return_pf,
    return_vf,
    wanted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.host.vf.request import VfRequest

_UP, _DOWN = "vf allocate", "vf release"


@dataclass(frozen=True)
class GrantedVf:
    """A VF that is ready to be used, and why it is this one.

    `address` goes into a host device of the machine's; `group` is its IOMMU group, -1 where it
    has none. `notes` is
    what remains to be done elsewhere, in the subnet manager for example.
    """

    address: str
    number: int
    pf: str
    pf_address: str
    link_type: str
    group: int
    numa: int
    settings: VfSettings
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()
    """Its network and RDMA devices, where it is for programs of this machine."""


@dataclass(frozen=True)
class Wish:
    """A VF that an owner will ask for. `numa`: where its processors run, empty for anywhere."""

    owner: Owner
    request: VfRequest
    numa: frozenset[int] = frozenset()


def alive(owner: Owner, kernel: Kernel) -> bool:
    """Whether an owner still exists: its directory, or its process with that start time."""
    if owner.kind != "process":
        return kernel.sysfs.path(owner.state.lstrip("/")).is_dir()
    return owner.start != 0 and process_start(owner.pid, kernel) == owner.start


def process_start(pid: int, kernel: Kernel) -> int:
    """Return when a process started, in clock ticks since the boot; 0: there is none."""
    stat = kernel.sysfs.data(f"proc/{pid}/stat", 4096).decode("ascii", "replace")
    # The program's name stands in parentheses and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0  # noqa: PLR2004


class VfHost:
    """The VFs of this machine."""

    def __init__(self, kernel: Kernel, ledger: Ledger, *, privileged: bool) -> None:
        """`privileged`: whether this process may change anything."""
        self.kernel = kernel
        self.ledger = ledger
        self.privileged = privileged

    def machine(self) -> Machine:
        """Read the machine."""
        return read_machine(self.kernel.sysfs, self.kernel)

    def survey(self, wishes: Sequence[Wish]) -> tuple[Choice, ...]:
        """Say what `allocate` would choose for each in turn; raises HostError with reason and fix.

        Changes nothing. VFs whose owners are gone count as free: allocating gives them back first.
        """
        machine, book = self.machine(), self.ledger.read()
        owners = {wish.owner for wish in wishes}
        claims = {
            address: words
            for address, words in book.owners().items()
            if not self._gone(book.claims[address], machine)
            and book.claims[address].owner not in owners
        }
        machine = _as_returned(machine, book, claims)
        choices = []
        for wish in wishes:
            try:
                choice = choose(wish.request, machine, claims, wish.numa)
            except HostError as error:
                raise HostError(f"{wish.owner}: {error.message}", error.hint) from error
            if choice.vf is None:
                machine = _as_created(machine, choice)
            vf = choice.vf or next(
                vf for pf in machine.pfs if pf.address == choice.pf.address for vf in pf.vfs
            )
            claims[vf.address] = str(wish.owner)
            wanted = wanted_settings(wish.request, choice.pf, wish.owner.name, wish.owner.node)
            choices.append(replace(choice, notes=_fabric_notes(wish.request, choice.pf, wanted)))
        return tuple(choices)

    def allocate(
        self,
        request: VfRequest,
        owner: Owner,
        numa: frozenset[int] = frozenset(),
        use: Use = "machine",
    ) -> GrantedVf:
        """Return a VF, configured and bound to the driver for its use; the same when asked again.

        Raises NoVfError when there is none, with every adapter's reason; HostError when this
        machine does not do what it should.
        """
        self._require_root()
        with self.ledger.changing() as book:
            self._reclaim(book)
            claim = book.of(owner)
            reasons: tuple[str, ...] = ("it has it already",)
            if claim is not None and not self._fits(request, claim, use):
                self._give_back(book, claim)
                claim = None
            try:
                if claim is None:
                    claim, reasons = self._claim(book, request, owner, numa, use)
                return self._finish(book, request, claim, reasons)
            finally:
                # An adapter that the owner moved away from, or that was touched for nothing,
                # goes back at once; a claim stays for the next attempt, or for `down`.
                self._return_pfs(book)

    def release(self, owner: Owner) -> tuple[str, ...]:
        """Give back what an owner has, as it was found; returns what others now prevent.

        No error when it has nothing. HostError when the virtual machine still runs.
        """
        book = self.ledger.read()
        if book.of(owner) is None and not self._orphaned(book):
            return ()
        self._require_root()
        with self.ledger.changing() as book:
            self._forget_boots(book, self.machine())
            claim = book.of(owner)
            if claim is not None:
                self._give_back(book, claim)
            return self._return_pfs(book)

    def reclaim(self) -> tuple[str, ...]:
        """Give back everything whose owner is gone; returns what was given back, in words."""
        self._require_root()
        with self.ledger.changing() as book:
            return self._reclaim(book)

    def leaks(self, machine: Machine, book: Book) -> dict[str, str]:
        """Return why claims are leaks, by the address of the VF."""
        found = {}
        for address, claim in book.claims.items():
            why = self._gone(claim, machine)
            if why:
                found[address] = why
        return found

    # Below, the lock is held.

    def _require_root(self) -> None:
        if not self.privileged:
            msg = "VFs can be created and configured by root only"
            raise HostError(msg, "run as root, or leave vf out: the node then uses virtio-net")

    def _journal(self) -> Journal:
        return Journal(self.ledger.directory)

    def _gone(self, claim: Claim, machine: Machine) -> str:
        if claim.boot != machine.boot:
            return "the machine was booted since"
        if alive(claim.owner, self.kernel):
            return ""
        what = "has ended" if claim.owner.kind == "process" else "has no state any more"
        return f"{claim.owner} {what}"

    @staticmethod
    def _orphaned(book: Book) -> bool:
        used = {claim.pf for claim in book.claims.values()}
        return any(pf not in used for pf in book.pfs)

    def _forget_boots(self, book: Book, machine: Machine) -> None:
        """Drop what an earlier boot recorded: booting has given everything back."""
        old = [a for a, claim in book.claims.items() if claim.boot != machine.boot]
        old_pfs = [a for a, record in book.pfs.items() if record.boot != machine.boot]
        for address in old:
            del book.claims[address]
        for address in old_pfs:
            del book.pfs[address]
        if old or old_pfs:
            self.ledger.save(book)

    def _reclaim(self, book: Book) -> tuple[str, ...]:
        machine = self.machine()
        gone = self.leaks(machine, book)
        self._forget_boots(book, machine)
        done = []
        for address, why in gone.items():
            claim = book.claims.get(address)
            if claim is not None:
                found = machine.vf(address)
                if found and found[1].holders:
                    continue  # its virtual machine outlived its owner: nothing may be pulled away
                self._give_back(book, claim)
            done.append(f"{address}: {why}")
        self._return_pfs(book)
        return tuple(done)

    def _fits(self, request: VfRequest, claim: Claim, use: Use) -> bool:
        """Whether the VF an owner has is one that it may have."""
        if claim.use != use:
            return False
        machine = self.machine()
        allowed = candidates(request, machine)
        found = machine.vf(claim.vf)
        return found is not None and found[0] in allowed

    def _claim(
        self, book: Book, request: VfRequest, owner: Owner, numa: frozenset[int], use: Use
    ) -> tuple[Claim, tuple[str, ...]]:
        machine = self.machine()
        choice = _chosen(request, machine, book, numa, use)
        pf = choice.pf
        record = book.pfs.get(pf.address)
        if record is None:
            record = PfRecord(pf=pf.address, boot=machine.boot, before=before_pf(pf))
            book.pfs[pf.address] = record
            self.ledger.save(book)
        self._run(prepare_pf(machine, pf, choice.create, record.before, use), _UP)
        if choice.vf is None:
            created = self._created(request, pf, book, numa, use)
            choice = replace(created, reasons=choice.reasons)
        vf = choice.vf
        assert vf is not None  # noqa: S101 - our own invariant: _created checked it
        pf = choice.pf
        claim = Claim(
            vf=vf.address,
            pf=pf.address,
            owner=owner,
            since=int(time.time()),
            boot=machine.boot,
            stage="preparing",
            before=before_vf(vf),
            wanted=wanted_settings(request, pf, owner.name, owner.node),
            use=use,
        )
        book.claims[vf.address] = claim
        self.ledger.save(book)
        return claim, choice.reasons

    def _created(
        self, request: VfRequest, pf: PfFacts, book: Book, numa: frozenset[int], use: Use
    ) -> Choice:
        """Choose again, on the adapter that has just got VFs."""
        only = request.model_copy(update={"pf": pf.address})
        choice = _chosen(only, self.machine(), book, numa, use)
        if choice.vf is None:
            msg = f"adapter {pf.name}: the kernel took the number of VFs and made none"
            raise HostError(msg, "its log (dmesg) says why")
        return choice

    def _finish(
        self, book: Book, request: VfRequest, claim: Claim, reasons: tuple[str, ...]
    ) -> GrantedVf:
        """Carry out what is still to be done to a claimed VF, and check that it was."""
        machine = self.machine()
        pf, vf = self._found(machine, claim)
        wanted = wanted_settings(request, pf, claim.owner.name, claim.owner.node)
        record = book.pfs[pf.address]
        configure = configure_host_vf if claim.use == "host" else configure_vf
        steps = prepare_pf(machine, pf, 0, record.before, claim.use)
        known = assuming(vf, claim.wanted) if claim.stage == "held" else vf
        steps += configure(pf, known, wanted)
        if steps:
            self._run(steps, _UP)
            pf, vf = self._found(self.machine(), claim)
        left = configure(pf, assuming(vf, wanted), wanted)
        if left and claim.use == "host" and vf.driver:
            # Its network device has come with the driver.
            self._run(left, _UP)
            pf, vf = self._found(self.machine(), claim)
            left = configure(pf, assuming(vf, wanted), wanted)
        if left or not _serves(vf, claim.use):
            what = left[0].text if left else f"it is bound to {vf.driver or 'nothing'}"
            if claim.use == "host" and not vf.driver:
                what = "no driver of this machine takes it"
            msg = f"VF {vf.address} of {pf.name} is not as it was set: {what}"
            raise HostError(msg, "the kernel's log (dmesg) says more")
        done = claim.model_copy(update={"stage": "held", "wanted": wanted})
        if done != claim:
            book.claims[vf.address] = done
            self.ledger.save(book)
        notes = _notes(request, pf, vf, wanted)
        return GrantedVf(
            vf.address,
            vf.number,
            pf.name,
            pf.address,
            pf.link_type,
            -1 if vf.group is None else vf.group,
            pf.numa,
            wanted,
            reasons,
            notes,
            tuple(link.name for link in vf.links),
            vf.rdma,
        )

    @staticmethod
    def _found(machine: Machine, claim: Claim) -> tuple[PfFacts, VfFacts]:
        found = machine.vf(claim.vf)
        if found is None:
            msg = f"VF {claim.vf}, which belongs to {claim.owner}, has vanished"
            raise HostError(msg, "somebody removed the VFs of its adapter; run `down`, then `up`")
        return found

    def _give_back(self, book: Book, claim: Claim) -> None:
        found = self.machine().vf(claim.vf)
        if found is not None:
            pf, vf = found
            if vf.holders:
                pids = ", ".join(map(str, vf.holders))
                msg = f"VF {vf.address} of {claim.owner} is still used by process {pids}"
                raise HostError(msg, "end that virtual machine first")
            self._run(return_vf(pf, vf, claim.before), _DOWN)
        del book.claims[claim.vf]
        self.ledger.save(book)

    def _return_pfs(self, book: Book) -> tuple[str, ...]:
        """Give back every adapter of which nobody has a VF any more."""
        used = {claim.pf for claim in book.claims.values()}
        kept: list[str] = []
        for address in [a for a in book.pfs if a not in used]:
            pf = self.machine().pf(address)
            if pf is not None:
                steps, others = return_pf(pf, book.pfs[address].before, book.owners())
                if others:
                    kept += [f"adapter {pf.name} keeps its VFs: {other}" for other in others]
                    continue
                self._run(steps, _DOWN)
            del book.pfs[address]
            self.ledger.save(book)
        return tuple(kept)

    def _run(self, steps: list[Step], verb: str) -> None:
        execute(steps, self.kernel, self._journal(), verb)


def _chosen(
    request: VfRequest, machine: Machine, book: Book, numa: frozenset[int], use: Use
) -> Choice:
    try:
        return choose(request, machine, book.owners(), numa, use)
    except HostError as error:
        raise NoVfError(error.message, error.hint) from error


def _serves(vf: VfFacts, use: Use) -> bool:
    """Whether a VF is bound to what its use needs."""
    if use == "host":
        return bool(vf.driver) and vf.driver != VFIO
    return vf.driver == VFIO and vf.group is not None


def _as_returned(machine: Machine, book: Book, claims: dict[str, str]) -> Machine:
    """Return the machine as it will be when what nobody claims any more is given back."""
    pfs = []
    for pf in machine.pfs:
        vfs = tuple(
            replace(vf, driver=before.driver, driver_override=before.driver_override)
            if vf.address in book.claims
            and vf.address not in claims
            and (before := book.claims[vf.address].before)
            else vf
            for vf in pf.vfs
        )
        pfs.append(replace(pf, vfs=vfs))
    return replace(machine, pfs=tuple(pfs))


def _as_created(machine: Machine, choice: Choice) -> Machine:
    """Return the machine as it will be with the VFs that a choice creates."""
    address = choice.pf.address
    vfs = tuple(
        VfFacts(
            f"{address} VF {number}", number, "", "", None, (), choice.pf.numa, (), VfSettings()
        )
        for number in range(choice.create)
    )
    pfs = [replace(pf, vfs=vfs) if pf.address == address else pf for pf in machine.pfs]
    return replace(machine, pfs=tuple(pfs))


def _fabric_notes(request: VfRequest, pf: PfFacts, wanted: VfSettings) -> tuple[str, ...]:
    """Return what remains to be done outside of this machine."""
    if pf.link_type != INFINIBAND or not request.pkey or pf.vf_pkeys:
        return ()
    port = (wanted.port_guid or "").replace(":", "")
    return (
        (
            f"subnet manager: add port GUID 0x{port} to partition {request.pkey}; "
            f"driver {pf.driver} leaves partition keys of VFs to it"
        ),
    )


def _notes(request: VfRequest, pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> tuple[str, ...]:
    notes = list(_fabric_notes(request, pf, wanted))
    if request.spoof_check and pf.link_type != INFINIBAND and vf.settings.spoof_check is None:
        notes.append(f"driver {pf.driver} has no spoof check: the guest may send from any address")
    return tuple(notes)


def this_machine() -> VfHost:
    """Return the VFs of the machine we run on."""
    return VfHost(LinuxKernel(), Ledger(), privileged=os.geteuid() == 0)
