/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fid_av: the addresses a program knows (provider/address_table.h); for FI_AV_MAP the index of the
 * table serves as the opaque handle. What an endpoint knows of a peer is made when it first talks
 * to it, and only then the inner provider gets to know the peer's address.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "provider/provider.h"

/* Insertions until the memory that an address needs has come from far away. */
#define AHEAD 8

static struct nm_av *av_of(struct fid_av *av)
{
	return nm_container_of(av, struct nm_av, av);
}

uint64_t nm_av_resolve(void *arg, const struct nm_identity *who, struct nm_address *ret_address)
{
	const struct nm_av *av = arg;
	uint64_t index = nm_address_table_find(&av->table, who);

	if (index != NM_ADDRESS_NONE)
		nm_address_table_get(&av->table, index, ret_address);
	return index;
}

/* Not checked yet: a guess at an address costs nothing. */
static void expect_one(const struct nm_av *av, const uint8_t *bytes)
{
	struct nm_address address;

	memcpy(&address, bytes, sizeof(address));
	nm_address_table_expect(&av->table, &address.who);
}

static int insert_one(struct nm_av *av, const void *bytes, bool fill_holes, uint64_t *ret_index)
{
	struct nm_address address;
	int err = nm_address_parse(bytes, NM_ADDRESS_LEN, &address);

	return err ? err : nm_address_table_insert(&av->table, &address, fill_holes, ret_index);
}

static int av_insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *fi_addr,
		     uint64_t flags, void *context)
{
	struct nm_av *av = av_of(fid);
	int *errors = flags & FI_SYNC_ERR ? context : NULL;
	const uint8_t *bytes = addr;
	uint64_t index;
	int nr = 0, err;
	size_t i;

	if (flags & ~(uint64_t)(FI_SYNC_ERR | FI_MORE))
		return -FI_EBADFLAGS;
	nm_lock_take(&av->domain->lock);
	for (i = 0; i < count; i++) {
		if (i + AHEAD < count)
			expect_one(av, bytes + (i + AHEAD) * NM_ADDRESS_LEN);
		/* Holes are filled only when the caller asks for the index back. */
		err = insert_one(av, bytes + i * NM_ADDRESS_LEN, fi_addr, &index);
		if (err)
			nm_warn("address %zu of %zu not inserted: %s", i, count,
				err == -FI_EINVAL ? "it is not an address of nearmetal" :
						    nm_host.strerror(-err));
		if (errors)
			errors[i] = -err;
		if (fi_addr)
			fi_addr[i] = err ? FI_ADDR_NOTAVAIL : index;
		nr += !err;
	}
	/* Messages may have come from them already, without an index for their source. */
	for (i = 0; i < av->eps.nr; i++)
		nm_engine_resolve(av->eps.eps[i]->engine);
	nm_lock_give(&av->domain->lock);
	return nr;
}

static int remove_one(struct nm_av *av, uint64_t index)
{
	struct nm_address address;
	int left;
	size_t i;

	if (!nm_address_table_get(&av->table, index, &address))
		return -FI_EINVAL;
	left = nm_address_table_remove(&av->table, index);
	for (i = 0; left == 0 && i < av->eps.nr; i++)
		nm_ep_forget_peer(av->eps.eps[i], index, &address.who);
	return 0;
}

static int av_remove(struct fid_av *fid, fi_addr_t *fi_addr, size_t count, uint64_t flags)
{
	struct nm_av *av = av_of(fid);
	int err = 0, last;
	size_t i;

	if (flags)
		return -FI_EBADFLAGS;
	nm_lock_take(&av->domain->lock);
	for (i = 0; i < count; i++) {
		last = remove_one(av, fi_addr[i]);
		err = last ? last : err;
	}
	nm_lock_give(&av->domain->lock);
	return err;
}

static int av_lookup(struct fid_av *fid, fi_addr_t fi_addr, void *addr, size_t *addrlen)
{
	struct nm_av *av = av_of(fid);
	struct nm_address address;
	size_t room = *addrlen;
	bool known;

	nm_lock_take(&av->domain->lock);
	known = nm_address_table_get(&av->table, fi_addr, &address);
	nm_lock_give(&av->domain->lock);
	if (!known)
		return -FI_EINVAL;
	memcpy(addr, &address, room < NM_ADDRESS_LEN ? room : NM_ADDRESS_LEN);
	*addrlen = NM_ADDRESS_LEN;
	return room < NM_ADDRESS_LEN ? -FI_ETOOSMALL : 0;
}

