/* SPDX-License-Identifier: Apache-2.0 */
#include "forger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static void listen_again(struct forger *forger)
{
	NM_CHECK_EQ(fi_recv(forger->inner.ep, forger->in, FORGER_BYTES, NULL, FI_ADDR_UNSPEC,
			    &forger->contexts[0]),
		    0);
}

struct forger *forger_create(void)
{
	struct forger *forger = calloc(1, sizeof(*forger));
	struct nm_reason why = {""};

	NM_CHECK(forger != NULL);
	if (nm_net_inner_open("tcp", 64, false, &forger->inner, &why))
		nm_test_fail(__FILE__, __LINE__, "%s", why.text);
	forger->address.version = NM_ADDRESS_VERSION;
	NM_CHECK_EQ(nm_identity_create(&forger->address.who), 0);
	forger->address.inner_len = forger->inner.name_len;
	memcpy(forger->address.inner, forger->inner.name, sizeof(forger->inner.name));
	listen_again(forger);
	return forger;
}

void forger_destroy(struct forger *forger)
{
	nm_net_inner_close(&forger->inner);
	free(forger);
}

bool forger_step(struct forger *forger)
{
	struct fi_cq_msg_entry entry;

	if (fi_cq_read(forger->inner.cq, &entry, 1) != 1)
		return false;
	if (entry.op_context != &forger->contexts[0]) {
		forger->sent = true;
		return true;
	}
	memcpy(&forger->last, forger->in, sizeof(forger->last));
	memcpy(forger->payload, forger->in + sizeof(forger->last),
	       entry.len - sizeof(forger->last));
	forger->heard = true;
	listen_again(forger);
	return true;
}

void forge(struct forger *forger, struct node *to, struct nm_net_header header, const void *payload)
{
	fi_addr_t at;
	ssize_t err;

	NM_CHECK_EQ(fi_av_insert(forger->inner.av, to->address.inner, 1, &at, 0, NULL), 1);
	header.magic = NM_NET_MAGIC;
	header.version = NM_NET_VERSION;
	memcpy(forger->out, &header, sizeof(header));
	if (header.len)
		memcpy(forger->out + sizeof(header), payload, header.len);
	do {
		forger->sent = false;
		err = fi_send(forger->inner.ep, forger->out, sizeof(header) + header.len, NULL, at,
			      &forger->contexts[1]);
		forger_step(forger);
		node_progress(to);
	} while (err == -FI_EAGAIN);
	NM_CHECK_EQ(err, 0);
	for (; !forger->sent; forger_step(forger))
		node_progress(to);
}

void forge_knock(struct forger *forger, struct node *to, const struct nm_address *claimed,
		 uint64_t nonce)
{
	struct nm_net_header header = {
		.kind = NM_NET_KNOCK,
		.data = nonce,
		.source = claimed->who,
		.len = sizeof(*claimed),
	};

	memcpy(&header.tag, to->address.who.place, sizeof(header.tag));
	forger->heard = false;
	forge(forger, to, header, claimed);
}

void forge_hello(struct forger *forger, struct node *to, const struct nm_address *claimed,
		 uint64_t token)
{
	const struct nm_net_hello hello = {.address = *claimed, .label.text = "forger"};
	const struct nm_net_header header = {
		.kind = NM_NET_HELLO,
		.source = claimed->who,
		.len = sizeof(hello),
		.token = token,
	};

	forge(forger, to, header, &hello);
}

void forger_wait(struct forger *forger, struct node *node)
{
	uint64_t end = nm_clock_ns() + FORGER_QUIET_MS * NM_NS_PER_MS;

	/* The turns count too: the machine may stand still for that time. */
	for (unsigned int turn = 0; turn < FORGER_QUIET_MS / 3 || nm_clock_ns() < end; turn++)
		if (!node_progress(node) && !forger_step(forger))
			nm_test_sleep_ms(1);
}

uint64_t forger_ask_token(struct forger *forger, struct node *of, const struct nm_address *claimed)
{
	uint64_t nonce = 77;

	forge_knock(forger, of, claimed, nonce);
	while (!forger->heard) {
		/* What cannot be sent at once is not kept. */
		forge_knock(forger, of, claimed, ++nonce);
		forger_wait(forger, of);
	}
	NM_CHECK_EQ(forger->last.kind, NM_NET_TOKEN);
	NM_CHECK(forger->last.tag >= 77 && forger->last.tag <= nonce);
	NM_CHECK(nm_identity_equal(&forger->last.source, &of->address.who));
	return forger->last.data;
}
