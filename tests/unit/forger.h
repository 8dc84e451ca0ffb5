/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forger is an inner endpoint of its own. It sends any bytes to the nodes of the suite, and sees
 * what is sent to it. For programs with a libfabric beside them.
 */
#ifndef NM_TEST_FORGER_H
#define NM_TEST_FORGER_H

#include "net/transport.h"
#include "transport_fixture.h"

#define FORGER_QUIET_MS 300 /* nothing comes: it had this long */
#define FORGER_BYTES 512

struct forger {
	struct nm_net_inner inner;
	struct nm_address address; /* its own */
	struct fi_context2 contexts[2];
	uint8_t in[FORGER_BYTES], out[FORGER_BYTES];
	bool heard, sent;
	struct nm_net_header last; /* of what it heard */
	uint8_t payload[FORGER_BYTES];
};

/* After the first node, which looks up libfabric. */
struct forger *forger_create(void);
void forger_destroy(struct forger *forger);
/* Returns true when something of the forger's was done. */
bool forger_step(struct forger *forger);
/* The forger and NODE go on for a while. */
void forger_wait(struct forger *forger, struct node *node);
/* Send a message to NODE; the bytes that every message has are filled in. */
void forge(struct forger *forger, struct node *to, struct nm_net_header header,
	   const void *payload);
/* Sets `heard` to false. */
void forge_knock(struct forger *forger, struct node *to, const struct nm_address *claimed,
		 uint64_t nonce);
void forge_hello(struct forger *forger, struct node *to, const struct nm_address *claimed,
		 uint64_t token);
/* Knock in the name of CLAIMED, which is an address of the forger, and return the token. */
uint64_t forger_ask_token(struct forger *forger, struct node *of, const struct nm_address *claimed);

static inline struct net *net_of(const struct node *node)
{
	return nm_container_of(node->transport, struct net, base);
}

#endif
