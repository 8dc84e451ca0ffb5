# SPDX-License-Identifier: Apache-2.0
"""The disc that turns a user's cloud image into a node: NoCloud, read by cloud-init.

    user-data       starts the guest unit; JSON, which is YAML as well
    meta-data       the identity of the machine
    network-config  its addresses, so that the boot does not wait for DHCP
    seed.json       the seed
    nearmetal.tar   guest unit, provider and tools, with their places

It holds private keys: mode 0600, and a new file each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import Any, BinaryIO, cast

from pycdlib import PyCdlib
from pycdlib.pycdlibexception import PyCdlibException

from nearmetal.core.errors import ImageError
from nearmetal.core.files import replacing
from nearmetal.image.parts import Parts, foreign_tar
from nearmetal.image.seed import Seed, cloud_config

LABEL = "cidata"

_MOUNT = "/run/nearmetal-disc"
_START = (
    f"mkdir -p {_MOUNT} && mount -o ro LABEL={LABEL} {_MOUNT} && "
    f"tar --directory / --extract --no-same-owner --file {_MOUNT}/nearmetal.tar && "
    f"sh /usr/lib/nearmetal/become-node {_MOUNT}"
)


def write_disc(path: Path, seed: Seed, parts: Parts) -> None:
    """Write the disc image of one machine, whole or not at all; raises ImageError."""
    try:
        with replacing(path, shared=True) as stream:
            _write(cast("BinaryIO", stream), disc_files(seed, parts))
    except OSError as error:
        raise ImageError(f"cannot write {path}: {error.strerror}") from error


def disc_files(seed: Seed, parts: Parts) -> dict[str, bytes]:
    """Return the files of the disc. Pure."""
    secret = seed.secret_json()
    # cloud-init runs its first-boot steps again if this changes: a new seed needs them.
    instance = hashlib.sha256(secret.encode()).hexdigest()[:16]
    return {
        "meta-data": _json({"instance-id": f"nearmetal-{instance}", "local-hostname": seed.name}),
        "user-data": cloud_config(seed.ssh.authorized_keys, _START),
        "network-config": _json(_network(seed)),
        "seed.json": secret.encode(),
        "nearmetal.tar": foreign_tar(parts),
    }


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode() + b"\n"


def _network(seed: Seed) -> dict[str, Any]:
    ethernets = {}
    for number, interface in enumerate(seed.interfaces):
        settings: dict[str, Any] = {"match": {"macaddress": interface.mac}, "optional": True}
        if interface.address is None:
            settings["dhcp4"] = False
        else:
            settings["addresses"] = [interface.address]
        if interface.mtu is not None:
            settings["mtu"] = interface.mtu
        if interface.gateway is not None:
            settings["routes"] = [{"to": "0.0.0.0/0", "via": interface.gateway}]
        ethernets[f"nm{number}"] = settings
    return {"version": 2, "ethernets": ethernets}


def _write(stream: BinaryIO, files: dict[str, bytes]) -> None:
    disc = PyCdlib()
    try:
        disc.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=LABEL)
        for number, (name, content) in enumerate(files.items()):
            disc.add_fp(
                io.BytesIO(content),
                len(content),
                f"/FILE{number}.;1",
                rr_name=name,
                joliet_path=f"/{name}",
            )
        disc.write_fp(stream)
    except PyCdlibException as error:
        raise ImageError(f"cannot make the disc of cloud-init: {error}") from error
    finally:
        with contextlib.suppress(PyCdlibException):
            disc.close()
