# SPDX-License-Identifier: Apache-2.0
"""The pure half of the backend, for `backend: libvirt`."""

from nearmetal.cluster.backends.libvirt.plan import machines
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.registration import Registration

REGISTRATION = Registration(LibvirtSpec, machines)
