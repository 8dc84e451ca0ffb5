# SPDX-License-Identifier: Apache-2.0
"""Hosts as facts, and one that takes actions: staged values count after a reboot."""

from collections.abc import Mapping
from dataclasses import replace

from nearmetal.host.model import (
    BiosFacts,
    BiosValue,
    CardFacts,
    ConfigValue,
    PlatformFacts,
    PortFacts,
)
from nearmetal.host.places import GRUB, RULES
from nearmetal.host.plan import HostPlan, Phase
from nearmetal.host.steps import (
    Burn,
    Install,
    SetArguments,
    SetBios,
    SetConfig,
    SetOptions,
    SetVfs,
    Step,
    Wait,
    WriteFile,
)
from tests.python.fake_mlxconfig import HIDDEN

DELL: dict[str, BiosValue] = {
    "ProcVirtualization": "Disabled",
    "SriovGlobalEnable": "Disabled",
    "LogicalProc": "Enabled",
    "SubNumaCluster": "Disabled",
    "SysProfile": "PerfPerWattOptimizedDapc",
    "BootMode": "Uefi",
}

FACTORY = {
    "SRIOV_EN": "0",
    "NUM_OF_VFS": "0",
    "LINK_TYPE_P1": "2",
    "LINK_TYPE_P2": "2",
    "ADVANCED_PCI_SETTINGS": "0",
}
"""What a card lists: FORCE_ETH_PCI_SUBCLASS is hidden while ADVANCED_PCI_SETTINGS is 0."""


def settings(values: Mapping[str, str], **changed: str) -> dict[str, ConfigValue]:
    return {name: ConfigValue(v, changed.get(name, v)) for name, v in values.items()}


def ports(place: str, driver: str, number: int = 2, **more: object) -> tuple[PortFacts, ...]:
    found = [PortFacts(f"{place}.{n}", driver, link="ethernet") for n in range(number)]
    return tuple(replace(port, **more) for port in found)  # type: ignore[arg-type]


def esxi(*, tools: bool = True, options: str = "") -> PlatformFacts:
    """The host of VMware's paper: a ConnectX-4 Lx for service, a ConnectX-5 for MPI."""
    service = CardFacts("0000:1a:00", "ConnectX4LX", ports("0000:1a:00", "nmlx5_core"))
    fast = CardFacts("0000:3b:00", "ConnectX5", ports("0000:3b:00", "nmlx5_core"))
    if tools:
        service = replace(
            service,
            psid="MT_2420110034",
            firmware="14.31.1014",
            device="mt4117_pciconf0",
            config=settings(FACTORY),
        )
        fast = replace(
            fast,
            psid="MT_0000000008",
            firmware="16.32.1010",
            device="mt4119_pciconf1",
            config=settings(FACTORY),
        )
    return PlatformFacts(
        "esx1",
        "esxi",
        boot="1",
        bios=BiosFacts("Dell Inc.", DELL),
        cards=(service, fast),
        options={"nmlx5_core": options} if options else {},
        packages={"nmlx5-core": "4.21.71.101"}
        | ({"mft": "4.18.1", "nmst": "4.18.1"} if tools else {}),
    )


def linux(**changed: object) -> PlatformFacts:
    card = CardFacts(
        "0000:3b:00",
        "ConnectX5",
        ports("0000:3b:00", "mlx5_core"),
        psid="MT_0000000008",
        firmware="16.32.1010",
        device="0000:3b:00.0",
        config=settings(FACTORY),
    )
    facts = PlatformFacts(
        "kvm1",
        "linux",
        boot="1",
        bios=BiosFacts("Dell Inc.", DELL),
        cards=(card,),
        cpu="intel",
        cmdline=("quiet",),
        loader="grub.d",
        files={RULES: None, GRUB: None},
    )
    return replace(facts, **changed)  # type: ignore[arg-type]


