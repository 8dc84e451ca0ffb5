# SPDX-License-Identifier: Apache-2.0
"""The guest image: a small Debian 13 in two layers, and the seed's way into foreign images.

The *system* (kernel, root file system) changes with its packages and takes a minute. The *image*
adds the guest unit and the provider in an initial RAM disk, which takes a moment. The content of
each gives its key in the cache. docs/design/guest.md gives the reasons.
"""

from nearmetal.image.bootdisk import write_disk
from nearmetal.image.build import build_image, expected_key, find_image, load_image
from nearmetal.image.cache import Cache, Image, cache_directory
from nearmetal.image.parts import (
    APPLIANCES,
    DISK,
    EXTRAS,
    GUEST_AGENT,
    GUEST_INFO,
    GUEST_PROVIDER,
    Parts,
    parts_here,
)
from nearmetal.image.system import Mirror, machine_mirror, named_mirror

__all__ = [
    "APPLIANCES",
    "DISK",
    "EXTRAS",
    "GUEST_AGENT",
    "GUEST_INFO",
    "GUEST_PROVIDER",
    "Cache",
    "Image",
    "Mirror",
    "Parts",
    "build_image",
    "cache_directory",
    "expected_key",
    "find_image",
    "load_image",
    "machine_mirror",
    "named_mirror",
    "parts_here",
    "write_disk",
]
