# SPDX-License-Identifier: Apache-2.0
"""The family `uniformity`: the node that differs from most others, without any expectation. Pure.

A value is compared within a group of nodes: those of one kind (host, guest, container), and for
some facts those of one model. If more than half of at least three nodes agree, the others are
named. If no majority exists, one note lists the values, and no node is blamed. A number with a
tolerance is compared with the median.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nearmetal.check.expect import KEYS, OWN, Expectations
from nearmetal.check.families.base import contained
from nearmetal.check.model import AcrossNodes, Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Path, Snapshot, leaves, shown
from nearmetal.core.text import printable

_LEAST = 3
_MOST_VALUES = 64
_MOST_DIFFERENCES = 1_000_000
_MOST_PLACES = 16
_SHOWN = 80
_OF_MEMORY = (
    "kernel.threads-max",
    "kernel.shmmax",
    "kernel.shmall",
    "fs.file-max",
    "user.max_user_namespaces",
    "vm.min_free_kbytes",
    "nproc",
)
"""Settings and limits whose default the kernel computes of the size of memory: no two are equal."""

Facts = Mapping[str, Any]

_DIFF = "nearmetal check diff GOOD BAD"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,79}")
_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+~ -]{0,79}")
"""Names and values that are no option, no path and no words of a shell."""

_POINT = re.compile(r"(?!/(?:dev|proc|run|sys|tmp)\b)(?:/[A-Za-z0-9_][A-Za-z0-9_.:@+-]*){1,8}")
"""A mount point, which may be a path; not one that the system mounts without /etc/fstab."""


@dataclass(frozen=True)
class Setting:
    """A remedy that sets the value of most nodes.

    {usual} is that value, {key} the place that differs, {above} the table of that place.
    `good`: the only values that may be set; empty: any. What most nodes have may be the fault.
    `of`: the only values that the command can replace; empty: any.
    `adds`: the command can also set what a node lacks.
    `word`: what the value of most nodes has among its words, and the other one lacks.
    """

    command: str
    good: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    adds: bool = False
    word: str = ""
    above: re.Pattern[str] = _NAME

    def fits(self, usual: str, value: str) -> bool:
        """Whether the command makes the second value the first one."""
        if self.word and (self.word not in usual.split() or self.word in value.split()):
            return False
        known = bool(usual) and (bool(value) or self.adds)
        return known and usual in (self.good or (usual,)) and value in (self.of or (value,))


@dataclass(frozen=True)
class Subject:
    """Facts that should be equal: a table or a value, compared among nodes that agree in `by`.

    `settings`: remedies by the place that differs; "" is any place.
    `remedy`: that of places without a setting.
    `whole`: the source of the agent that says all of it; what is absent is then really absent.
    """

    path: Path
    by: Path = ()
    grade: Gravity = Gravity.WARNING
    remedy: str = _DIFF
    settings: Mapping[str, Setting] = field(default_factory=dict)
    tolerance: float = 0.0
    whole: str = ""

    def command(self, path: Path, usual: Any, value: Any) -> str:
        """Return the remedy for a place, the value of most nodes, and the one that differs.

        All three are foreign, and people copy the remedy into a shell of root.
        """
        setting = self.settings.get(path[-1], self.settings.get(""))
        if setting is None:
            return self.remedy
        before, now = ("" if each is None else str(each) for each in (usual, value))
        above = path[-2] if path[1:] else ""
        if not setting.fits(before, now) or not _VALUE.fullmatch(before):
            return _DIFF
        if not _NAME.fullmatch(path[-1]) or (path[1:] and not setting.above.fullmatch(above)):
            return _DIFF
        return setting.command.format(usual=shlex.quote(before), key=path[-1], above=above)


_SWITCHED = ("on", "off")


def _any(command: str, *good: str, of: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return the setting of any place of a subject."""
    return {"": Setting(command, good, of)}


_SYSCTL = "sysctl -w {key}={usual}"
# What most nodes have makes no node less safe, and takes away no huge pages.
_GUARDED = {
    "kernel.randomize_va_space": Setting(_SYSCTL, ("2",)),
    # 3 cannot be taken back before a restart.
    "kernel.yama.ptrace_scope": Setting(_SYSCTL, ("1", "2"), of=("0",)),
    "kernel.perf_event_paranoid": Setting(_SYSCTL, ("2", "3", "4"), of=("-1", "0", "1")),
    "vm.nr_hugepages": Setting(_SYSCTL, of=("0",)),
}
_PACKAGE = {"": Setting("apt-get install {key}={usual}", adds=True)}


