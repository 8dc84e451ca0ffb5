/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Active messages of 64 KiB between two workers in UCX's mode "failover", which sends by am_zcopy
 * only.
 */
#include <stdio.h>
#include <stdlib.h>

#include <ucp/api/ucp.h>

#include "ucx_check.h"

#define NR_MESSAGES 100

static int nr_arrived;
static uint8_t bytes[65536];

static uint8_t byte_of(size_t i, int message)
{
	return (uint8_t)(i * 7 + (size_t)message);
}

static ucs_status_t take(void *arg, const void *header, size_t header_len, void *data, size_t len,
			 const ucp_am_recv_param_t *param)
{
	(void)arg, (void)header, (void)header_len, (void)param;
	CHECK(len == sizeof(bytes));
	for (size_t i = 0; i < len; i++)
		CHECK(((uint8_t *)data)[i] == byte_of(i, nr_arrived));
	nr_arrived++;
	return UCS_OK;
}

static void lost(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg, (void)ep;
	fprintf(stderr, "lost: %s\n", ucs_status_string(status));
	exit(1);
}

int main(void)
{
	const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
				     .features = UCP_FEATURE_AM};
	const ucp_worker_params_t worker_params = {0};
	const ucp_am_handler_param_t handler = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
		.id = 1,
		.cb = take,
	};
	const ucp_request_param_t plain = {0};
	ucp_ep_params_t ep_params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
			      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.err_mode = UCP_ERR_HANDLING_MODE_FAILOVER,
		.err_handler.cb = lost,
	};
	ucp_address_t *address;
	ucp_config_t *config;
	ucp_worker_h from, to;
	ucp_context_h context;
	ucp_ep_h ep;
	size_t len;

	CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
	CHECK(ucp_config_modify(config, "RNDV_THRESH", "inf") == UCS_OK);
	CHECK(ucp_init(&params, config, &context) == UCS_OK);
	ucp_config_release(config);
	CHECK(ucp_worker_create(context, &worker_params, &from) == UCS_OK);
	CHECK(ucp_worker_create(context, &worker_params, &to) == UCS_OK);
	CHECK(ucp_worker_set_am_recv_handler(to, &handler) == UCS_OK);
	CHECK(ucp_worker_get_address(to, &address, &len) == UCS_OK);
	ep_params.address = address;
	CHECK(ucp_ep_create(from, &ep_params, &ep) == UCS_OK);
	for (int n = 0; n < NR_MESSAGES; n++) {
		ucs_status_ptr_t request;

		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = byte_of(i, n);
		request = ucp_am_send_nbx(ep, 1, NULL, 0, bytes, sizeof(bytes), &plain);
		CHECK(!UCS_PTR_IS_ERR(request));
		while (nr_arrived <= n ||
		       (request && ucp_request_check_status(request) == UCS_INPROGRESS)) {
			ucp_worker_progress(from);
			ucp_worker_progress(to);
		}
		if (request)
			ucp_request_free(request);
	}
	puts("all messages as expected");
	return 0;
}
