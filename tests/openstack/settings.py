# SPDX-License-Identifier: Apache-2.0
"""The configuration of the services: one directory each below the state directory, for root alone."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.openstack.hypervisor import socket_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Sections = dict[str, "Mapping[str, object]"]

REGION = "RegionOne"
HOSTS = ("alpha", "beta")
"""The hypervisors."""

VFS = 4
"""Virtual functions of each hypervisor, all on PHYSICAL."""

PHYSICAL = "physnet1"
"""The physical network of the virtual functions."""

OUTSIDE = "outside"
"""The physical network of floating addresses."""

USERS = ("placement", "glance", "nova", "neutron", "heat", "blazar")
"""The services that log in at Keystone."""

DATABASES = (
    "keystone",
    "glance",
    "placement",
    "nova_api",
    "nova",
    "nova_cell0",
    "neutron",
    "heat",
    "blazar",
)

MKISOFS = "mkisofs"
"""The program by which Nova writes config drives, in its directory."""

ETC = Path(sys.prefix) / "etc"
"""What the packages of the services bring for /etc."""


@dataclass(frozen=True)
class Place:
    """One start of the services: its directory, the ports on 127.0.0.1, and its passwords."""

    state: Path
    ports: Mapping[str, int]
    passwords: Mapping[str, str]
    bridge: str = ""
    """The bridge of real guests; "": the hypervisors are fakes."""
    leases: bool = False
    """Whether Blazar serves leases: servers without one then stay off its hypervisors."""
    pair: bool = False
    """Whether there are two real hypervisors."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hypervisors: usually one if it is real."""
        return HOSTS[:1] if self.bridge and not self.pair else HOSTS

    def compute(self, host: str) -> Path:
        """Return the directory of nova-compute of a hypervisor, with its configuration."""
        return self.state / f"nova-{host}"

    @property
    def socket(self) -> Path:
        """The socket of the database, which has no port."""
        return self.state / "mysql.sock"

    def database(self, name: str) -> str:
        return f"mysql+pymysql://root@localhost/{name}?unix_socket={self.socket}"

    @property
    def broker(self) -> str:
        return f"rabbit://nearmetal:{self.passwords['broker']}@127.0.0.1:{self.ports['broker']}/"

    def url(self, service: str) -> str:
        paths = {"keystone": "/v3", "nova": "/v2.1", "heat": "/v1/$(project_id)s", "blazar": "/v1"}
        path = paths.get(service, "")
        return f"http://127.0.0.1:{self.ports[service]}{path}"

    def login(self, service: str) -> dict[str, object]:
        """How one service asks another."""
        return {
            "auth_type": "password",
            "auth_url": self.url("keystone"),
            "username": service,
            "password": self.passwords[service],
            "project_name": "service",
            "project_domain_id": "default",
            "user_domain_id": "default",
            "region_name": REGION,
        }

    def _common(self, service: str) -> Sections:
        default: dict[str, object] = {
            "use_stderr": True,
            "transport_url": self.broker,
            "rpc_response_timeout": 120,
        }
        tokens = {**self.login(service), "www_authenticate_uri": self.url("keystone")}
        locks = {"lock_path": self.state / service / "locks"}
        return {
            "DEFAULT": default,
            "keystone_authtoken": {**tokens, "service_token_roles_required": True},
            "oslo_concurrency": locks,
        }

    def keystone(self) -> Sections:
        keys = self.state / "keystone"
        return {
            "DEFAULT": {"use_stderr": True},
            "database": {"connection": self.database("keystone")},
            "token": {"provider": "fernet"},
            "cache": {"enabled": True, "backend": "dogpile.cache.memory"},
            "fernet_tokens": {"key_repository": keys / "tokens"},
            "fernet_receipts": {"key_repository": keys / "tokens"},
            "credential": {"key_repository": keys / "credentials"},
            # The least work for each log-in: the passwords are random.
            "identity": {"password_hash_rounds": 4},
        }

    def placement(self) -> Sections:
        sections = self._common("placement")
        return {**sections, "placement_database": {"connection": self.database("placement")}}

    def glance(self) -> Sections:
        sections = self._common("glance")
        sections["DEFAULT"] = {**sections["DEFAULT"], "enabled_backends": "fs:file"}
        images = {"filesystem_store_datadir": self.state / "glance" / "images"}
        return {
            **sections,
            "database": {"connection": self.database("glance")},
            "paste_deploy": {"flavor": "keystone"},
            "glance_store": {"default_backend": "fs"},
            "fs": images,
            "os_glance_staging_store": {"filesystem_store_datadir": self.state / "glance/staging"},
            "os_glance_tasks_store": {"filesystem_store_datadir": self.state / "glance/tasks"},
        }

    def nova(self, host: str = HOSTS[0]) -> Sections:
        sections = self._common("nova")
        sections["DEFAULT"] = {
            **sections["DEFAULT"],
            "host": host,
            "my_ip": "127.0.0.1",
            "compute_driver": "fake_compute.FakeHypervisor",
            "state_path": self.compute(host),
            "instances_path": self.state / "nova" / "instances",
            # No agent plugs the ports of machines that do not run.
            "vif_plugging_is_fatal": False,
            "vif_plugging_timeout": 0,
            "report_interval": 10,
        }
        address = {"domain": "0000", "bus": "01", "slot": "00", "function": ".*"}
        filters = [
            "ComputeFilter",
            "ComputeCapabilitiesFilter",
            "ImagePropertiesFilter",
            "ServerGroupAntiAffinityFilter",
            "ServerGroupAffinityFilter",
            "PciPassthroughFilter",
            "NUMATopologyFilter",
        ]
        known = ["nova.scheduler.filters.all_filters"]
        if self.leases:
            filters += ["AggregateInstanceExtraSpecsFilter", "AggregateMultiTenancyIsolation"]
            filters.append("BlazarFilter")
            known.append("blazarnova.scheduler.filters.blazar_filter.BlazarFilter")
        return {
            **sections,
            **(self._guests(sections["DEFAULT"], host) if self.bridge else {}),
            "api": {"auth_strategy": "keystone"},
            "api_database": {"connection": self.database("nova_api")},
            "database": {"connection": self.database("nova")},
            "conductor": {"workers": 1},
            "scheduler": {"workers": 1, "discover_hosts_in_cells_interval": 5},
            "filter_scheduler": {
                "enabled_filters": ",".join(filters),
                "available_filters": known,
            },
            "pci": {
                "device_spec": json.dumps({"address": address, "physical_network": PHYSICAL}),
            },
            "vnc": {"enabled": False},
            "placement": self.login("placement"),
            "neutron": self.login("neutron"),
            "service_user": {**self.login("nova"), "send_service_user_token": True},
        }

    def _guests(self, default: Mapping[str, object], host: str) -> Sections:
        """Return what Nova needs for real machines, which QEMU emulates."""
        helper = f"{Path(sys.prefix) / 'bin' / 'privsep-helper'} --config-file"
        return {
            "DEFAULT": {
                **default,
                "compute_driver": "libvirt.LibvirtDriver",
                # After a boot of the hypervisor, Nova starts the servers that ran.
                "resume_guests_state_on_host_boot": True,
                "mkisofs_cmd": self.state / "nova" / MKISOFS,
                # The disks are sparse, in memory.
                "disk_allocation_ratio": 8,
            },
            "libvirt": {
                "connection_uri": f"qemu+unix:///system?socket={socket_of(self.state, host)}",
                # Nova puts the name of the other hypervisor into it.
                "live_migration_uri": f"qemu+unix:///system?socket={socket_of(self.state, '%s')}",
                "virt_type": "qemu",
                "cpu_mode": "none",
                "hw_machine_type": "x86_64=q35",
                # Two of them for the devices of a segment.
                "num_pcie_ports": 10,
            },
            # As root it needs no sudo.
            "nova_sys_admin": {"helper_command": f"{helper} {self.compute(host)}/nova.conf"},
        }

    def neutron(self) -> Sections:
        sections = self._common("neutron")
        sections["DEFAULT"] = {
            **sections["DEFAULT"],
            "core_plugin": "ml2",
            "service_plugins": "router",
            "notify_nova_on_port_status_changes": False,
            "notify_nova_on_port_data_changes": False,
            "state_path": self.state / "neutron",
            "global_physnet_mtu": 9000,
        }
        return {
            **sections,
            "database": {"connection": self.database("neutron")},
            "nova": self.login("nova"),
            "ml2": {
                "type_drivers": "flat,vlan,vxlan",
                "tenant_network_types": "vxlan",
                "mechanism_drivers": "taps" if self.bridge else "openvswitch,sriovnicswitch",
                "extension_drivers": "port_security",
            },
            "ml2_type_flat": {"flat_networks": OUTSIDE},
            "ml2_type_vlan": {"network_vlan_ranges": f"{PHYSICAL}:300:399"},
            "ml2_type_vxlan": {"vni_ranges": "1:1000"},
            "securitygroup": {"enable_security_group": True},
        }

    def heat(self) -> Sections:
        sections = self._common("heat")
        sections["DEFAULT"] = {
            **sections["DEFAULT"],
            "num_engine_workers": 1,
            "region_name_for_services": REGION,
            "auth_encryption_key": self.passwords["stacks"],
            # A server without a place is an error at once, and not after five more attempts.
            "action_retry_limit": 0,
        }
        return {
            **sections,
            "database": {"connection": self.database("heat")},
            "trustee": self.login("heat"),
            "clients_keystone": {"auth_uri": self.url("keystone")},
            "paste_deploy": {"api_paste_config": self.state / "heat" / "api-paste.ini"},
        }

    def blazar(self) -> Sections:
        sections = self._common("blazar")
        address = urlsplit(self.url("keystone"))
        sections["DEFAULT"] = {
            **sections["DEFAULT"],
            "host": "127.0.0.1",
            "os_auth_host": address.hostname,
            "os_auth_port": address.port,
            "os_admin_username": "blazar",
            "os_admin_password": self.passwords["blazar"],
            "os_admin_project_name": "service",
            "os_region_name": REGION,
        }
        return {
            **sections,
            "database": {"connection": self.database("blazar")},
            "manager": {"plugins": "physical.host.plugin,virtual.instance.plugin"},
        }


