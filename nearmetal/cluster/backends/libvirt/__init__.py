# SPDX-License-Identifier: Apache-2.0
"""The libvirt backend: virtual machines on one or more hypervisors."""
