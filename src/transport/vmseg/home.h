/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segment of an endpoint while its machine moves: it is given up once the endpoint has left it
 * and the guest unit has taken its description away, and found again when a description is there.
 */
#ifndef NM_TRANSPORT_VMSEG_HOME_H
#define NM_TRANSPORT_VMSEG_HOME_H

#include "transport/shm/shm_private.h"

struct shm_home {
	struct nm_vmseg_config config; /* as attached */
	char path[NM_VMSEG_PATH_MAX];  /* the guest unit's description */
	uint64_t look_ns;	       /* when to look at it next */
	unsigned int nr_lines;	       /* in the log, about failures to attach */
	struct nm_vmseg_tries tries;   /* progress never waits */
};

/* Attach and show a window: segment, claim and window of SHM. After an error none of them stays. */
int nm_home_open(struct shm_transport *shm, const struct nm_vmseg_config *config,
		 const uint8_t id[6], struct nm_reason *ret_reason);
/* This endpoint has left its segment: look whether to give it up, or whether there is one again. */
void nm_home_look(struct shm_transport *shm);

#endif