def _write(path: Path, sections: Sections) -> None:
    lines: list[str] = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        for key, value in values.items():
            every = value if isinstance(value, list) else [value]
            lines += [f"{key} = {one}" for one in every]
    path.write_text("\n".join(lines) + "\n")


def write_settings(place: Place) -> None:
    """Write what every service reads; the umask keeps it for the user."""
    every = {
        "keystone/keystone.conf": place.keystone(),
        "placement/placement.conf": place.placement(),
        "glance/glance-api.conf": place.glance(),
        "nova/nova.conf": place.nova(),
        "neutron/neutron.conf": place.neutron(),
        "heat/heat.conf": place.heat(),
        "blazar/blazar.conf": place.blazar(),
        **{f"{place.compute(host).name}/nova.conf": place.nova(host) for host in place.hosts},
    }
    for name, sections in every.items():
        path = place.state / name
        (path.parent / "locks").mkdir(parents=True, exist_ok=True)
        _write(path, sections)
    for directory in ("images", "staging", "tasks"):
        (place.state / "glance" / directory).mkdir(exist_ok=True)
    (place.state / "nova" / "instances").mkdir(exist_ok=True)
    here = Path(__file__).parent
    python, program = here.parents[1] / "build/venv/bin/python", here / "mkisofs.py"
    script = place.state / "nova" / MKISOFS
    script.write_text(f'#!/bin/sh\nexec {python} -I {program} "$@"\n')
    script.chmod(0o700)
    # Neutron finds its mechanisms among installed packages.
    package = place.state / "packages" / "nearmetal_tests-0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nearmetal-tests\nVersion: 0\n")
    entry = "taps = tests.openstack.tap_driver:TapDriver"
    (package / "entry_points.txt").write_text(f"[neutron.ml2.mechanism_drivers]\n{entry}\n")
    pastes = ("glance/glance-api", "nova/api", "neutron/api", "heat/api")
    for name in (f"{start}-paste.ini" for start in pastes):
        shutil.copy(ETC / name, place.state / name)
