/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens, and the names that sources may have. An identity belongs to the address that the program
 * inserted for it: a claim from any other address is refused. If the program has not inserted it
 * yet, the first claim is taken, and put out when the address turns out to be another.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/transport.h"

/* Time between two KNOCKs: doubles from the first to the last while there is no answer. */
#define KNOCK_FIRST_NS (10 * NM_NS_PER_MS)
#define KNOCK_LAST_NS (250 * NM_NS_PER_MS)
/* An address that is not known makes room for another so long after its answer has left, */
#define ANSWERED_NS (50 * NM_NS_PER_MS)
/* or, if no answer can leave, after this time. */
#define STRANGER_NS (5000 * NM_NS_PER_MS)
/*
 * Sources with addresses that are not known: of one endpoint, and at one name. An ended one keeps
 * its record (it may have been an impostor), so all that ever were are bounded as well.
 */
#define UNKNOWN_MAX 4096
#define UNKNOWN_MAX_PER_NAME 8
#define UNKNOWN_MAX_EVER 16384
/* As many may still greet with a token that they got while there was room. */
#define UNKNOWN_SPARE 4096

#define NO_ROOM "too many sources with unknown addresses"

bool nm_net_same_name(const struct nm_address *a, const struct nm_address *b)
{
	return a->inner_len == b->inner_len && !memcmp(a->inner, b->inner, a->inner_len);
}

struct hashed {
	struct nm_address address;
	uint8_t purpose;
};

/* Bytes behind the inner name count for nothing. */
static uint64_t hash(const uint8_t *key, const struct nm_address *address, uint8_t purpose)
{
	struct hashed hashed = {
		.address = {.inner_len = address->inner_len, .who = address->who},
		.purpose = purpose,
	};

	memcpy(hashed.address.inner, address->inner, address->inner_len);
	return nm_siphash(key, &hashed, sizeof(hashed));
}

uint64_t nm_net_token(const uint8_t key[NM_SIPHASH_KEY_LEN], const struct nm_address *address)
{
	return hash(key, address, NM_NET_TOKEN);
}

uint64_t nm_net_nonce(const uint8_t key[NM_SIPHASH_KEY_LEN], const struct nm_address *address)
{
	return hash(key, address, NM_NET_KNOCK);
}

static uint64_t knock_gap(const struct nm_net_peer *peer)
{
	return nm_net_gap(peer->first_knock_ns, peer->knocked_ns, KNOCK_FIRST_NS, KNOCK_LAST_NS);
}

static int send_knock(struct net *net, struct nm_net_peer *peer)
{
	struct nm_packet pkt = {
		.len = sizeof(net->address),
		.data = nm_net_nonce(net->key, &peer->address),
	};
	struct iovec iov = {.iov_base = &net->address, .iov_len = sizeof(net->address)};

	memcpy(&pkt.tag, peer->who.place, sizeof(pkt.tag));
	return nm_net_send_one(net, peer, NM_NET_KNOCK, &pkt, &iov, 1);
}

int nm_net_knock(struct net *net, struct nm_net_peer *peer)
{
	uint64_t now = nm_clock_ns();
	int err = -EAGAIN;

	if (!peer->first_knock_ns || now - peer->knocked_ns >= knock_gap(peer))
		err = send_knock(net, peer);
	if (!err) {
		peer->knocked_ns = now;
		if (!peer->first_knock_ns)
			peer->first_knock_ns = now;
	}
	/* It answers when its program next calls MPI. Until then only its lifeline speaks for it. */
	if (peer->first_knock_ns && now - peer->first_knock_ns >= net->stuck_ns)
		nm_net_watch(net, peer);
	return err == -EPIPE || peer->state == NM_NET_DEAD ? -EPIPE : -EAGAIN;
}

void nm_net_take_token(struct net *net, const struct nm_net_header *header)
{
	struct nm_net_peer *peer = nm_net_peers_find(&net->peers, &header->source);

	if (!peer || !peer->first_knock_ns ||
	    header->tag != nm_net_nonce(net->key, &peer->address)) {
		nm_net_drop(net, "a token that was not asked for");
		return;
	}
	if (!peer->has_token)
		peer->token_out = header->data;
	peer->has_token = true;
}

