/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which channel and protocol carry a message: functions of facts and of what was achieved before,
 * no clock, no I/O, no hidden state, so every decision can be explained and tested with invented
 * rates.
 *
 * Two levels. The *prior* is what a calibration measured (or the defaults): good enough to start.
 * What then counts is the rate achieved while the job runs, because a virtual processor moves
 * between cache domains at any time, and the best protocol of one is the worst of the other. The
 * receiver of a transfer picks; it learns from every transfer that ends, keeps to what is best by a
 * margin, and now and then tries another protocol for a few messages, for at most one part in
 * NM_SELECT_PROBE_SHARE of the time.
 *
 * Threads: none of its own; a state belongs to one engine.
 */
#ifndef NM_TRANSPORT_SELECT_H
#define NM_TRANSPORT_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

enum nm_protocol {
	NM_PROTOCOL_EAGER,     /* payload goes with the envelope */
	NM_PROTOCOL_POOL,      /* two copies, through the sender's pool or the network's packets */
	NM_PROTOCOL_POOL_PAST, /* likewise, copied in past the sender's cache */
	NM_PROTOCOL_PULL,      /* one copy: the receiver reads the sender's memory */
	NM_PROTOCOL_BOTH, /* one copy: the receiver reads one half, the sender writes the other */
	NM_NR_PROTOCOLS,
};

/* "eager", "pool", "pool past cache", "pull", "both halves" */
const char *nm_protocol_name(enum nm_protocol protocol);

/* What is known of a peer before a channel is tried. */
struct nm_select_peer {
	bool is_self;
	bool has_network_address;
};

/* Can a channel of KIND reach such a peer? The kinds that can are tried by rank. */
bool nm_select_reaches(const struct nm_transport_kind *kind, const struct nm_select_peer *peer);

/* The sender's part: does a message of SIZE go with its envelope? */
static inline bool nm_select_eager(uint64_t size, uint32_t eager_max)
{
	return size <= eager_max;
}

/*
 * Transfers are alike when their sizes are of one class (up to 64 KiB, 256 KiB, 1 MiB, more; a class
 * holds its upper bound) and when they are alone or in a stream.
 */
#define NM_SELECT_NR_CLASSES 4
enum nm_select_load {
	NM_SELECT_LONE,	  /* nothing else is under way from this peer */
	NM_SELECT_STREAM, /* something is */
	NM_SELECT_NR_LOADS,
};
unsigned int nm_select_class(uint64_t size);

#define NM_SELECT_PROBE_SHARE 50

/* What a calibration measures, and what it costs to go on measuring. MB are 10^6 bytes. */
struct nm_select_params {
	/* MB/s; 0: not before it was tried */
	uint32_t prior[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS][NM_NR_PROTOCOLS];
	/* likewise of peers that are known to share no cache with us */
	uint32_t prior_far[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS][NM_NR_PROTOCOLS];
	uint32_t probe_ms;	 /* between two tries of another protocol, at least */
	uint32_t probe_choices;	 /* likewise, in choices */
	uint32_t margin_percent; /* another protocol has to be better by so much */
};

/* Sound on a current x86 server, both placements; measured: docs/design/bulk.md. */
extern const struct nm_select_params nm_select_defaults;
/* What is in force: the calibration of this machine (tuning.h), or the defaults. Reads files once. */
const struct nm_select_params *nm_select_params(void);

/* What was achieved with one protocol. */
struct nm_select_arm {
	uint32_t mbps;	   /* 0: not known */
	uint64_t tried_ns; /* when it was last picked as a try */
};

struct nm_select_cell {
	struct nm_select_arm arms[NM_NR_PROTOCOLS];
	enum nm_protocol current; /* EAGER: none yet */
	enum nm_protocol probe;	  /* what is being tried, while probe_left > 0 */
	uint32_t probe_left;	  /* choices */
	uint32_t since_probe;	  /* choices */
	uint64_t probe_ns;	  /* spent on it */
	uint64_t next_probe_ns;
};

/* Of the transfers from one peer. All zero: nothing learnt. */
struct nm_select_state {
	struct nm_select_cell cells[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS];
};

/* A transfer that is about to begin, as its receiver sees it. */
struct nm_select_facts {
	uint64_t size;
	uint32_t outstanding; /* transfers from this peer under way, without this one */
	bool remote_copy;     /* either side may copy from and to the other's memory */
	bool far;	      /* known to share no cache; false: not known */
	uint64_t now_ns;
};

enum nm_select_why {
	NM_SELECT_BECAUSE_RATE,	 /* the best rate, achieved or calibrated */
	NM_SELECT_BECAUSE_PROBE, /* tried again: its rate may have changed */
};

struct nm_select_verdict {
	enum nm_protocol protocol;
	enum nm_select_why why;
	uint8_t class, load; /* where to book what is achieved */
	bool far;	     /* by which prior it was picked */
};

/*
 * Pick for one transfer. Deterministic: the same parameters, state and facts give the same verdict.
 * STATE remembers what is under trial; NULL: decide by the parameters alone.
 */
struct nm_select_verdict nm_select_transfer(const struct nm_select_params *params,
					    struct nm_select_state *state,
					    const struct nm_select_facts *facts);
/* BYTES were transferred in NS under VERDICT. */
void nm_select_learn(const struct nm_select_params *params, struct nm_select_state *state,
		     const struct nm_select_verdict *verdict, uint64_t bytes, uint64_t ns);
/* The verdict in words: what, and against which rates. STATE as it was given to nm_select_transfer(). */
void nm_select_explain(const struct nm_select_params *params, const struct nm_select_state *state,
		       const struct nm_select_facts *facts, const struct nm_select_verdict *verdict,
		       struct nm_reason *ret_reason);

#endif
