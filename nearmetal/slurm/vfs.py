# SPDX-License-Identifier: Apache-2.0
"""VFs of jobs: taken from and returned to the machine's one ledger, under the number of the job.

A job owns its VFs as long as its records exist, which the reclaimer removes last. So the owner is
known after the death of any process: the reclaimer finds it by the records, and the next request
for a VF by their absence. Jobs of one node do not race: taking VFs needs a lock of the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import NoVfError
from nearmetal.host.vf import GrantedVf, VfHost
from nearmetal.host.vf.model import Use
from nearmetal.slurm.records import STATE, directory_of

LEDGER = Path("/var/lib/nearmetal/host/ledger.jsonl")
"""As in nearmetal.host.vf.ledger, which is slow to import and often not needed."""


@dataclass(frozen=True)
class JobVf:
    """A VF that a job has. `since` is in Unix seconds."""

    job: int
    address: str
    use: str
    since: int


@dataclass(frozen=True)
class Count:
    """VFs of this machine: their number, and those of owners other than jobs, in words."""

    offered: int
    others: tuple[str, ...]

    @property
    def for_jobs(self) -> int:
        """The number that all jobs together can have."""
        return self.offered - len(self.others)


def _this_machine() -> VfHost:
    from nearmetal.host.vf import this_machine  # noqa: PLC0415 - slow, and most jobs have no VF

    return this_machine()


@dataclass(frozen=True)
class JobVfs:
    """The VFs that jobs have on a machine. `host` is opened when it is needed."""

    host: Callable[[], VfHost] = _this_machine
    ledger: Path = LEDGER

    def take(
        self, job: int, count: int, use: Use, *, node: str, state: Path = STATE
    ) -> tuple[GrantedVf, ...]:
        """Return `count` VFs of a job, the same ones on a repeated call; all or none.

        The records of the job exist. Raises NoVfError if there are too few, and HostError if the
        machine fails: the VFs taken until then stay the job's.
        """
        from nearmetal.host.vf import Owner  # noqa: PLC0415 - as above
        from nearmetal.host.vf.request import VfRequest  # noqa: PLC0415 - as above

        host = self.host()
        records = str(directory_of(state, job))
        taken: list[GrantedVf] = []
        try:
            for number in range(count):
                # With the node: addresses are derived from the owner, and a job has several nodes.
                owner = Owner(kind="job", name=str(job), node=f"{node}.{number}", state=records)
                taken.append(host.allocate(VfRequest(), owner, use=use))
        except NoVfError as none:
            self.give_back(job)
            raise NoVfError(
                f"{count} VFs are wanted on this node and {len(taken) or 'none'} could be had: "
                f"{none.message}",
                none.hint,
            ) from none
        return tuple(taken)

    def give_back(self, job: int) -> None:
        """Return the VFs of a job to the machine; having none is no error.

        Raises HostError if a VF is still in use.
        """
        if not self.ledger.exists():
            return
        from nearmetal.host.vf import Owner  # noqa: PLC0415 - as above

        host = self.host()
        claims = host.ledger.read().claims.values()
        owners = [c.owner for c in claims if (c.owner.kind, c.owner.name) == ("job", str(job))]
        # Also without a VF: a launch may have died after it had only prepared the adapter.
        for owner in owners or [Owner(kind="job", name=str(job))]:
            host.release(owner)

    def found(self) -> tuple[JobVf, ...]:
        """Return the VFs of jobs, by job and address."""
        if not self.ledger.exists():
            return ()
        claims = self.host().ledger.read().claims.values()
        vfs = [
            JobVf(int(c.owner.name), c.vf, c.use, c.since)
            for c in claims
            if c.owner.kind == "job" and c.owner.name.isdecimal()
        ]
        return tuple(sorted(vfs, key=lambda vf: (vf.job, vf.address)))

    def count(self) -> Count:
        """Return the number of VFs, and those that no job can have."""
        from nearmetal.host.vf.choose import used_by  # noqa: PLC0415 - as above

        host = self.host()
        machine, claims = host.machine(), host.ledger.read().claims
        jobs = {address for address, claim in claims.items() if claim.owner.kind == "job"}
        owners = {address: str(claim.owner) for address, claim in claims.items()}
        others = [
            f"{vf.address}: {whose}"
            for pf in machine.pfs
            for vf in pf.vfs
            if vf.address not in jobs and (whose := used_by(vf, owners))
        ]
        return Count(sum(len(pf.vfs) or pf.total for pf in machine.pfs), tuple(others))


def variables(vfs: tuple[GrantedVf, ...]) -> dict[str, str]:
    """Return the variables of tasks for the VFs of their job on their node."""
    if not vfs:
        return {}
    return {
        "NM_JOB_VFS": ",".join(vf.address for vf in vfs),
        "NM_JOB_VF_INTERFACES": ",".join(name for vf in vfs for name in vf.interfaces),
        "NM_JOB_VF_RDMA": ",".join(name for vf in vfs for name in vf.rdma),
    }
