# SPDX-License-Identifier: Apache-2.0
"""Starts MPI jobs in a cluster with the MPI's own launcher, and proves their channels."""
