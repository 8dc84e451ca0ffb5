# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host vf`: adapters with SR-IOV, their VFs, whose they are, and what leaked."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, HostError
from nearmetal.host.vf import this_machine
from nearmetal.host.vf.choose import check_iommu, used_by

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.host.vf import Book, Machine, PfFacts, VfFacts, VfHost

_PF_COLUMNS = ("adapter", "pci", "driver", "link", "state", "numa", "vfs", "acs")
_VF_COLUMNS = ("vf", "adapter", "group", "driver", "mac or guid", "vlan", "owner", "since")


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "vf",
        run,
        "show SR-IOV adapters, their virtual functions (VFs) and the owners",
        "nearmetal host vf",
    )
    parser.add_argument(
        "--reclaim",
        action="store_true",
        help="return VFs without an owner (leaks) to their original state; needs root",
    )


def run(args: argparse.Namespace, view: View) -> int:
    """Print adapters, VFs and leaks; exit code 4 when there are leaks."""
    return show(this_machine(), view, reclaim=args.reclaim)


def show(host: VfHost, view: View, *, reclaim: bool) -> int:
    """As `run`, for any machine."""
    returned = host.reclaim() if reclaim else ()
    machine, book = host.machine(), host.ledger.read()
    leaks = host.leaks(machine, book)
    claims = book.owners()
    data = {
        "iommu": asdict(machine.iommu) | {"on": machine.iommu.on},
        "returned": list(returned),
        "adapters": [
            asdict(pf) | {"vfs": [_vf_data(vf, book, leaks, claims) for vf in pf.vfs]}
            for pf in machine.pfs
        ],
        "leaks": leaks,
    }
    if machine.pfs:
        view.table(_PF_COLUMNS, [_pf_row(pf) for pf in machine.pfs])
    rows = [_vf_row(pf, vf, book, claims) for pf in machine.pfs for vf in pf.vfs]
    if rows and not view.as_json:
        print()
        view.table(_VF_COLUMNS, rows)
    _warn(machine, leaks, view)
    closing = [f"given back: {text}" for text in returned]
    if not machine.pfs:
        closing.append("no adapter of this machine has SR-IOV switched on")
    view.result(data, closing)
    return ExitCode.CHECKS_FAILED if leaks else ExitCode.DONE


def _warn(machine: Machine, leaks: dict[str, str], view: View) -> None:
    if machine.pfs:
        try:
            check_iommu(machine)
        except HostError as error:
            view.warn(error.message, error.hint)
    for address, why in leaks.items():
        found = machine.vf(address)
        pids = found[1].holders if found else ()
        held = f"end process {', '.join(map(str, pids))} first, then " if pids else ""
        view.warn(f"VF {address} leaked: {why}", f"{held}nearmetal host vf --reclaim")


def _vf_data(
    vf: VfFacts, book: Book, leaks: dict[str, str], claims: dict[str, str]
) -> dict[str, Any]:
    claim = book.claims.get(vf.address)
    return asdict(vf) | {
        "owner": None if claim is None else claim.owner.model_dump(),
        "since": None if claim is None else claim.since,
        "stage": None if claim is None else claim.stage,
        "used_by": used_by(vf, claims),
        "leak": leaks.get(vf.address, ""),
    }


def _pf_row(pf: PfFacts) -> list[str]:
    link = pf.link
    state = "-" if link is None else "up" if link.carrier else "no link" if link.up else "down"
    numa = "-" if pf.numa < 0 else str(pf.numa)
    acs = {port.text for port in pf.ports} or {"-"}
    worst = next(word for word in ("off", "unknown", "on", "-") if word in acs)
    return [
        pf.name,
        pf.address,
        pf.driver or "-",
        pf.link_type or "-",
        state,
        numa,
        f"{len(pf.vfs)}/{pf.total}",
        worst,
    ]


def _vf_row(pf: PfFacts, vf: VfFacts, book: Book, claims: dict[str, str]) -> list[str]:
    settings = vf.settings
    claim = book.claims.get(vf.address)
    since = "-" if claim is None else time.strftime("%F %T", time.localtime(claim.since))
    group = "-" if vf.group is None else f"{vf.group}{' shared' if vf.group_others else ''}"
    return [
        vf.address,
        pf.name,
        group,
        vf.driver or "-",
        settings.port_guid or settings.mac or "-",
        str(settings.vlan or "-"),
        used_by(vf, claims) or "free",
        since,
    ]
