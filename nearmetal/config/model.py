# SPDX-License-Identifier: Apache-2.0
"""Types of fields that all files share: names, sizes, paths. Models are frozen."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from nearmetal.config.size import format_size, parse_size

MAX_NODES = 200
"""Nodes in one cluster: a /24 has room for them, and no machine can run as many."""

MIN_SIZE = 1 << 20
MAX_SIZE = 1 << 44


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("is not a size|write for example 512 MiB")
    nr_bytes = parse_size(str(value))
    if not MIN_SIZE <= nr_bytes <= MAX_SIZE:
        raise ValueError("is out of range|use 1 MiB to 16 TiB")
    return nr_bytes


def absolute(value: str) -> str:
    """Return an absolute path without a slash at its end; raises ValueError for other text."""
    if not value.startswith("/") or "/../" in value + "/" or "\0" in value or "\n" in value:
        raise ValueError("is not an absolute path without ..|write for example /opt/programs")
    return value.rstrip("/") or "/"


def shaped(pattern: str, message: str) -> AfterValidator:
    """Return a validator for text of one form; `message` is "why|hint"."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


NAME_PATTERN = r"^[a-z][a-z0-9-]{0,30}$"

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=31)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|KiB|MiB|GiB|TiB)$"}),
]


AbsolutePath = Annotated[str, AfterValidator(absolute)]


class Model(BaseModel):
    """Frozen and strict; unknown keys are errors.

    The schema is built at the first use (defer_build), so that help texts are quick.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, strict=True)
