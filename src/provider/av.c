/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fid_av: the addresses a program knows, as a table; for FI_AV_MAP the same index serves as the
 * opaque handle. 80 bytes per address and 16 per slot of the hash that finds an identity again;
 * what an endpoint knows of a peer is made when it first talks to it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "provider/provider.h"

#define NO_INDEX UINT64_MAX
#define FIRST_ROOM 64

static struct nm_av *av_of(struct fid_av *av)
{
	return nm_container_of(av, struct nm_av, av);
}

/* The slot of WHO, or the empty slot where it belongs. The table is never full. */
static uint64_t *find_slot(const struct nm_av *av, const struct nm_identity *who)
{
	uint64_t i = nm_identity_hash(who) >> 20;

	for (;; i++) {
		uint64_t *slot = &av->slots[i & (av->nr_slots - 1)];

		if (!*slot || nm_identity_equal(&av->entries[*slot - 1].address.who, who))
			return slot;
	}
}

static int grow_slots(struct nm_av *av)
{
	uint64_t nr_slots = av->nr_slots ? av->nr_slots * 2 : FIRST_ROOM * 2, i;
	uint64_t *slots = calloc(nr_slots, sizeof(*slots));

	if (!slots)
		return -FI_ENOMEM;
	free(av->slots);
	av->slots = slots;
	av->nr_slots = nr_slots;
	for (i = 0; i < av->nr_entries; i++)
		if (av->entries[i].nr_inserts)
			*find_slot(av, &av->entries[i].address.who) = i + 1;
	return 0;
}

/* Open addressing without tombstones: what follows a freed slot is put in again. */
static void remove_slot(struct nm_av *av, const struct nm_identity *who)
{
	uint64_t *slot = find_slot(av, who);
	uint64_t i = (uint64_t)(slot - av->slots), moved;

	*slot = 0;
	for (i = (i + 1) & (av->nr_slots - 1); av->slots[i]; i = (i + 1) & (av->nr_slots - 1)) {
		moved = av->slots[i];
		av->slots[i] = 0;
		*find_slot(av, &av->entries[moved - 1].address.who) = moved;
	}
}

uint64_t nm_av_resolve(void *arg, const struct nm_identity *who)
{
	const struct nm_av *av = arg;

	/* nr_slots is 0 before the first insert; the empty slot gives 0 - 1 = not in it. */
	return av->nr_slots ? *find_slot(av, who) - 1 : NO_INDEX;
}

const struct nm_address *nm_av_address(const struct nm_av *av, fi_addr_t index)
{
	if (index >= av->nr_entries || !av->entries[index].nr_inserts)
		return NULL;
	return &av->entries[index].address;
}

/* An index for a new entry. Holes are filled only when the caller asks for the index back. */
static int take_entry(struct nm_av *av, bool may_reuse, uint64_t *ret_index)
{
	struct nm_av_entry *entries;
	uint64_t room;

	if (may_reuse && av->first_free != NO_INDEX) {
		*ret_index = av->first_free;
		av->first_free = av->entries[av->first_free].next_free;
		return 0;
	}
	if (av->nr_entries == av->nr_room) {
		room = av->nr_room ? av->nr_room * 2 : FIRST_ROOM;
		entries = reallocarray(av->entries, room, sizeof(*entries));
		if (!entries)
			return -FI_ENOMEM;
		av->entries = entries;
		av->nr_room = room;
	}
	*ret_index = av->nr_entries++;
	return 0;
}

static int insert_one(struct nm_av *av, const void *bytes, bool may_reuse, uint64_t *ret_index)
{
	struct nm_address address;
	uint64_t *slot, index;
	int err;

	err = nm_address_parse(bytes, NM_ADDRESS_LEN, &address);
	if (err)
		return err;
	if (av->nr_slots < 2 * (av->nr_used + 1)) {
		err = grow_slots(av);
		if (err)
			return err;
	}
	slot = find_slot(av, &address.who);
	if (*slot) {
		index = *slot - 1;
		av->entries[index].nr_inserts++;
		*ret_index = index;
		return 0;
	}
	err = take_entry(av, may_reuse, &index);
	if (err)
		return err;
	av->entries[index] = (struct nm_av_entry){.address = address, .nr_inserts = 1};
	*slot = index + 1;
	av->nr_used++;
	*ret_index = index;
	return 0;
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
		err = insert_one(av, bytes + i * NM_ADDRESS_LEN, fi_addr, &index);
		if (err)
			nm_warn("address %zu of %zu is not one of nearmetal's: not inserted", i,
				count);
		if (errors)
			errors[i] = -err;
		if (fi_addr)
			fi_addr[i] = err ? FI_ADDR_NOTAVAIL : index;
		nr += !err;
	}
	/* Messages may have come from them already, with nobody to name as their source. */
	for (i = 0; i < av->eps.nr; i++)
		nm_engine_resolve(av->eps.eps[i]->engine);
	nm_lock_give(&av->domain->lock);
	return nr;
}

static void remove_one(struct nm_av *av, uint64_t index)
{
	struct nm_av_entry *entry = &av->entries[index];
	size_t i;

	if (--entry->nr_inserts)
		return;
	for (i = 0; i < av->eps.nr; i++)
		nm_ep_forget_peer(av->eps.eps[i], index, &entry->address.who);
	remove_slot(av, &entry->address.who);
	av->nr_used--;
	entry->next_free = av->first_free;
	av->first_free = index;
}

static int av_remove(struct fid_av *fid, fi_addr_t *fi_addr, size_t count, uint64_t flags)
{
	struct nm_av *av = av_of(fid);
	int err = 0;
	size_t i;

	if (flags)
		return -FI_EBADFLAGS;
	nm_lock_take(&av->domain->lock);
	for (i = 0; i < count; i++) {
		if (nm_av_address(av, fi_addr[i]))
			remove_one(av, fi_addr[i]);
		else
			err = -FI_EINVAL;
	}
	nm_lock_give(&av->domain->lock);
	return err;
}

static int av_lookup(struct fid_av *fid, fi_addr_t fi_addr, void *addr, size_t *addrlen)
{
	struct nm_av *av = av_of(fid);
	const struct nm_address *address;
	size_t room = *addrlen;

	nm_lock_take(&av->domain->lock);
	address = nm_av_address(av, fi_addr);
	if (address)
		memcpy(addr, address, room < NM_ADDRESS_LEN ? room : NM_ADDRESS_LEN);
	nm_lock_give(&av->domain->lock);
	if (!address)
		return -FI_EINVAL;
	*addrlen = NM_ADDRESS_LEN;
	return room < NM_ADDRESS_LEN ? -FI_ETOOSMALL : 0;
}

/* "nearmetal://0123456789ab": whom to look for in logs and stats. The token is never shown. */
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
	free(av->entries);
	free(av->slots);
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

	if (attr && (attr->name || attr->rx_ctx_bits || (attr->flags & ~(uint64_t)FI_SYMMETRIC))) {
		nm_info("no address vector: names, receive contexts and events are not offered");
		return -FI_ENOSYS;
	}
	av = calloc(1, sizeof(*av));
	if (!av)
		return -FI_ENOMEM;
	av->first_free = NO_INDEX;
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
