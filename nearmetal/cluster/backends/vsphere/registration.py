# SPDX-License-Identifier: Apache-2.0
"""The pure half of the backend, for `backend: vsphere`."""

from nearmetal.cluster.backends.vsphere.plan import vsphere_machines
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.registration import Registration

REGISTRATION = Registration(VsphereSpec, vsphere_machines)