SUBJECTS: Mapping[str, tuple[Subject, ...]] = {
    "uniformity.kernel": (
        Subject(("system", "kernel"), remedy="systemctl reboot"),
        Subject(("system", "os")),
        Subject(("system", "architecture"), grade=Gravity.FAULT),
        Subject(("system", "boot_words"), whole="system"),
        Subject(
            ("system", "selinux"),
            settings=_any("echo 1 >/sys/fs/selinux/enforce", "enforcing", of=("permissive",)),
        ),
        Subject(("system", "apparmor")),
    ),
    "uniformity.settings": (
        Subject(("sysctl",), settings=_any(_SYSCTL) | _GUARDED),
        Subject(
            ("memory", "transparent"),
            settings=_any("echo {usual} >/sys/kernel/mm/transparent_hugepage/{key}"),
        ),
        Subject(
            ("memory", "HugePages_Total"),
            settings=_any("sysctl -w vm.nr_hugepages={usual}", of=("0",)),
        ),
    ),
    "uniformity.limits": (Subject(("limits",), remedy="cat /etc/security/limits.d/*"),),
    "uniformity.services": (Subject(("services",), remedy="systemctl restart SERVICE"),),
    "uniformity.processor": (
        Subject(("processor", "model")),
        Subject(("processor", "packages"), grade=Gravity.FAULT),
        Subject(("processor", "cores"), grade=Gravity.FAULT),
        Subject(("processor", "threads"), grade=Gravity.FAULT),
        Subject(
            ("processor", "smt"),
            settings=_any(
                "echo {usual} >/sys/devices/system/cpu/smt/control", *_SWITCHED, of=_SWITCHED
            ),
        ),
        Subject(("processor", "features")),
        Subject(("processor", "microcode"), by=("processor", "model")),
        Subject(("processor", "governors")),
        Subject(("processor", "preference")),
        Subject(
            ("processor", "no_turbo"),
            settings=_any("echo 0 >/sys/devices/system/cpu/intel_pstate/no_turbo", "0"),
        ),
        Subject(
            ("processor", "boost"),
            settings=_any("echo 1 >/sys/devices/system/cpu/cpufreq/boost", "1"),
        ),
        Subject(("processor", "allowed_khz"), by=("processor", "model")),
        Subject(("processor", "vulnerabilities"), by=("processor", "model")),
        Subject(
            ("virtual", "clock"),
            settings=_any(
                "echo {usual} >/sys/devices/system/clocksource/clocksource0/current_clocksource",
                *KEYS["clocks"].default,
            ),
        ),
    ),
    "uniformity.memory": (
        Subject(("memory", "MemTotal"), grade=Gravity.FAULT, tolerance=0.01),
        Subject(("memory", "modules")),
        Subject(("memory", "persistent")),
        Subject(("memory", "slots")),
    ),
    "uniformity.firmware": (
        Subject(("system", "dmi", "bios_version"), by=("system", "dmi", "product_name")),
        Subject(("system", "dmi", "product_name")),
    ),
    "uniformity.machine": (Subject(("system", "dmi", "product_version"), by=("virtual", "guest")),),
    "uniformity.software": (
        Subject(("software", "packages"), settings=_PACKAGE),
        Subject(("software", "libraries"), whole="libraries"),
        Subject(("software", "modules"), whole="libraries"),
        Subject(("software", "programs")),
        Subject(("nearmetal", "providers"), whole="nearmetal"),
    ),
}
"""The facts of each check that are compared as they are."""

_OF_DEVICES = ("fw_ver", "board_id", "hca_type", "driver", "function")
_OF_PORTS = ("rate", "link_layer", "state", "pkeys")
_OF_INTERFACES = ("mtu", "state", "speed", "duplex", "driver", "pfc", "ecn")
_OF_MOUNTS = ("type", "options")
_OF_JOBS = (
    "/run/user/",
    "/run/containerd/",
    "/var/lib/containers/",
    "/var/lib/docker/",
    "/var/lib/kubelet/",
    "/proc",
    "/sys",
)
"""Mount points that come and go with sessions, containers and the kernel."""


def _fabric(node: Snapshot) -> Facts:
    found: dict[str, Any] = {}
    for device in node.table("fabric"):
        place = ("fabric", device)
        found[device] = {key: node.table(*place).get(key) for key in _OF_DEVICES}
        found[device]["vfs"] = node.number("pci", node.text(*place, "address"), "vfs")
        for port in node.table(*place, "ports"):
            ports = node.table(*place, "ports", port)
            found[f"{device}/{port}"] = {key: ports.get(key) for key in _OF_PORTS}
    return found


def _interfaces(node: Snapshot) -> Facts:
    return {
        name: {key: node.table("net", name).get(key) for key in _OF_INTERFACES}
        for name in node.table("net")
        if node.number("net", name, "kind") in (1, 32)
        and not name.startswith(("veth", "tap", "vnet", "docker", "virbr", "br-"))
    }


