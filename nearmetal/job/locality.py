# SPDX-License-Identifier: Apache-2.0
"""The locality of nodes: every node meets every other and reports the channel and the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import CommandError, LaunchError
from nearmetal.core.process import Command, Dialogue, Runner
from nearmetal.core.resources import find_tool, tool
from nearmetal.evidence.counters import NETWORK, channel_names
from nearmetal.image import GUEST_INFO
from nearmetal.job.places import MARKER, Places, Wanted, end_stale, new_name, places_for, surely

_MEET_S = 30.0
_ABI_S = 20.0
_MAX_ADDRESS = 256
_MAX_TEXT = 400
_TEXTS = ("relation", "channel", "integrity", "reason", "copy_reason")


@dataclass(frozen=True)
class Meeting:
    """The channel from one node to another, with the reasons."""

    node: str
    peer: str
    relation: str
    channel: str
    integrity: str
    reason: str
    direct_copies: bool  # the kernel copies from and to its memory (CMA), proven both ways
    copy_reason: str
    device_reason: str = ""  # the way between memory of GPUs, and why; "": the node has no GPU


def known_channels(runner: Runner) -> tuple[str, ...] | None:
    """Return the channels of the installed provider; None if nearmetal-info does not list them."""
    info = find_tool("nearmetal-info")
    if info is None:
        return None
    done = runner.run(Command((str(info), "--abi"), env={}), timeout_s=_ABI_S)
    try:
        return channel_names(done.text)
    except ValueError:
        return None


def _parse(line: str | None, node: str) -> dict[str, Any]:
    """Return the JSON object of one line of a probe; raises LaunchError."""
    try:
        data = json.loads(line or "")
    except ValueError:
        data = None
    if not isinstance(data, dict):
        what = "nothing" if line is None else repr(line[:80])
        raise LaunchError(
            f"nearmetal-info in node {node} answered {what}",
            "try `nearmetal exec SPEC NODE -- nearmetal-info`",
        )
    return data


def _address(data: Mapping[str, Any], node: str) -> str:
    address = data.get("address")
    if not isinstance(address, str) or len(address) > _MAX_ADDRESS or not address.isalnum():
        raise LaunchError(f"nearmetal-info in node {node} gave no address")
    return address


def measure_locality(
    backend: Backend, spec: ClusterSpec, runner: Runner, nodes: Container[str] | None = None
) -> list[Meeting]:
    """Let every node meet every node; return one Meeting per ordered pair, in spec order.

    `nodes`: only these; None: all. Raises LaunchError.
    """
    info = str(tool("nearmetal-info")) if backend.shares_files else GUEST_INFO
    names = [node.name for _, node in spec.nodes if nodes is None or node.name in nodes]
    end_stale(backend, spec, runner)
    job = new_name("probe")
    places = places_for(backend, spec, names, job, runner)
    env = {"PATH": "/usr/bin:/bin", MARKER: job}
    argv = [info, "meet", "--rundir", str(backend.job_root() / job)]
    probes: dict[str, Dialogue] = {}
    try:
        places.make(Wanted())
        for name in names:
            probes[name] = runner.converse(backend.on_node(name, argv, env=env))
        addresses = {
            name: _address(_parse(probe.receive(_MEET_S), name), name)
            for name, probe in probes.items()
        }
        meetings = _with_gpus(_meet_all(probes, addresses))
        return _explained(meetings, spec, backend.why_apart)
    finally:
        surely(lambda: _end(probes, places))


def _explained(
    meetings: Iterable[Meeting], spec: ClusterSpec, why: Callable[[str, str], str]
) -> list[Meeting]:
    """Add why nodes of one host use the network, where the infrastructure is the reason."""
    host = {node.name: host.name for host, node in spec.nodes}
    return [
        replace(m, reason=f"{m.reason}; {apart}")
        if m.channel == NETWORK and host[m.node] == host[m.peer] and (apart := why(m.node, m.peer))
        else m
        for m in meetings
    ]


def _with_gpus(meetings: Sequence[Meeting]) -> list[Meeting]:
    """Say where only the sender has a GPU: a probe does not know the GPUs of its peer."""
    nodes = {m.node for m in meetings if m.device_reason}
    return [
        replace(m, device_reason=f"no GPU in node {m.peer}")
        if m.device_reason and m.peer not in nodes
        else m
        for m in meetings
    ]


def _end(probes: Mapping[str, Dialogue], places: Places) -> None:
    for probe in probes.values():
        probe.finish(2.0)
    places.end()


def _meet_all(probes: Mapping[str, Dialogue], addresses: Mapping[str, str]) -> list[Meeting]:
    found = []
    for name, probe in probes.items():
        for peer, address in addresses.items():
            try:
                probe.send(f"{address} {peer}")
            except CommandError as error:
                raise LaunchError(f"node {name}: {error.message}") from error
            data = _parse(probe.receive(_MEET_S), name)
            if data.get("peer") != peer:
                raise LaunchError(f"nearmetal-info in node {name} answered about another peer")
            texts = {key: str(data.get(key, "?"))[:_MAX_TEXT] for key in _TEXTS}
            direct = data.get("direct_copies") is True
            device = str(data.get("device_reason", ""))[:_MAX_TEXT]
            found.append(Meeting(name, peer, direct_copies=direct, device_reason=device, **texts))
    return found
