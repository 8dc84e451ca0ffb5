#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Gives a machine of a Heat stack the names of the others, host files for mpirun, and a greeting.

    nearmetal-machines [ROOT]

A timer runs it: a stack may get more machines, or fewer. The list is in the metadata of the server.
Nova's metadata service has its present state; the copy of cloud-init has that of the first boot.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

METADATA = "http://169.254.169.254/openstack/latest/meta_data.json"
FIRST = "run/cloud-init/instance-data-sensitive.json"
SERVED = "run/nearmetal-machines"
"""A file that is there from the first use of the service's answer to the next boot."""

OWN = "name of this server"
"""A key beside those of `meta`."""

BEGIN, END = "# nearmetal: machines of the stack", "# nearmetal: end"

_MAX_BYTES = 1 << 20
_SECRET = re.compile(r"[A-Za-z0-9]{32,128}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class MetadataError(Exception):
    """The metadata is missing, or not of this form."""


class Machine(NamedTuple):
    """A machine, and its addresses; `fabric` is empty if it has none there."""

    name: str
    address: str
    fabric: str


def present() -> Any:
    """Return what the metadata service says; raises OSError, HTTPException or ValueError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(METADATA, timeout=10) as answer:
        text = answer.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise ValueError("the answer is longer than 1 MiB")
    return _parsed(text)


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too deep a nesting") from None


def metadata(root: Path) -> tuple[dict[str, Any], bool]:
    """Return the metadata of this server, and if they are present; raises MetadataError."""
    served = True
    try:
        found = present()
    except (OSError, http.client.HTTPException, ValueError) as fault:
        served = False
        if (root / SERVED).exists():
            raise MetadataError(f"{METADATA}: {fault}; the names stay as they are") from None
        copy = root / FIRST
        try:
            found = _parsed(copy.read_text())["ds"]["meta_data"]
        except (OSError, ValueError, KeyError, TypeError) as other:
            raise MetadataError(f"{METADATA}: {fault}; {copy}: {other!r}") from None
    values = found.get("meta") if isinstance(found, dict) else None
    if not isinstance(values, dict):
        raise MetadataError("the metadata of this server has no `meta`")
    return {**values, OWN: found.get("name")}, served


def _address(name: str, value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise MetadataError(f"metadata nm-{name}: {value[:40]!r} is not an IPv4 address") from None


def machines_of(values: dict[str, Any]) -> list[Machine]:
    """Return the machines in the order of their numbers; raises MetadataError."""
    found = []
    for key, value in values.items():
        if not key.startswith("nm-"):
            continue
        name = key[len("nm-") :]
        words = value.split() if isinstance(value, str) else []
        if not _NAME.fullmatch(name) or len(words) not in {1, 2}:
            raise MetadataError(f"metadata {key[:80]!r}: not a name and one or two addresses")
        address, fabric = [*(_address(name, word) for word in words), ""][:2]
        found.append(Machine(name, address, fabric))
    if not found:
        raise MetadataError("the metadata of this server names no machine (nm-NAME)")
    return sorted(found, key=lambda one: (len(one.name), one.name))


def read(path: Path) -> str:
    """Return a text; bytes that are not UTF-8 come out of `write` again."""
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def write(path: Path, text: str) -> None:
    """Replace a file at once, unless it has this text."""
    if path.exists() and read(path) == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".nearmetal")
    fresh.write_text(text, encoding="utf-8", errors="surrogateescape")
    fresh.chmod(0o644)
    fresh.replace(path)


def with_block(text: str, machines: list[Machine]) -> str:
    """Return /etc/hosts with the block of these machines at its end."""
    kept, inside = [], False
    for line in text.splitlines():
        inside = inside or line == BEGIN
        if not inside:
            kept.append(line)
        inside = inside and line != END
    lines = [f"{one.address} {one.name}" for one in machines]
    lines += [f"{one.fabric} {one.name}-fabric" for one in machines if one.fabric]
    return "\n".join([*kept, BEGIN, *lines, END]) + "\n"


def greeting(kind: object, machines: list[Machine], slots: int) -> str:
    """Return what a login says."""
    count = "1 machine" if len(machines) == 1 else f"{len(machines)} machines"
    lines = [
        f"This stack has {count}: see /etc/nearmetal/machines.",
        "Log in with `ssh -A`: mpirun reaches the other machines with your key.",
    ]
    if kind == "big-data":
        lines.append("A program of Spark: spark-submit --total-executor-cores 2 program.py")
        lines.append("The first time takes minutes: systemctl status nearmetal-spark-install")
    elif shutil.which("mpirun"):
        lines.append(f"All processors run a program: mpirun -n {len(machines) * slots} ./program")
    else:
        lines.append("There is no mpirun: install one, or use an image that has it.")
    if not shutil.which("nearmetal-info"):
        lines.append("nearmetal is not installed: MPI uses the providers of the image.")
    elif kind == "big-data":
        lines.append("Spark uses the TCP sockets of the fast network, not nearmetal.")
    elif kind == "host":
        lines.append("Prepare virtual functions: nearmetal host plan FILE, see nearmetal-host(1).")
    else:
        lines.append("The channels of a job: nearmetal-info.")
    return "\n".join(lines) + "\n"


def spark(root: Path, values: dict[str, Any], machines: list[Machine]) -> None:
    """Write the settings of Spark, which uses the fast network; raises MetadataError."""
    secret, name = values.get("nearmetal-secret"), values.get(OWN)
    if not (isinstance(secret, str) and _SECRET.fullmatch(secret)):
        raise MetadataError("metadata nearmetal-secret: not 32 to 128 letters and digits")
    own = [one for one in machines if one.name == name]
    if not own:
        raise MetadataError(f"the metadata do not name this server, {str(name)[:80]!r}")
    first, here = (one.fabric or one.address for one in (machines[0], own[0]))
    folder = root / "etc/nearmetal/spark"
    write(folder / "spark-env.sh", f"SPARK_LOCAL_IP={here}\nSPARK_MASTER_HOST={first}\n")
    settings = {
        "spark.master": f"spark://{first}:7077",
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.pyspark.python": "/opt/nearmetal-spark/bin/python",
    }
    lines = (f"{key} {value}\n" for key, value in settings.items())
    write(folder / "spark-defaults.conf", "".join(lines))
    exports = "export SPARK_CONF_DIR=/etc/nearmetal/spark PATH=/opt/nearmetal-spark/bin:$PATH\n"
    write(root / "etc/profile.d/nearmetal-spark.sh", exports)


def apply(root: Path, values: dict[str, Any], slots: int) -> None:
    """Write all files; raises MetadataError before the first."""
    machines = machines_of(values)
    if values.get("nearmetal") == "big-data":
        spark(root, values, machines)
    hosts = root / "etc" / "hosts"
    own = root / "etc" / "nearmetal"
    write(hosts, with_block(read(hosts) if hosts.exists() else "", machines))
    write(own / "machines", "".join(" ".join(one).rstrip() + "\n" for one in machines))
    write(own / "hostfile", "".join(f"{one.name} slots={slots}\n" for one in machines))
    write(own / "hosts", "".join(f"{one.name}:{slots}\n" for one in machines))
    variables = {
        "OMPI_MCA_orte_default_hostfile": "hostfile",
        "PRTE_MCA_prte_default_hostfile": "hostfile",
        "HYDRA_HOST_FILE": "hosts",
    }
    exports = (f"export {name}=/etc/nearmetal/{file}\n" for name, file in variables.items())
    write(
        root / "etc/profile.d/nearmetal.sh", "# Open MPI 4, Open MPI 5, MPICH\n" + "".join(exports)
    )
    # A new machine of an old name has another key, and most often another address.
    logins = (
        f"Host {one.name}\n    HostKeyAlias {one.name}-{one.address}\n"
        "    StrictHostKeyChecking accept-new\n    ForwardAgent yes\n"
        for one in machines
    )
    write(root / "etc/ssh/ssh_config.d/nearmetal.conf", "".join(logins))
    write(root / "etc/motd.d/nearmetal", greeting(values.get("nearmetal"), machines, slots))


def main() -> int:
    """Run once."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "/")
    try:
        values, served = metadata(root)
        apply(root, values, len(os.sched_getaffinity(0)))
        if served:
            write(root / SERVED, "")
    except (MetadataError, OSError) as fault:
        sys.stderr.write(f"nearmetal-machines: {fault}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
