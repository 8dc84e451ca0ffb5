/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every environment knob of the C code, in one table: name, type, default, range, unit, reason. The
 * manual's knobs table and `nearmetal-info --abi` are generated from it. A knob that cannot be
 * parsed is never ignored: the error names the knob, the value and the allowed values.
 */
#ifndef NM_BASE_PARAMS_H
#define NM_BASE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/channel.h"

/* X(field, KIND, ENV NAME, default, min, max, unit, reason). KIND: UINT (decimal, may end in K, M,
 * G for sizes), TEXT (printable, up to 255 bytes), LEVEL (error|warn|info|debug). */
#define NM_PARAMS(X)                                                                               \
	X(rundir, TEXT, "NEARMETAL_RUNDIR", "", 0, 0, "path",                                      \
	  "rundir, in which endpoints of one host meet; empty: /dev/shm/nearmetal-<uid>")          \
	X(segment, TEXT, "NEARMETAL_SEGMENT", "/run/nearmetal/segment.conf", 0, 0, "path",         \
	  "file in which the guest unit describes the segment of this virtual machine")            \
	X(segment_lanes, UINT, "NEARMETAL_SEGMENT_LANES", 64, 1, 4096, "peers",                    \
	  "lanes in a window of the segment; fewer if the part is too small")                      \
	X(segment_endpoints, UINT, "NEARMETAL_SEGMENT_ENDPOINTS", 0, 0, 256, "endpoints",          \
	  "endpoints that must fit into the part of this machine; limits the size of windows; "    \
	  "0: as segment.conf says, 8 at least")                                                   \
	X(segment_lease_ms, UINT, "NEARMETAL_SEGMENT_LEASE_MS", 5000, 500, 600000, "ms",           \
	  "time without a heartbeat after which a neighbour in the segment is left or lost")       \
	X(move_ms, UINT, "NEARMETAL_MOVE_MS", 600000, 1000, 86400000, "ms",                        \
	  "longest silence of a neighbour while its machine or this one is moved")                 \
	X(move_thread, TEXT, "NEARMETAL_MOVE_THREAD", "off", 0, 0, "word",                         \
	  "a thread that moves channels while the program computes: on or off")                    \
	X(channels, TEXT, "NEARMETAL_CHANNELS", NM_CHANNEL_LIST, 0, 0, "list",                     \
	  "channels that the provider may use; the default lists all of them")                     \
	X(cma, TEXT, "NEARMETAL_CMA", "auto", 0, 0, "word",                                        \
	  "copies by the kernel from and to the memory of proven neighbours: auto or off")         \
	X(checksum, TEXT, "NEARMETAL_CHECKSUM", "off", 0, 0, "word",                               \
	  "checksums of all data in windows: on or off, the same for all ranks")                   \
	X(on_loss, TEXT, "NEARMETAL_ON_LOSS", "auto", 0, 0, "word",                                \
	  "reaction to a lost peer, see LOST PEERS in fi_nearmetal(7): auto or abort or error")    \
	X(net, TEXT, "NEARMETAL_NET", "auto", 0, 0, "list",                                        \
	  "inner libfabric providers of the network channel, best first")                          \
	X(stats_dir, TEXT, "NEARMETAL_STATS_DIR", "", 0, 0, "path",                                \
	  "directory for statistics that outlive a job; empty: only while an endpoint lives")      \
	X(stats_ms, UINT, "NEARMETAL_STATS_MS", 250, 0, 600000, "ms",                              \
	  "interval between writes of the statistics file; 0: only at the end")                    \
	X(tune_file, TEXT, "NEARMETAL_TUNE_FILE", "", 0, 0, "path",                                \
	  "rates measured by `nearmetal tune`; empty: its default file; none: no file")            \
	X(log, LEVEL, "NEARMETAL_LOG", "warn", 0, 0, "level",                                      \
	  "lowest level of messages on stderr")                                                    \
	X(max_local_peers, UINT, "NEARMETAL_MAX_LOCAL_PEERS", 512, 1, 4096, "peers",               \
	  "lanes in a window: the neighbours that an endpoint can reach through memory")           \
	X(ring_slots, UINT, "NEARMETAL_RING_SLOTS", 256, 16, 4096, "slots",                        \
	  "64-byte slots of a ring; a power of two; 256 sustain a window of 64 small messages")    \
	X(inline_max, UINT, "NEARMETAL_INLINE_MAX", 208, 40, 65535, "bytes",                       \
	  "largest payload in ring slots; above four cache lines the pool is faster")              \
	X(pool_size, UINT, "NEARMETAL_POOL_SIZE", 4194304, 1048576, 1073741824, "bytes",           \
	  "size of the bulk pool; use two to four times the private L2 cache")                     \
	X(chunk_size, UINT, "NEARMETAL_CHUNK_SIZE", 32768, 4096, 65536, "bytes",                   \
	  "chunk of the bulk pool; a power of two")                                                \
	X(heap_size, UINT, "NEARMETAL_HEAP_SIZE", 1073741824, 1048576, 68719476736, "bytes",       \
	  "size of the heap of libnearmetal-heap.so; memory is taken when it is touched")          \
	X(heap_min, UINT, "NEARMETAL_HEAP_MIN", 65536, 4096, 1073741824, "bytes",                  \
	  "allocations of at least this size go to that heap")                                     \
	X(shm_eager_max, UINT, "NEARMETAL_SHM_EAGER_MAX", 16384, 256, 65536, "bytes",              \
	  "largest message that memory channels send with its envelope")                           \
	X(unexpected_max, UINT, "NEARMETAL_UNEXPECTED_MAX", 1073741824, 65536, 1099511627776,      \
	  "bytes",                                                                                 \
	  "limit for unexpected messages of one peer; above it the endpoint gives up the peer")    \
	X(net_eager_max, UINT, "NEARMETAL_NET_EAGER_MAX", 16384, 256, 65536, "bytes",              \
	  "largest message that the network channel sends with its envelope")                      \
	X(gpudirect, TEXT, "NEARMETAL_GPUDIRECT", "auto", 0, 0, "word",                            \
	  "memory of GPUs for network adapters, past the host, where possible: auto or off")       \
	X(device_block, UINT, "NEARMETAL_DEVICE_BLOCK", 524288, 65536, 16777216, "bytes",          \
	  "block by which large messages are copied from and to a GPU, beside the sending")        \
	X(spin_us, UINT, "NEARMETAL_SPIN_US", 20, 0, 1000000, "us",                                \
	  "idle polling before the thread yields its core")                                        \
	X(sleep_ms, UINT, "NEARMETAL_SLEEP_MS", 4, 0, 60000, "ms",                                 \
	  "longest sleep of a blocking call, and the cost of a lost wake-up; 0: 50 us")            \
	X(connect_ms, UINT, "NEARMETAL_CONNECT_MS", 5000, 10, 600000, "ms",                        \
	  "time limit of a handshake; after it the endpoint uses the network")                     \
	X(close_ms, UINT, "NEARMETAL_CLOSE_MS", 5000, 0, 600000, "ms",                             \
	  "longest wait at close for peers to take their data")                                    \
	X(lease_ms, UINT, "NEARMETAL_LEASE_MS", 100, 10, 60000, "ms",                              \
	  "interval at which the service thread checks peers and time limits")                     \
	X(keepalive_ms, UINT, "NEARMETAL_KEEPALIVE_MS", 1000, 50, 600000, "ms",                    \
	  "interval of liveness checks for peers that the endpoint waits for")                     \
	X(net_notice, TEXT, "NEARMETAL_NET_NOTICE", "/run/nearmetal/network", 0, 0, "path",        \
	  "file in which the guest unit says that the network of this machine is to go")           \
	X(net_timeout_ms, UINT, "NEARMETAL_NET_TIMEOUT_MS", 30000, 1000, 3600000, "ms",            \
	  "time without an answer over TCP after which a host counts as lost")

