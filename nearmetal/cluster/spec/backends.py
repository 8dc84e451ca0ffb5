# SPDX-License-Identifier: Apache-2.0
"""The specs of all backends, by the word in `backend:`."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, RootModel

from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.local.spec import LocalSpec
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.model import ClusterSpec

SPECS: dict[str, type[ClusterSpec]] = {
    "local": LocalSpec,
    "libvirt": LibvirtSpec,
    "vsphere": VsphereSpec,
}

_Spec = Annotated[LocalSpec | LibvirtSpec | VsphereSpec, Field(discriminator="backend")]


class _AnySpec(RootModel[_Spec]):
    """A virtual cluster: what `nearmetal up` makes."""

    model_config = {"title": "ClusterSpec"}


def from_canonical(text: str) -> ClusterSpec:
    """Read back `ClusterSpec.canonical`; raises pydantic's ValidationError or ValueError."""
    return _AnySpec.model_validate(json.loads(text)).root


def json_schema() -> str:
    """Return the JSON Schema of a cluster spec, for editors."""
    schema = _AnySpec.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"
