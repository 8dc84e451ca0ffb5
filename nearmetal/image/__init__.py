# SPDX-License-Identifier: Apache-2.0
"""The guest image: a small Debian 13 in two layers, and the seed's way into foreign images.

The *system* (kernel, root file system) changes with its packages and takes a minute; the *image* adds
the guest unit and the provider in an initial RAM disk, which takes a moment. Both are cached by
what they are made of. docs/design/guest.md says why it is cut so.
"""

from nearmetal.image.build import Progress, build_image, expected_key, find_image, load_image
from nearmetal.image.cache import Cache, Entry, cache_directory
from nearmetal.image.manifest import Image, ImageManifest, SystemManifest
from nearmetal.image.mirror import Mirror, machine_mirror, named_mirror
from nearmetal.image.parts import EXTRAS, GUEST_INFO, GUEST_PROVIDER, Parts, parts_here, tool_here

__all__ = [
    "EXTRAS",
    "GUEST_INFO",
    "GUEST_PROVIDER",
    "Cache",
    "Entry",
    "Image",
    "ImageManifest",
    "Mirror",
    "Parts",
    "Progress",
    "SystemManifest",
    "build_image",
    "cache_directory",
    "expected_key",
    "find_image",
    "load_image",
    "machine_mirror",
    "named_mirror",
    "parts_here",
    "tool_here",
]
