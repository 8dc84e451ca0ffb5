# SPDX-License-Identifier: Apache-2.0
"""The pure half of the backend, for `backend: local`."""

from nearmetal.cluster.backends.local.plan import containers
from nearmetal.cluster.backends.local.spec import LocalSpec
from nearmetal.cluster.registration import Registration

REGISTRATION = Registration(LocalSpec, containers)
