# SPDX-License-Identifier: Apache-2.0
"""Who is near whom: every node tries to meet every other, and says how it went and why."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.core.errors import CommandError, LaunchError
from nearmetal.core.process import Command, Dialogue, find_program
from nearmetal.core.resources import REPOSITORY
from nearmetal.evidence.counters import channel_names
from nearmetal.image import GUEST_INFO
from nearmetal.job.places import Wanted, end_stale, places_for
from nearmetal.job.stale import MARKER, new_name, surely

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner

_MEET_S = 30.0
_ABI_S = 20.0
_MAX_ADDRESS = 256


@dataclass(frozen=True)
class Meeting:
    """What one node found out about another: the way to it, and the reasons."""

    node: str
    peer: str
    relation: str
    channel: str
    integrity: str
    reason: str
    direct_copies: bool  # the kernel copies from and to its memory (CMA), proven both ways
    copy_reason: str


def _info_places() -> tuple[Path, Path | None]:
    """Return where nearmetal-info should be, and where it is."""
    given = os.environ.get("NEARMETAL_INFO")
    built = Path(given) if given else REPOSITORY / "build/c/src/tools/nearmetal-info"
    if os.access(built, os.X_OK):
        return built, built
    return built, None if given else find_program("nearmetal-info")


def info_tool() -> Path:
    """Return nearmetal-info: $NEARMETAL_INFO, the build's, or an installed one."""
    expected, found = _info_places()
    if found is None:
        raise LaunchError(f"nearmetal-info: {expected} does not exist", "run `make setup`")
    return found


def known_channels(runner: Runner) -> tuple[str, ...] | None:
    """Return the channels of the installed provider; None if nearmetal-info does not list them."""
    _, tool = _info_places()
    if tool is None:
        return None
    done = runner.run(Command((str(tool), "--abi"), env={}), timeout_s=_ABI_S)
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
    backend: Backend, spec: ClusterSpec, runner: Runner, channels: Sequence[str] | None = None
) -> list[Meeting]:
    """Let every node meet every node; returns one Meeting per ordered pair, in spec order."""
    tool = str(info_tool()) if backend.shares_files else GUEST_INFO
    names = [node.name for _, node in spec.nodes]
    end_stale(backend, spec, runner)
    job = new_name("probe")
    places = places_for(backend, spec, names, job, runner)
    env = {"PATH": "/usr/bin:/bin", MARKER: job}
    if channels is not None:
        env["NEARMETAL_CHANNELS"] = ",".join(channels)
    argv = [tool, "meet", "--rundir", str(backend.job_root() / job)]
    probes: dict[str, Dialogue] = {}
    try:
        places.make(Wanted())
        for name in names:
            probes[name] = runner.converse(backend.on_node(name, argv, env=env))
        addresses = {
            name: _address(_parse(probe.receive(_MEET_S), name), name)
            for name, probe in probes.items()
        }
        return _meet_all(probes, addresses)
    finally:

        def clear() -> None:
            for probe in probes.values():
                probe.finish(2.0)
            places.end()

        surely(clear)


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
            relation, channel, integrity, reason, copies = (
                str(data.get(k, "?"))[:400]
                for k in ("relation", "channel", "integrity", "reason", "copy_reason")
            )
            direct = data.get("direct_copies") is True
            found.append(Meeting(name, peer, relation, channel, integrity, reason, direct, copies))
    return found
