/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attacker of test_attacks_net.py: it has the address of every rank of a job, an inner endpoint
 * of its own, and sockets. An attack is a table row; its step is repeated until the job has ended.
 */
#ifndef NM_TEST_NET_ATTACKS_H
#define NM_TEST_NET_ATTACKS_H

#include "net/inner.h"
#include "net/wire.h"

enum {
	RANKS_MAX = 16,
	MESSAGE_MAX = 70000, /* longer than any message of nearmetal */
	NR_OUT = 32,
	NR_IN = 16,
	IN_LEN = 4096,
	NR_HELD = 1500, /* connections that are held open at once: more than the ranks may */
};

struct out {
	struct fi_context2 context;
	bool busy;
	uint8_t bytes[MESSAGE_MAX];
};

struct in {
	struct fi_context2 context;
	uint8_t bytes[IN_LEN];
};

struct attacker {
	struct nm_net_inner inner;
	struct nm_address self;
	struct nm_address ranks[RANKS_MAX];
	fi_addr_t at[RANKS_MAX]; /* of the ranks, in the inner endpoint */
	unsigned int nr_ranks;
	struct out *out;
	struct in in[NR_IN];
	/* what it was given when it knocked as itself, and what it has sent since */
	uint64_t tokens[RANKS_MAX];
	bool has_token[RANKS_MAX], greeted[RANKS_MAX];
	uint32_t sequences[RANKS_MAX];
	int held[NR_HELD];
	unsigned int next_held;
	uint64_t random;
	uint64_t nr_steps;
	uint64_t done; /* messages sent and connections made */
};

struct attack {
	const char *name;
	const char *words;
	/* Attack the rank VICTIM in the name of the rank NAME, which is another. */
	void (*step)(struct attacker *attacker, unsigned int victim, unsigned int name);
};

extern const struct attack inner_attacks[], socket_attacks[];
extern const unsigned int nr_inner_attacks, nr_socket_attacks;

uint64_t any_number(struct attacker *attacker);
void any_bytes(struct attacker *attacker, void *bytes, size_t len);
/* Send LEN bytes to an inner endpoint; gives up after a while. */
void put(struct attacker *attacker, fi_addr_t to, const void *bytes, size_t len);
/* Take in what has arrived. */
void look(struct attacker *attacker);
/* Open the inner endpoint with a new identity. */
void attacker_open(struct attacker *attacker);
void attacker_close(struct attacker *attacker);

#endif
