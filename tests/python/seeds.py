# SPDX-License-Identifier: Apache-2.0
"""Seeds for tests. The keys are no keys."""

from typing import Any

PUBLIC = "ssh-ed25519 " + "A" * 68
PRIVATE = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    + "b3BlbnNzaC1rZXktdjEAAAAA\n" * 3
    + "-----END OPENSSH PRIVATE KEY-----\n"
)
SECRET = "b3BlbnNzaC1rZXktdjEAAAAA"


def seed_data() -> dict[str, Any]:
    """Return a seed of two nodes as plain data."""
    node = {"address": "10.9.0.11", "slots": 1, "host": "h1", "ssh_host_key": PUBLIC}
    return {
        "version": 1,
        "cluster": "demo",
        "name": "vm1",
        "nodes": [{"name": "vm1", **node}, {"name": "vm2", **node, "address": "10.9.0.12"}],
        "interfaces": [{"mac": "52:54:00:00:00:01", "address": "10.9.0.11/24", "mtu": 1500}],
        "ssh": {
            "authorized_keys": [PUBLIC + " someone@somewhere"],
            "host_key": PRIVATE,
            "node_key": PRIVATE,
            "node_key_public": PUBLIC,
        },
        "segment": {
            "device": "ivshmem",
            "token": "0123456789abcdef" * 2,
            "nr_parts": 2,
            "part": 1,
            "part_size": 16 << 20,
            "size": 64 << 20,
        },
    }
