/* SPDX-License-Identifier: Apache-2.0 */
/* Heaps inside a handshake: none of this ends one. */
#include <errno.h>

#include "base/log.h"
#include "connect/session_private.h"

int nm_handshake_send_step(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   enum nm_message_kind kind, int value, const char *words)
{
	int err = -EBUSY;

	if (sessions->heap.fd >= 0)
		err = nm_message_send_step_with(handshake->fd, kind, value, words,
						sessions->heap.fd);
	/* The user has too many descriptors in flight: without the heap. */
	if (err == -EBUSY)
		return nm_message_send_step(handshake->fd, kind, value, words);
	nm_handshake_direction(handshake)->shows_heap = !err;
	return err;
}

void nm_handshake_take_heap(struct nm_handshake *handshake, int heap_fd)
{
	struct nm_session *session = handshake->session;
	struct nm_reason why;

	/* The first one counts: the endpoint may be reading it. */
	if (heap_fd < 0 || session->heap.base)
		return;
	if (nm_foreign_heap_attach(heap_fd, &session->heap, &why))
		nm_info("large messages of %s are copied twice: %s", session->label.text, why.text);
}

const struct nm_own_heap *nm_sessions_heap(const struct nm_sessions *sessions)
{
	return &sessions->heap;
}
