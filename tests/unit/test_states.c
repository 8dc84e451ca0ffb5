/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every pair of states of peers, requests, sessions and handshakes: what may follow, and what the
 * setters refuse.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connect/session_private.h"
#include "engine/internal.h"
#include "harness.h"

/* Rows: the state before; columns: the state after; in the order of the enums. */
static const char *const peers[NM_NR_PEER_STATES] = {
	/* known, connecting, unreached, moving, connected, link lost, down */
	[NM_PEER_KNOWN] = ".xxxx.x",	 [NM_PEER_CONNECTING] = "x..xx.x",
	[NM_PEER_UNREACHED] = "x..x..x", [NM_PEER_MOVING] = "....xxx",
	[NM_PEER_CONNECTED] = "...x.xx", [NM_PEER_LINK_LOST] = "...x..x",
	[NM_PEER_DOWN] = ".......",
};

static const char *const requests[NM_NR_REQUEST_STATES] = {
	/* free, new, posted, draining, wait data, wait CTS, streaming, leaving, wait ACK, pulling,
	 * placing, wait placed, direct */
	[NM_REQUEST_FREE] = ".x...........",	  [NM_REQUEST_NEW] = "x.x.xxxxxx..x",
	[NM_REQUEST_POSTED] = "x..xx....x..x",	  [NM_REQUEST_DRAINING] = "x............",
	[NM_REQUEST_WAIT_DATA] = "x............", [NM_REQUEST_WAIT_CTS] = "x.....x.x.x.x",
	[NM_REQUEST_STREAMING] = "x.......x....", [NM_REQUEST_LEAVING] = "x............",
	[NM_REQUEST_WAIT_ACK] = "x............",  [NM_REQUEST_PULLING] = "x...x......x.",
	[NM_REQUEST_PLACING] = "x....x.......",	  [NM_REQUEST_WAIT_PLACED] = "x...x........",
	[NM_REQUEST_DIRECT] = "x...xx.......",
};

static const char *const sessions[NM_NR_SESSION_STATES] = {
	/*             NUCOD: new, up, closing, cast out, down */
	[NM_SESSION_NEW] = ".x..x",	[NM_SESSION_UP] = "..xxx",
	[NM_SESSION_CLOSING] = "...xx", [NM_SESSION_CAST_OUT] = "....x",
	[NM_SESSION_DOWN] = ".....",
};

static const char *const handshakes[NM_NR_HANDSHAKE_STATES] = {
	/* await hello, await MET, await GO, calling, await welcome, await ACK, ready, failed, up,
	 * lost, left */
	[NM_HANDSHAKE_AWAIT_HELLO] = ".x........x",
	[NM_HANDSHAKE_AWAIT_MET] = "..x.......x",
	[NM_HANDSHAKE_AWAIT_GO] = "........x.x",
	[NM_HANDSHAKE_CALLING] = "....x.....x",
	[NM_HANDSHAKE_AWAIT_WELCOME] = ".....x.x..x",
	[NM_HANDSHAKE_AWAIT_ACK] = "......xx..x",
	[NM_HANDSHAKE_READY] = ".......xx.x",
	[NM_HANDSHAKE_FAILED] = "..........x",
	[NM_HANDSHAKE_UP] = ".........xx",
	[NM_HANDSHAKE_LOST] = "..........x",
	[NM_HANDSHAKE_LEFT] = "...........",
};

/* The state that follows each event, by the first letter of its name. */
static const char *const ways[NM_NR_WAYS] = {
	/* met, said, quiesced, lost, counted, pause, resumed, down */
	[NM_WAY_NETWORK] = "j....p.e", [NM_WAY_JOINING] = ".mnln..e",  [NM_WAY_MEMORY] = "..lln..e",
	[NM_WAY_LEAVING] = ".c..n..e", [NM_WAY_COUNTING] = "....n..e", [NM_WAY_PAUSED] = "......ne",
	[NM_WAY_ENDED] = "........",
};

static const char *const places[NM_NR_PLACES] = {
	/* ask, acknowledge, pause, cut, arrive, give up, stop */
	[NM_PLACE_RUN] = "q.....s",    [NM_PLACE_QUIESCE] = ".f...rs",
	[NM_PLACE_FROZEN] = "..p..r.", [NM_PLACE_PAUSING] = "...a...",
	[NM_PLACE_AWAY] = "....r..",   [NM_PLACE_STOPPED] = "....r..",
};

