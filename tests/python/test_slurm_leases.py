# SPDX-License-Identifier: Apache-2.0
"""Servers of jobs in a lease of Blazar, which may end amid a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.core.errors import SpecError
from nearmetal.slurm import cloud, keeper
from tests.python.cloud_model import ModelCloud
from tests.python.test_slurm_servers import SETTINGS, Site

FLAVOR, RESERVATION = "ddc45423-f863-4e4e-8e7a-51d27cfec962", "6ee55c78-ac52-41a6-99af-2d2d73bcc466"


class LeasedCloud(ModelCloud):
    """A cloud with the flavor of a lease for servers, until the lease ends."""

    ended = False
    flavor = f"reservation:{FLAVOR}"
    hints: dict[str, str]

    def end_lease(self) -> None:
        """Remove what Blazar removes: the servers and the flavor."""
        self.ended = True
        self.there["server"].clear()
        for port in self.there["port"].values():
            port.device_id = ""

    def flavors(self, **words: Any) -> list[Any]:
        (leased,) = super().flavors(**words)
        leased.id = FLAVOR
        return [] if self.ended else [leased]

    def create_server(self, **words: Any) -> Any:
        self.hints = dict(words["scheduler_hints"])
        return super().create_server(**words)


@dataclass
class LeasedSite(Site):
    """A node whose site has settings of its own."""

    cloud: LeasedCloud = field(default_factory=LeasedCloud)
    text: str = SETTINGS.replace("flavor: small", f"flavor: {FLAVOR}")

    def write(self, text: str = "") -> Path:
        return super().write(text or self.text)


@pytest.fixture
def site(tmp_path: Path) -> LeasedSite:
    return LeasedSite(tmp_path)


def test_the_end_of_a_lease_amid_a_job_leaves_nothing(site: LeasedSite) -> None:
    one = site.prepared(7)
    assert cloud.spec_on_record(one).flavor == FLAVOR
    site.make(one)
    site.cloud.end_lease()
    kinds = {name.partition(" ")[0] for name in site.cloud.names()}
    assert kinds == {"network", "port", "server_group", "subnet"}
    assert site.store.end(one) == ""
    assert site.cloud.names() == []
    assert [*site.store.every()] == []


def test_a_job_after_the_end_of_a_lease_names_the_flavor(site: LeasedSite) -> None:
    one = site.prepared(7)
    site.cloud.end_lease()
    fault = keeper.why_not(lambda: site.make(one))
    assert f"flavor {FLAVOR}" in fault, fault
    assert site.store.end(one) == ""
    assert site.cloud.names() == []


def test_a_reservation_of_hosts_is_a_hint_for_each_server(site: LeasedSite) -> None:
    site.text = f"{SETTINGS}reservation: {RESERVATION}\n"
    site.cloud.flavor = "small"
    site.make(site.prepared(7))
    assert site.cloud.hints["reservation"] == RESERVATION
    with pytest.raises(SpecError, match="is not the ID of a reservation"):
        cloud.settings_of(site.write(f"{SETTINGS}reservation: my-lease\n"))
