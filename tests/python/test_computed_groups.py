# SPDX-License-Identifier: Apache-2.0
"""Nova's answer about a server, of which nothing is believed unchecked."""

from __future__ import annotations

from typing import Any

import pytest

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.computed.groups import ServerMembership, read_membership

SERVER, GROUP = "8f0e6a2c-8d1b-4b6c-9f5c-0a4f1f4d2c11", "8f0e6a2c-8d1b-4b6c-9f5c-0a4f1f4d2c22"


def answer(**more: Any) -> dict[str, Any]:
    known = {"id": SERVER, "tenant_id": "p", "server_groups": [GROUP], "flavor": {}}
    return {"server": known | more}


def test_the_project_and_the_group_are_read() -> None:
    assert read_membership(SERVER, answer()) == ServerMembership("p", GROUP)
    assert read_membership(SERVER, answer(server_groups=[])) == ServerMembership("p", "")


def test_the_extra_spec_is_read_where_nova_shows_it() -> None:
    assert read_membership(SERVER, answer()).part is None
    for specs, part in (({}, ""), ({EXTRA_SPEC: "2MiB", "x": "y"}, "2MiB")):
        assert read_membership(SERVER, answer(flavor={"extra_specs": specs})).part == part


@pytest.mark.parametrize(
    "bad",
    [
        {"id": GROUP},
        {"tenant_id": None},
        {"server_groups": [GROUP, SERVER]},
        {"server_groups": ["../x"]},
        {"server_groups": [{"id": GROUP}]},
        {"server_groups": None},
        {"flavor": {"extra_specs": {EXTRA_SPEC: ["2MiB"]}}},
    ],
)
def test_an_answer_of_another_form_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"another server|without an ID|no text"):
        read_membership(SERVER, answer(**bad))
