/* SPDX-License-Identifier: Apache-2.0 */
/* What UCX's own log says of this transport at UCX_LOG_LEVEL=data: each message, by UCX's tracer. */
#include <string.h>

#include "ucx/face.h"

NM_COLD void nm_ucx_trace(const struct nm_ucx_iface *iface, uct_am_trace_type_t type, uint8_t id,
			  const void *bytes, size_t len)
{
	char text[256] = "";

	if (iface->base.am_tracer)
		iface->base.am_tracer(iface->base.am_tracer_arg, type, id, bytes, len, text,
				      sizeof(text) - 1);
	ucs_trace_data("nearmetal %s am_id %u len %zu %s",
		       type == UCT_AM_TRACE_TYPE_SEND ? "TX" : "RX", id, len, text);
}

NM_COLD void nm_ucx_trace_sent(struct nm_ucx_iface *iface, const struct nm_packet *packet,
			       const void *payload)
{
	size_t header_len = nm_ucx_header_len(packet);

	/* The payload may be there already. */
	if (packet->len)
		memmove(iface->outgoing + header_len, payload, packet->len);
	memcpy(iface->outgoing, &packet->tag, header_len);
	nm_ucx_trace(iface, UCT_AM_TRACE_TYPE_SEND, packet->op, iface->outgoing,
		     header_len + packet->len);
}