struct step {
	unsigned int from, to;
};

static void set_peer(void *arg)
{
	const struct step *step = arg;
	struct nm_peer peer = {.state = step->from};

	nm_peer_set_state(&peer, step->to);
	_exit(peer.state == (enum nm_peer_state)step->to ? 0 : 1);
}

static void set_request(void *arg)
{
	const struct step *step = arg;
	struct nm_request request = {.state = step->from};

	nm_request_set_state(&request, step->to);
	_exit(request.state == (enum nm_request_state)step->to ? 0 : 1);
}

static void set_session(void *arg)
{
	const struct step *step = arg;
	struct nm_session session = {.state = step->from};

	nm_session_set_state(&session, step->to);
	_exit(session.state == (enum nm_session_state)step->to ? 0 : 1);
}

static void set_handshake(void *arg)
{
	const struct step *step = arg;
	struct nm_handshake handshake = {.state = step->from};

	nm_handshake_set_state(&handshake, step->to);
	_exit(handshake.state == (enum nm_handshake_state)step->to ? 0 : 1);
}

/* The setter in a process of its own: does it live, and is the new state set? */
static bool works(void (*set)(void *arg), struct step step)
{
	pid_t pid = fork();
	int status;

	NM_CHECK(pid >= 0);
	if (!pid)
		set(&step);
	NM_CHECK_EQ(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void drive(const uint32_t *table, const char *const *expected, unsigned int nr,
		  void (*set)(void *arg))
{
	for (unsigned int from = 0; from < nr; from++) {
		NM_CHECK_EQ(strlen(expected[from]), nr);
		for (unsigned int to = 0; to < nr; to++) {
			bool may = expected[from][to] == 'x';

			NM_CHECK_EQ(nm_state_may_follow(table, from, to), may);
#ifdef NM_CHECK_STATES
			NM_CHECK_EQ(works(set, (struct step){from, to}), may);
#else
			NM_CHECK(works(set, (struct step){from, to}));
#endif
		}
	}
}

static void set_way(void *arg)
{
	const struct step *step = arg;
	struct nm_peer peer = {.way = step->from};

	nm_peer_on_way(&peer, step->to);
	_exit(peer.way == (enum nm_way)step->from ? 1 : 0);
}

static void follow(const struct nm_move_table *table, const char *const *expected,
		   unsigned int nr_states, unsigned int nr_events)
{
	unsigned int nr = 0;

	for (unsigned int from = 0; from < nr_states; from++) {
		NM_CHECK_EQ(strlen(expected[from]), nr_events);
		for (unsigned int event = 0; event < nr_events; event++) {
			int next = nm_move_next(table, from, event);

			NM_CHECK_EQ(next < 0 ? '.' : table->states[next][0], expected[from][event]);
			nr += next >= 0;
		}
	}
	/* No pair of state and event has two rows. */
	NM_CHECK_EQ(table->nr_steps, nr);
}

NM_TEST(every_event_of_a_way)
{
	follow(&nm_ways, ways, NM_NR_WAYS, NM_NR_WAY_EVENTS);
	for (unsigned int way = 0; way < NM_NR_WAYS; way++)
		for (unsigned int event = 0; event < NM_NR_WAY_EVENTS; event++)
			NM_CHECK_EQ(works(set_way, (struct step){way, event}),
				    ways[way][event] != '.');
}

NM_TEST(every_order_to_a_machine)
{
	follow(&nm_places, places, NM_NR_PLACES, NM_NR_ORDERS);
}

NM_TEST(every_transition_of_a_peer)
{
	drive(nm_peer_transitions, peers, NM_NR_PEER_STATES, set_peer);
}

NM_TEST(every_transition_of_a_request)
{
	drive(nm_request_transitions, requests, NM_NR_REQUEST_STATES, set_request);
}

NM_TEST(every_transition_of_a_session)
{
	drive(nm_session_transitions, sessions, NM_NR_SESSION_STATES, set_session);
}

NM_TEST(every_transition_of_a_handshake)
{
	drive(nm_handshake_transitions, handshakes, NM_NR_HANDSHAKE_STATES, set_handshake);
}
