# SPDX-License-Identifier: Apache-2.0
"""The record of a run and of its launches: machine, software, nodes, adapters, their counters.

Before and after a launch, one shell on each node reads files of the kernel.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nearmetal
from nearmetal.cluster.backend import Backend, NodeStatus
from nearmetal.core.process import Command, Runner
from nearmetal.evidence import Environment, NodePlace
from nearmetal.job.mpi import Mpi, Provider, Stack, find_installations
from nearmetal.job.run import JobResult

_CPU = Path("/sys/devices/system/cpu")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(key: str, text: str) -> str:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _caches(root: Path) -> str:
    """Return the caches of the first core: "L1 Data 32K, L2 1024K (cores 0), ..."."""
    found = []
    for index in sorted((root / "cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        shared = _read(index / "shared_cpu_list")
        name = f"L{level}" if kind == "Unified" else f"L{level} {kind}"
        found.append(f"{name} {size} (cores {shared})")
    return ", ".join(found) or "unknown"


def _hypervisor(cpuinfo: str) -> str:
    if "hypervisor" not in _cpuinfo("flags", cpuinfo).split():
        return "none"
    vendor = _read(Path("/sys/class/dmi/id/sys_vendor"))
    return f"yes{f', {vendor}' if vendor else ''}"


def _memory(meminfo: str) -> str:
    words = _cpuinfo("MemTotal", meminfo).split()
    return f"{int(words[0]) / (1 << 20):.1f} GiB" if words[0].isdigit() else "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def machine_facts() -> tuple[tuple[str, str], ...]:
    """Return the properties of the machine that change figures."""
    cpuinfo = _read(Path("/proc/cpuinfo"))
    governor = _read(_CPU / "cpu0/cpufreq/scaling_governor")
    transparent = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    return (
        ("processor", _cpuinfo("model name", cpuinfo)),
        ("cores", f"{os.cpu_count()} online, {len(os.sched_getaffinity(0))} usable here"),
        ("caches", _caches(_CPU)),
        ("frequency governor", governor or "not visible"),
        ("memory", _memory(_read(Path("/proc/meminfo")))),
        ("transparent huge pages", transparent or "not visible"),
        ("hypervisor", _hypervisor(cpuinfo)),
        ("kernel", platform.release()),
        ("system", _system()),
    )


def software_facts() -> tuple[tuple[str, str], ...]:
    """Return the versions of the software."""
    mpis = [
        (i.mpi.value, f"{i.mpi.title}, {i.launcher.name}") for i in find_installations().values()
    ]
    return (("nearmetal", nearmetal.__version__), ("python", platform.python_version()), *mpis)


def environment(nodes: Sequence[NodeStatus]) -> Environment:
    """Return the record of machine, software and nodes."""
    places = tuple(
        NodePlace(**{name: getattr(node, name) for name in NodePlace.model_fields})
        for node in nodes
    )
    return Environment(machine=machine_facts(), software=software_facts(), nodes=places)


_LOOK_S = 20.0
_MAX_TEXT = 2000

SCRIPT = r"""
say() { printf '%s\t%s\n' "$1" "$2"; }
first() { [ -r "$2" ] && read -r line <"$2" && say "$1" "$line"; }
first kernel /proc/sys/kernel/osrelease
first power_policy /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
first vendor /sys/class/dmi/id/sys_vendor
grep -q '^flags.* hypervisor' /proc/cpuinfo && say virtual yes
sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | sed -n '1s/^/processor\t/p'
for d in /sys/class/infiniband/*; do
	[ -e "$d" ] || continue
	n=${d##*/}
	first "firmware $n" "$d/fw_ver"
	first "numa $n" "$d/device/numa_node"
	# A device over an interface (soft-RoCE) is not a function, and its rate is a constant.
	[ -e "$d/parent" ] && say "function $n" software && continue
	[ -e "$d/device/physfn" ] && say "function $n" VF || say "function $n" PF
	for p in "$d"/ports/*; do
		first "rate $n/${p##*/}" "$p/rate"
		for c in port_xmit_data port_rcv_errors symbol_error link_downed port_xmit_discards; do
			first "counter $n/${p##*/} $c" "$p/counters/$c"
		done
	done
