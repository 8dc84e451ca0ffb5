# SPDX-License-Identifier: Apache-2.0
"""The local backend: isolated nodes on this machine."""
