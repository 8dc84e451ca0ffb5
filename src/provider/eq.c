/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fid_eq: an event queue. Connections, registrations and address insertions finish before their
 * calls return, so all that is ever in it is what the program itself wrote, to wake a waiter.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/list.h"
#include "provider/provider.h"
#include "provider/wait.h"

struct nm_eq {
	struct fid_eq eq;
	struct nm_fabric *fabric;
	pthread_mutex_t mutex; /* around events */
	struct nm_list events;
	/* Readable while there are events. -1: no thread can wait. */
	int fd;
	enum fi_wait_obj wait_obj;
};

struct event {
	struct nm_list node;
	uint32_t type;
	size_t len;
	uint8_t bytes[];
};

static struct nm_eq *eq_of(struct fid_eq *eq)
{
	return nm_container_of(eq, struct nm_eq, eq);
}

static int eq_close(struct fid *fid)
{
	struct nm_eq *eq = nm_container_of(fid, struct nm_eq, eq.fid);

	nm_list_for_each_safe(node, &eq->events)
		free(nm_container_of(node, struct event, node));
	if (eq->fd >= 0)
		close(eq->fd);
	pthread_mutex_destroy(&eq->mutex);
	nm_refs_put(&eq->fabric->refs);
	free(eq);
	return 0;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	const struct nm_eq *eq = nm_container_of(fid, struct nm_eq, eq.fid);

	return nm_wait_control(eq->wait_obj, eq->fd, command, arg);
}

static ssize_t eq_write(struct fid_eq *fid, uint32_t type, const void *buf, size_t len,
			uint64_t flags)
{
	struct nm_eq *eq = eq_of(fid);
	struct event *event;

	if (flags)
		return -FI_EBADFLAGS;
	event = malloc(sizeof(*event) + len);
	if (!event)
		return -FI_ENOMEM;
	event->type = type;
	event->len = len;
	if (len)
		memcpy(event->bytes, buf, len);
	pthread_mutex_lock(&eq->mutex);
	nm_list_append(&eq->events, &event->node);
	nm_wait_raise(eq->fd);
	pthread_mutex_unlock(&eq->mutex);
	return (ssize_t)len;
}

static ssize_t take_event(struct nm_eq *eq, uint32_t *ret_type, void *buf, size_t len,
			  uint64_t flags)
{
	struct event *event = nm_list_first(&eq->events, struct event, node);

	if (nm_list_empty(&eq->events))
		return -FI_EAGAIN;
	if (len < event->len)
		return -FI_ETOOSMALL;
	*ret_type = event->type;
	len = event->len;
	if (len)
		memcpy(buf, event->bytes, len);
	if (flags & FI_PEEK)
		return (ssize_t)len;
	nm_list_remove(&event->node);
	free(event);
	if (nm_list_empty(&eq->events))
		nm_wait_lower(eq->fd);
	return (ssize_t)len;
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *type, void *buf, size_t len, uint64_t flags)
{
	struct nm_eq *eq = eq_of(fid);
	ssize_t nr;

	if (flags & ~(uint64_t)FI_PEEK)
		return -FI_EBADFLAGS;
	pthread_mutex_lock(&eq->mutex);
	nr = take_event(eq, type, buf, len, flags);
	pthread_mutex_unlock(&eq->mutex);
	return nr;
}

/* Nothing that could fail is reported here. */
static ssize_t eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *buf, uint64_t flags)
{
	(void)eq;
	(void)buf;
	(void)flags;
	return -FI_EAGAIN;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *type, void *buf, size_t len, int timeout,
			uint64_t flags)
{
	struct pollfd wait = {.fd = eq_of(fid)->fd, .events = POLLIN};
	ssize_t nr;
	int ready;

	if (wait.fd < 0)
		return -FI_ENOSYS;
	for (;;) {
		nr = eq_read(fid, type, buf, len, flags);
		if (nr != -FI_EAGAIN)
			return nr;
		ready = poll(&wait, 1, timeout);
		if (ready < 0)
			return -errno;
		if (!ready)
			return -FI_EAGAIN;
	}
}

static const char *eq_strerror(struct fid_eq *eq, int prov_errno, const void *err_data, char *buf,
			       size_t len)
{
	const char *text = nm_host.strerror(prov_errno);

	(void)eq;
	(void)err_data;
	if (buf && len)
		snprintf(buf, len, "%s", text);
	return text;
}

static struct fi_ops eq_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = eq_close,
	.bind = nm_no_bind,
	.control = eq_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_eq eq_ops = {
	.size = sizeof(struct fi_ops_eq),
	.read = eq_read,
	.readerr = eq_readerr,
	.write = eq_write,
	.sread = eq_sread,
	.strerror = eq_strerror,
};

int nm_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **ret_eq,
	       void *context)
{
	enum fi_wait_obj wait_obj = attr ? attr->wait_obj : FI_WAIT_UNSPEC;
	struct nm_eq *eq;
	int err;

	if (!nm_wait_offered(wait_obj))
		return -FI_ENOSYS;
	eq = calloc(1, sizeof(*eq));
	if (!eq)
		return -FI_ENOMEM;
	eq->fd = -1;
	err = wait_obj == FI_WAIT_NONE ? 0 : nm_wait_open(0, &eq->fd);
	if (err) {
		free(eq);
		return err;
	}
	eq->wait_obj = wait_obj;
	pthread_mutex_init(&eq->mutex, NULL);
	nm_list_init(&eq->events);
	eq->eq.fid.fclass = FI_CLASS_EQ;
	eq->eq.fid.context = context;
	eq->eq.fid.ops = &eq_fid_ops;
	eq->eq.ops = &eq_ops;
	eq->fabric = nm_container_of(fabric, struct nm_fabric, fabric);
	nm_refs_get(&eq->fabric->refs);
	*ret_eq = &eq->eq;
	return 0;
}