#define NM_PARAM_TEXT_MAX 256

struct nm_params {
#define NM_PARAM_UINT(field) uint64_t field;
#define NM_PARAM_TEXT(field) char field[NM_PARAM_TEXT_MAX];
#define NM_PARAM_LEVEL(field) int field;
#define NM_PARAM_FIELD(field, kind, ...) NM_PARAM_##kind(field)
	NM_PARAMS(NM_PARAM_FIELD)
#undef NM_PARAM_FIELD
};

/*
 * nm_params_load - read all knobs from the environment. Warns about unknown NEARMETAL_ names that
 * look like a mistyped knob, with the nearest name; params.c lists the NEARMETAL_ variables of
 * other programs. MV2_VIRT_USE_IVSHMEM=0 or 1, the name in MVAPICH2-Virt, removes `segment` from
 * the channels or adds it. Returns 0, or -EINVAL with the reason in *ret_message (static length,
 * always terminated).
 */
int nm_params_load(struct nm_params *ret_params, char ret_message[256]);

/* The parameters of the process, loaded once; NULL if the environment is wrong (logged once). */
const struct nm_params *nm_params(void);

/*
 * The knob ENV alone, of kind UINT, for code that may neither allocate nor read the others. False,
 * with the reason: its value is not allowed.
 */
bool nm_params_uint(const char *env, uint64_t *ret_value, char ret_message[256]);

/* Parse a decimal number with an optional K, M or G (powers of 1024). False: it is not valid. */
bool nm_params_parse_size(const char *text, uint64_t *ret_value);

/* True if CHANNEL ("self", "shm", "segment", "net") is in the list NEARMETAL_CHANNELS. */
bool nm_params_channel_allowed(const struct nm_params *params, const char *channel);

/* Description of a knob, for manuals and nearmetal-info. */
struct nm_param_info {
	const char *env;
	const char *field;
	const char *kind;     /* "UINT", "TEXT" or "LEVEL" */
	const char *fallback; /* the default, in the notation of a user */
	uint64_t min, max;    /* UINT only */
	bool power_of_two;
	const char *unit;
	const char *reason;
};

/* All knobs in the order of the table. Static storage. */
const struct nm_param_info *nm_param_infos(size_t *ret_nr);
/* The value of knob INDEX, in the notation of a user. */
void nm_param_format(const struct nm_params *params, size_t index, char *ret_text, size_t len);

#endif
