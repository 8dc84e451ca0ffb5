# SPDX-License-Identifier: Apache-2.0
"""A simulated vCenter (tests/vcsim) for a module of tests: real SOAP over TLS."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.apply import Cluster, checked_plan, down, up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.config.password import PasswordSource
from nearmetal.core.process import LocalRunner
from nearmetal.host.vcenter.spec import Vcenter
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from nearmetal.cluster.diff import Plan
    from nearmetal.host.vcenter.session import Session

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "build" / "vcsim" / "vcsim"

GUEST = Path(__file__).with_name("vsphere_guest.sh")

PASSWORD = "VCENTER_TEST_PASSWORD"
TEMPLATE = "DC0_C0_RP0_VM0"


@dataclass(frozen=True)
class Simulator:
    port: int
    certificate: Path

    @property
    def thumbprint(self) -> str:
        der = ssl.PEM_cert_to_DER_cert(self.certificate.read_text())
        digest = hashlib.sha256(der).hexdigest()
        return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))

    def head(self, name: str, trust: str | None = None) -> str:
        """Return the top of a spec, up to the vCenter."""
        trust = f"thumbprint: '{self.thumbprint}'" if trust is None else trust
        return (
            f"version: 1\nname: {name}\nbackend: vsphere\nvcenter:\n  server: 127.0.0.1\n"
            f"  port: {self.port}\n  user: user\n  password: {{env: {PASSWORD}}}\n"
            + (f"  {trust}\n" if trust else "")
        )

    def session(self) -> Session:
        """Return a session of our own, to look and to meddle."""
        from nearmetal.host.vcenter.session import Session  # noqa: PLC0415 - needs the SDK

        return Session(
            Vcenter(
                server="127.0.0.1",
                port=self.port,
                user="user",
                password=PasswordSource(env=PASSWORD),
                thumbprint=self.thumbprint,
            )
        )


def spec_of(text: str) -> VsphereSpec:
    spec = parse_spec(text)
    assert isinstance(spec, VsphereSpec)
    return spec


def opened(spec: VsphereSpec, directory: Path) -> Cluster:
    """Return the cluster of a spec, with its records in a directory."""
    store = Store(directory / "state")
    return Cluster(spec.name, open_backend(spec, store, LocalRunner()), store)


def unchecked(spec: VsphereSpec, directory: Path) -> Cluster:
    """The same, for an inventory that changes right after `up` has looked up what it needs."""
    from nearmetal.cluster.backends.vsphere.driver import VsphereBackend  # noqa: PLC0415 - the SDK

    class Unchecked(VsphereBackend):
        def check(self, plan: Plan) -> None:
            pass

    store = Store(directory / "state")
    return Cluster(spec.name, Unchecked(spec, store), store)


def raised(text: str, directory: Path, *, replace: bool = False) -> Plan:
    """Make the cluster of a spec as it says; returns the plan that was carried out."""
    spec = spec_of(text)
    return up(opened(spec, directory), spec, replace=replace)


def plan_of(text: str, directory: Path) -> Plan:
    """Return what an `up` would do."""
    spec = spec_of(text)
    return checked_plan(opened(spec, directory), spec)


def gone(text: str, directory: Path) -> None:
    """Remove the cluster of a spec."""
    down(opened(spec_of(text), directory))


def machines_of(content: Any, cluster: str) -> dict[str, Any]:
    """Return the machines in a cluster's folder by their names."""
    folder = content.rootFolder.childEntity[0].vmFolder
    own = next((f for f in folder.childEntity if f.name == cluster), None)
    return {} if own is None else {vm.name: vm for vm in own.childEntity}


def networks_of(content: Any) -> dict[str, object]:
    """Return everything that a vCenter has of networks, to compare."""
    from pyVmomi import vim  # noqa: PLC0415 - needs the SDK

    from nearmetal.host.vcenter.session import fetch  # noqa: PLC0415 - needs the SDK

    center = content.rootFolder.childEntity[0]
    names: list[str] = []
    for kind in (vim.Network, vim.dvs.DistributedVirtualPortgroup):
        networks = fetch(content, center.networkFolder, kind, ["name"])
        names += [str(values["name"]) for values in networks.values()]
    found: dict[str, object] = {"names": sorted(names)}
    hosts = fetch(content, center.hostFolder, vim.HostSystem, ["name", "config.network"])
    for values in hosts.values():
        network = values["config.network"]
        found[values["name"]] = {
            s.name: (
                s.mtu,
                sorted(getattr(s.spec.bridge, "nicDevice", None) or []),
                sorted(
                    (g.spec.name, g.spec.vlanId)
                    for g in network.portgroup
                    if g.spec.vswitchName == s.name
                ),
            )
            for s in network.vswitch
        }
    for switch in center.networkFolder.childEntity:
        if not hasattr(switch, "uuid"):
            continue
        members = {
            member.config.host.name: sorted(p.pnicDevice for p in member.config.backing.pnicSpec)
            for member in switch.config.host or []
        }
        groups = sorted(group.name for group in switch.portgroup)
        found[f"distributed {switch.name}"] = (switch.config.maxMtu, members, groups)
    return found


def simulator(
    directory: Path,
    *hosts: str,
    options: str | None = None,
    num_of_vfs: int | None = None,
    slow: str = "",
    without: str = "",
    guests: Mapping[str, str] | None = None,
) -> Generator[Simulator, None, None]:
    """Run a simulator while it is used, with hosts of these names, four where none are given.

    `options`: of the driver of their cards, on hosts where no other VFs are; `num_of_vfs`: what the firmware of the card for MPI
    offers. A file of a host's name in the directory `firmware` says another number for its next boot.
    `slow`: a task that takes time, and its milliseconds, for example `CloneVm=2000`.
    `without`: rights that the user lacks.
    `guests`: machines run vsphere_guest.sh with these variables while they are on.
    """
    if not PROGRAM.exists():
        lacking(f"{PROGRAM} is missing: run `make setup-vsphere`")
    certificate = directory / "vcenter.pem"
    with subprocess.Popen(
        [
            str(PROGRAM),
            *("-certificate", str(certificate)),
            *(("-hosts", ",".join(hosts)) if hosts else ()),
            *(("-options", options, "-vfs", "0") if options is not None else ()),
            *(("-num-of-vfs", str(num_of_vfs)) if num_of_vfs is not None else ()),
            *("-firmware", str(directory / "firmware")),
            *("-slow", slow),
            *("-without", without),
            *(
                ("-guest", str(GUEST), "-guest-folder", str(directory))
                if guests is not None
                else ()
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # It leaves its directories behind.
        env={**os.environ, **(guests or {}), "TMPDIR": str(directory)},
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        where = process.stdout.readline().strip()
        try:
            yield Simulator(int(where.rpartition(":")[2]), certificate)
        finally:
            process.stdin.close()
            process.wait(timeout=60)