class FakeHost:
    """Takes actions as the real ones do: nothing that needs a reboot counts before it.

    `opens`: when a card lists a hidden setting, at the "set" of the other one, or at its "reset".
    """

    def __init__(self, facts: PlatformFacts, opens: str = "set") -> None:
        self.facts = facts
        self.opens = opens
        self.reboots = 0
        self.done: list[str] = []
        self._staged: dict[str, BiosValue] = {}

    def carry_out(self, plan: HostPlan) -> None:
        for phase in plan.phases:
            self.phase(phase)

    def phase(self, phase: Phase) -> None:
        for step in phase.steps:
            self.take(step)
        if phase.forcing:
            self.reboot()

    def take(self, step: Step) -> None:
        facts = self.facts
        self.done.append(step.text)
        match step.action:
            case SetBios(attribute=name, value=value):
                self._staged[name] = value
                assert facts.bios is not None
                pending = {**facts.bios.pending, name: value}
                self.facts = replace(facts, bios=replace(facts.bios, pending=pending))
            case SetConfig(device=device, setting=name, value=value):
                self._config(device, name, value)
            case Burn(device=device, version=version):
                cards = [
                    replace(c, stored=version) if c.device == device else c for c in facts.cards
                ]
                self.facts = replace(facts, cards=tuple(cards))
            case Install(name=name):
                self.facts = replace(facts, packages={**facts.packages, name: "9.9"})
            case SetOptions(module=module, options=options):
                self.facts = replace(facts, options={**facts.options, module: options})
            case WriteFile(path=path, content=content):
                self.facts = replace(facts, files={**facts.files, path: content})
            case SetArguments():
                raise AssertionError("no test has a host with grubby here")
            case SetVfs(address=address, count=count):
                self._vfs({address: count})
            case Wait():
                pass

    def _config(self, device: str, name: str, value: str) -> None:
        cards = []
        for card in self.facts.cards:
            if device in (card.device, card.address):
                before = card.config or settings(FACTORY)
                assert name in before, f"-E- The Device doesn't support {name} parameter"
                config = {**before, name: ConfigValue(before[name].current, value)}
                card = replace(card, config=self._listed(config))  # noqa: PLW2901 - the changed one
            cards.append(card)
        self.facts = replace(self.facts, cards=tuple(cards))

    def _listed(self, config: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        for name, (opener, needed) in HIDDEN.items():
            value = config.get(opener, ConfigValue("", ""))
            if (value.current if self.opens == "reset" else value.next) == needed:
                config.setdefault(name, ConfigValue("0", "0"))
            else:
                config.pop(name, None)
        return config

    def _vfs(self, counts: Mapping[str, int]) -> None:
        cards = [
            replace(
                card, ports=tuple(replace(p, vfs=counts.get(p.address, p.vfs)) for p in card.ports)
            )
            for card in self.facts.cards
        ]
        self.facts = replace(self.facts, cards=tuple(cards))

    def reboot(self) -> None:
        self.reboots += 1
        facts = self.facts
        bios = facts.bios
        if bios is not None:
            bios = BiosFacts(bios.vendor, {**bios.attributes, **bios.pending})
        tools = {"mft", "nmst"} <= set(facts.packages)
        cards = []
        for card in facts.cards:
            card = replace(card, firmware=card.coming, stored="")  # noqa: PLW2901 - the changed one
            config = card.config
            if config is None and facts.platform == "esxi" and tools:
                config = settings(FACTORY)
            if config is not None:
                config = self._listed({n: ConfigValue(v.next, v.next) for n, v in config.items()})
            if config and facts.platform == "linux":
                total = int(config["NUM_OF_VFS"].current) if "NUM_OF_VFS" in config else 0
                links = {"1": "infiniband", "2": "ethernet"}
                types = [config.get(f"LINK_TYPE_P{n}") for n, _ in enumerate(card.ports, 1)]
                found = [
                    replace(p, total_vfs=total, vfs=0, link=links[t.current] if t else p.link)
                    for p, t in zip(card.ports, types, strict=True)
                ]
                card = replace(card, ports=tuple(found))  # noqa: PLW2901 - the changed one
            cards.append(replace(card, config=config))
        grub = facts.files.get(GRUB) or ""
        words = grub.partition("$GRUB_CMDLINE_LINUX ")[2].rstrip('"\n').split()
        self.facts = replace(
            facts,
            boot=str(int(facts.boot) + 1),
            bios=bios,
            cards=tuple(cards),
            cmdline=("quiet", *words) if words else facts.cmdline,
            iommu_groups=20,
        )
        for line in (facts.files.get(RULES) or "").splitlines():
            if line.startswith("ACTION"):
                address = line.partition('KERNEL=="')[2].partition('"')[0]
                self._vfs({address: int(line.rpartition('="')[2].rstrip('"'))})
