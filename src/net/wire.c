/* SPDX-License-Identifier: Apache-2.0 */
#include "net/wire.h"

#include <errno.h>
#include <string.h>

#include "base/packet.h"

static int refuse(struct nm_reason *ret_reason, const char *what, unsigned long long value)
{
	nm_reason_set(ret_reason, "%s (%llu)", what, value);
	return -EBADMSG;
}

int nm_net_header_parse(const void *bytes, size_t len, uint32_t max_payload,
			struct nm_net_header *ret_header, struct nm_reason *ret_reason)
{
	struct nm_net_header header;

	if (len < sizeof(header))
		return refuse(ret_reason, "message shorter than a header", len);
	memcpy(&header, bytes, sizeof(header));
	if (header.magic != NM_NET_MAGIC)
		return refuse(ret_reason, "not a message of nearmetal, or of another byte order",
			      header.magic);
	if (header.version != NM_NET_VERSION)
		return refuse(ret_reason,
			      "message of another wire version; use one release of "
			      "nearmetal everywhere",
			      header.version);
	if (header.kind < NM_NET_PACKET || header.kind > NM_NET_RESUMED)
		return refuse(ret_reason, "message of unknown kind", header.kind);
	if (header.len > max_payload || header.len != len - sizeof(header))
		return refuse(ret_reason, "message length differs from its header", header.len);
	if (header.op >= NM_PACKET_NR_OPS)
		return refuse(ret_reason, "packet of unknown operation", header.op);
	*ret_header = header;
	return 0;
}

static int take_address(const void *bytes, const struct nm_net_header *header,
			struct nm_address *ret_address, struct nm_reason *ret_reason)
{
	struct nm_address address;

	if (nm_address_parse(bytes, sizeof(address), &address) ||
	    !nm_identity_equal(&address.who, &header->source))
		return refuse(ret_reason, "an address that is not its sender's", 0);
	*ret_address = address;
	return 0;
}

int nm_net_knock_parse(const void *bytes, const struct nm_net_header *header,
		       const struct nm_identity *me, struct nm_address *ret_address,
		       struct nm_reason *ret_reason)
{
	if (header->len != sizeof(*ret_address))
		return refuse(ret_reason, "request for a token of wrong length", header->len);
	if (memcmp(&header->tag, me->place, sizeof(header->tag)))
		return refuse(ret_reason, "request for a token of another endpoint", 0);
	return take_address(bytes, header, ret_address, ret_reason);
}

int nm_net_hello_parse(const void *bytes, const struct nm_net_header *header,
		       struct nm_net_hello *ret_hello, struct nm_reason *ret_reason)
{
	struct nm_net_hello hello;
	size_t i;

	if (header->len != sizeof(hello))
		return refuse(ret_reason, "greeting of wrong length", header->len);
	memcpy(&hello, bytes, sizeof(hello));
	if (take_address(&hello.address, header, &hello.address, ret_reason))
		return -EBADMSG;
	hello.label.text[sizeof(hello.label.text) - 1] = '\0';
	for (i = 0; hello.label.text[i]; i++)
		if (hello.label.text[i] < 0x20 || hello.label.text[i] > 0x7e)
			hello.label.text[i] = '?';
	*ret_hello = hello;
	return 0;
}
