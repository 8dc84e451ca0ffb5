/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What arrives at the network endpoint. The input is a message; so that the fuzzer gets past the
 * secret, bytes of it that stand where the secret does are replaced when the first one is even.
 */
#include <stdlib.h>
#include <string.h>

#include "base/packet.h"
#include "net/wire.h"

enum { MAX_PAYLOAD = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void expect(int condition)
{
	if (!condition)
		abort();
}

static void check_hello(const uint8_t *payload, const struct nm_net_header *header)
{
	struct nm_net_hello hello;
	struct nm_reason why = {""};
	size_t i;

	memset(&hello, 0xee, sizeof(hello));
	if (nm_net_hello_parse(payload, header, &hello, &why)) {
		expect(why.text[0] != '\0');
		expect(hello.address.version == 0xee);
		return;
	}
	expect(nm_identity_equal(&hello.address.who, &header->source));
	expect(hello.address.version == NM_ADDRESS_VERSION);
	expect(hello.address.inner_len <= NM_INNER_MAX);
	for (i = 0; hello.label.text[i]; i++)
		expect(i < sizeof(hello.label.text) && hello.label.text[i] >= 0x20 &&
		       hello.label.text[i] <= 0x7e);
}

static void fit(uint8_t *message, size_t len, const struct nm_identity *me)
{
	struct nm_net_header header;

	memcpy(&header, message, sizeof(header));
	header.magic = NM_NET_MAGIC;
	header.version = NM_NET_VERSION;
	memcpy(header.target_token, me->token, sizeof(me->token));
	header.len = (uint32_t)(len - sizeof(header));
	memcpy(message, &header, sizeof(header));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const struct nm_identity me = {.id = {1}, .token = {2, 3, 4}};
	struct nm_net_header header;
	struct nm_reason why = {""};
	uint8_t *message;

	if (!len)
		return 0;
	/* A block of its own, so that reading past it is seen. */
	message = malloc(len - 1 + !(len - 1));
	if (!message)
		return 0;
	memcpy(message, bytes + 1, len - 1);
	if (bytes[0] % 2 == 0 && len - 1 >= sizeof(header))
		fit(message, len - 1, &me);
	memset(&header, 0xee, sizeof(header));
	if (nm_net_header_parse(message, len - 1, &me, MAX_PAYLOAD, &header, &why)) {
		expect(why.text[0] != '\0');
		expect(header.magic == 0xeeeeeeee);
	} else {
		expect(header.len <= MAX_PAYLOAD && header.len == len - 1 - sizeof(header));
		expect(header.op < NM_PACKET_NR_OPS);
		expect(header.kind >= NM_NET_HELLO && header.kind <= NM_NET_BYE_SEEN);
		expect(!memcmp(header.target_token, me.token, sizeof(me.token)));
		check_hello(message + sizeof(header), &header);
	}
	free(message);
	return 0;
}
