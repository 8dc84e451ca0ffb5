/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <stdlib.h>
#include <string.h>

static struct fi_info *make_hints(enum fi_threading threading)
{
	struct fi_info *hints = fi_allocinfo();

	if (!hints)
		return NULL;
	hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = threading;
	hints->fabric_attr->prov_name = strdup("nearmetal");
	return hints;
}

static int open_objects(struct endpoint *e)
{
	struct fi_cq_attr cq_attr = {
		.format = FI_CQ_FORMAT_TAGGED,
		.size = 1024,
		.wait_obj = FI_WAIT_UNSPEC,
	};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	int err;

	err = fi_fabric(e->info->fabric_attr, &e->fabric, NULL);
	if (!err)
		err = fi_domain(e->fabric, e->info, &e->domain, NULL);
	if (!err)
		err = fi_av_open(e->domain, &av_attr, &e->av, NULL);
	if (!err)
		err = fi_cq_open(e->domain, &cq_attr, &e->cq, NULL);
	if (!err)
		err = fi_endpoint(e->domain, e->info, &e->ep, NULL);
	if (!err)
		err = fi_ep_bind(e->ep, &e->av->fid, 0);
	if (!err)
		err = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV);
	if (!err)
		err = fi_enable(e->ep);
	e->address_len = sizeof(e->address);
	return err ? err : fi_getname(&e->ep->fid, e->address, &e->address_len);
}

int endpoint_open(struct endpoint *e, enum fi_threading threading)
{
	struct fi_info *hints = make_hints(threading);
	int err;

	memset(e, 0, sizeof(*e));
	if (!hints)
		return -FI_ENOMEM;
	err = fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &e->info);
	fi_freeinfo(hints);
	if (!err)
		err = open_objects(e);
	if (err)
		endpoint_close(e);
	return err;
}

int endpoint_close(struct endpoint *e)
{
	struct fid *const fids[] = {
		e->ep ? &e->ep->fid : NULL,	    e->cq ? &e->cq->fid : NULL,
		e->av ? &e->av->fid : NULL,	    e->domain ? &e->domain->fid : NULL,
		e->fabric ? &e->fabric->fid : NULL,
	};
	int first = 0, err;
	size_t i;

	for (i = 0; i < sizeof(fids) / sizeof(fids[0]); i++) {
		err = fids[i] ? fi_close(fids[i]) : 0;
		if (err && !first)
			first = err;
	}
	if (e->info)
		fi_freeinfo(e->info);
	memset(e, 0, sizeof(*e));
	return first;
}

int operation_start(struct endpoint *e, struct operation *o)
{
	if (o->kind == OPERATION_RECV)
		return (int)(o->tagged ? fi_trecv(e->ep, o->buffer, o->size, NULL, o->peer, o->tag,
						  o->ignore, &o->context) :
					 fi_recv(e->ep, o->buffer, o->size, NULL, o->peer,
						 &o->context));
	return (int)(o->tagged ? fi_tsend(e->ep, o->buffer, o->size, NULL, o->peer, o->tag,
					  &o->context) :
				 fi_send(e->ep, o->buffer, o->size, NULL, o->peer, &o->context));
}

/* Never 0, so what has not arrived in a cleared buffer shows. */
static uint64_t pattern_word(uint64_t tag, size_t index)
{
	return ((tag + 1) * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xbf58476d1ce4e5b9)) |
	       1;
}

void pattern_fill(uint8_t *buffer, size_t size, uint64_t tag)
{
	uint64_t word;
	size_t at;

	for (at = 0; at < size; at += sizeof(word)) {
		word = pattern_word(tag, at / sizeof(word));
		memcpy(buffer + at, &word, size - at < sizeof(word) ? size - at : sizeof(word));
	}
}

size_t pattern_check(const uint8_t *buffer, size_t size, uint64_t tag)
{
	uint64_t word;
	size_t at, len;

	for (at = 0; at < size; at += sizeof(word)) {
		word = pattern_word(tag, at / sizeof(word));
		len = size - at < sizeof(word) ? size - at : sizeof(word);
		if (memcmp(buffer + at, &word, len))
			return at;
	}
	return size;
}
