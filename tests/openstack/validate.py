# SPDX-License-Identifier: Apache-2.0
"""Validates stacks by Heat's own engine, without services: a cloud of names stands for them.

    build/openstack/venv/bin/python -m tests.openstack.validate <CASES >FAULTS

CASES is a JSON list of objects: `template` (a path), `parameters`, `defaults` (the parameter_defaults
of an environment). FAULTS is a JSON list in this order: null, or what Heat says.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

from heat.common import config, context, messaging
from heat.common.exception import HeatException
from heat.engine import clients, constraints, environment, resource, resources, stack, template
from heat.engine.resources.openstack.heat.resource_group import ResourceGroup
from heat.engine.resources.stack_resource import StackResource
from heatclient.common import template_utils
from heatclient.exc import CommandError
from oslo_config import cfg

KNOWN = {
    "KeypairConstraint": {"default", "me"},
    "FlavorConstraint": {
        "baremetal",
        "hpc.2.4",
        *(f"hpc.{c}.{m}" for c in (1, 8) for m in (1, 64)),
    },
    "ImageConstraint": {"nearmetal", "nearmetal-host"},
    "NetworkConstraint": {"ext-net", "rdma"},
}
"""What the cloud has, by the constraints that ask for it."""


def _known(constraint: object, value: str, _context: object, _template: object = None) -> bool:
    names = KNOWN.get(type(constraint).__name__)
    # Values of other resources are empty so far, and other constraints check only those.
    return names is None or not value or value in names


def _clients() -> Any:
    made = mock.MagicMock()
    plugin = made.return_value.client_plugin.return_value
    plugin.get_image.return_value = mock.Mock(status="active", min_ram=0, min_disk=0)
    plugin.get_flavor.return_value = mock.Mock(ram=4096, disk=10)
    limits = {"maxServerMeta": 128, "maxPersonality": 5, "maxPersonalitySize": 10240}
    plugin.absolute_limits.return_value = limits
    return made


@cache
def _sent(path: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return what the command `openstack stack create -t PATH` sends: all files, and the template."""
    found: tuple[dict[str, str], dict[str, Any]] = template_utils.get_template_contents(path)
    return found


def _nested(member: StackResource) -> stack.Stack:
    """Return the stack that a resource makes; of a group, with its first member alone."""
    if isinstance(member, ResourceGroup):
        content = member._assemble_nested(["0"], include_all=True)
    else:
        content = member.child_template()
    name = f"{member.stack.name}-{member.name}"
    found: stack.Stack = member._parse_nested_stack(name, content, member.child_params())
    return found


def _uses(content: Any, function: str) -> Iterator[list[Any]]:
    """Yield the arguments of each use of a function of templates."""
    if isinstance(content, dict):
        if [*content] == [function]:
            words = content[function]
            yield words if isinstance(words, list) else [words]
        content = [*content.values()]
    for part in content if isinstance(content, list) else ():
        yield from _uses(part, function)


def _outputs(member: StackResource) -> set[str]:
    """Return the outputs of a nested stack; those of a group are lists of its members'."""
    nested = _nested(member)
    if not isinstance(member, ResourceGroup):
        return set(nested.outputs)
    (one,) = nested.values()
    return {"refs", *(_outputs(one) if isinstance(one, StackResource) else one.attributes)}


def check_names(checked: stack.Stack) -> None:
    """Check what Heat looks at only when it has made all: outputs, of this stack and nested ones."""
    content = {name: checked.t[name] for name in ("resources", "outputs")}
    for name, *_ in _uses(content["outputs"], "get_param"):
        if not isinstance(name, dict) and name not in checked.parameters:
            raise ValueError(f"outputs: there is no parameter {name}")
    wanted = defaultdict[str, set[str]](set)
    for name, attribute, *_ in _uses(content, "get_attr"):
        wanted[name].add(re.sub(r"^resource\.[0-9]+\.", "", attribute))
    for name, attributes in wanted.items():
        member = checked.get(name)
        if isinstance(member, StackResource) and (missing := attributes - _outputs(member)):
            raise ValueError(f"{name}: it has no output {', '.join(sorted(missing))}")
    for name, *_ in _uses(content["outputs"], "get_resource"):
        if name not in checked.t["resources"]:
            raise ValueError(f"outputs: there is no resource {name}")


def validate(checked: stack.Stack, *, in_group: bool = False) -> None:
    """Validate a stack, and then its nested ones, as the engine does when it begins each."""
    # Before there is anything, members of groups have no values that other resources give them.
    checked.strict_validate = not in_group
    checked.validate()
    check_names(checked)
    for member in checked.values():
        if in_group:
            member.properties.validate(with_value=True)
        if isinstance(member, StackResource):
            grouped = in_group or isinstance(member, ResourceGroup)
            validate(_nested(member), in_group=grouped)


def fault_of(case: dict[str, Any]) -> str | None:
    """Return what Heat says against a stack, or None."""
    given = {"parameters": case["parameters"], "parameter_defaults": case["defaults"]}
    asker = context.get_admin_context()
    asker.tenant_id = asker.project_id = asker.user_id = "0" * 32
    try:
        files, content = _sent(case["template"])
        parsed = template.Template(content, files=files, env=environment.Environment(given))
        validate(stack.Stack(asker, "demo", parsed))
    except (CommandError, HeatException, KeyError, TypeError, ValueError) as fault:
        return str(fault)
    return None


def main() -> None:
    """Validate the cases of the input."""
    cfg.CONF([], project="heat", default_config_files=[])
    config.set_config_defaults()
    logging.disable(logging.CRITICAL)
    messaging.setup("fake://")
    resources.initialise()
    # This program ends after its answers, so what is replaced here stays so.
    clients.OpenStackClients = _clients()
    resource.Resource.is_service_available = classmethod(lambda *_: (True, None))
    constraints.BaseCustomConstraint.validate = _known
    cases = json.load(sys.stdin)
    json.dump([fault_of(case) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
