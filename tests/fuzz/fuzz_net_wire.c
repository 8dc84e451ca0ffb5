/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What arrives at the network endpoint. The input is a message. If its first byte is even, the bytes
 * that a message must have are replaced, so that the fuzzer gets past them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/packet.h"
#include "net/wire.h"
#include "target.h"

enum { MAX_PAYLOAD = 4096 };

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

static void check_knock(const uint8_t *payload, const struct nm_net_header *header,
			const struct nm_identity *me)
{
	struct nm_address address;
	struct nm_reason why = {""};

	memset(&address, 0xee, sizeof(address));
	if (nm_net_knock_parse(payload, header, me, &address, &why)) {
		expect(why.text[0] != '\0');
		expect(address.version == 0xee);
		return;
	}
	expect(nm_identity_equal(&address.who, &header->source));
	expect(address.version == NM_ADDRESS_VERSION);
	expect(address.inner_len <= NM_INNER_MAX);
}

static void fit(uint8_t *message, size_t len, const struct nm_identity *me)
{
	struct nm_net_header header;

	memcpy(&header, message, sizeof(header));
	header.magic = NM_NET_MAGIC;
	header.version = NM_NET_VERSION;
	if (header.kind == NM_NET_KNOCK)
		memcpy(&header.tag, me->place, sizeof(me->place));
	header.len = (uint32_t)(len - sizeof(header));
	memcpy(message, &header, sizeof(header));
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	const struct nm_identity me = {.id = {1}, .place = {2, 3, 4}};
	struct nm_net_header header;
	struct nm_reason why = {""};
	uint8_t *message;

	if (!len)
		return;
	/* A block of its own, so that reading past it is seen. */
	message = malloc(len - 1 + !(len - 1));
	if (!message)
		return;
	memcpy(message, bytes + 1, len - 1);
	if (bytes[0] % 2 == 0 && len - 1 >= sizeof(header))
		fit(message, len - 1, &me);
	memset(&header, 0xee, sizeof(header));
	if (nm_net_header_parse(message, len - 1, MAX_PAYLOAD, &header, &why)) {
		expect(why.text[0] != '\0');
		expect(header.magic == 0xeeeeeeee);
	} else {
		expect(header.len <= MAX_PAYLOAD && header.len == len - 1 - sizeof(header));
		expect(header.op < NM_PACKET_NR_OPS);
		expect(header.kind >= NM_NET_PACKET && header.kind <= NM_NET_RESUMED);
		check_hello(message + sizeof(header), &header);
		check_knock(message + sizeof(header), &header, &me);
	}
	free(message);
}
