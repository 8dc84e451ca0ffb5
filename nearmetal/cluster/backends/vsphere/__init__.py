# SPDX-License-Identifier: Apache-2.0
"""The vSphere backend: virtual machines under a vCenter."""
