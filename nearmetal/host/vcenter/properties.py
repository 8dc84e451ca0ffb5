# SPDX-License-Identifier: Apache-2.0
"""Properties of many things of a vCenter in a few calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim, vmodl

if TYPE_CHECKING:
    from collections.abc import Sequence

Properties = dict[str, Any]


def fetch(content: Any, root: Any, kind: Any, names: Sequence[str]) -> dict[Any, Properties]:
    """Return properties of everything of a kind below a folder or container, in a few calls."""
    view = content.viewManager.CreateContainerView(container=root, type=[kind], recursive=True)
    try:
        collector = vmodl.query.PropertyCollector
        walk = collector.TraversalSpec(
            name="view", path="view", skip=False, type=vim.view.ContainerView
        )
        spec = collector.FilterSpec(
            objectSet=[collector.ObjectSpec(obj=view, skip=True, selectSet=[walk])],
            propSet=[collector.PropertySpec(type=kind, pathSet=list(names), all=False)],
        )
        service = content.propertyCollector
        found: dict[Any, Properties] = {}
        page = service.RetrievePropertiesEx([spec], collector.RetrieveOptions(maxObjects=100))
        while page is not None:
            for item in page.objects:
                found[item.obj] = {prop.name: prop.val for prop in item.propSet}
            page = service.ContinueRetrievePropertiesEx(page.token) if page.token else None
        return found
    finally:
        view.Destroy()
