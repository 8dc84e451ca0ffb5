/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/wait.h"

#include <errno.h>
#include <sys/eventfd.h>

#include <rdma/fi_errno.h>

bool nm_wait_offered(enum fi_wait_obj wait_obj)
{
	return wait_obj == FI_WAIT_NONE || wait_obj == FI_WAIT_UNSPEC || wait_obj == FI_WAIT_FD ||
	       wait_obj == FI_WAIT_YIELD;
}

int nm_wait_open(unsigned int value, int *ret_fd)
{
	int fd = eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

void nm_wait_raise(int fd)
{
	/* Full after 2^64 - 2 events nobody read; readable then all the same. */
	if (fd >= 0)
		(void)eventfd_write(fd, 1);
}

void nm_wait_lower(int fd)
{
	eventfd_t events;

	if (fd >= 0)
		(void)eventfd_read(fd, &events);
}

int nm_wait_control(enum fi_wait_obj wait_obj, int fd, int command, void *arg)
{
	switch (command) {
	case FI_GETWAIT:
		if (wait_obj != FI_WAIT_FD)
			return -FI_ENODATA;
		*(int *)arg = fd;
		return 0;
	case FI_GETWAITOBJ:
		*(enum fi_wait_obj *)arg = wait_obj;
		return 0;
	default:
		return -FI_ENOSYS;
	}
}

int nm_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	int i;

	(void)fabric;
	for (i = 0; i < count; i++)
		if (fids[i]->fclass == FI_CLASS_CQ || fids[i]->fclass == FI_CLASS_CNTR)
			return -FI_EAGAIN;
	return 0;
}
