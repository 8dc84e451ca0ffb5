# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and workloads on a cluster: arms interleaved, every raw output kept."""
