# SPDX-License-Identifier: Apache-2.0
"""Real OpenStack services (tests/openstack) for a module of tests; Nova's hypervisors are fakes."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from nearmetal.cluster.apply import Cluster, checked_plan, down, up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.core.process import LocalRunner
from tests.system.need import lacking, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nearmetal.cluster.diff import Plan

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "build" / "openstack"

QUIET = (
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
)
"""Marks of tests: openstacksdk warns of what it will drop, whether that is used or not."""

_WAIT_S = 300


@dataclass(frozen=True)
class RealCloud:
    """A cloud that runs. `content`: the entries of its clouds.yaml; `pid`: in its namespaces."""

    content: Mapping[str, Any]
    pid: int = 0
    process: subprocess.Popen[str] | None = None
    _connections: dict[str, Any] = field(default_factory=dict)

    def connected(self, user: str = "member") -> Any:
        """Return a connection of our own, to look and to meddle."""
        import openstack  # noqa: PLC0415 - needs the SDK

        if user not in self._connections:
            auth = self.content[user]["auth"]
            self._connections[user] = openstack.connect(region_name="RegionOne", **auth)
        return self._connections[user]

    def power(self, word: str) -> None:
        """Switch the hypervisor of real guests `off` or `on`."""
        self._order(word)

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Kill the API of a service, and start it again at the end of the block."""
        self._order(f"kill {name}")
        try:
            yield
        finally:
            self._order(f"start {name}")

    def _order(self, word: str) -> None:
        """Have the process of the services do what a line of its input says."""
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(word + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"done": word}

    def waiting(self, what: str) -> Iterator[None]:
        """Yield twice a second; after the longest permitted wait, the test fails."""
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            yield
            time.sleep(0.5)
        pytest.fail(f"too long a wait for {what}")

    def spec(self, name: str, text: str, image: object = "hpc") -> OpenstackSpec:
        """Return a spec of this cloud."""
        spec = parse_spec(spec_text(name, text, image))
        assert isinstance(spec, OpenstackSpec)
        return spec


def spec_text(name: str, text: str, image: object = "hpc") -> str:
    """Return the text of a spec: what all specs have in common, and a text."""
    head = f"version: 1\nname: {name}\nbackend: openstack\ncloud: member\n"
    return f"{head}image: {image}\nflavor: hpc.small\n{text}"


@contextmanager
def services(
    logs: Path, *, heat: bool = False, leases: bool = False, bridge: str = "", pair: bool = False
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run the services; yields the process, and what it says about logging in."""
    need_root()
    python, broker = SERVICES / "venv" / "bin" / "python", SERVICES / "rabbitmq"
    if not (SERVICES / "database").exists():
        lacking(f"{SERVICES} is missing: run `make setup-openstack`")
    if leases and not [*(SERVICES / "venv").glob("lib/python3*/site-packages/blazar")]:
        lacking("no Blazar among the services: run `make setup-openstack` again")
    (server,) = broker.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
    with subprocess.Popen(
        [
            *("unshare", "--mount", "--mount-proc", "--pid", "--ipc", "--fork", "--kill-child"),
            *(str(python), "-m", "tests.openstack.cloud", "--database", str(SERVICES / "database")),
            *("--broker", str(server), "--logs", str(logs), *(["--heat"] if heat else [])),
            *(["--leases"] if leases else []),
            *(["--bridge", bridge] if bridge else []),
            *(["--pair"] if pair else []),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            said: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
            assert "clouds" in said, f"{said.get('error', 'no word')}; logs are in {logs}"
            yield process, said
        finally:
            process.stdin.close()
            process.wait(timeout=60)


@contextmanager
def running_cloud(
    directory: Path,
    *,
    heat: bool = False,
    leases: bool = False,
    bridge: str = "",
    pair: bool = False,
) -> Iterator[RealCloud]:
    """Run the services, with OS_CLIENT_CONFIG_FILE for them in the environment.

    `bridge`: guests are real, and their ports are on this bridge; `pair`: on two hypervisors.
    """
    logs = directory / "logs"
    with services(logs, heat=heat, leases=leases, bridge=bridge, pair=pair) as (process, said):
        clouds = directory / "clouds.yaml"
        clouds.touch(0o600)
        clouds.write_text(yaml.safe_dump({"clouds": said["clouds"]}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield RealCloud(said["clouds"], int(children.split()[0]), process)


def opened(spec: OpenstackSpec, directory: Path) -> Cluster:
    """Return the cluster of a spec, with its records in a directory."""
    store = Store(directory / "state")
    return Cluster(spec.name, open_backend(spec, store, LocalRunner()), store)


def raised(spec: OpenstackSpec, directory: Path, *, replace: bool = False) -> Plan:
    """Make the cluster of a spec; returns the plan that was carried out."""
    return up(opened(spec, directory), spec, replace=replace)


def plan_of(spec: OpenstackSpec, directory: Path) -> Plan:
    """Return what an `up` would do."""
    return checked_plan(opened(spec, directory), spec)


def gone(spec: OpenstackSpec, directory: Path) -> None:
    """Remove the cluster of a spec."""
    down(opened(spec, directory))


def objects(cloud: RealCloud) -> dict[str, list[str]]:
    """Return the IDs of everything that the project has."""
    sdk = cloud.connected()
    own = sdk.current_project_id
    lists = {
        "servers": sdk.compute.servers(),
        "groups": sdk.compute.server_groups(),
        "networks": sdk.network.networks(project_id=own),
        "subnets": sdk.network.subnets(project_id=own),
        "routers": sdk.network.routers(project_id=own),
        "ports": sdk.network.ports(project_id=own),
        "addresses": sdk.network.ips(project_id=own),
        "images": sdk.image.images(owner=own),
    }
    return {kind: sorted(one.id for one in found) for kind, found in lists.items()}
