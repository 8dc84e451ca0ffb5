# SPDX-License-Identifier: Apache-2.0
"""Allocation of VFs to virtual machines, and their return: the ledger and the steps together.

Everything happens under the ledger's lock. The state of a VF is on disk before its first step, and
every plan starts from the facts. So the next call continues interrupted work: for the same owner it
completes the allocation, otherwise it returns the VF.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nearmetal.core.errors import HostError, NoVfError
from nearmetal.core.journal import Journal
from nearmetal.host.parse.regions import regions_of_vf
from nearmetal.host.vf.choose import Choice, candidates, choose
from nearmetal.host.vf.facts import DEVICES, Sysfs, fabric_of, read_machine
from nearmetal.host.vf.kernel import Kernel, execute
from nearmetal.host.vf.ledger import Book, Ledger, Owner, PfRecord, VfClaim
from nearmetal.host.vf.model import INFINIBAND, VFIO, Machine, PfFacts, Use, VfFacts, VfSettings
from nearmetal.host.vf.request import VfRequest
from nearmetal.host.vf.steps import (
    KernelStep,
    PfBefore,
    VfBefore,
    assuming,
    configure_host_vf,
    configure_vf,
    prepare_pf,
    return_pf,
    return_vf,
    wanted_settings,
)

_UP, _DOWN = "vf allocate", "vf release"

_HAS_IT: tuple[str, ...] = ("the owner already has it",)


@dataclass(frozen=True)
class GrantedVf:
    """A VF that is ready to use, with the reasons for its choice.

    `address` is for a host device of the machine; `group` is its IOMMU group, -1 for none. `notes`
    are tasks that remain elsewhere, for example in the subnet manager. `interfaces` and `rdma` are
    its network and RDMA devices, if the VF is for programs of this machine.
    """

    address: str
    number: int
    pf: str
    group: int
    numa: int
    settings: VfSettings
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()


@dataclass(frozen=True)
class VfOffer:
    """The adapter that would give a wish its VF, or the problem.

    `fabric`: what it is connected to, see `fabric_of`. `regions`: sizes of the memory of each VF.
    """

    pf: str = ""
    fabric: str = ""
    regions: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Wish:
    """A request of an owner. `numa`: the NUMA nodes of its processors, empty for any."""

    owner: Owner
    request: VfRequest
    numa: frozenset[int] = frozenset()
    use: Use = "machine"

    def settings(self, pf: PfFacts) -> VfSettings:
        """Return the settings of its VF on an adapter."""
        return wanted_settings(self.request, pf, self.owner.name, self.owner.node)


class VfHost:
    """The VFs of this machine. `privileged`: whether this process may change anything."""

    def __init__(self, kernel: Kernel, ledger: Ledger, *, privileged: bool) -> None:
        self.kernel = kernel
        self.ledger = ledger
        self.privileged = privileged

    def machine(self) -> Machine:
        """Read the machine."""
        return read_machine(self.kernel.sysfs, self.kernel.links())

    def survey(self, wishes: Sequence[Wish]) -> tuple[Choice, ...]:
        """Return the choice of `allocate` for each wish in turn; raises HostError with a fix.

        Changes nothing. VFs whose owners are gone count as free: `allocate` returns them first.
        """
        choices = []
        for choice in self._choices(wishes):
            if isinstance(choice, HostError):
                raise choice
            choices.append(choice)
        return tuple(choices)

    def offers(self, wishes: Sequence[Wish]) -> tuple[VfOffer, ...]:
        """Return what `survey` finds for each wish; a wish with a problem takes no VF."""
        return tuple(
            VfOffer(problem=choice.message, hint=choice.hint)
            if isinstance(choice, HostError)
            else self._offer(choice)
            for choice in self._choices(wishes)
        )

    def _offer(self, choice: Choice) -> VfOffer:
        pf, sysfs = choice.pf, self.kernel.sysfs
        listed = sysfs.data(f"{DEVICES}/{pf.address}/resource").decode("ascii", "replace")
        return VfOffer(
            pf=pf.address,
            fabric=fabric_of(sysfs, pf),
            regions=tuple(regions_of_vf(listed, pf.total)),
            reasons=choice.reasons,
            notes=choice.notes,
        )

    def _choices(self, wishes: Sequence[Wish]) -> Iterator[Choice | HostError]:
        machine, book = self.machine(), self.ledger.read()
        owners, gone = {wish.owner for wish in wishes}, self.leaks(machine, book)
        held = {wish.owner: claim for wish in wishes if (claim := _held(wish, machine, book, gone))}
        claims = {
            address: str(claim.owner)
            for address, claim in book.claims.items()
            if address not in gone and (claim.owner not in owners or claim.owner in held)
        }
        machine = _as_returned(machine, book, claims)
        for wish in wishes:
            found = machine.vf(held[wish.owner].vf) if wish.owner in held else None
            if found is not None:
                yield Choice(*found, 0, _HAS_IT, _fabric_notes(wish, found[0]))
                continue
            try:
                choice = choose(wish.request, machine, claims, wish.numa)
            except HostError as error:
                yield HostError(f"{wish.owner}: {error.message}", error.hint)
                continue
            if choice.vf is None:
                machine = choice.applied(machine)
            vf = choice.vf or next(
                vf for pf in machine.pfs if pf.address == choice.pf.address for vf in pf.vfs
            )
            claims[vf.address] = str(wish.owner)
            yield replace(choice, notes=_fabric_notes(wish, choice.pf))

    def allocate(
        self,
        request: VfRequest,
        owner: Owner,
        numa: frozenset[int] = frozenset(),
        use: Use = "machine",
    ) -> GrantedVf:
        """Return a VF, configured and bound to the driver for its use; the same on a second call.

        Raises NoVfError with every adapter's reason if no VF is free, HostError if this machine
        fails.
        """
        self._require_root()
        wish = Wish(owner, request, numa, use)
        with self.ledger.changing() as book:
            self._reclaim(book)
            claim = book.of(owner)
            reasons = _HAS_IT
            if claim is not None and not _fits(wish, claim, self.machine()):
                self._give_back(book, claim)
                claim = None
            try:
                if claim is None:
                    claim, reasons = self._claim(book, wish)
                return self._finish(book, wish, claim, reasons)
            finally:
                # An adapter that nothing uses now is restored at once; a claim stays for the
                # next attempt, or for `down`.
                self._return_pfs(book)

    def release(self, owner: Owner) -> tuple[str, ...]:
        """Restore the VFs of an owner; returns the adapters that others keep from their old state.

        An owner without VFs is no error. Raises HostError if the virtual machine still runs.
        """
        book = self.ledger.read()
        unused = book.pfs.keys() - {claim.pf for claim in book.claims.values()}
        if book.of(owner) is None and not unused:
            return ()
        self._require_root()
        with self.ledger.changing() as book:
            self._forget_boots(book, self.machine())
            claim = book.of(owner)
            if claim is not None:
                self._give_back(book, claim)
            return self._return_pfs(book)

    def reclaim(self) -> tuple[str, ...]:
        """Restore all VFs whose owners are gone; returns them in words."""
        self._require_root()
        with self.ledger.changing() as book:
            return self._reclaim(book)

    def leaks(self, machine: Machine, book: Book) -> dict[str, str]:
        """Return the reasons why claims are leaks, by the address of the VF."""
        reasons = {address: self._gone(claim, machine) for address, claim in book.claims.items()}
        return {address: reason for address, reason in reasons.items() if reason}

    # Below, the lock is held.

    def _require_root(self) -> None:
        if not self.privileged:
            raise HostError(
                "only root can create and configure VFs",
                "run as root, or leave vf out: the node then uses virtio-net",
            )

    def _gone(self, claim: VfClaim, machine: Machine) -> str:
        """Return the reason why an owner no longer exists, "" if it does."""
        owner = claim.owner
        if claim.boot != machine.boot:
            return "the machine was booted since"
        if owner.kind == "process":
            exists = owner.start != 0 and self._start_of(owner.pid) == owner.start
            return "" if exists else f"{owner} has ended"
        exists = self.kernel.sysfs.path(owner.state.lstrip("/")).is_dir()
        return "" if exists else f"{owner} has no state any more"

    def _start_of(self, pid: int) -> int:
        """Return the start of a process, in clock ticks since the boot; 0 if there is none."""
        stat = self.kernel.sysfs.data(f"proc/{pid}/stat", 4096).decode("ascii", "replace")
        # The program's name stands in parentheses and may contain any character.
        fields = stat.rpartition(")")[2].split()
        return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0  # noqa: PLR2004

    def _forget_boots(self, book: Book, machine: Machine) -> None:
        """Drop the records of earlier boots: a boot restores everything."""
        known = len(book.claims) + len(book.pfs)
        book.claims = {a: c for a, c in book.claims.items() if c.boot == machine.boot}
        book.pfs = {a: record for a, record in book.pfs.items() if record.boot == machine.boot}
        if len(book.claims) + len(book.pfs) < known:
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
                    continue  # the virtual machine still runs without its owner, so it keeps the VF
                self._give_back(book, claim)
            done.append(f"{address}: {why}")
        self._return_pfs(book)
        return tuple(done)

    def _claim(self, book: Book, wish: Wish) -> tuple[VfClaim, tuple[str, ...]]:
        machine = self.machine()
        choice = _chosen(wish, machine, book)
        pf, vf, reasons = choice.pf, choice.vf, choice.reasons
        record = book.pfs.get(pf.address)
        if record is None:
            record = PfRecord(pf=pf.address, boot=machine.boot, before=PfBefore.of(pf))
            book.pfs[pf.address] = record
            self.ledger.save(book)
        self._run(prepare_pf(machine, pf, choice.create, record.before, wish.use), _UP)
        if vf is None:
            only = wish.request.model_copy(update={"pf": pf.address})
            choice = _chosen(replace(wish, request=only), self.machine(), book)
            pf, vf = choice.pf, choice.vf
        if vf is None:
            raise HostError(
                f"adapter {pf.name}: the kernel accepted the number of VFs and created none",
                "see its log (dmesg) for the reason",
            )
        claim = VfClaim(
            vf=vf.address,
            pf=pf.address,
            owner=wish.owner,
            since=int(time.time()),
            boot=machine.boot,
            stage="preparing",
            before=VfBefore.of(vf),
            wanted=wish.settings(pf),
            use=wish.use,
        )
        book.claims[vf.address] = claim
        self.ledger.save(book)
        return claim, reasons

    def _finish(
        self, book: Book, wish: Wish, claim: VfClaim, reasons: tuple[str, ...]
    ) -> GrantedVf:
        """Execute the remaining steps for a claimed VF, and check the result."""
        machine = self.machine()
        pf, vf = self._found(machine, claim)
        wanted = wish.settings(pf)
        configure = configure_host_vf if claim.use == "host" else configure_vf
        held, before = claim.stage == "held", book.pfs[pf.address].before
        # A machine that has its VF is moved away although the cable was pulled.
        steps = prepare_pf(machine, pf, 0, before, claim.use, linked=not held)
        known = assuming(vf, claim.wanted) if held else vf
        steps += configure(pf, known, wanted)
        if steps:
            self._run(steps, _UP)
            pf, vf = self._found(self.machine(), claim)
        left = configure(pf, assuming(vf, wanted), wanted)
        if left and claim.use == "host" and vf.driver:
            # The driver has made its network device.
            self._run(left, _UP)
            pf, vf = self._found(self.machine(), claim)
            left = configure(pf, assuming(vf, wanted), wanted)
        if left or not _serves(vf, claim.use):
            what = left[0].text if left else f"it is bound to {vf.driver or 'nothing'}"
            if claim.use == "host" and not vf.driver:
                what = "no driver of this machine takes it"
            raise HostError(
                f"VF {vf.address} of {pf.name} is not as it was set: {what}",
                "see the kernel's log (dmesg)",
            )
        done = claim.model_copy(update={"stage": "held", "wanted": wanted})
        if done != claim:
            book.claims[vf.address] = done
            self.ledger.save(book)
        return GrantedVf(
            address=vf.address,
            number=vf.number,
            pf=pf.name,
            group=-1 if vf.group is None else vf.group,
            numa=pf.numa,
            settings=wanted,
            reasons=reasons,
            notes=_notes(wish, pf, vf),
            interfaces=tuple(link.name for link in vf.links),
            rdma=vf.rdma,
        )

    @staticmethod
    def _found(machine: Machine, claim: VfClaim) -> tuple[PfFacts, VfFacts]:
        found = machine.vf(claim.vf)
        if found is None:
            raise HostError(
                f"VF {claim.vf} of {claim.owner} has disappeared",
                "another program removed the VFs of its adapter; run `down`, then `up`",
            )
        return found

    def _give_back(self, book: Book, claim: VfClaim) -> None:
        found = self.machine().vf(claim.vf)
        if found is not None:
            pf, vf = found
            if vf.holders:
                pids = ", ".join(map(str, vf.holders))
                raise HostError(
                    f"VF {vf.address} of {claim.owner} is still used by process {pids}",
                    "end that virtual machine first",
                )
            self._run(return_vf(pf, vf, claim.before), _DOWN)
        del book.claims[claim.vf]
        self.ledger.save(book)

    def _return_pfs(self, book: Book) -> tuple[str, ...]:
        """Restore every adapter without a claimed VF; returns the reasons of others."""
        used = {claim.pf for claim in book.claims.values()}
        kept: list[str] = []
        for address in [address for address in book.pfs if address not in used]:
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

    def _run(self, steps: list[KernelStep], verb: str) -> None:
        execute(steps, self.kernel, Journal(self.ledger.directory), verb)


def _fits(wish: Wish, claim: VfClaim, machine: Machine) -> bool:
    """Whether the owner's VF fits its wish now."""
    found = machine.vf(claim.vf)
    allowed = candidates(wish.request, machine)
    return claim.use == wish.use and found is not None and found[0] in allowed


