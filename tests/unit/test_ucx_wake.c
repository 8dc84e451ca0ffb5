/* SPDX-License-Identifier: Apache-2.0 */
/* The event descriptor of the UCX face. A wake-up that is lost hangs: sleeps last a minute here. */
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/params.h"
#include "transport/shm/shm_private.h"
#include "ucx_fixture.h"

static int fd;

static void open_descriptor(void)
{
	setenv("NEARMETAL_SLEEP_MS", "60000", 1);
	start();
	NM_CHECK_EQ(nm_params()->sleep_ms, 60000);
	NM_CHECK_EQ(nm_ucx_iface_event_fd_get(&face->base.super, &fd), UCS_OK);
}

static ucs_status_t arm(void)
{
	return nm_ucx_iface_event_arm(&face->base.super, UCT_EVENT_RECV);
}

static void arm_fully(void)
{
	while (arm() == UCS_ERR_BUSY)
		progress();
	NM_CHECK(face->is_armed);
}

static bool is_readable(int timeout_ms)
{
	struct pollfd descriptor = {fd, POLLIN, 0};

	return poll(&descriptor, 1, timeout_ms) == 1;
}

static int send_one(void)
{
	const struct nm_packet packet = {1, NM_UCX_SHORT, 1, 7, 0};
	const struct iovec iov = {"x", 1};

	return peer->transport->ops->send(peer->link, &packet, &iov, 1);
}

NM_TEST(a_source_and_its_messages_make_it_readable)
{
	unsigned int before = nr_arrived;

	open_descriptor();
	UNTIL(face->has_sources);
	arm_fully();
	NM_CHECK(!is_readable(0));
	NM_CHECK_EQ(send_one(), 0);
	NM_CHECK(is_readable(-1));
	UNTIL(nr_arrived == before + 1);
	NM_CHECK(!face->is_armed);
	/* What was raised is taken first. */
	NM_CHECK_EQ(arm(), UCS_ERR_BUSY);
	NM_CHECK_EQ(arm(), UCS_OK);
	NM_CHECK(!is_readable(0));
	finish();
}

NM_TEST(a_message_that_is_there_is_not_slept_over)
{
	unsigned int before = nr_arrived;

	open_descriptor();
	UNTIL(face->has_sources);
	arm_fully();
	progress();
	NM_CHECK_EQ(send_one(), 0);
	NM_CHECK_EQ(arm(), UCS_ERR_BUSY);
	NM_CHECK(!face->is_armed);
	UNTIL(nr_arrived == before + 1);
	arm_fully();
	finish();
}

NM_TEST(a_new_source_makes_it_readable)
{
	struct node *late;
	struct nm_reason why;

	open_descriptor();
	UNTIL(face->has_sources);
	late = node_create(&shm_fixture);
	arm_fully();
	NM_CHECK_EQ(node_reach(late->transport, &face->address, (struct nm_peer *)late, &late->link,
			       &why),
		    0);
	NM_CHECK(is_readable(-1));
	node_destroy(late);
	finish();
}

/* The message comes before, while and after the waker falls asleep, and between two arms. */
NM_TEST(no_wake_up_is_lost)
{
	unsigned int before = nr_arrived;

	open_descriptor();
	UNTIL(face->has_sources);
	for (unsigned int i = 0; i < 3000; i++) {
		arm_fully();
		if (i % 3 == 1 && arm() == UCS_ERR_BUSY)
			arm_fully();
		for (unsigned int n = 0; n < i % 7; n++)
			sched_yield();
		if (i % 5 == 0)
			usleep(i % 50);
		NM_CHECK_EQ(send_one(), 0);
		NM_CHECK(is_readable(-1));
		progress();
		NM_CHECK_EQ(nr_arrived, before + i + 1);
	}
	finish();
}

/* A hostile peer rings at will, and rings nothing after its message. */
NM_TEST(rings_prove_nothing)
{
	unsigned int before = nr_arrived;

	open_descriptor();
	UNTIL(face->has_sources);
	for (unsigned int i = 0; i < 100; i++) {
		arm_fully();
		nm_doorbell_ring(nm_shm_link_of(peer->link)->doorbell);
		NM_CHECK(is_readable(-1));
		progress();
	}
	NM_CHECK_EQ(nr_arrived, before);
	NM_CHECK_EQ(send_one(), 0);
	UNTIL(nr_arrived == before + 1);
	finish();
}

NM_TEST(work_left_keeps_it_awake)
{
	struct nm_list node;

	open_descriptor();
	UNTIL(face->has_sources);
	arm_fully();
	progress();
	nm_list_init(&node);
	nm_list_append(&face->waiting, &node);
	NM_CHECK_EQ(arm(), UCS_ERR_BUSY);
	nm_list_remove(&node);
	face->in_progress = true;
	NM_CHECK_EQ(arm(), UCS_ERR_BUSY);
	face->in_progress = false;
	arm_fully();
	finish();
}

NM_TEST(a_lost_peer_makes_it_readable)
{
	struct nm_ucx_ep *ep;

	open_descriptor();
	ep = connect_ep();
	arm_fully();
	node_destroy(peer);
	peer = NULL;
	while (ep->peer->state != NM_UCX_PEER_DOWN) {
		NM_CHECK(is_readable(-1));
		progress();
		if (ep->peer->state != NM_UCX_PEER_DOWN)
			arm_fully();
	}
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

NM_TEST(a_forked_child_closes_without_the_thread)
{
	int status;
	pid_t pid;

	open_descriptor();
	UNTIL(face->has_sources);
	arm_fully();
	pid = fork();
	if (!pid) {
		status = arm() == UCS_ERR_INVALID_PARAM ? 0 : 1;
		nm_ucx_wake_free(face);
		_exit(status);
	}
	NM_CHECK_EQ(waitpid(pid, &status, 0), pid);
	NM_CHECK_EQ(status, 0);
	NM_CHECK_EQ(send_one(), 0);
	NM_CHECK(is_readable(-1));
	finish();
}
