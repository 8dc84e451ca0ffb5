/* SPDX-License-Identifier: Apache-2.0 */
/* What the UCX face writes to UCX's own log: traces of messages, and the faults of calls. */
#include <stdio.h>
#include <string.h>

#include "ucs_log.h"
#include "ucx_fixture.h"

static unsigned int nr_traced;

/* UCX's: it reads the bytes of the message. */
static void trace(void *arg, uct_am_trace_type_t type, uint8_t id, const void *data, size_t len,
		  char *text, size_t max)
{
	NM_CHECK(arg == &nr_traced && type == UCT_AM_TRACE_TYPE_SEND);
	NM_CHECK(id == 5 && max == 255);
	snprintf(text, max, "seen %.*s", (int)len, (const char *)data);
	nr_traced++;
}

NM_TEST(messages_are_traced_if_ucx_logs_data)
{
	const uct_iov_t iov[2] = {{(void *)"abcdefghi", 9, NULL, 0, 1},
				  {(void *)"jk", 2, NULL, 0, 1}};
	struct nm_ucx_ep *ep;
	uint64_t header;

	start();
	face->base.am_tracer = trace;
	face->base.am_tracer_arg = &nr_traced;
	ep = connect_ep();
	memcpy(&header, "ABCDEFGH", sizeof(header));
	nr_ucs_lines = 0;
	NM_CHECK_EQ(nm_ucx_ep_am_short(&ep->super, 5, header, "IJ", 2), UCS_OK);
	NM_CHECK_EQ(nr_ucs_lines + nr_traced, 0);
	ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_TRACE_DATA;
	NM_CHECK_EQ(nm_ucx_ep_am_short(&ep->super, 5, header, "IJ", 2), UCS_OK);
	NM_CHECK_HAS(ucs_log_line, "len 10 seen ABCDEFGHIJ");
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, 5, iov, 2), UCS_OK);
	NM_CHECK_HAS(ucs_log_line, "len 11 seen abcdefghijk");
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, 5, iov, 0), UCS_OK);
	NM_CHECK_EQ(nr_traced, 3);
	ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_FATAL;
	UNTIL(peer->nr_packets == 4);
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

static size_t pack_nothing(void *to, void *arg)
{
	(void)to;
	(void)arg;
	return 0;
}

NM_TEST(wrong_calls_are_explained)
{
	struct nm_ucx_ep *ep;
	uint8_t bytes[300] = {0};
	char words[64];

	start();
	ep = connect_ep();
	ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_ERROR;
	NM_CHECK_EQ(nm_ucx_ep_am_short(&ep->super, UCT_AM_ID_MAX, 0, NULL, 0),
		    UCS_ERR_INVALID_PARAM);
	NM_CHECK_HAS(ucs_log_line, "32 is no active message id");
	NM_CHECK_EQ(nm_ucx_ep_am_short(&ep->super, 1, 0, bytes, 209), UCS_ERR_INVALID_PARAM);
	NM_CHECK_HAS(ucs_log_line, "a length of 217 bytes, more than 216");
	NM_CHECK_EQ(nm_ucx_ep_am_zcopy(&ep->super, 1, bytes, face->max_bcopy + 1, NULL, 0, 0, NULL),
		    UCS_ERR_INVALID_PARAM);
	snprintf(words, sizeof(words), "a length of %u bytes, more than %u", face->max_bcopy + 1,
		 face->max_bcopy);
	NM_CHECK_HAS(ucs_log_line, words);
	NM_CHECK_EQ(nm_ucx_ep_am_bcopy(&ep->super, UCT_AM_ID_MAX, pack_nothing, NULL, 0),
		    UCS_ERR_INVALID_PARAM);
	NM_CHECK_HAS(ucs_log_line, "32 is no active message id");
	ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_FATAL;
	nm_ucx_ep_destroy(&ep->super);
	finish();
}
