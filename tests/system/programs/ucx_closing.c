/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct copies of UCX's transport "nearcma" while interfaces of "nearmetal" in the same worker are
 * opened and closed, in an order that libuct allows; interfaces with a wrong alignment.
 */
#include <stdio.h>
#include <string.h>

#include <ucs/async/async_fwd.h>
#include <uct/api/uct.h>

#include "ucx_check.h"

static uct_md_h md;
static uct_worker_h worker;

static void open_md(void)
{
	ucs_async_context_t *async;
	uct_component_h *components;
	unsigned int nr;

	CHECK(uct_query_components(&components, &nr) == UCS_OK);
	for (unsigned int i = 0; i < nr && !md; i++) {
		uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
		uct_md_config_t *config;

		CHECK(uct_component_query(components[i], &attr) == UCS_OK);
		if (strcmp(attr.name, "nearmetal"))
			continue;
		CHECK(uct_md_config_read(components[i], NULL, NULL, &config) == UCS_OK);
		CHECK(uct_md_open(components[i], "nearmetal", config, &md) == UCS_OK);
		uct_config_release(config);
	}
	CHECK(md);
	uct_release_component_list(components);
	CHECK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async) == UCS_OK);
	CHECK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker) == UCS_OK);
}

static uct_iface_h open_iface(const char *transport)
{
	const uct_iface_params_t params = {
		.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
		.open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
		.mode.device = {.tl_name = transport, .dev_name = "memory"},
	};
	uct_iface_config_t *config;
	uct_iface_h iface;

	CHECK(uct_md_iface_config_read(md, transport, NULL, NULL, &config) == UCS_OK);
	CHECK(uct_iface_open(md, worker, &params, config, &iface) == UCS_OK);
	uct_config_release(config);
	return iface;
}

static void expect_alignment_refused(size_t alignment)
{
	const uct_iface_params_t params = {
		.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
			      UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT,
		.open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
		.mode.device = {.tl_name = "nearmetal", .dev_name = "memory"},
		.am_alignment = alignment,
	};
	uct_iface_config_t *config;
	uct_iface_h iface;

	CHECK(uct_md_iface_config_read(md, "nearmetal", NULL, NULL, &config) == UCS_OK);
	CHECK(uct_iface_open(md, worker, &params, config, &iface) == UCS_ERR_INVALID_PARAM);
	uct_config_release(config);
}

/* An endpoint of IFACE to this process. */
static uct_ep_h open_ep(uct_iface_h iface)
{
	char address[64], device[1];
	const uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR |
			      UCT_EP_PARAM_FIELD_DEV_ADDR,
		.iface = iface,
		.iface_addr = (uct_iface_addr_t *)address,
		.dev_addr = (uct_device_addr_t *)device,
	};
	uct_iface_attr_t attr;
	uct_ep_h ep;

	CHECK(uct_iface_query(iface, &attr) == UCS_OK && attr.iface_addr_len <= sizeof(address));
	CHECK(uct_iface_get_address(iface, (uct_iface_addr_t *)address) == UCS_OK);
	CHECK(uct_ep_create(&params, &ep) == UCS_OK);
	return ep;
}

static ucs_status_t get(uct_ep_h ep)
{
	char from[100], to[100] = "";
	const uct_iov_t iov = {to, sizeof(to), NULL, 0, 1};
	ucs_status_t status;

	memset(from, 'x', sizeof(from));
	status = uct_ep_get_zcopy(ep, &iov, 1, (uintptr_t)from, UCT_INVALID_RKEY, NULL);
	CHECK(status != UCS_OK || !memcmp(from, to, sizeof(to)));
	return status;
}

int main(void)
{
	uct_iface_h messages, second, copies;
	uct_ep_h ep;

	open_md();
	expect_alignment_refused(0);
	expect_alignment_refused(24);
	/* The interface with the messages closes first: the endpoint reaches nothing any more. */
	messages = open_iface("nearmetal");
	copies = open_iface("nearcma");
	ep = open_ep(copies);
	CHECK(get(ep) == UCS_OK);
	uct_iface_close(messages);
	CHECK(get(ep) == UCS_ERR_CONNECTION_RESET);
	uct_ep_destroy(ep);
	uct_iface_close(copies);
	/* One that comes and goes later changes nothing. */
	for (int is_alone = 0; is_alone < 2; is_alone++) {
		char before[64] = "", after[64] = "";

		messages = is_alone ? NULL : open_iface("nearmetal");
		copies = open_iface("nearcma");
		ep = open_ep(copies);
		CHECK(uct_iface_get_address(copies, (uct_iface_addr_t *)before) == UCS_OK);
		second = open_iface("nearmetal");
		CHECK(uct_iface_get_address(copies, (uct_iface_addr_t *)after) == UCS_OK);
		CHECK(!memcmp(before, after, sizeof(before)));
		CHECK(get(ep) == UCS_OK);
		uct_iface_close(second);
		CHECK(get(ep) == UCS_OK);
		uct_ep_destroy(ep);
		uct_iface_close(copies);
		if (messages)
			uct_iface_close(messages);
	}
	puts("all copies as expected");
	return 0;
}
