# SPDX-License-Identifier: Apache-2.0
"""The family `software`: kernel, packages, drivers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.families.base import contained
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_IMAGE = "linux-image-"


def _kernel(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    running = node.text("system", "kernel")
    images = [
        name.removeprefix(_IMAGE).removeprefix("unsigned-")
        for name in node.table("software", "packages")
        if name.startswith(_IMAGE)
    ]
    releases = sorted(image for image in images if image[:1].isdigit())
    if releases and running and running not in releases and not contained(node):
        yield Spotted(
            running,
            printable(", ".join(releases[:4])),
            "no package of the running kernel is installed: its modules may be missing",
            "systemctl reboot",
        )


def _packages(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    installed = node.table("software", "packages")
    for name, version in sorted((wanted.value("packages") or {}).items()):
        if installed and installed.get(name) != version:
            yield Spotted(
                printable(str(installed.get(name, "not installed")))[:60],
                version,
                "the profile names this version",
                f"apt-get install {name}={version}",
                name,
                wanted.source("packages"),
            )


def _verbs(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    real = [d for d in node.table("fabric") if not node.flag("fabric", d, "software")]
    if real and "ib_uverbs" not in node.table("software", "modules"):
        yield Spotted(
            "not loaded",
            "loaded",
            "programs cannot use RDMA devices without the kernel's ib_uverbs",
            "modprobe ib_uverbs",
        )


CHECKS = (
    HealthCheck(
        "software.kernel", Gravity.WARNING, "the kernel belongs to a package", OWN, _kernel
    ),
    HealthCheck("software.packages", Gravity.FAULT, "packages have their versions", "", _packages),
    HealthCheck("software.verbs", Gravity.FAULT, "programs can use RDMA", OWN, _verbs),
)
