# SPDX-License-Identifier: Apache-2.0
"""The OpenStack backend: servers of Nova on networks of Neutron."""
