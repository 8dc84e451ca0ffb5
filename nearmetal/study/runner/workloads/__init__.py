# SPDX-License-Identifier: Apache-2.0
"""Workloads that a study can name: small declarative modules."""

from nearmetal.study.runner.workloads.apps import APPS
from nearmetal.study.runner.workloads.kernels import KERNELS
from nearmetal.study.runner.workloads.micro import MICRO
from nearmetal.study.runner.workloads.model import Module, figures_in, fill_in, lay_out

WORKLOADS = {**MICRO, **KERNELS, **APPS}
"""By the name that a study uses."""

__all__ = ["WORKLOADS", "Module", "figures_in", "fill_in", "lay_out"]
