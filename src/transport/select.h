/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choice of the channel and protocol for a message. Functions of facts and of rates reached before,
 * without clock, I/O or hidden state. So every decision can be explained, and tested with invented
 * rates.
 *
 * Two levels. The *prior* comes from a calibration, or from the defaults: good enough to start.
 * After that the rate reached during the job decides, because a virtual processor may move between
 * cache domains at any time, and the best protocol of one is the worst of another. The receiver of
 * a transfer chooses. It learns from every transfer that ends and changes only for a clear margin.
 * At times it tries another protocol for a few messages, in at most one part in
 * NM_SELECT_PROBE_SHARE of the time.
 *
 * No threads of its own; a state belongs to one engine.
 */
#ifndef NM_TRANSPORT_SELECT_H
#define NM_TRANSPORT_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

enum nm_protocol {
	NM_PROTOCOL_EAGER,     /* payload in the same packet as the envelope */
	NM_PROTOCOL_POOL,      /* two copies, through the sender's pool or the network's packets */
	NM_PROTOCOL_POOL_PAST, /* the same, copied in past the sender's cache */
	NM_PROTOCOL_PULL,      /* one copy: the receiver reads the sender's memory */
	NM_PROTOCOL_BOTH, /* one copy: the receiver reads one half, the sender writes the other */
	NM_PROTOCOL_HEAP, /* one copy: the receiver reads the sender's heap, which it has mapped */
	NM_NR_PROTOCOLS,
};

/* "eager", "pool", "pool past cache", "pull", "both halves", "heap" */
const char *nm_protocol_name(enum nm_protocol protocol);

/* Facts about a peer before a channel is tried. */
struct nm_select_peer {
	bool is_self;
	bool has_network_address;
};

/* True if a channel of KIND can reach such a peer. Such kinds are tried by rank. */
bool nm_select_reaches(const struct nm_transport_kind *kind, const struct nm_select_peer *peer);

/* The sender's choice: true if a message of SIZE is sent together with its envelope. */
static inline bool nm_select_eager(uint64_t size, uint32_t eager_max)
{
	return size <= eager_max;
}

/*
 * Two transfers are alike if their sizes are of one class (up to 64 KiB, 256 KiB, 1 MiB, more; a
 * class includes its upper bound) and both are alone, or both in a stream.
 */
#define NM_SELECT_NR_CLASSES 4
enum nm_select_load {
	NM_SELECT_LONE,	  /* no other transfer from this peer is under way */
	NM_SELECT_STREAM, /* another transfer is under way */
	NM_SELECT_NR_LOADS,
};
unsigned int nm_select_class(uint64_t size);

#define NM_SELECT_PROBE_SHARE 50

/* Results of a calibration, and the cost of further measurements. MB are 10^6 bytes. */
struct nm_select_params {
	/* MB/s; 0: not used before a first try */
	uint32_t prior[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS][NM_NR_PROTOCOLS];
	/* the same for peers that are known to share no cache with this endpoint */
	uint32_t prior_far[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS][NM_NR_PROTOCOLS];
	uint32_t probe_ms;	 /* least time between two tries of another protocol */
	uint32_t probe_choices;	 /* least number of choices between two tries */
	uint32_t margin_percent; /* another protocol must be better by this margin */
};

/* Good for a current x86 server, both placements; measured: docs/design/bulk.md. */
extern const struct nm_select_params nm_select_defaults;
/* The values in use: this machine's calibration (tuning.h), or the defaults. Reads files once. */
const struct nm_select_params *nm_select_params(void);

/* Rates reached with one protocol. */
struct nm_select_arm {
	uint32_t mbps;	   /* 0: not known */
	uint64_t tried_ns; /* time of its last try */
};

struct nm_select_cell {
	struct nm_select_arm arms[NM_NR_PROTOCOLS];
	enum nm_protocol current; /* EAGER: none yet */
	enum nm_protocol probe;	  /* the protocol on trial while probe_left > 0 */
	uint32_t probe_left;	  /* number of choices */
	uint32_t since_probe;	  /* number of choices */
	uint64_t probe_ns;	  /* time spent on trials */
	uint64_t next_probe_ns;
};

/* State of the transfers from one peer. All zero: nothing learnt. */
struct nm_select_state {
	struct nm_select_cell cells[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS];
};

/* A transfer that is about to begin, seen by its receiver. */
struct nm_select_facts {
	uint64_t size;
	uint32_t outstanding; /* other transfers from this peer under way */
	bool remote_copy;     /* either side may copy from and to the other's memory */
	bool in_heap;	      /* the message is in memory of the sender that the receiver maps */
	bool far;	      /* known to share no cache; false: unknown */
	uint64_t now_ns;
};

enum nm_select_why {
	NM_SELECT_BECAUSE_RATE,	 /* the best rate, reached or calibrated */
	NM_SELECT_BECAUSE_PROBE, /* tried again: its rate may have changed */
};

struct nm_select_verdict {
	enum nm_protocol protocol;
	enum nm_select_why why;
	uint8_t class, load; /* place to record the reached rate */
	bool far;	     /* the prior that decided */
};

/*
 * Choose for one transfer. Deterministic: the same parameters, state and facts give the same
 * verdict. STATE remembers the protocol on trial; NULL: decide from the parameters alone.
 */
struct nm_select_verdict nm_select_transfer(const struct nm_select_params *params,
					    struct nm_select_state *state,
					    const struct nm_select_facts *facts);
/* BYTES were transferred in NS under VERDICT. */
void nm_select_learn(const struct nm_select_params *params, struct nm_select_state *state,
		     const struct nm_select_verdict *verdict, uint64_t bytes, uint64_t ns);
/* The verdict as text, with the compared rates. STATE as passed to nm_select_transfer(). */
void nm_select_explain(const struct nm_select_params *params, const struct nm_select_state *state,
		       const struct nm_select_facts *facts, const struct nm_select_verdict *verdict,
		       struct nm_reason *ret_reason);

#endif
