/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that programs wait on (FI_WAIT_FD). Progress is manual: a message that lies in shared
 * memory rings no bell, so the descriptor of a completion queue or counter is always readable, and
 * fi_trywait() never promises that it is safe to sleep. A program that waits on one polls in fact,
 * and is right. fi_cq_sread() and fi_cntr_wait() sleep between polls and are the better choice.
 *
 * Not for the data path. Any thread; no locks. 0 or -errno.
 */
#ifndef NM_PROVIDER_WAIT_H
#define NM_PROVIDER_WAIT_H

#include <stdbool.h>

#include <rdma/fi_eq.h>

/* FI_WAIT_NONE, _UNSPEC, _FD and _YIELD. */
bool nm_wait_offered(enum fi_wait_obj wait_obj);
/* A descriptor, readable when VALUE is not 0. */
int nm_wait_open(unsigned int value, int *ret_fd);
/* Make it readable, or not any more. FD -1: nothing happens. */
void nm_wait_raise(int fd);
void nm_wait_lower(int fd);
/* fi_control() of an object with WAIT_OBJ and FD: FI_GETWAIT and FI_GETWAITOBJ. */
int nm_wait_control(enum fi_wait_obj wait_obj, int fd, int command, void *arg);
/* fi_trywait(): -FI_EAGAIN as soon as one of FIDS is a queue of completions or a counter. */
int nm_trywait(struct fid_fabric *fabric, struct fid **fids, int count);

#endif
