/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks with messages of the network channel, through an inner endpoint. */
#include <string.h>

#include "base/clock.h"
#include "base/packet.h"
#include "net_attacks.h"

/* A message of KIND to the rank VICTIM that claims to come from WHO. */
static struct nm_net_header header_of(enum nm_net_kind kind, const struct nm_identity *who)
{
	return (struct nm_net_header){
		.magic = NM_NET_MAGIC,
		.version = NM_NET_VERSION,
		.kind = (uint8_t)kind,
		.source = *who,
	};
}

static void put_message(struct attacker *attacker, unsigned int victim,
			const struct nm_net_header *header, const void *payload)
{
	uint8_t bytes[sizeof(*header) + IN_LEN];

	memcpy(bytes, header, sizeof(*header));
	if (header->len)
		memcpy(bytes + sizeof(*header), payload, header->len);
	put(attacker, attacker->at[victim], bytes, sizeof(*header) + header->len);
}

static void put_hello(struct attacker *attacker, unsigned int victim,
		      const struct nm_address *address, uint64_t token)
{
	struct nm_net_hello hello = {.address = *address, .label.text = "attacker"};
	struct nm_net_header header = header_of(NM_NET_HELLO, &address->who);

	header.len = sizeof(hello);
	header.token = token;
	put_message(attacker, victim, &header, &hello);
}

static void put_knock(struct attacker *attacker, unsigned int victim,
		      const struct nm_address *address)
{
	struct nm_net_header header = header_of(NM_NET_KNOCK, &address->who);

	header.len = sizeof(*address);
	header.data = any_number(attacker);
	memcpy(&header.tag, attacker->ranks[victim].who.place, sizeof(header.tag));
	put_message(attacker, victim, &header, address);
}

/* Knock and greet in the own name, as any process may. True: the victim takes messages. */
static bool meet(struct attacker *attacker, unsigned int victim)
{
	look(attacker);
	if (attacker->greeted[victim])
		return true;
	if (!attacker->has_token[victim]) {
		put_knock(attacker, victim, &attacker->self);
		return false;
	}
	put_hello(attacker, victim, &attacker->self, attacker->tokens[victim]);
	attacker->greeted[victim] = true;
	attacker->sequences[victim] = 1;
	return true;
}

static struct nm_net_header own_message(struct attacker *attacker, unsigned int victim,
					enum nm_net_kind kind)
{
	struct nm_net_header header = header_of(kind, &attacker->self.who);

	header.token = attacker->tokens[victim];
	header.sequence = attacker->sequences[victim]++;
	return header;
}

/* The identity of a rank at the attacker's own address. */
static struct nm_address here(const struct attacker *attacker, unsigned int name)
{
	struct nm_address address = attacker->self;

	address.who = attacker->ranks[name].who;
	return address;
}

static void greet_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	put_hello(attacker, victim, &attacker->ranks[name], any_number(attacker) % 2);
}

static void greet_from_here(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	const struct nm_address address = here(attacker, name);

	put_hello(attacker, victim, &address, attacker->tokens[victim]);
}

static void greet_with_own_token(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	meet(attacker, victim);
	put_hello(attacker, victim, &attacker->ranks[name], attacker->tokens[victim]);
}

static void greet_as_the_victim(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	const struct nm_address address = here(attacker, victim);

	(void)name;
	put_knock(attacker, victim, &address);
	put_hello(attacker, victim, &address, attacker->tokens[victim]);
	put_hello(attacker, victim, &attacker->ranks[victim], 0);
}

static void knock_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	put_knock(attacker, victim, &attacker->ranks[name]);
}

static void knock_from_here(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	const struct nm_address address = here(attacker, name);

	put_knock(attacker, victim, &address);
}

static void knock_as_many(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_address address = attacker->self;

	(void)name;
	for (int i = 0; i < 8; i++) {
		any_bytes(attacker, &address.who, sizeof(address.who));
		put_knock(attacker, victim, &address);
	}
}

/* Ports of every kind: closed ones, the ranks', and 0. */
static void knock_for_others(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_address address = attacker->ranks[name];

	any_bytes(attacker, &address.who, sizeof(address.who));
	if (any_number(attacker) % 2)
		any_bytes(attacker, &address.inner[2], 2);
	if (any_number(attacker) % 4 == 0)
		any_bytes(attacker, &address.inner[7], 1);
	put_knock(attacker, victim, &address);
}

static void packets_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);

	header.sequence = (uint32_t)(any_number(attacker) % 16);
	header.op = (uint8_t)(any_number(attacker) % NM_PACKET_NR_OPS);
	header.tag = any_number(attacker);
	put_message(attacker, victim, &header, NULL);
}

static void sequences_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);

	header.sequence = (uint32_t)any_number(attacker);
	header.token = any_number(attacker);
	put_message(attacker, victim, &header, NULL);
}

