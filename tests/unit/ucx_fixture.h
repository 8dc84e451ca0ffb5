/* SPDX-License-Identifier: Apache-2.0 */
/* The UCX face without UCX. The peer is an endpoint under the face, which can send any packet. */
#ifndef NM_TEST_UCX_FIXTURE_H
#define NM_TEST_UCX_FIXTURE_H

#include "transport_fixture.h"
#include "ucx/face.h"

extern struct node *peer;
extern struct nm_ucx_iface *face;
/* messages, and reports of lost peers */
extern unsigned int nr_arrived, nr_lost;
extern size_t last_len;
extern uint8_t last[NM_UCX_MESSAGE_MAX];

#define UNTIL(condition)                                                                           \
	while (!(condition)) {                                                                     \
		progress();                                                                        \
		node_progress(peer);                                                               \
	}

void progress(void);
/* An interface over the channel shm, and a peer with a link to it. */
void start(void);
void finish(void);
struct nm_peer *face_peer(void);
ucs_status_t create_ep(struct nm_identity who, uint32_t max_message, uct_ep_h *ret_ep);
struct nm_ucx_ep *connect_ep(void);

#endif