/* Not kept if it cannot be sent now: the other side knocks again. Returns whether it was sent. */
static bool answer(struct net *net, struct nm_net_peer *peer, const struct nm_address *address,
		   uint64_t nonce)
{
	const struct nm_packet pkt = {.tag = nonce, .data = nm_net_token(net->key, address)};

	return !nm_net_reach(net, peer) && !nm_net_send_one(net, peer, NM_NET_TOKEN, &pkt, NULL, 0);
}

/* Of a place, knocked_ns is the time of the last answer. */
static bool is_free(const struct nm_net_peer *place, uint64_t now)
{
	if (place->in_flight)
		return false;
	if (!place->first_knock_ns || place->state == NM_NET_DEAD ||
	    now - place->first_knock_ns >= STRANGER_NS)
		return true;
	return place->knocked_ns && !place->bye_owed && now - place->knocked_ns >= ANSWERED_NS;
}

/* The place of a stranger: its own, or one that is free. NULL: there is none yet. */
static struct nm_net_peer *stranger_place(struct net *net, const struct nm_address *address,
					  uint64_t now)
{
	struct nm_net_peer *found = NULL;

	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++) {
		struct nm_net_peer *place = &net->strangers[i];

		if (place->first_knock_ns && place->state != NM_NET_DEAD &&
		    nm_net_same_name(&place->address, address))
			return place;
		if (is_free(place, now))
			found = place;
	}
	if (!found)
		return NULL;
	if (found->first_knock_ns && found->inner != FI_ADDR_UNSPEC)
		fi_av_remove(net->inner.av, &found->inner, 1, 0);
	net->nr_owed -= found->bye_owed;
	/* Nothing is owed to it, and its end is no news. */
	*found = (struct nm_net_peer){
		.state = NM_NET_CLOSED,
		.inner = FI_ADDR_UNSPEC,
		.line = -1,
		.witness = -1,
		.first_knock_ns = now,
		.address = *address,
	};
	return found;
}

static bool is_known(struct net *net, const struct nm_identity *who, struct nm_address *ret_address)
{
	return net->base.sink.known && net->base.sink.known(&net->base, who, ret_address);
}

/*
 * Whether a source may be at ADDRESS. Returns 0, and in RET_PEER its record if there is one or the
 * program knows it; or -EACCES with a reason, or -ENOMEM.
 */
static int check_name(struct net *net, const struct nm_address *address,
		      struct nm_net_peer **ret_peer, struct nm_reason *ret_reason)
{
	struct nm_net_peer *peer = nm_net_peers_find(&net->peers, &address->who);
	struct nm_address real;
	bool known = is_known(net, &address->who, &real);

	*ret_peer = peer;
	if ((known && !nm_net_same_name(address, &real)) ||
	    (peer && !nm_net_same_name(address, &peer->address))) {
		nm_reason_set(ret_reason,
			      "a process at another address claims to be " NM_WHO_FORMAT,
			      NM_WHO(&address->who));
		return -EACCES;
	}
	if (peer || !known)
		return 0;
	peer = nm_net_peers_get(&net->peers, &address->who);
	if (!peer) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	peer->address = real;
	*ret_peer = peer;
	return 0;
}

static bool has_room(const struct net *net, uint32_t spare)
{
	return net->nr_unknown < UNKNOWN_MAX + spare &&
	       net->nr_unknown_ever < UNKNOWN_MAX_EVER + spare;
}

void nm_net_take_knock(struct net *net, const struct nm_net_header *header, const uint8_t *bytes)
{
	uint64_t now = nm_clock_ns();
	struct nm_address address;
	struct nm_net_peer *peer, *place = NULL;
	struct nm_reason why;

	if (nm_net_knock_parse(bytes, header, &net->who, &address, &why) ||
	    !nm_net_inner_fits(&net->inner, &address, &why) ||
	    check_name(net, &address, &peer, &why)) {
		nm_net_drop(net, why.text);
		return;
	}
	if (!peer && !has_room(net, 0)) {
		/* It knocks again. A greeting without room would cost it its messages. */
		nm_net_drop(net, NO_ROOM);
		return;
	}
	if (!peer)
		peer = place = stranger_place(net, &address, now);
	if (!peer || peer->heard || peer->state == NM_NET_DEAD)
		return;
	if (answer(net, peer, &address, header->data) && place)
		place->knocked_ns = now;
}

