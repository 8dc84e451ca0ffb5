# SPDX-License-Identifier: Apache-2.0
"""Steps from facts: the changes that an adapter and a VF still need. Pure.

Every function compares the wanted state with the facts. So a second run has no steps, and planning
again continues a run that was interrupted anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nearmetal.host.vf.choose import used_by
from nearmetal.host.vf.facts import DEVICES
from nearmetal.host.vf.model import (
    INFINIBAND,
    NO_GUID,
    VFIO,
    Link,
    Machine,
    PfFacts,
    Use,
    VfFacts,
    VfSettings,
)
from nearmetal.host.vf.request import Guids, VfRequest, derive_guids, derive_mac

FOLLOW = 0
"""The link state of a VF that follows its adapter's; InfiniBand VFs may start down."""

_PROBE = "sys/bus/pci/drivers_probe"


@dataclass(frozen=True)
class KernelStep:
    """One change. `text`: for the journal. `change`: the method of `Kernel`, with its arguments."""

    text: str
    change: Literal["write", "load", "set_up", "set_vf", "await_carrier"]
    arguments: Mapping[str, Any]


def _write(path: str, value: str, text: str) -> KernelStep:
    return KernelStep(text, "write", {"path": path, "value": value})


def _load(module: str) -> KernelStep:
    return KernelStep(f"load kernel module {module}", "load", {"module": module})


def _set_link(link: Link, *, up: bool) -> KernelStep:
    return KernelStep(
        f"set {link.name} {'up' if up else 'down'}", "set_up", {"index": link.index, "up": up}
    )


def _await_carrier(link: Link) -> KernelStep:
    return KernelStep(f"wait for the link of {link.name}", "await_carrier", {"name": link.name})


def _set_vf(link: Link, number: int, setting: str, value: Any) -> KernelStep:
    shown = "/".join(map(str, value)) if isinstance(value, tuple) else value
    return KernelStep(
        f"{link.name} VF {number}: {setting} {shown}",
        "set_vf",
        {"index": link.index, "number": number, "setting": setting, "value": value},
    )


@dataclass(frozen=True)
class PfBefore:
    """The state of an adapter before its first VF was taken. It is restored at the end."""

    nr_vfs: int
    up: bool
    autoprobe: bool

    @classmethod
    def of(cls, pf: PfFacts) -> PfBefore:
        """Return the state of an adapter now."""
        return cls(len(pf.vfs), pf.link is None or pf.link.up, pf.autoprobe)


@dataclass(frozen=True)
class VfBefore:
    """The state of a VF before it was taken."""

    driver: str
    driver_override: str
    settings: VfSettings

    @classmethod
    def of(cls, vf: VfFacts) -> VfBefore:
        """Return the state of a VF now."""
        return cls(vf.driver, vf.driver_override, vf.settings)


def wanted_settings(request: VfRequest, pf: PfFacts, cluster: str, node: str) -> VfSettings:
    """Return the settings of a node's VF on this adapter; None leaves a setting unchanged."""
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


def _drivers_take(pf: PfFacts, value: str, text: str) -> KernelStep:
    return _write(f"{_device(pf.address)}/sriov_drivers_autoprobe", value, f"{pf.name}: {text}")


def prepare_pf(
    machine: Machine,
    pf: PfFacts,
    create: int,
    before: PfBefore,
    use: Use = "machine",
    *,
    linked: bool = True,
) -> list[KernelStep]:
    """Return the steps before an adapter can give VFs; `create` 0 keeps the VFs that it has.

    `linked`: its link must be up.
    The adapter is up before VFs are created: some drivers (igb) reset them when it comes up. The
    host's own drivers do not take new VFs, so that no VF appears as a network device for a moment.
    """
    steps: list[KernelStep] = [] if machine.vfio or use == "host" else [_load(VFIO)]
    link = pf.link
    if link is not None and not link.up:
        steps.append(_set_link(link, up=True))
    if linked and link is not None and not (link.up and link.carrier):
        steps.append(_await_carrier(link))
    creates = create and not pf.vfs
    if creates:
        if pf.autoprobe:
            steps.append(_drivers_take(pf, "0", "keep drivers of this machine off new VFs"))
        number = f"{_device(pf.address)}/sriov_numvfs"
        steps.append(_write(number, str(create), f"{pf.name}: create {create} VFs"))
    if before.autoprobe and (creates or not pf.autoprobe):
        steps.append(_drivers_take(pf, "1", "let drivers take VFs again"))
    if creates and link is not None:
        steps.append(_await_carrier(link))  # some drivers (igb) reset the adapter for new VFs
    return steps


_ORDINARY = {"vlan": 0, "qos": 0, "trust": False, "spoof_check": True, "rate": 0, "link_state": 0}
"""Values that are not set if the driver does not have the setting."""


