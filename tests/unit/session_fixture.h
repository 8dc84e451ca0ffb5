/* SPDX-License-Identifier: Apache-2.0 */
/* Session places for tests, and raw sockets that misbehave on them. */
#ifndef NM_TEST_SESSION_FIXTURE_H
#define NM_TEST_SESSION_FIXTURE_H

#include "connect/message.h"
#include "connect/session.h"
#include "harness.h"

struct place {
	struct nm_identity who;
	struct nm_window *window;
	struct nm_sessions *sessions;
	bool no_cma;	   /* these before it is made */
	uint32_t lease_ms; /* 0: short */
};

#define PLACE_LANES 4

/* A place in the case's own directory; visits take at most CONNECT_MS. */
struct place place_create(uint32_t connect_ms);
/* The same without checks: 0 or -errno. */
int place_try(struct place *place, const char *dir, uint32_t connect_ms, struct nm_reason *ret_why);
/* A place that looks for its name in the rundir each LEASE_MS. */
struct place place_with_lease(uint32_t lease_ms);
/* It would restore its name at its next beat, in the middle of the attack. */
#define LONG_LEASE_MS 3000
/* Tests that need the beat. It comes after the attack has begun, also on a busy machine. */
#define SHORT_LEASE_MS 1500
void place_destroy(struct place *place);
/* Wait for the next event and check its kind. */
struct nm_session *place_expect(struct place *place, enum nm_session_event kind);
/* No event is there, and after a while still none. */
void place_expect_nothing(struct place *place);
/* nm_sessions_connect() until it has a result. */
int place_call(struct nm_sessions *sessions, const struct nm_identity *who,
	       struct nm_session **ret_session, struct nm_reason *ret_reason);
/* Visit OWNER; the visit must succeed. */
struct nm_session *place_visit(struct place *place, const struct place *owner);
/* A visit between two other sound places works: what happened before did no harm. */
void place_expect_sound(struct place *place);

/* A raw connection to the socket of PLACE. */
int raw_connect(const struct place *place);
/* A raw listener under the name of WHO, in the case's directory. */
int raw_listen(const struct nm_identity *who);
int raw_accept(int listener);
/* The path of the socket of WHO, with SUFFIX. */
void socket_path(const struct nm_identity *who, const char *suffix, char ret_path[512]);
/* Listen in the place of WHO, whose socket is set aside, and undo that. */
int replace_socket(const struct nm_identity *who);
void put_socket_back(const struct nm_identity *who, int listener);
/* A hello as VISITOR would send it to OWNER. */
struct nm_greeting raw_hello(const struct place *visitor, const struct place *owner, uint32_t lane);
/* Show CHALLENGE and STEP (NM_LANE_) of a link to OWNER in a lane, as VISITOR would. */
void raw_prove(const struct place *visitor, const struct place *owner, uint32_t lane,
	       uint64_t challenge, unsigned int step);
/* Receive one message, waiting. Returns its kind, 0 for a hangup; words of a BYE. */
int raw_receive(int fd, uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd, char words[180]);
/* The owner turns the visitor on FD away with words that contain PART, and hangs up. */
void raw_expect_bye(int fd, const char *part);

#endif