def _mounts(node: Snapshot) -> Facts:
    return {
        point: {key: node.table("storage", point).get(key) for key in _OF_MOUNTS}
        for point in node.table("storage")
        if not point.startswith(_OF_JOBS)
    }


_LINK = {
    "mtu": Setting("ip link set dev {above} mtu {usual}"),
    "state": Setting("ip link set dev {above} up", ("up",)),
}
# The kernel changes no number of functions but 0, and functions in use must not be taken away.
_FUNCTIONS = {
    "vfs": Setting("echo {usual} >/sys/class/infiniband/{above}/device/sriov_numvfs", of=("0",))
}
_MOUNTS = {
    "type": Setting("mount {above}", of=("",), adds=True, above=_POINT),
    # Of one that is not mounted at all, "type" says so.
    "options": Setting("mount -o remount,rw {above}", word="rw", above=_POINT),
}
DERIVED = {
    "uniformity.fabric": (_fabric, Subject(("fabric",), remedy="ibstat", settings=_FUNCTIONS)),
    "uniformity.interfaces": (_interfaces, Subject(("net",), settings=_LINK)),
    "uniformity.mounts": (_mounts, Subject(("storage",), settings=_MOUNTS)),
}
"""Checks of facts that are chosen first."""


def kind_of(node: Snapshot) -> str:
    """Return the kind of a node: nodes of different kinds are not compared."""
    if contained(node):
        return "container"
    if node.flag("virtual", "guest"):
        return "guest"
    return "host" if node.table("virtual", "guests") else "machine"


@dataclass
class _Peers:
    """The nodes of a group: what differs from the first of them, place by place.

    Nodes with equal facts are one variant, so a cluster whose nodes agree costs little memory.
    """

    first: dict[Path, Any]
    nodes: list[list[str]] = field(default_factory=list)
    """The nodes of each variant."""
    known: dict[bytes, int] = field(default_factory=dict)
    """The variant of a digest."""
    other: dict[Path, dict[Any, list[int]]] = field(default_factory=dict)
    """Values that are not those of the first node, and the variants that have them."""
    left_out: set[Path] = field(default_factory=set)
    room: int = _MOST_DIFFERENCES
    full: bool = False

    def add(self, node: str, value: Any) -> None:
        """Take the facts of a node."""
        digest = _digest(value)
        variant = self.known.get(digest)
        if variant is None:
            variant = self.known[digest] = len(self.nodes)
            self.nodes.append([])
            self._note(variant, _flat(value))
        self.nodes[variant].append(node)

    def _note(self, variant: int, values: dict[Path, Any]) -> None:
        for path in values.keys() | self.first.keys():
            value = values.get(path)
            if value == self.first.get(path) or path in self.left_out:
                continue
            if not self.room:
                self.full = True
                return
            self.room -= 1
            found = self.other.setdefault(path, {})
            found.setdefault(value, []).append(variant)
            if len(found) >= _MOST_VALUES:
                self.left_out.add(path)
                del self.other[path]

    def places(self) -> Iterator[tuple[Path, dict[Any, list[str]]]]:
        """Yield each place that differs, with its values and their nodes."""
        if self.full:
            return
        for path, others in self.other.items():
            differ = {variant for variants in others.values() for variant in variants}
            same = [i for i in range(len(self.nodes)) if i not in differ]
            groups = {self.first.get(path): same} | others
            yield (
                path,
                {v: [n for i in which for n in self.nodes[i]] for v, which in groups.items()},
            )


