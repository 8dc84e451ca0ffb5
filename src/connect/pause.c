/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint that left its segment gives up all of it, and serves again in that or another one
 * (docs/design/migration.md). Its sessions stay in the table: the counts of their packets, and the
 * peers that may not connect again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "connect/leave.h"

void nm_sessions_set_home(struct nm_sessions *sessions, const struct nm_identity *who,
			  const uint8_t home[NM_HOME_LEN])
{
	struct nm_session *session;

	pthread_mutex_lock(&sessions->lock);
	session = nm_session_get(sessions, who, true);
	if (session) {
		memcpy(session->home, home, NM_HOME_LEN);
		session->has_home = true;
		atomic_store_explicit(&session->is_kept, true, memory_order_relaxed);
	}
	pthread_mutex_unlock(&sessions->lock);
}

bool nm_sessions_is_away(const struct nm_sessions *sessions)
{
	return atomic_load_explicit(&sessions->is_away, memory_order_relaxed);
}

static void free_handshakes(struct nm_sessions *sessions)
{
	struct nm_handshake *next;

	for (; sessions->handshakes; sessions->handshakes = next) {
		next = sessions->handshakes->next;
		free(sessions->handshakes);
	}
}

/* No session has a direction, so what they know of windows is not used any more. */
static void forget_windows(struct nm_sessions *sessions)
{
	for (uint32_t i = 0; i < sessions->nr_buckets; i++)
		for (struct nm_session *session = sessions->buckets[i]; session;
		     session = session->next_in_bucket) {
			nm_window_detach(&session->window);
			session->tie = (struct nm_vmseg_tie){0};
		}
	sessions->config.window = NULL;
	sessions->config.segment = NULL;
	sessions->config.claim = NULL;
}

bool nm_sessions_pause(struct nm_sessions *sessions)
{
	bool may_pause;

	if (!sessions->wire)
		return true;
	if (!sessions->config.segment || sessions->creator != getpid())
		return false;
	pthread_mutex_lock(&sessions->lock);
	may_pause = nm_leave_is_over(sessions);
	/* From here on the service thread takes nothing back. */
	sessions->stopping |= may_pause;
	pthread_mutex_unlock(&sessions->lock);
	if (!may_pause)
		return false;
	NM_FAULT("pause-decided");
	nm_sessions_wake(sessions);
	pthread_join(sessions->thread, NULL);
	nm_fork_unwatch(&sessions->fork_watch);
	atomic_store_explicit(&sessions->is_serving, false, memory_order_relaxed);
	free_handshakes(sessions);
	sessions->wire->ops->destroy(sessions);
	sessions->wire = NULL;
	sessions->stopping = false;
	forget_windows(sessions);
	nm_sessions_free_lanes(sessions);
	return true;
}

int nm_sessions_resume(struct nm_sessions *sessions, const struct nm_sessions_config *config,
		       struct nm_reason *ret_reason)
{
	struct nm_sessions_config next = sessions->config;
	int err;

	sessions->config.segment = next.segment = config->segment;
	sessions->config.claim = next.claim = config->claim;
	sessions->config.window = next.window = config->window;
	next.dir = config->dir;
	atomic_store_explicit(&sessions->is_away, false, memory_order_relaxed);
	err = nm_sessions_init_lanes(sessions);
	if (err)
		nm_reason_set(ret_reason, "out of memory");
	else
		err = nm_sessions_open(sessions, &next, ret_reason);
	if (!err)
		return 0;
	atomic_store_explicit(&sessions->is_away, true, memory_order_relaxed);
	nm_sessions_free_lanes(sessions);
	forget_windows(sessions);
	return err;
}
