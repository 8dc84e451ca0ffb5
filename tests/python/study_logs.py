# SPDX-License-Identifier: Apache-2.0
"""Short logs written by hand, as accelerators, loaded networks, ReFrame and rare options print them."""

NCCL = """$ mpirun -np 2 ./all_reduce_perf -b 8 -e 16
# nccl-tests version 2.17.6 nccl-headers=22501 nccl-library=22501
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1946 on n1 device  0 [0x00] A100
#  Rank  1 Group  0 Pid   1947 on n2 device  0 [0x00] A100
n1:1946:1946 [0] NCCL INFO NCCL_PROTO set by environment to simple
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    30.50    0.25    0.50      0    31.50    0.26    0.51      0
          16             4     float     sum      -1    32.50    0.75    1.50      0    33.50    0.76    1.51    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1.005
#
"""
GPCNET = """NetworkLoad Tests v1.3
  Test with 8 MPI ranks (4 nodes)
  2 nodes running Network Tests
  2 nodes running Congestion Tests (min 1 nodes per congestor)
+------------------------------------------------------------------------------+
|                            Isolated Network Tests                            |
+---------------------------------+--------------+--------------+--------------+
|                            Name |          Avg |          99% |        Units |
+---------------------------------+--------------+--------------+--------------+
|          RR Two-sided Lat (8 B) |          2.5 |          4.5 |         usec |
+---------------------------------+--------------+--------------+--------------+
| RR Two-sided BW+Sync (131072 B) |       4061.5 |       2829.5 |   MiB/s/rank |
+---------------------------------+--------------+--------------+--------------+

+------------------------------------------------------------------------------+
|                 Network Tests running with Congestion Tests                  |
+---------------------------------+--------------+--------------+--------------+
|                            Name |          Avg |          99% |        Units |
+---------------------------------+--------------+--------------+--------------+
|          RR Two-sided Lat (8 B) |          3.5 |          9.5 |         usec |
+---------------------------------+--------------+--------------+--------------+

+------------------------------------------------------------------------------+
|          Network Tests running with Congestion Tests - Key Results           |
+---------------------------------+--------------------------------------------+
|                            Name |                   Congestion Impact Factor |
+---------------------------------+----------------------+---------------------+
|                                 |                  Avg |                 99% |
+---------------------------------+----------------------+---------------------+
|          RR Two-sided Lat (8 B) |                 1.4X |                2.1X |
+---------------------------------+----------------------+---------------------+
"""
REFRAME = """result|job_completion_time|descr|env_vars|environ|jobid|num_cpus_per_task|num_tasks|partition|copy_value|copy_unit|copy_ref|copy_lower_thres|copy_upper_thres|name|system
pass|2026-02-21T22:51:16||{}|gnu|65|null|4|compute|21116.5|MB/s|20000|-0.1|None|stream %size=9|lab
pass|2026-02-22T22:51:16||{}|gnu|66|null|4|compute|21216.5|MB/s|20000|-0.1|None|stream %size=9|lab
"""
REFRAME_3 = """2026-08-19T17:49:24|reframe 3.9.2|gmx_1400k on lab:ib using gcc|jobid=7|num_tasks=32|speed=0.729|ref=0 (l=null, u=null)|ns/day
2026-08-19T17:49:24|reframe 3.9.2|gmx_1400k on lab:ib using gcc|jobid=7|num_tasks=32|wall=2369.5|ref=0 (l=null, u=null)|s
2026-08-20T17:49:24|reframe 3.9.2|gmx_1400k on lab:ib using gcc|jobid=8|num_tasks=32|speed=0.735|ref=0 (l=null, u=null)|ns/day
"""
OSU_VARIED = """# OSU MPI Multiple Bandwidth / Message Rate Test v5.8
# [ pairs: 2 ] [ window size: varied ]

# Uni-directional Bandwidth (MB/sec)
#                1          64
1              1.00       64.00
2              2.00      128.00

# Message Rate Profile
#                1          64
1        1000000.00 64000000.00
2        1000000.00 64000000.00
"""
OSU_DERIVED = """# OSU MPI Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)     Transmit Size
1                       1.50                 1
2                       1.50                 1
4                       1.75                 2
"""
PERFTEST_TIME = """
                    Send Latency Test
 Mtu             : 4096[B]
 #bytes        #iterations       t_avg[usec]    tps average
Conflicting CPU frequency values detected: 917.203000 != 2153.728000. CPU Frequency is not max.
 2             1577611            1.90           262864.28
"""