class Uniform:
    """Compares one subject."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._groups: dict[str, _Peers] = {}
        self._numbers: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def add(self, node: Snapshot, value: Any, by: str) -> None:
        """Take the value of a node; None: the node does not say."""
        group = f"{kind_of(node)} {by}"
        if self._subject.tolerance:
            number = node.number(*self._subject.path)
            if number is not None:
                self._numbers[group].append((number, node.name))
        elif value is not None:
            if group not in self._groups:
                self._groups[group] = _Peers(_flat(value))
            self._groups[group].add(node.name, value)

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yield what was not compared, and why."""
        for group in self._groups.values():
            for path in sorted(group.left_out)[:_MOST_PLACES]:
                place = shown((*self._subject.path, *path))
                yield place, f"not compared: {_MOST_VALUES} or more different values"
            if group.full:
                yield shown(self._subject.path), "not compared: its nodes differ in too many places"

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        """Return what differs, place by place."""
        for group in self._groups.values():
            yield from self._differences(dict(group.places()))
        for numbers in self._numbers.values():
            yield from self._far(numbers)

    def _far(self, numbers: list[tuple[float, str]]) -> Iterator[tuple[list[str], Spotted]]:
        """Blame the numbers that are not near the median."""
        # The module `statistics` takes longer to load than a quick check may.
        middle = sorted(number for number, _ in numbers)[(len(numbers) - 1) // 2]
        room = self._subject.tolerance * abs(middle)
        values: dict[Any, list[str]] = defaultdict(list)
        for number, name in numbers:
            values[middle if abs(number - middle) <= room else number].append(name)
        if len(values) > 1:
            yield from self._of_place(self._subject.path, values)

    def _differences(
        self, places: dict[Path, dict[Any, list[str]]]
    ) -> Iterator[tuple[list[str], Spotted]]:
        # What a node lacks comes before what only some nodes have.
        def rank(path: Path) -> tuple[bool, Path]:
            return _usual(places[path]) is None, path

        differing = sorted(places, key=rank)
        for path in differing[:_MOST_PLACES]:
            yield from self._of_place((*self._subject.path, *path), places[path])
        rest = differing[_MOST_PLACES:]
        if rest:
            others = {
                name
                for path in rest
                for value, nodes in places[path].items()
                if value != _usual(places[path])
                for name in nodes
            }
            yield (
                sorted(others),
                Spotted(
                    f"{len(rest)} more differences",
                    "none",
                    f"more of {shown(self._subject.path)} differs",
                    _DIFF,
                    shown(self._subject.path),
                    grade=self._subject.grade,
                ),
            )

    def _of_place(
        self, path: Path, values: Mapping[Any, list[str]]
    ) -> Iterator[tuple[list[str], Spotted]]:
        total = sum(map(len, values.values()))
        usual = _usual(values)
        most = len(values[usual])
        if total < _LEAST or most * 2 <= total:
            listed = "; ".join(
                f"{_text(value)}: {len(nodes)} nodes"
                for value, nodes in sorted(values.items(), key=lambda item: -len(item[1]))[:8]
            )
            yield (
                sorted(name for nodes in values.values() for name in nodes),
                Spotted(
                    listed[:400],
                    "one value",
                    "the nodes differ, and no value has a majority",
                    _DIFF,
                    shown(path),
                    grade=Gravity.NOTE,
                ),
            )
            return
        for value, nodes in values.items():
            if value == usual:
                continue
            yield (
                sorted(nodes),
                Spotted(
                    _text(value),
                    f"{_text(usual)}, as {most} of {total} nodes",
                    "it differs from most nodes of its kind",
                    self._subject.command(path, usual, value),
                    shown(path),
                    grade=self._subject.grade,
                ),
            )


def _usual(values: Mapping[Any, list[str]]) -> Any:
    return max(values, key=lambda value: len(values[value]))


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def _flat(value: Any) -> dict[Path, Any]:
    """Return each value with its path; one that is empty counts as absent."""
    return {
        path: json.dumps(leaf) if isinstance(leaf, list) else leaf
        for path, leaf in leaves(value)
        if leaf not in (None, "") and (not path or path[0] not in _OF_MEMORY)
    }


def _text(value: Any) -> str:
    return "absent" if value in (None, "") else printable(str(value))[:_SHOWN]


class _Subjects:
    """The comparison of one check of SUBJECTS."""

    def __init__(self, subjects: tuple[Subject, ...]) -> None:
        self._each = [(subject, Uniform(subject)) for subject in subjects]

    def add(self, node: Snapshot) -> None:
        for subject, uniform in self._each:
            value = node.table(*subject.path[:-1]).get(subject.path[-1])
            if value is None and subject.whole and subject.whole not in node.unseen:
                value = {}
            by = node.text(*subject.by) if subject.by else ""
            uniform.add(node, value, by)

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        for _, uniform in self._each:
            yield from uniform.results()

    def left_out(self) -> Iterator[tuple[str, str]]:
        for _, uniform in self._each:
            yield from uniform.left_out()


class _Derived:
    """The comparison of one check of DERIVED."""

    def __init__(self, name: str) -> None:
        self._choose, subject = DERIVED[name]
        self._uniform = Uniform(subject)

    def add(self, node: Snapshot) -> None:
        self._uniform.add(node, self._choose(node), "")

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        yield from self._uniform.results()

    def left_out(self) -> Iterator[tuple[str, str]]:
        yield from self._uniform.left_out()


def _check(name: str, compare: Callable[[Expectations], AcrossNodes]) -> HealthCheck:
    title = f"all nodes have the same {name.partition('.')[2]}"
    return HealthCheck(name, Gravity.WARNING, title, OWN, compare=compare)


def _subjects(name: str) -> HealthCheck:
    return _check(name, lambda _: _Subjects(SUBJECTS[name]))


def _derived(name: str) -> HealthCheck:
    return _check(name, lambda _: _Derived(name))


CHECKS = (*map(_subjects, SUBJECTS), *map(_derived, DERIVED))
