# SPDX-License-Identifier: Apache-2.0
"""Cluster files of vhpc-toolkit become specs. Nothing in them is evaluated."""

from nearmetal.cluster.backends.vsphere.vhpc.convert import Imported, Target, import_vhpc

__all__ = ["Imported", "Target", "import_vhpc"]
