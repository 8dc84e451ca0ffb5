# SPDX-License-Identifier: Apache-2.0
"""Which server is in which group: only Nova knows. Its answer is checked against the domain.

Before release 2025.2, Nova writes no extra specs into domains, and only its answer has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.computed.domains import is_id

if TYPE_CHECKING:
    from nearmetal.cluster.backends.openstack.session import CloudSession

_VERSION = "2.71"
"""The first version of Nova's API that names the group of a server."""


@dataclass(frozen=True)
class ServerMembership:
    """What Nova says about a server. `group`: "" for none.

    `part`: the extra spec of its flavor, "" for none; None: Nova does not show extra specs.
    """

    project: str
    group: str
    part: str | None = None


def read_membership(server: str, answer: Any) -> ServerMembership:
    """Return the membership in an answer of Nova; raises ValueError for one of another form."""
    found = answer["server"]
    groups, project = found["server_groups"], found["tenant_id"]
    if found["id"] != server or not isinstance(project, str) or not isinstance(groups, list):
        raise ValueError("another server")
    if len(groups) > 1 or not all(map(is_id, groups)):
        raise ValueError("a group without an ID")
    specs = found["flavor"].get("extra_specs")
    part = None if specs is None else specs.get(EXTRA_SPEC, "")
    if not isinstance(part, str | None):
        raise ValueError("an extra spec that is no text")
    return ServerMembership(project, groups[0] if groups else "", part)


class NovaGroups:
    """Questions to Nova with the credentials of the service."""

    def __init__(self, session: CloudSession) -> None:
        self._session = session

    def membership(self, server: str) -> ServerMembership:
        """Return the project and group of a server; raises BackendError."""
        from openstack import exceptions as faults  # noqa: PLC0415 - only where the service runs

        with self._session.asking(f"reading server {server}"):
            answer = self._session.sdk.compute.get(f"/servers/{server}", microversion=_VERSION)
            faults.raise_from_response(answer)
            return read_membership(server, answer.json())
