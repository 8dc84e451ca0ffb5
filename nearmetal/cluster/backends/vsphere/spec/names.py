# SPDX-License-Identifier: Apache-2.0
"""Names of vCenter's inventory, and addresses of PCI devices as ESXi writes them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_NAME = 80
"""What vCenter takes."""


def shaped(pattern: str, message: str) -> AfterValidator:
    """Return a validator for text of one shape; `message` is "why|hint"."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _inventory(value: str) -> str:
    if not value or len(value) > MAX_NAME or value != value.strip() or not value.isprintable():
        msg = f"is no name of vCenter|write 1 to {MAX_NAME} visible characters"
        raise ValueError(msg)
    if any(c in value for c in "/\\%"):
        msg = "has a character that vCenter escapes|a name has none of / \\ %"
        raise ValueError(msg)
    return value


def _path(value: str) -> str:
    for part in value.split("/"):
        _inventory(part)
    return value


def _pci(value: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]", value):
        msg = "is no PCI address|write it as ESXi does, for example 0000:3b:00.0"
        raise ValueError(msg)
    return value.lower()


Inventory = Annotated[str, AfterValidator(_inventory)]
InventoryPath = Annotated[str, AfterValidator(_path)]
PciAddress = Annotated[str, AfterValidator(_pci)]
