# SPDX-License-Identifier: Apache-2.0
"""Which backends there are: the directories of `backends`, each with its REGISTRATION. Pure.

A backend is imported when a spec names it, or when the schema of all backends is written.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nearmetal.cluster import backends
from nearmetal.cluster.model import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.cluster.resource import Facts, Observed
    from nearmetal.cluster.wanted import Desired

Spec = TypeVar("Spec", bound=ClusterSpec)


@dataclass(frozen=True)
class Registration(Generic[Spec]):
    """The pure half of a backend, in its `registration.py`; `driver.py` has the other half.

    `spec`: the model of a spec that says `backend: NAME`.
    `plan`: from a spec, the facts and what is there to the resources of the cluster.
    """

    spec: type[Spec]
    plan: Callable[[Spec, Facts, Observed], Desired]


@cache
def backend_names() -> tuple[str, ...]:
    """Return the name of every backend, sorted."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(backends.__path__) if m.ispkg))


@cache
def registration(name: str) -> Registration[Any]:
    """Return the registration of a backend; raises KeyError when there is no such backend."""
    if name not in backend_names():
        raise KeyError(name)
    module = importlib.import_module(f"{backends.__name__}.{name}.registration")
    found = module.REGISTRATION
    assert isinstance(found, Registration)  # noqa: S101 - the recipe asks for it
    return found
