# SPDX-License-Identifier: Apache-2.0
"""A cloud in memory with the requests of the OpenStack backend, where a requester can die at any one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from openstack import exceptions as faults

from nearmetal.cluster.backends.openstack.session import CloudSession

KINDS = ("server", "server_group", "network", "subnet", "port")


class KilledError(BaseException):
    """SIGKILL: nothing catches it."""


class ModelCloud(CloudSession):
    """A session whose services are this object.

    `die_at`: the number of the step at which the requester dies; `how`: `before` the step has an
    effect, `after` it, or `late`: the effect comes when `settle` is called. `flavor`: of all servers.
    """

    flavor = "small"

    def __init__(self) -> None:
        super().__init__("lab")
        self.there: dict[str, dict[str, SimpleNamespace]] = {kind: {} for kind in KINDS}
        self.made = self.steps = 0
        self.die_at, self.how = 0, "before"
        self.late: list[Callable[[], Any]] = []
        self.down = False
        self.__dict__["sdk"] = SimpleNamespace(
            compute=self,
            network=self,
            image=self,
            current_project_id="p",
            config=SimpleNamespace(region_name=""),
        )

    def step(self, effect: Callable[[], Any] = lambda: None) -> Any:
        """Do one step, or die at it."""
        self.steps += 1
        if self.down:
            raise faults.HttpException("no answer", SimpleNamespace(status_code=503, headers={}))
        dies = self.steps == self.die_at
        if dies and self.how == "late":
            self.late.append(effect)
        if dies and self.how != "after":
            raise KilledError
        done = effect()
        if dies:
            raise KilledError
        return done

    def settle(self) -> None:
        """Let requests of the dead have their effect."""
        while self.late:
            self.late.pop()()

    def names(self) -> list[str]:
        """Return what there is, by kind and name."""
        return sorted(
            f"{k} {one.name}" for k, found in self.there.items() for one in found.values()
        )

    def _make(self, kind: str, ports: Sequence[str] = (), **values: Any) -> Any:
        def effect() -> SimpleNamespace | None:
            if kind == "subnet" and values["network_id"] not in self.there["network"]:
                return None  # Neutron refuses it, and nobody reads the answer.
            self.made += 1
            one = SimpleNamespace(id=f"{kind}-{self.made}", created_at=f"{self.made:06}", **values)
            self.there[kind][one.id] = one
            for port in ports:
                if port in self.there["port"]:
                    self.there["port"][port].device_id = one.id
            return one

        return self.step(effect)

    def _delete(self, kind: str, one: Any) -> None:
        identity = getattr(one, "id", one)
        if identity not in self.there[kind]:
            raise faults.NotFoundException("gone", SimpleNamespace(status_code=404, headers={}))

        def effect() -> None:
            del self.there[kind][identity]
            if kind == "network":
                # Its subnets go with it, as in Neutron.
                found = self.there["subnet"]
                self.there["subnet"] = {k: s for k, s in found.items() if s.network_id != identity}

        self.step(effect)

    def _all(self, kind: str) -> list[Any]:
        if self.down:
            raise faults.HttpException("no answer", SimpleNamespace(status_code=503, headers={}))
        return [*self.there[kind].values()]

    # Nova

    def servers(self, **_: Any) -> list[Any]:
        return self._all("server")

    def server_groups(self, **_: Any) -> list[Any]:
        for group in self.there["server_group"].values():
            group.member_ids = [s.id for s in self.there["server"].values() if s.group == group.id]
        return self._all("server_group")

    def create_server(self, **words: Any) -> Any:
        group = words.pop("scheduler_hints", {}).get("group")
        return self._make(
            "server",
            [port["port"] for port in words["networks"]],
            name=words["name"],
            metadata=words["metadata"],
            image={"id": words["image_id"]},
            flavor={"original_name": self.flavor, "vcpus": 1, "ram": 1},
            status="ACTIVE",
            launched_at="now",
            fault=None,
            key_name=None,
            group=group,
        )

    def create_server_group(self, name: str, policy: str) -> Any:
        return self._make(
            "server_group", name=name, policy=policy, policies=[policy], member_ids=[]
        )

    def delete_server(self, one: Any) -> None:
        self._delete("server", one)

    def delete_server_group(self, one: Any) -> None:
        self._delete("server_group", one)

    def flavors(self, **_: Any) -> list[Any]:
        return [SimpleNamespace(id="f", name=self.flavor, vcpus=1, ram=1024, disk=10)]

    def get_limits(self) -> Any:
        raise faults.HttpException("forbidden", SimpleNamespace(status_code=403, headers={}))

    def get_quota(self, *_: Any, **__: Any) -> Any:
        raise faults.HttpException("forbidden", SimpleNamespace(status_code=403, headers={}))

    # Glance

    def images(self, **asked: Any) -> list[Any]:
        if "name" not in asked:
            return []
        return [
            SimpleNamespace(
                id="i", name=asked["name"], status="active", min_ram=0, min_disk=0, properties={}
            )
        ]

    # Neutron

    def networks(self, **_: Any) -> list[Any]:
        return self._all("network")

    def subnets(self, **_: Any) -> list[Any]:
        return self._all("subnet")

    def routers(self, **_: Any) -> list[Any]:
        return []

    def ports(self, **_: Any) -> list[Any]:
        return self._all("port")

    def ips(self, **_: Any) -> list[Any]:
        return []

    def get_subnet(self, identity: str) -> Any:
        return self.there["subnet"][identity]

    def create_network(self, **words: Any) -> Any:
        return self._make("network", **words, is_port_security_enabled=True)

    def create_subnet(self, **words: Any) -> Any:
        return self._make("subnet", **{"gateway_ip": None, **words})

    def create_port(self, **words: Any) -> Any:
        number = len(self.there["port"]) + 10
        subnet = next(iter(self.there["subnet"]))
        return self._make(
            "port",
            device_id="",
            device_owner="",
            is_port_security_enabled=True,
            mac_address=f"fa:16:3e:00:00:{number:02x}",
            fixed_ips=[{"ip_address": f"10.77.0.{number}", "subnet_id": subnet}],
            **words,
        )

    def delete_network(self, one: Any) -> None:
        self._delete("network", one)

    def delete_port(self, one: Any) -> None:
        self._delete("port", one)