done
for d in /sys/class/net/*; do
	[ -e "$d" ] && [ "${d##*/}" != lo ] || continue
	n=${d##*/}
	first "mtu $n" "$d/mtu"
	[ -e "$d/device/physfn" ] && say "function $n" VF
	for c in tx_bytes rx_errors tx_errors rx_dropped tx_dropped; do
		first "counter $n $c" "$d/statistics/$c"
	done
done
exit 0
"""

_BYTES = {"tx_bytes": 1, "port_xmit_data": 4}
"""Counters of sent data, with the bytes of one count."""


@dataclass(frozen=True)
class NodeAnswers:
    """The answers of the nodes, by node and name."""

    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def values(self, name: str) -> list[str]:
        """Return the different answers for a name."""
        found = (words.get(name) for words in self.nodes.values())
        return list(dict.fromkeys(word for word in found if word))

    def named(self, kind: str) -> list[str]:
        """Return the different answers for devices, for example `mlx5_0 16.35.1012`."""
        found = [
            f"{name.removeprefix(kind + ' ')} {word}"
            for words in self.nodes.values()
            for name, word in words.items()
            if name.startswith(kind + " ")
        ]
        return list(dict.fromkeys(found))

    def counters(self) -> dict[tuple[str, str], int]:
        """Return every counter by node and name."""
        return {
            (node, name.removeprefix("counter ")): int(word)
            for node, words in self.nodes.items()
            for name, word in words.items()
            if name.startswith("counter ") and word.isdigit()
        }


def parse_answer(text: str) -> dict[str, str]:
    """Return the answers of one node; other lines are left out."""
    found = {}
    for line in text.splitlines():
        name, tab, word = line.partition("\t")
        if tab and word.strip():
            found[name] = word.strip()[:_MAX_TEXT]
    return found


def look(backend: Backend, runner: Runner, nodes: Iterable[str]) -> NodeAnswers:
    """Ask every node; a node without an answer is left out."""
    answers = {}
    for node in nodes:
        command = backend.on_node(node, ["/bin/sh", "-c", SCRIPT], env={"PATH": "/usr/bin:/bin"})
        completed = runner.run(command, timeout_s=_LOOK_S)
        if completed.code == 0:
            answers[node] = parse_answer(completed.text)
    return NodeAnswers(answers)


def look_here(runner: Runner) -> NodeAnswers:
    """Ask this machine, for launches on nodes that only a scheduler knows."""
    completed = runner.run(Command(("/bin/sh", "-c", SCRIPT)), timeout_s=_LOOK_S)
    answers = {os.uname().nodename: parse_answer(completed.text)}
    return NodeAnswers(answers if completed.code == 0 else {})


def sent_between(before: NodeAnswers, after: NodeAnswers) -> tuple[int | None, dict[str, int]]:
    """Return the bytes that all interfaces and ports sent, and the error counters that grew.

    A function with a network interface and a port counts only Ethernet frames in both places. Ports
    also count RDMA, which the interface does not see.
    """
    first, second = before.counters(), after.counters()
    if not second:
        return None, {}
    total, errors = 0, {}
    for (node, name), value in second.items():
        grown = value - first.get((node, name), value)
        counter = name.rpartition(" ")[2]
        if counter in _BYTES:
            total += grown * _BYTES[counter]
        elif grown > 0:
            errors[f"{node} {name}"] = grown
    return total, errors


def mpi_version(mpi: Mpi, runner: Runner) -> str:
    """Return the version of an MPI from its launcher, for example `Open MPI 5.0.11`."""
    installation = find_installations().get(mpi)
    if installation is None:
        return mpi.title
    completed = runner.run(Command((str(installation.launcher), "--version")), timeout_s=_LOOK_S)
    match = re.search(r"\bVersion:?\s+(\d\S*)|\)\s+(\d+\.\d\S*)|\b(20\d\d\.\d+)", completed.text)
    number = next((part for part in match.groups() if part), "") if match else ""
    name = re.sub(r"\s+\d[\d.]*$", "", mpi.title)
    return f"{name} {number}" if number else mpi.title


def carried_by(result: JobResult, stack: Stack | None) -> str:
    """Return the channels of the messages: by the counters of the provider, or by the settings."""
    if result.provider != Provider.NEARMETAL.value:
        way = stack.title if stack else "the MPI's own TCP"
        return f"{way} (as configured; not counted)"
    total = sum(result.proof.bytes.values())
    if not total:
        return f"unknown: {result.proof.reason}"
    shares = {name: count / total for name, count in result.proof.bytes.items()}
    carriers = [name for name in shares if shares[name] >= 0.005]  # noqa: PLR2004 - shown as 0 %
    return ", ".join(sorted(carriers)) + " (counted)"


def facts_of(
    seen: NodeAnswers, placement: Sequence[tuple[str, int]], cpus: Mapping[str, str]
) -> dict[str, str]:
    """Return the facts of a launch by the names of the gate."""
    counts = sorted({count for _, count in placement})
    vendors, virtual = ", ".join(seen.values("vendor")), seen.values("virtual")
    found = {
        "placement": ", ".join(f"{name}: {count}" for name, count in placement),
        "ranks_per_node": " or ".join(map(str, counts)),
        "binding": "; ".join(
            f"{name}: cores {cpus[name]}" for name, _ in placement if name in cpus
        ),
        "kernel": ", ".join(seen.values("kernel")),
        "processor": ", ".join(seen.values("processor")),
        "power_policy": ", ".join(seen.values("power_policy")),
        "hypervisor": ", ".join(filter(None, ("yes", vendors))) if virtual else "none seen",
        "firmware": ", ".join(seen.named("firmware")),
        "numa": ", ".join(seen.named("numa")),
        "link": ", ".join(seen.named("rate")),
        "functions": ", ".join(seen.named("function")),
        "mtu": ", ".join(dict.fromkeys(word.split()[-1] for word in seen.named("mtu"))),
    }
    return {name: value[:_MAX_TEXT] for name, value in found.items() if value}