static void payloads_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);
	uint8_t payload[IN_LEN];

	any_bytes(attacker, payload, sizeof(payload));
	any_bytes(attacker, &header.op, 1);
	header.op %= NM_PACKET_NR_OPS;
	any_bytes(attacker, &header.flags, 1);
	header.len = (uint32_t)(any_number(attacker) % sizeof(payload));
	header.sequence = 1;
	put_message(attacker, victim, &header, payload);
}

static void own_token_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);

	meet(attacker, victim);
	header.token = attacker->tokens[victim];
	header.sequence = (uint32_t)(attacker->nr_steps % 64);
	put_message(attacker, victim, &header, NULL);
}

static void kind_in_names(struct attacker *attacker, unsigned int victim, unsigned int name,
			  enum nm_net_kind kind)
{
	struct nm_net_header header = header_of(kind, &attacker->ranks[name].who);

	for (header.sequence = 1; header.sequence < 4; header.sequence++)
		put_message(attacker, victim, &header, NULL);
}

static void bye_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	kind_in_names(attacker, victim, name, NM_NET_BYE);
}

static void bye_seen_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	kind_in_names(attacker, victim, name, NM_NET_BYE_SEEN);
}

static void ping_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	kind_in_names(attacker, victim, name, NM_NET_PING);
}

static void token_in_names(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_TOKEN, &attacker->ranks[name].who);

	header.data = any_number(attacker);
	header.tag = any_number(attacker) % 2 ? any_number(attacker) : 0;
	put_message(attacker, victim, &header, NULL);
}

static void kinds_unknown(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);

	header.kind = (uint8_t)any_number(attacker);
	header.op = (uint8_t)any_number(attacker);
	header.version = (uint8_t)(NM_NET_VERSION + any_number(attacker) % 2);
	put_message(attacker, victim, &header, NULL);
}

static void too_short(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);

	header.sequence = 1;
	put(attacker, attacker->at[victim], &header, any_number(attacker) % sizeof(header));
}

static void too_long(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	static uint8_t bytes[MESSAGE_MAX];
	const struct nm_net_header header = header_of(NM_NET_PACKET, &attacker->ranks[name].who);

	memcpy(bytes, &header, sizeof(header));
	put(attacker, attacker->at[victim], bytes, sizeof(bytes));
}

static void rubbish(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	uint8_t bytes[512];

	(void)name;
	any_bytes(attacker, bytes, sizeof(bytes));
	put(attacker, attacker->at[victim], bytes, 1 + any_number(attacker) % sizeof(bytes));
}

static void hello_malformed(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_hello hello = {.address = attacker->ranks[name]};
	struct nm_net_header header = header_of(NM_NET_HELLO, &hello.address.who);

	memset(&hello.label, 0xff, sizeof(hello.label));
	any_bytes(attacker, &hello.address.inner_len, 1);
	any_bytes(attacker, &hello.address.inner[attacker->nr_steps % NM_INNER_MAX], 1);
	header.len = (uint32_t)(any_number(attacker) % (sizeof(hello) + 1));
	put_message(attacker, victim, &header, &hello);
}

/* Operations that refer to what the victim has, none of which is a message for its program. */
static void own_hostile_packets(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header;
	uint8_t payload[128];

	(void)name;
	if (!meet(attacker, victim))
		return;
	header = own_message(attacker, victim, NM_NET_PACKET);
	any_bytes(attacker, payload, sizeof(payload));
	/* 1 and 2 carry messages (engine/protocol.h). */
	header.op = (uint8_t)(3 + any_number(attacker) % (NM_PACKET_NR_OPS - 3));
	header.flags = (uint8_t)any_number(attacker);
	header.tag = any_number(attacker);
	header.data = any_number(attacker) % 64;
	header.len = (uint32_t)(any_number(attacker) % sizeof(payload));
	put_message(attacker, victim, &header, payload);
}

static void own_sequence_wrong(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header;

	(void)name;
	if (!meet(attacker, victim))
		return;
	header = own_message(attacker, victim, NM_NET_PACKET);
	header.sequence += 7;
	put_message(attacker, victim, &header, NULL);
}

static void own_bye_again(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header;

	(void)name;
	if (!meet(attacker, victim))
		return;
	for (int i = 0; i < 4; i++) {
		header = own_message(attacker, victim, i % 2 ? NM_NET_BYE_SEEN : NM_NET_BYE);
		put_message(attacker, victim, &header, NULL);
	}
}

static void own_end_without_bye(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	if (!meet(attacker, victim) || attacker->nr_steps % 64)
		return;
	attacker_close(attacker);
	attacker_open(attacker);
}

static void own_many_identities(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	if (!meet(attacker, victim))
		return;
	/* The next knock gets another token. */
	attacker->has_token[victim] = attacker->greeted[victim] = false;
	any_bytes(attacker, &attacker->self.who, sizeof(attacker->self.who));
}

