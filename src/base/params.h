/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every environment knob of the C code, in one table: name, type, default, range, unit, reason.
 * The manual's knobs table and `nearmetal-info --abi` are generated from it. A knob that cannot be
 * parsed is an error that names the knob, the value and what is allowed; it is never ignored.
 */
#ifndef NM_BASE_PARAMS_H
#define NM_BASE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/channel.h"

/* X(field, KIND, ENV NAME, default, min, max, unit, reason). KIND: UINT (decimal, may end in K, M,
 * G for sizes), TEXT (printable, up to 255 bytes), LEVEL (error|warn|info|debug). */
#define NM_PARAMS(X)                                                                                \
	X(segment_dir, TEXT, "NEARMETAL_SEGMENT_DIR", "", 0, 0, "path",                             \
	  "directory where neighbours meet; empty: /dev/shm/nearmetal-<uid>")                       \
	X(segment, TEXT, "NEARMETAL_SEGMENT", "/run/nearmetal/segment.conf", 0, 0, "path",          \
	  "what the guest unit says about the memory shared with other virtual machines")           \
	X(segment_lanes, UINT, "NEARMETAL_SEGMENT_LANES", 64, 1, 4096, "peers",                     \
	  "lanes in a window in that memory; fewer are made where they do not fit")                 \
	X(segment_endpoints, UINT, "NEARMETAL_SEGMENT_ENDPOINTS", 8, 1, 256, "endpoints",           \
	  "endpoints that must fit into this machine's part: windows are made small enough")        \
	X(segment_lease_ms, UINT, "NEARMETAL_SEGMENT_LEASE_MS", 5000, 500, 600000, "ms",            \
	  "time after which a neighbour in that memory whose heartbeat stands still has died")      \
	X(channels, TEXT, "NEARMETAL_CHANNELS", NM_CHANNEL_LIST, 0, 0, "list",                      \
	  "channels that may be used; the default lists all of them")                               \
	X(cma, TEXT, "NEARMETAL_CMA", "auto", 0, 0, "word",                                         \
	  "copies from and to the memory of proven neighbours by the kernel: auto or off")          \
	X(checksum, TEXT, "NEARMETAL_CHECKSUM", "off", 0, 0, "word",                                \
	  "checksums behind everything that goes through windows: on or off, alike everywhere")     \
	X(net, TEXT, "NEARMETAL_NET", "auto", 0, 0, "list",                                         \
	  "inner libfabric providers of the network channel, best first")                           \
	X(stats_dir, TEXT, "NEARMETAL_STATS_DIR", "", 0, 0, "path",                                 \
	  "directory where each endpoint leaves its statistics; empty: only while it lives")        \
	X(stats_ms, UINT, "NEARMETAL_STATS_MS", 250, 0, 600000, "ms",                               \
	  "time between two writings of the statistics while progress is made; 0: only at the end") \
	X(tune_file, TEXT, "NEARMETAL_TUNE_FILE", "", 0, 0, "path",                                 \
	  "rates measured by `nearmetal tune`; empty: where it puts them; none: no file")           \
	X(log, LEVEL, "NEARMETAL_LOG", "warn", 0, 0, "level", "what is written to stderr")          \
	X(max_local_peers, UINT, "NEARMETAL_MAX_LOCAL_PEERS", 512, 1, 4096, "peers",                \
	  "lanes in a window: neighbours an endpoint can exchange messages with through memory")    \
	X(box_slots, UINT, "NEARMETAL_BOX_SLOTS", 256, 16, 4096, "slots",                           \
	  "64-byte slots of a box; a power of two; 256 keep a window of 64 small messages going")   \
	X(inline_max, UINT, "NEARMETAL_INLINE_MAX", 208, 40, 65535, "bytes",                        \
	  "largest payload put into box slots; beyond four lines the pool is faster, near and far") \
	X(pool_size, UINT, "NEARMETAL_POOL_SIZE", 4194304, 1048576, 1073741824, "bytes",            \
	  "bulk pool; two to four times the private L2, so that a reader never snoops dirty lines") \
	X(chunk_size, UINT, "NEARMETAL_CHUNK_SIZE", 32768, 4096, 65536, "bytes",                    \
	  "unit of the bulk pool; a power of two")                                                  \
	X(shm_eager_max, UINT, "NEARMETAL_SHM_EAGER_MAX", 16384, 256, 65536, "bytes",               \
	  "largest message sent through memory with its envelope")                                  \
	X(unexpected_max, UINT, "NEARMETAL_UNEXPECTED_MAX", 1073741824, 65536, 1099511627776,       \
	  "bytes",                                                                                  \
	  "messages of one peer that may wait here for a receive; beyond it the peer is given up")  \
	X(net_eager_max, UINT, "NEARMETAL_NET_EAGER_MAX", 16384, 256, 65536, "bytes",               \
	  "largest message sent over the network with its envelope")                                \
	X(spin_us, UINT, "NEARMETAL_SPIN_US", 20, 0, 1000000, "us",                                 \
	  "idle polling before the processor is yielded; nodes may share cores")                    \
	X(sleep_ms, UINT, "NEARMETAL_SLEEP_MS", 4, 0, 60000, "ms",                                  \
	  "longest sleep at a time of a call that blocks: what a lost wake-up costs; 0: 50 us")     \
	X(connect_ms, UINT, "NEARMETAL_CONNECT_MS", 5000, 10, 600000, "ms",                         \
	  "time a neighbour has to answer a handshake before the network is used")                  \
	X(close_ms, UINT, "NEARMETAL_CLOSE_MS", 5000, 0, 600000, "ms",                              \
	  "time an endpoint waits at close for data its peers have not taken yet")                  \
	X(lease_ms, UINT, "NEARMETAL_LEASE_MS", 100, 10, 60000, "ms",                               \
	  "interval at which the service thread looks for the dead and the overdue")                \
	X(keepalive_ms, UINT, "NEARMETAL_KEEPALIVE_MS", 1000, 50, 600000, "ms",                     \
	  "interval at which peers that are waited for are asked whether they live")                \
	X(net_timeout_ms, UINT, "NEARMETAL_NET_TIMEOUT_MS", 30000, 1000, 3600000, "ms",             \
	  "time after which a host that does not answer over TCP is taken for gone")

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
 * nm_params_load - read all knobs from the environment. Also refuses unknown NEARMETAL_ names that
 * look like knobs of ours with a typing error (warning, with the nearest name; other programs'
 * NEARMETAL_ variables of the control plane are listed in params.c).
 * MV2_VIRT_USE_IVSHMEM=0 or 1, as MVAPICH2-Virt spells it, takes `segment` out of the channels or
 * into them.
 * Returns 0, or -EINVAL with *ret_message (static length, always terminated) saying what is wrong.
 */
int nm_params_load(struct nm_params *ret_params, char ret_message[256]);

/* The process-wide parameters, loaded once; NULL when the environment is bad (logged once). */
const struct nm_params *nm_params(void);

/* A decimal number that may end in K, M or G (powers of 1024), as in a knob. False: it is none. */
bool nm_params_parse_size(const char *text, uint64_t *ret_value);

/* Is CHANNEL ("self", "shm", "segment", "net") in the list NEARMETAL_CHANNELS? */
bool nm_params_channel_allowed(const struct nm_params *params, const char *channel);

/* What a knob is, for manuals and nearmetal-info. */
struct nm_param_info {
	const char *env;
	const char *field;
	const char *kind;     /* "UINT", "TEXT" or "LEVEL" */
	const char *fallback; /* the default, as one would write it */
	uint64_t min, max;    /* UINT only */
	bool power_of_two;
	const char *unit;
	const char *reason;
};

/* All knobs in the order of the table. Static storage. */
const struct nm_param_info *nm_param_infos(size_t *ret_nr);
/* The value of knob INDEX as one would write it. */
void nm_param_format(const struct nm_params *params, size_t index, char *ret_text, size_t len);

#endif