def _setting_steps(pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> Iterator[KernelStep]:
    """Yield what differs. One request sets VLAN and priority, and one sets the two rates."""
    link, now = pf.link, vars(vf.settings)
    if link is None:
        return
    changed = {}
    for name, value in vars(wanted).items():
        unknown = now[name] is None and value == _ORDINARY.get(name, value is None)
        if value is not None and value != now[name] and not unknown:
            changed[name] = value
    if "pkey_index" in changed:
        index = changed.pop("pkey_index")
        path = f"sys/class/infiniband/{pf.rdma[0]}/iov/{vf.address}/ports/1/pkey_idx/0"
        yield _write(path, str(index), f"{pf.name} VF {vf.number}: partition key {index}")
    for name, pair in (("vlan", ("vlan", "qos")), ("rate", ("min_rate", "rate"))):
        if changed.keys() & set(pair):
            found = [(getattr(wanted, key), now[key]) for key in pair]
            for key in pair:
                changed.pop(key, None)
            changed[name] = tuple(old or 0 if new is None else new for new, old in found)
    for name, value in changed.items():
        yield _set_vf(link, vf.number, name, value)


def assuming(vf: VfFacts, settings: VfSettings) -> VfFacts:
    """Return the facts of a VF; settings that its driver does not report are taken as given."""
    given = {n: v for n, v in vars(settings).items() if getattr(vf.settings, n) is None}
    return replace(vf, settings=replace(vf.settings, **given))


def configure_vf(pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> list[KernelStep]:
    """Return the steps that prepare a VF for a virtual machine.

    The override comes first: after it no driver of this machine takes the VF. A VF driver reads
    its address only when it is bound (igbvf), so the settings come between the drivers.
    """
    steps: list[KernelStep] = []
    if vf.driver_override != VFIO:
        path = f"{_device(vf.address)}/driver_override"
        steps.append(_write(path, VFIO, f"{vf.address}: set aside for {VFIO}"))
    if vf.driver and vf.driver != VFIO:
        steps.append(_unbind(vf))
    steps += _setting_steps(pf, vf, wanted)
    if vf.driver != VFIO:
        steps.append(_write(_PROBE, vf.address, f"{vf.address}: bind {VFIO}"))
    return steps


def configure_host_vf(pf: PfFacts, vf: VfFacts, wanted: VfSettings) -> list[KernelStep]:
    """Return the steps that prepare a VF for programs of this machine: its own driver, and up.

    Settings also come between the drivers here. The network device appears only with the driver,
    so the next call, with new facts, sets it up.
    """
    settings = list(_setting_steps(pf, vf, wanted))
    steps: list[KernelStep] = []
    if vf.driver_override:
        path = f"{_device(vf.address)}/driver_override"
        steps.append(_write(path, "\n", f"{vf.address}: its own driver"))
    rebinds = not vf.driver or bool(settings or vf.driver_override)
    if vf.driver and rebinds:
        steps.append(_unbind(vf))
    steps += settings
    if not rebinds:
        steps += (_set_link(link, up=True) for link in vf.links if not link.up)
        return steps
    if vf.alias:
        steps.append(_load(vf.alias))
    return [*steps, _write(_PROBE, vf.address, f"{vf.address}: bind a driver")]


def _unbind(vf: VfFacts) -> KernelStep:
    path = f"{_device(vf.address)}/driver/unbind"
    return _write(path, vf.address, f"{vf.address}: unbind {vf.driver}")


def return_vf(pf: PfFacts, vf: VfFacts, before: VfBefore) -> list[KernelStep]:
    """Return the steps that restore a VF."""
    steps: list[KernelStep] = []
    # Drivers report zero for a GUID that was never set, and refuse to set zero.
    old = {name: value for name, value in vars(before.settings).items() if value != NO_GUID}
    settings = list(_setting_steps(pf, vf, VfSettings(**old)))
    # Its own driver must read the settings again, and its network device was down.
    wrong = vf.driver != before.driver or bool(settings) or any(link.up for link in vf.links)
    if vf.driver and wrong:
        steps.append(_unbind(vf))
    steps += settings
    if vf.driver_override != before.driver_override:
        path, value = f"{_device(vf.address)}/driver_override", before.driver_override + "\n"
        steps.append(_write(path, value, f"{vf.address}: override as before"))
    if before.driver and wrong:
        path = f"sys/bus/pci/drivers/{before.driver}/bind"
        steps.append(_write(path, vf.address, f"{vf.address}: bind {before.driver} again"))
    return steps


def return_pf(
    pf: PfFacts, before: PfBefore, claims: Mapping[str, str]
) -> tuple[list[KernelStep], tuple[str, ...]]:
    """Return the steps that restore an adapter, or the VFs in use that prevent this."""
    kept = [f"{vf.address}: {use}" for vf in pf.vfs if (use := used_by(vf, claims))]
    created = bool(pf.vfs) and before.nr_vfs == 0
    if kept and created:
        return [], tuple(kept)
    steps: list[KernelStep] = []
    if created:
        number = f"{_device(pf.address)}/sriov_numvfs"
        steps.append(_write(number, "0", f"{pf.name}: remove {len(pf.vfs)} VFs"))
    if pf.autoprobe != before.autoprobe:
        steps.append(_drivers_take(pf, str(int(before.autoprobe)), "drivers take VFs as before"))
    link = pf.link
    if link is not None and link.up and not before.up and not kept:
        steps.append(_set_link(link, up=False))
    return steps, ()
