# SPDX-License-Identifier: Apache-2.0
"""The form of what the services report: checked once, so that all other code may rely on it."""

from __future__ import annotations

from typing import Any

from nearmetal.cluster.backends.openstack.session import strange

_NONE = type(None)

_FORMS: dict[str, dict[str, tuple[type, ...]]] = {
    "server": {
        "name": (str, _NONE),
        "status": (str,),
        "metadata": (dict, _NONE),
        "flavor": (dict, _NONE),
        "image": (dict, str, _NONE),
        "fault": (dict, _NONE),
        "key_name": (str, _NONE),
    },
    "server group": {"name": (str,), "member_ids": (list, _NONE), "policies": (list, _NONE)},
    "network": {"name": (str, _NONE)},
    "subnet": {"network_id": (str,), "cidr": (str,)},
    "router": {"external_gateway_info": (dict, _NONE)},
    "port": {
        "network_id": (str,),
        "device_id": (str, _NONE),
        "device_owner": (str, _NONE),
        "fixed_ips": (list, _NONE),
        "mac_address": (str, _NONE),
    },
    "floating": {"floating_network_id": (str,), "port_id": (str, _NONE)},
    "image": {
        "status": (str,),
        "min_ram": (int, _NONE),
        "min_disk": (int, _NONE),
        "properties": (dict, _NONE),
    },
    "flavor": {
        "vcpus": (int,),
        "ram": (int,),
        "disk": (int, _NONE),
        "extra_specs": (dict, _NONE),
    },
    "key pair": {},
}
"""By kind: the types of the attributes that are used; an ID is text."""


def checked(kind: str, item: Any) -> Any:
    """Return an object of a service; raises BackendError if its form is not that of its kind."""
    for name, types in {"id": (str,), **_FORMS[kind]}.items():
        if not isinstance(getattr(item, name, None), types):
            raise strange(f"{kind}: its {name} is missing or of another type")
    for one in getattr(item, "fixed_ips", None) or ():
        if not (isinstance(one, dict) and isinstance(one.get("ip_address"), str)):
            raise strange(f"{kind}: its addresses have another form")
    for one in getattr(item, "member_ids", None) or ():
        if not isinstance(one, str):
            raise strange(f"{kind}: its members have another form")
    return item


def number(value: Any) -> int:
    """Return a number of an answer; 0 where it has none."""
    return value if isinstance(value, int) else 0
