# SPDX-License-Identifier: Apache-2.0
"""Segments for servers of OpenStack: the service on a hypervisor (docs/design/openstack.md)."""
