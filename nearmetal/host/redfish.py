# SPDX-License-Identifier: Apache-2.0
"""BIOS settings of a host by Redfish, the API of its BMC. Only this module uses sushy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nearmetal.config.password import find_password
from nearmetal.core.errors import HostError
from nearmetal.core.extras import ExtraError
from nearmetal.host.hosts_file import Bmc
from nearmetal.host.model import BiosFacts, BiosValue
from nearmetal.host.parse.registry import parse_registry

TIMEOUT_S = 30
MAX_ATTRIBUTES = 8192


def _sushy() -> Any:
    """Return the module, which is slow to load; raises ExtraError."""
    try:
        import sushy  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ExtraError("redfish", "a BMC", error) from error
    return sushy


class Redfish:
    """The BIOS of one host. All methods raise HostError, or PasswordError for a missing password."""

    def __init__(self, host: str, bmc: Bmc) -> None:
        self._bmc = bmc
        self._address = bmc.address.replace("{host}", host)
        self._name = f"{host}: {self._address}"

    def read(self) -> BiosFacts:
        """Return the BIOS settings."""
        found: BiosFacts = self._guarded(self._read)
        return found

    def stage(self, attributes: Mapping[str, BiosValue]) -> None:
        """Stage settings for the next boot."""
        self._guarded(lambda: self._system().bios.set_attributes(dict(attributes)))

    def _guarded(self, work: Any) -> Any:
        sushy = _sushy()

        try:
            return work()
        except sushy.exceptions.AccessError as error:
            # No second attempt: controllers lock accounts.
            text, hint = f"refuses user {self._bmc.user}", "check bmc.user and bmc.password"
            raise HostError(f"{self._name} {text}", hint) from error
        except sushy.exceptions.SushyError as error:
            raise HostError(
                f"{self._name}: {str(error)[:300]}",
                "is this the address of its BMC? for a private certificate add bmc.ca",
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text, hint = "does not answer as Redfish does", "its BMC may need newer firmware"
            raise HostError(f"{self._name} {text}", hint) from error

    def _system(self) -> Any:
        sushy = _sushy()

        bmc = self._bmc
        password = find_password(bmc.password, bmc.user, os.environ) if bmc.password else ""
        base, _, prefix = self._address.partition("/redfish")
        root = sushy.Sushy(
            base,
            root_prefix=f"/redfish{prefix}" if prefix.strip("/") else "/redfish/v1/",
            verify=bmc.ca or True,
            auth=sushy.auth.BasicAuth(username=bmc.user, password=password),
            server_side_retries=1,
            server_side_retries_delay=1,
            read_timeout=TIMEOUT_S,
            connect_timeout=TIMEOUT_S,
        )
        systems = root.get_system_collection().get_members()
        named = [s for s in systems if bmc.system in (None, s.identity, s.uuid, s.name)]
        if len(named) != 1:
            have = ", ".join(str(s.identity)[:64] for s in systems[:8]) or "none"
            raise HostError(
                f"{self._name}: {len(named)} systems match", f"name one under bmc.system: {have}"
            )
        return named[0]

    def _read(self) -> BiosFacts:
        system = self._system()
        vendor, bios = self._bmc.vendor, system.bios
        attributes = _attributes(bios.attributes)
        pending = _attributes(bios.pending_attributes)
        allowed, locks = parse_registry(_registry(bios), attributes)
        return BiosFacts(
            vendor=str(system.manufacturer or "")[:64] if vendor == "auto" else vendor,
            attributes=attributes,
            pending={name: value for name, value in pending.items() if name in attributes},
            allowed=allowed,
            locks=locks,
        )


def _attributes(found: Any) -> dict[str, BiosValue]:
    if not isinstance(found, dict):
        raise TypeError("no attributes")
    return {
        str(name)[:128]: value[:256] if isinstance(value, str) else value
        for name, value in list(found.items())[:MAX_ATTRIBUTES]
        if isinstance(value, str | int | bool) or value is None
    }


def _registry(bios: Any) -> Any:
    """Return the document of the attribute registry; None if there is none."""
    sushy = _sushy()

    try:
        return bios.get_attribute_registry().json
    except (sushy.exceptions.SushyError, AttributeError, KeyError, TypeError):
        return None