static bool has_room_for(const struct net *net, const struct nm_address *address)
{
	const struct nm_net_peer *peer;
	unsigned int nr = 0;

	if (!has_room(net, UNKNOWN_SPARE))
		return false;
	for (peer = net->peers.all; peer; peer = peer->next)
		nr += peer->is_unknown && peer->state <= NM_NET_HELD &&
		      nm_net_same_name(&peer->address, address);
	return nr < UNKNOWN_MAX_PER_NAME;
}

/* The inner endpoint knows the name already: a second entry would never be removed. */
static void take_over_place(struct net *net, struct nm_net_peer *peer)
{
	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++) {
		struct nm_net_peer *place = &net->strangers[i];

		if (!place->first_knock_ns || place->bye_owed ||
		    !nm_net_same_name(&place->address, &peer->address))
			continue;
		peer->inner = place->inner;
		place->inner = FI_ADDR_UNSPEC;
		place->first_knock_ns = 0;
	}
}

struct nm_net_peer *nm_net_admit(struct net *net, const struct nm_address *address,
				 struct nm_reason *ret_reason)
{
	struct nm_net_peer *peer;

	if (check_name(net, address, &peer, ret_reason))
		return NULL;
	if (peer)
		return peer;
	if (!has_room_for(net, address)) {
		nm_reason_set(ret_reason, NO_ROOM);
		return NULL;
	}
	peer = nm_net_peers_get(&net->peers, &address->who);
	if (!peer) {
		nm_reason_set(ret_reason, "out of memory");
		return NULL;
	}
	peer->address = *address;
	peer->is_unknown = true;
	net->nr_unknown++;
	net->nr_unknown_ever++;
	take_over_place(net, peer);
	return peer;
}

void nm_net_refuse(struct net *net, const struct nm_net_hello *hello)
{
	uint64_t now = nm_clock_ns();
	struct nm_net_peer *place;
	struct nm_address real;

	/* The name is known to belong to another process: nothing is owed to this one. */
	if (is_known(net, &hello->address.who, &real) && !nm_net_same_name(&hello->address, &real))
		return;
	place = stranger_place(net, &hello->address, now);
	if (!place || place->bye_owed)
		return;
	memcpy(&place->token_out, hello->token, sizeof(hello->token));
	place->has_token = true;
	place->greeted = false;
	place->is_refused = true;
	place->tx_sequence = 0;
	place->first_knock_ns = place->knocked_ns = now;
	place->bye_owed = true;
	net->nr_owed++;
}

void nm_net_miss_greeting(struct net *net, const struct nm_net_header *header)
{
	static const char words[] = "its greeting was lost in a pause of the network";
	struct nm_net_peer *peer;
	struct nm_address real;

	/* Without the right token it may be anybody's. */
	if (!net->pause.opening || net->closing || !is_known(net, &header->source, &real) ||
	    header->token != nm_net_token(net->key, &real))
		return;
	peer = nm_net_peers_get(&net->peers, &header->source);
	if (!peer || peer->heard || peer->state > NM_NET_HELD)
		return;
	if (peer->inner == FI_ADDR_UNSPEC)
		peer->address = real;
	nm_log_once(NM_LOG_WARN, "a peer is lost: %s", words);
	nm_net_end(net, peer, NM_NET_CLOSED);
	peer->loss_err = -ECONNRESET;
	nm_reason_set(&peer->loss, "%s", words);
	peer->loss_unreported = true;
	net->nr_unreported++;
	peer->is_refused = peer->bye_owed = true;
	net->nr_owed++;
}

void nm_net_end(struct net *net, struct nm_net_peer *peer, enum nm_net_state state)
{
	if (peer->is_unknown && peer->state <= NM_NET_HELD)
		net->nr_unknown--;
	peer->state = state;
}

bool nm_net_learn(struct nm_transport *transport, const struct nm_address *address)
{
	struct net *net = nm_container_of(transport, struct net, base);
	struct nm_net_peer *peer = nm_net_peers_find(&net->peers, &address->who);

	if (!peer || !peer->is_unknown)
		return true;
	if (nm_net_same_name(&peer->address, address)) {
		net->nr_unknown -= peer->state <= NM_NET_HELD;
		net->nr_unknown_ever--;
		peer->is_unknown = false;
		return true;
	}
	/* Its packets find no source any more, and its debts are void. */
	nm_net_end(net, peer, NM_NET_DEAD);
	peer->loss_unreported = false;
	nm_net_peers_hide(peer);
	return false;
}
