/* SPDX-License-Identifier: Apache-2.0 */
#include "net/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_SLOTS 64

int nm_net_peers_init(struct nm_net_peers *peers)
{
	peers->all = NULL;
	peers->nr = 0;
	peers->nr_slots = FIRST_SLOTS;
	peers->slots = calloc(peers->nr_slots, sizeof(*peers->slots));
	return peers->slots ? 0 : -ENOMEM;
}

void nm_net_peer_drop_early(struct nm_net_peer *peer)
{
	while (peer->early) {
		struct nm_net_early *early = peer->early;

		peer->early = early->next;
		free(early);
	}
	peer->nr_early = 0;
}

void nm_net_peers_fini(struct nm_net_peers *peers)
{
	struct nm_net_peer *peer, *next;

	for (peer = peers->all; peer; peer = next) {
		next = peer->next;
		if (peer->line >= 0)
			close(peer->line);
		if (peer->witness >= 0)
			close(peer->witness);
		nm_net_peer_drop_early(peer);
		free(peer);
	}
	free(peers->slots);
	peers->all = NULL;
	peers->slots = NULL;
}

static struct nm_net_peer **find_slot(struct nm_net_peer **slots, uint64_t nr_slots,
				      const struct nm_identity *who)
{
	uint64_t i = nm_identity_hash(who) >> 32;

	for (;; i++) {
		struct nm_net_peer **slot = &slots[i & (nr_slots - 1)];

		if (!*slot || nm_identity_equal(&(*slot)->who, who))
			return slot;
	}
}

struct nm_net_peer *nm_net_peers_find(const struct nm_net_peers *peers,
				      const struct nm_identity *who)
{
	return *find_slot(peers->slots, peers->nr_slots, who);
}

void nm_net_peers_hide(struct nm_net_peer *peer)
{
	uint64_t unique = (uintptr_t)peer;

	/* It keeps its slot: the search for those after it goes on there. */
	memset(&peer->who, 0, sizeof(peer->who));
	memcpy(peer->who.place, &unique, sizeof(unique));
}

static int grow(struct nm_net_peers *peers)
{
	uint64_t nr_slots = peers->nr_slots * 2;
	struct nm_net_peer **slots = calloc(nr_slots, sizeof(*slots)), *peer;

	if (!slots)
		return -ENOMEM;
	for (peer = peers->all; peer; peer = peer->next)
		*find_slot(slots, nr_slots, &peer->who) = peer;
	free(peers->slots);
	peers->slots = slots;
	peers->nr_slots = nr_slots;
	return 0;
}

struct nm_net_peer *nm_net_peers_get(struct nm_net_peers *peers, const struct nm_identity *who)
{
	struct nm_net_peer *peer = nm_net_peers_find(peers, who);

	if (peer)
		return peer;
	if (peers->nr_slots < 2 * (peers->nr + 1) && grow(peers))
		return NULL;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->who = *who;
	peer->inner = FI_ADDR_UNSPEC;
	peer->line = peer->witness = -1;
	peer->next = peers->all;
	peers->all = peer;
	peers->nr++;
	*find_slot(peers->slots, peers->nr_slots, who) = peer;
	return peer;
}