/* "nearmetal://0123456789ab": the name in logs and stats. The token is never shown. */
static const char *av_straddr(struct fid_av *fid, const void *addr, char *buf, size_t *len)
{
	struct nm_address address;
	char text[64] = NM_PROVIDER_NAME "://not-an-address";
	int need;

	(void)fid;
	if (!nm_address_parse(addr, NM_ADDRESS_LEN, &address))
		snprintf(text, sizeof(text), NM_PROVIDER_NAME "://%02x%02x%02x%02x%02x%02x",
			 address.who.id[0], address.who.id[1], address.who.id[2], address.who.id[3],
			 address.who.id[4], address.who.id[5]);
	need = snprintf(buf, *len, "%s", text);
	*len = (size_t)need + 1;
	return buf;
}

static int no_insertsvc(struct fid_av *av, const char *node, const char *service,
			fi_addr_t *fi_addr, uint64_t flags, void *context)
{
	(void)av;
	(void)node;
	(void)service;
	(void)fi_addr;
	(void)flags;
	(void)context;
	return -FI_ENOSYS; /* host names say nothing about endpoints */
}

static int no_insertsym(struct fid_av *av, const char *node, size_t nodecnt, const char *service,
			size_t svccnt, fi_addr_t *fi_addr, uint64_t flags, void *context)
{
	(void)av;
	(void)node;
	(void)nodecnt;
	(void)service;
	(void)svccnt;
	(void)fi_addr;
	(void)flags;
	(void)context;
	return -FI_ENOSYS;
}

static int no_av_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **av_set,
		     void *context)
{
	(void)av;
	(void)attr;
	(void)av_set;
	(void)context;
	return -FI_ENOSYS;
}

static int av_bind(struct fid *fid, struct fid *bfid, uint64_t flags)
{
	(void)fid;
	(void)flags;
	/* Insertion is never asynchronous, so an event queue may be bound and stays empty. */
	return bfid->fclass == FI_CLASS_EQ ? 0 : -FI_EINVAL;
}

static int av_close(struct fid *fid)
{
	struct nm_av *av = nm_container_of(fid, struct nm_av, av.fid);

	if (atomic_load(&av->refs))
		return -FI_EBUSY;
	nm_info("address vector of %llu: %llu bytes", (unsigned long long)av->table.nr_used,
		(unsigned long long)nm_address_table_usage(&av->table));
	nm_address_table_fini(&av->table);
	nm_ep_list_fini(&av->eps);
	nm_refs_put(&av->domain->refs);
	free(av);
	return 0;
}

static struct fi_ops av_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = av_close,
	.bind = av_bind,
	.control = nm_no_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_av av_ops = {
	.size = sizeof(struct fi_ops_av),
	.insert = av_insert,
	.insertsvc = no_insertsvc,
	.insertsym = no_insertsym,
	.remove = av_remove,
	.lookup = av_lookup,
	.straddr = av_straddr,
	.av_set = no_av_set,
};

int nm_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **ret_av,
	       void *context)
{
	struct nm_av *av;

	if (!nm_params())
		return -FI_EINVAL;
	if (attr && (attr->name || attr->rx_ctx_bits || (attr->flags & ~(uint64_t)FI_SYMMETRIC))) {
		nm_info("no address vector: names, receive contexts and events are not offered");
		return -FI_ENOSYS;
	}
	av = calloc(1, sizeof(*av));
	if (!av)
		return -FI_ENOMEM;
	nm_address_table_init(&av->table);
	av->domain = nm_container_of(domain, struct nm_domain, domain);
	nm_refs_get(&av->domain->refs);
	if (attr && attr->type == FI_AV_UNSPEC)
		attr->type = FI_AV_TABLE;
	av->av.fid.fclass = FI_CLASS_AV;
	av->av.fid.context = context;
	av->av.fid.ops = &av_fid_ops;
	av->av.ops = &av_ops;
	*ret_av = &av->av;
	return 0;
}
