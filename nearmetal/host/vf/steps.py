# SPDX-License-Identifier: Apache-2.0
"""Facts in, steps out: what is still to be done to an adapter and a VF. Pure.

Every function compares what is wanted with what is found, so that a second run yields no steps
and a run that was cut short anywhere is taken up by planning again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from nearmetal.host.vf.choose import VFIO, used_by
from nearmetal.host.vf.facts import DEVICES
from nearmetal.host.vf.identity import derive_guids, derive_mac
from nearmetal.host.vf.model import INFINIBAND, NO_GUID, PfFacts, VfFacts, VfSettings
from nearmetal.host.vf.request import Guids

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nearmetal.host.vf.model import Machine, Use
    from nearmetal.host.vf.request import VfRequest

FOLLOW = 0
"""The link state of a VF that goes with its adapter's; InfiniBand VFs may start down."""


@dataclass(frozen=True)
class Write:
    """Write a value to a file of the kernel."""

    path: str
    value: str
    text: str


@dataclass(frozen=True)
class LoadModule:
    """Load a kernel module."""

    name: str

    @property
    def text(self) -> str:
        """For the journal."""
        return f"load kernel module {self.name}"


@dataclass(frozen=True)
class SetLink:
    """Set an adapter's network device up or down."""

    index: int
    name: str
    up: bool

    @property
    def text(self) -> str:
        """For the journal."""
        return f"set {self.name} {'up' if self.up else 'down'}"


@dataclass(frozen=True)
class AwaitCarrier:
    """Wait until an adapter's link is up."""

    name: str

    @property
    def text(self) -> str:
        """For the journal."""
        return f"wait for the link of {self.name}"


@dataclass(frozen=True)
class SetVf:
    """Set one setting of a VF through its adapter. `value` as `netlink.request_of` takes it."""

    index: int
    name: str
    number: int
    setting: str
    value: str | int | bool | tuple[int, int]

    @property
    def text(self) -> str:
        """For the journal."""
        value = "/".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"{self.name} VF {self.number}: {self.setting} {value}"


Step = Write | LoadModule | SetLink | AwaitCarrier | SetVf


@dataclass(frozen=True)
class PfBefore:
    """What an adapter was like before its first VF was taken: what it goes back to."""

    nr_vfs: int
    up: bool
    autoprobe: bool


@dataclass(frozen=True)
class VfBefore:
    """What a VF was like before it was taken."""

    driver: str
    driver_override: str
    settings: VfSettings


def before_pf(pf: PfFacts) -> PfBefore:
    """Return what to remember of an adapter."""
    return PfBefore(len(pf.vfs), pf.link is None or pf.link.up, pf.autoprobe)


def before_vf(vf: VfFacts) -> VfBefore:
    """Return what to remember of a VF."""
    return VfBefore(vf.driver, vf.driver_override, vf.settings)


def wanted_settings(request: VfRequest, pf: PfFacts, cluster: str, node: str) -> VfSettings:
    """Return the settings of a node's VF on this adapter; None is "leave as it is"."""
    if pf.link_type == INFINIBAND:
        given = request.guid
        guids = (
            (given.node, given.port) if isinstance(given, Guids) else derive_guids(cluster, node)
        )
        index = pf.pkeys.index(int(request.pkey, 16)) if request.pkey and pf.vf_pkeys else None
        return VfSettings(
            node_guid=guids[0], port_guid=guids[1], link_state=FOLLOW, pkey_index=index
        )
    return VfSettings(
        mac=derive_mac(cluster, node),
        vlan=request.vlan or 0,
        qos=0,
        trust=request.trust,
        spoof_check=request.spoof_check,
        rate=request.rate or 0,
    )


def _device(address: str) -> str:
    return f"{DEVICES}/{address}"


def prepare_pf(
    machine: Machine, pf: PfFacts, create: int, before: PfBefore, use: Use = "machine"
) -> list[Step]:
    """Return what makes an adapter ready to give VFs; `create` 0 leaves those it has alone.

    The adapter is up before VFs are made: some drivers (igb) reset them when it comes up. New VFs
    are kept from the host's own drivers, so that none of them flashes up as a network device.
    """
    steps: list[Step] = [] if machine.vfio or use == "host" else [LoadModule(VFIO)]
    link = pf.link
    if link is not None and not link.up:
        steps.append(SetLink(link.index, link.name, up=True))
    if link is not None and not (link.up and link.carrier):
        steps.append(AwaitCarrier(link.name))
    probe = f"{_device(pf.address)}/sriov_drivers_autoprobe"
    if create and not pf.vfs:
        if pf.autoprobe:
            steps.append(Write(probe, "0", f"{pf.name}: keep drivers of this machine off new VFs"))
        number = f"{_device(pf.address)}/sriov_numvfs"
        steps.append(Write(number, str(create), f"{pf.name}: create {create} VFs"))
        if before.autoprobe:
            steps.append(Write(probe, "1", f"{pf.name}: let drivers take VFs again"))
        if link is not None:
            steps.append(AwaitCarrier(link.name))  # some drivers (igb) reset the adapter for it
    elif before.autoprobe and not pf.autoprobe:
        steps.append(Write(probe, "1", f"{pf.name}: let drivers take VFs again"))
    return steps


_ORDINARY = {"vlan": 0, "qos": 0, "trust": False, "spoof_check": True, "rate": 0, "link_state": 0}
"""What need not be set where the driver does not know the setting at all."""


