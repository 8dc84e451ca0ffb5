# SPDX-License-Identifier: Apache-2.0
"""Images that a cluster uploads to Glance: made in two requests, and known by mark and checksum.

The first request makes an empty image with the mark and the checksums of the file; the second one
sends the bytes. Glance computes a checksum itself, so an image counts only if both are the same.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nearmetal.cluster.backends.openstack.answers import checked
from nearmetal.cluster.backends.openstack.marks import IMAGE_MARK, IMAGE_NAME, ClusterMark
from nearmetal.cluster.backends.openstack.plan import UploadedImage
from nearmetal.cluster.backends.openstack.session import (
    ANSWER_S,
    CloudSession,
    accepted,
    reason_line,
)
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Runner
from nearmetal.image.disk import DiskFile, Info, known_digests

_SUM = "nearmetal_"
"""Beginning of the properties with checksums; the name of the algorithm follows."""

_ALGORITHMS = ("sha256", "sha512")
"""Those that Glance may use; the second one is its default."""

_STORE_S = 3600.0
"""Seconds that Glance, and a proxy before it, have to store an image after its last byte."""

_PIECE = 1 << 20
_GIB = 1 << 30


@dataclass
class ImageFile(DiskFile):
    """A file on this machine that is uploaded."""

    path: str
    runner: Runner
    memory: Path = field(default_factory=known_digests)

    @cached_property
    def sha256(self) -> str:
        """The checksum, which is looked up once in a run."""
        return self.content()

    @cached_property
    def found(self) -> Info:
        """The format; raises BackendError if machines cannot boot the file."""
        return self.checked()

    def check(self) -> None:
        """Check that machines can boot it; raises BackendError."""
        self.found  # noqa: B018 - the property checks

    # As Glance describes an image.

    min_ram = 0

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    @property
    def min_disk(self) -> int:
        """GiB of the disk in the file, of which a flavor may not have less."""
        return -(-self.found.size // _GIB)

    def sums(self) -> dict[str, str]:
        """Return the checksums of the content as it is now."""
        every = {name: hashlib.new(name) for name in _ALGORITHMS}
        try:
            with Path(self.path).open("rb") as stream:
                while piece := stream.read(_PIECE):
                    for one in every.values():
                        one.update(piece)
        except OSError as error:
            raise self.fault(f"{error.strerror}") from error
        return {name: one.hexdigest() for name, one in every.items()}


def is_whole(image: Any) -> bool:
    """Whether Glance has all bytes of an uploaded image, and the right ones."""
    wanted = (image.properties or {}).get(f"{_SUM}{image.hash_algo}")
    # An administrator who deactivates an image keeps new servers from it. It is not replaced.
    stored = image.status in ("active", "deactivated")
    return stored and bool(wanted) and image.hash_value == wanted


def image_values(image: Any) -> UploadedImage:
    """Return the values of an uploaded image.

    Its properties are not compared: servers got them when they were made.
    """
    return UploadedImage(sha256=str((image.properties or {}).get(f"{_SUM}sha256", "")))


def upload(
    session: CloudSession,
    mark: ClusterMark,
    file: ImageFile,
    name: str,
    *,
    cluster: str,
    properties: Mapping[str, str],
) -> Any:
    """Upload a file as an image of a cluster; returns the image."""
    form, sums = file.found.form, file.sums()
    if sums["sha256"] != file.sha256:
        raise file.fault("it has changed since the plan was made", "run `nearmetal up` again")
    body = {
        **properties,
        "name": f"{cluster}.{name}",
        "visibility": "private",
        "container_format": "bare",
        "disk_format": form,
        IMAGE_MARK: mark.token,
        IMAGE_NAME: name,
        **{f"{_SUM}{algorithm}": one for algorithm, one in sums.items()},
    }
    glance = session.sdk.image
    with session.asking(f"making the image of {file.path}"):
        made = uuid.UUID(accepted(glance.post("/images", json=body)).json()["id"])
    try:
        with session.asking(f"uploading {file.path}"), Path(file.path).open("rb") as stream:
            headers = {"Content-Type": "application/octet-stream"}
            limits = (ANSWER_S, _STORE_S)
            url = f"/images/{made}/file"
            accepted(glance.put(url, data=stream, headers=headers, timeout=limits))
    except OSError as error:
        raise file.fault(f"{error.strerror}") from error
    with session.asking(f"reading the image of {file.path}"):
        image = checked("image", glance.get_image(str(made)))
    if image.status == "active" and image.hash_algo not in _ALGORITHMS:
        raise BackendError(
            f"image {file.path}: Glance has it with the checksum {reason_line(image.hash_algo)}, "
            f"and nearmetal compares {' and '.join(_ALGORITHMS)} only",
            "upload the file yourself, and write the name of the image in the spec",
        )
    if not is_whole(image):
        raise BackendError(
            f"image {file.path}: Glance has it as {image.status} with another checksum "
            f"({image.hash_algo}) than the file",
            "run `nearmetal up` again, which uploads it again",
        )
    return image
