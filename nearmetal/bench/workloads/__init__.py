# SPDX-License-Identifier: Apache-2.0
"""Workloads that a study can name: small declarative modules."""

from nearmetal.bench.workloads.apps import APPS
from nearmetal.bench.workloads.kernels import KERNELS
from nearmetal.bench.workloads.micro import MICRO
from nearmetal.bench.workloads.model import Module, figures_in, fill_in, lay_out

WORKLOADS = {**MICRO, **KERNELS, **APPS}
"""By the name that a study uses."""

__all__ = ["WORKLOADS", "Module", "figures_in", "fill_in", "lay_out"]