def _held(wish: Wish, machine: Machine, book: Book, gone: Mapping[str, str]) -> VfClaim | None:
    """Return the VF that the owner has, if `allocate` would leave it that one."""
    claim = book.of(wish.owner)
    if claim is None or claim.vf in gone:
        return None
    try:
        return claim if _fits(wish, claim, machine) else None
    except HostError:
        return None  # the choice has the same error


def _chosen(wish: Wish, machine: Machine, book: Book) -> Choice:
    try:
        return choose(wish.request, machine, book.owners(), wish.numa, wish.use)
    except HostError as error:
        raise NoVfError(error.message, error.hint) from error


def _serves(vf: VfFacts, use: Use) -> bool:
    """Whether a VF is bound to the driver for its use."""
    if use == "host":
        return bool(vf.driver) and vf.driver != VFIO
    return vf.driver == VFIO and vf.group is not None


def _as_returned(machine: Machine, book: Book, claims: dict[str, str]) -> Machine:
    """Return the machine as it will be after the return of VFs without a claim."""

    def returned(vf: VfFacts) -> VfFacts:
        if vf.address not in book.claims or vf.address in claims:
            return vf
        before = book.claims[vf.address].before
        return replace(vf, driver=before.driver, driver_override=before.driver_override)

    pfs = (replace(pf, vfs=tuple(returned(vf) for vf in pf.vfs)) for pf in machine.pfs)
    return replace(machine, pfs=tuple(pfs))


def _fabric_notes(wish: Wish, pf: PfFacts) -> tuple[str, ...]:
    """Return the tasks that remain outside of this machine."""
    pkey = wish.request.pkey
    if pf.link_type != INFINIBAND or not pkey or pf.vf_pkeys:
        return ()
    port = (wish.settings(pf).port_guid or "").replace(":", "")
    text = f"subnet manager: add port GUID 0x{port} to partition {pkey}; "
    return (f"{text}driver {pf.driver} leaves partition keys of VFs to it",)


def _notes(wish: Wish, pf: PfFacts, vf: VfFacts) -> tuple[str, ...]:
    notes = _fabric_notes(wish, pf)
    checks = wish.request.spoof_check and pf.link_type != INFINIBAND
    if checks and vf.settings.spoof_check is None:
        text = f"driver {pf.driver} has no spoof check: the guest can send from any address"
        return (*notes, text)
    return notes


def this_machine() -> VfHost:
    """Return the VFs of this machine."""
    return VfHost(Kernel(Sysfs()), Ledger(), privileged=os.geteuid() == 0)