static void own_lifeline_elsewhere(struct attacker *attacker, unsigned int victim,
				   unsigned int name)
{
	const struct nm_address *other = &attacker->ranks[name];
	size_t len = attacker->inner.name_len;

	memcpy(&attacker->self.inner[len - 2], &other->inner[len - 2], 2);
	if (attacker->nr_steps % 2)
		any_bytes(attacker, &attacker->self.inner[len - 2], 2);
	meet(attacker, victim);
	attacker->has_token[victim] = attacker->greeted[victim] = false;
}

static void replay_to_others(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	struct nm_net_header header;

	if (!meet(attacker, name))
		return;
	/* What one rank took is sent to all, again and again. */
	put_hello(attacker, victim, &attacker->self, attacker->tokens[name]);
	put_hello(attacker, name, &attacker->self, attacker->tokens[name]);
	header = header_of(NM_NET_PING, &attacker->self.who);
	header.token = attacker->tokens[name];
	header.sequence = 1;
	put_message(attacker, victim, &header, NULL);
}

/* The answers fill what lies between, because nothing of the attacker's takes them. */
static void knock_and_take_nothing(struct attacker *attacker, unsigned int victim,
				   unsigned int name)
{
	(void)name;
	for (int i = 0; i < 16; i++) {
		struct nm_net_header header = header_of(NM_NET_KNOCK, &attacker->self.who);
		struct out *out = &attacker->out[attacker->nr_steps * 16 % NR_OUT];

		header.len = sizeof(attacker->self);
		header.data = any_number(attacker);
		memcpy(&header.tag, attacker->ranks[victim].who.place, sizeof(header.tag));
		memcpy(out->bytes, &header, sizeof(header));
		memcpy(out->bytes + sizeof(header), &attacker->self, sizeof(attacker->self));
		if (!fi_inject(attacker->inner.ep, out->bytes,
			       sizeof(header) + sizeof(attacker->self), attacker->at[victim]))
			attacker->done++;
	}
	/* Connections need it now and then. */
	if (attacker->nr_steps % 256 < 16)
		look(attacker);
}

const struct attack inner_attacks[] = {
	{"greet-in-names", "Greet in the name and with the address of each other rank.",
	 greet_in_names},
	{"greet-from-here", "Greet in the name of a rank with the attacker's own address.",
	 greet_from_here},
	{"greet-with-own-token", "Greet in the name of a rank with a token for another name.",
	 greet_with_own_token},
	{"greet-as-the-victim", "Greet a rank in its own name.", greet_as_the_victim},
	{"knock-in-names", "Ask for tokens that the ranks get.", knock_in_names},
	{"knock-from-here", "Ask for the token of a rank at the attacker's address.",
	 knock_from_here},
	{"knock-as-many", "Ask for tokens of very many identities.", knock_as_many},
	{"knock-for-others", "Have ranks connect to ports of third parties and to closed ones.",
	 knock_for_others},
	{"knock-and-take-nothing", "Ask for tokens and never read the answers.",
	 knock_and_take_nothing},
	{"packets-in-names", "Forge packets with the numbers that come next.", packets_in_names},
	{"sequences-in-names", "Forge packets with wrong numbers and random tokens.",
	 sequences_in_names},
	{"payloads-in-names", "Forge packets with random payloads.", payloads_in_names},
	{"own-token-in-names", "Forge packets with the attacker's own token.", own_token_in_names},
	{"bye-in-names", "Forge the goodbye of each other rank.", bye_in_names},
	{"bye-seen-in-names", "Forge answers to goodbyes.", bye_seen_in_names},
	{"ping-in-names", "Forge questions for life.", ping_in_names},
	{"token-in-names", "Forge tokens of each other rank.", token_in_names},
	{"kinds-unknown", "Send messages of every kind and version.", kinds_unknown},
	{"too-short", "Send messages shorter than a header.", too_short},
	{"too-long", "Send messages longer than any buffer.", too_long},
	{"rubbish", "Send random bytes as messages.", rubbish},
	{"hello-malformed", "Greet with damaged addresses, labels and lengths.", hello_malformed},
	{"own-hostile-packets", "Greet properly, then send packets that no correct peer sends.",
	 own_hostile_packets},
	{"own-sequence-wrong", "Greet properly, then leave out messages.", own_sequence_wrong},
	{"own-bye-again", "Say goodbye, and again.", own_bye_again},
	{"own-end-without-bye", "Greet properly and vanish, again and again.", own_end_without_bye},
	{"own-many-identities", "Greet properly under very many identities.", own_many_identities},
	{"own-lifeline-elsewhere", "Claim the lifeline of a rank, and closed ports.",
	 own_lifeline_elsewhere},
	{"replay-to-others", "Send to each rank what another rank took.", replay_to_others},
};
const unsigned int nr_inner_attacks = sizeof(inner_attacks) / sizeof(inner_attacks[0]);