def _setting_steps(pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> Iterator[Step]:
    """Yield what differs. VLAN and priority travel together, and so do the two rates."""
    link, now = pf.link, vf.settings
    if link is None:
        return
    changed = {}
    for name in (field.name for field in fields(wanted)):
        value, old = getattr(wanted, name), getattr(now, name)
        unknown = old is None and value == _ORDINARY.get(name, value is None)
        if value is not None and value != old and not unknown:
            changed[name] = value
    if "pkey_index" in changed:
        index = changed.pop("pkey_index")
        path = f"sys/class/infiniband/{pf.rdma[0]}/iov/{vf.address}/ports/1/pkey_idx/0"
        yield Write(path, str(index), f"{pf.name} VF {vf.number}: partition key {index}")
    for name, pair in (("vlan", ("vlan", "qos")), ("rate", ("min_rate", "rate"))):
        if changed.keys() & set(pair):
            values = [_first(getattr(wanted, key), getattr(now, key)) for key in pair]
            for key in pair:
                changed.pop(key, None)
            changed[name] = tuple(values)
    for name, value in changed.items():
        yield SetVf(link.index, link.name, vf.number, name, value)


def _first(wanted: int | None, now: int | None) -> int:
    return wanted if wanted is not None else now or 0


def assuming(vf: VfFacts, settings: VfSettings) -> VfFacts:
    """Return the facts of a VF, where its driver tells nothing completed by what was set."""
    told = {f.name: getattr(vf.settings, f.name) for f in fields(settings)}
    known = {n: getattr(settings, n) if value is None else value for n, value in told.items()}
    return replace(vf, settings=VfSettings(**known))


def configure_vf(pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> list[Step]:
    """Return what makes a VF ready for a virtual machine.

    The override comes first: from then on no driver of this machine takes the VF again. A VF
    driver reads its address only when it is bound (igbvf), so settings go between the drivers.
    """
    device = _device(vf.address)
    steps: list[Step] = []
    if vf.driver_override != VFIO:
        steps.append(
            Write(f"{device}/driver_override", VFIO, f"{vf.address}: set aside for {VFIO}")
        )
    if vf.driver and vf.driver != VFIO:
        steps.append(_unbind(vf))
    steps += _setting_steps(pf, vf, wanted)
    if vf.driver != VFIO:
        steps.append(Write("sys/bus/pci/drivers_probe", vf.address, f"{vf.address}: bind {VFIO}"))
    return steps


def configure_host_vf(pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> list[Step]:
    """Return what makes a VF ready for programs of this machine: its own driver, and up.

    Settings go between the drivers here, too. What appears only with the driver is for the next
    look: the network device, which is then set up.
    """
    device = _device(vf.address)
    settings = list(_setting_steps(pf, vf, wanted))
    steps: list[Step] = []
    if vf.driver_override:
        steps.append(Write(f"{device}/driver_override", "\n", f"{vf.address}: its own driver"))
    unbound = not vf.driver
    if vf.driver and (settings or vf.driver_override):
        steps.append(_unbind(vf))
        unbound = True
    steps += settings
    if unbound:
        if vf.alias:
            steps.append(LoadModule(vf.alias))
        steps.append(Write("sys/bus/pci/drivers_probe", vf.address, f"{vf.address}: bind a driver"))
        return steps
    return [*steps, *(SetLink(link.index, link.name, up=True) for link in vf.links if not link.up)]


def _unbind(vf: VfFacts) -> Write:
    path = f"{_device(vf.address)}/driver/unbind"
    return Write(path, vf.address, f"{vf.address}: unbind {vf.driver}")


def return_vf(pf: PfFacts, vf: VfFacts, before: VfBefore) -> list[Step]:
    """Return what gives a VF back as it was found."""
    steps: list[Step] = []
    # A GUID of zero means "none was ever set", and drivers refuse to set it.
    old = before.settings
    kept = {f.name: getattr(old, f.name) for f in fields(old) if getattr(old, f.name) != NO_GUID}
    settings = list(_setting_steps(pf, vf, VfSettings(**kept)))
    # Its own driver must see the settings anew, and its network device was down.
    wrong = vf.driver != before.driver or bool(settings) or any(link.up for link in vf.links)
    if vf.driver and wrong:
        steps.append(_unbind(vf))
    steps += settings
    if vf.driver_override != before.driver_override:
        path = f"{_device(vf.address)}/driver_override"
        steps.append(
            Write(path, before.driver_override + "\n", f"{vf.address}: override as before")
        )
    if before.driver and wrong:
        path = f"sys/bus/pci/drivers/{before.driver}/bind"
        steps.append(Write(path, vf.address, f"{vf.address}: bind {before.driver} again"))
    return steps


def return_pf(
    pf: PfFacts, before: PfBefore, claims: Mapping[str, str]
) -> tuple[list[Step], tuple[str, ...]]:
    """Return what gives an adapter back, and who prevents it: VFs that others use now."""
    kept = [f"{vf.address}: {use}" for vf in pf.vfs if (use := used_by(vf, claims))]
    created = bool(pf.vfs) and before.nr_vfs == 0
    if kept and created:
        return [], tuple(kept)
    steps: list[Step] = []
    device = _device(pf.address)
    if created:
        steps.append(Write(f"{device}/sriov_numvfs", "0", f"{pf.name}: remove {len(pf.vfs)} VFs"))
    if pf.autoprobe != before.autoprobe:
        value = str(int(before.autoprobe))
        path = f"{device}/sriov_drivers_autoprobe"
        steps.append(Write(path, value, f"{pf.name}: drivers take VFs as before"))
    link = pf.link
    if link is not None and link.up and not before.up and not kept:
        steps.append(SetLink(link.index, link.name, up=False))
    return steps, ()
