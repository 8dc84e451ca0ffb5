# SPDX-License-Identifier: Apache-2.0
"""What a plan does to one resource. The value is the symbol a person sees."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """The four things that can happen to a resource."""

    NONE = " "
    CREATE = "+"
    CHANGE = "~"
    DELETE = "-"
