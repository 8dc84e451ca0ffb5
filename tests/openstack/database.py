# SPDX-License-Identifier: Apache-2.0
"""MariaDB for the services: its tables and first rows are made once, by set-up."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import bcrypt
import pymysql

from tests.openstack.settings import DATABASES, HOSTS, OUTSIDE, PHYSICAL, USERS

if TYPE_CHECKING:
    from tests.openstack.settings import Place

_AGENTS = {
    ("Open vSwitch agent", "neutron-openvswitch-agent"): (
        json.dumps(
            {
                "bridge_mappings": {OUTSIDE: "br-ex"},
                "tunnel_types": ["vxlan"],
                "tunneling_ip": "127.0.0.1",
                "datapath_type": "system",
                "ovs_hybrid_plug": False,
            }
        )
    ),
    ("NIC Switch agent", "neutron-sriov-nic-agent"): (
        json.dumps({"device_mappings": {PHYSICAL: ["ens1"]}, "devices": 0})
    ),
}

_WAIT_S = 60


def install(data: Path) -> None:
    """Make an empty database."""
    subprocess.run(
        [
            "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            f"--datadir={data}",
            "--skip-test-db",
            "--auth-root-authentication-method=socket",
            "--innodb-log-file-size=8M",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def server(place: Place) -> list[str]:
    """Return the command of the server, which only root on this machine can reach."""
    return [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={place.state / 'mysql'}",
        f"--socket={place.socket}",
        f"--pid-file={place.state / 'mysql.pid'}",
        "--skip-networking",
        "--skip-log-bin",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
        "--innodb-buffer-pool-size=128M",
        "--max-connections=500",
        "--transaction-isolation=READ-COMMITTED",
        "--character-set-server=utf8mb3",
    ]


def connected(place: Place) -> pymysql.connections.Connection:
    """Return a connection, when the server has begun."""
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            return pymysql.connect(unix_socket=str(place.socket), user="root", autocommit=True)
        except pymysql.err.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def make_databases(place: Place) -> None:
    """Make the empty database of every service."""
    with connected(place) as connection, connection.cursor() as cursor:
        for name in DATABASES:
            cursor.execute(f"CREATE DATABASE {name}")


def renew(place: Place) -> None:
    """Put the passwords and ports of this start into the rows of set-up, and bring agents to life."""
    with connected(place) as connection, connection.cursor() as cursor:
        for user in (*USERS, "admin", "member"):
            word = place.passwords[user].encode()
            cursor.execute(
                "UPDATE keystone.password p JOIN keystone.local_user l ON p.local_user_id = l.id "
                "SET p.password_hash = %s WHERE l.name = %s",
                (bcrypt.hashpw(word, bcrypt.gensalt(4)).decode(), user),
            )
        for service in ("keystone", *USERS):
            cursor.execute(
                "UPDATE keystone.endpoint e JOIN keystone.service s ON e.service_id = s.id "
                "SET e.url = %s WHERE s.extra LIKE %s",
                (place.url(service), f'%"name": "{service}"%'),
            )
        # In place of the heartbeats of agents, which would have bridges and adapters to manage.
        cursor.execute("DELETE FROM neutron.agents")
        for host in HOSTS:
            for (kind, program), settings in _AGENTS.items():
                cursor.execute(
                    "INSERT INTO neutron.agents (id, agent_type, `binary`, topic, host, "
                    "admin_state_up, created_at, started_at, heartbeat_timestamp, configurations, "
                    "`load`) VALUES (%s, %s, %s, 'N/A', %s, 1, NOW(), NOW(), "
                    "NOW() + INTERVAL 1 DAY, %s, 0)",
                    (str(uuid.uuid4()), kind, program, host, settings),
                )
