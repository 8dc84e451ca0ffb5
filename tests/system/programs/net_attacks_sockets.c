/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks on the two TCP ports of an endpoint, the inner one and its lifeline, with plain sockets. */
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_attacks.h"

enum { AT_ONCE = 16, BURST = 4096 };

enum port { INNER, LIFELINE };

/* A connection to a port of a rank, which may still be on its way. -1: no descriptor. */
static int start(struct attacker *attacker, unsigned int victim, enum port port)
{
	struct sockaddr_in address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	memcpy(&address, attacker->ranks[victim].inner, sizeof(address));
	if (port == LIFELINE)
		memcpy(&address.sin_port,
		       &attacker->ranks[victim].inner[attacker->inner.name_len - 2], 2);
	connect(fd, (struct sockaddr *)&address, sizeof(address));
	attacker->done++;
	return fd;
}

/* Hold a connection in place of the oldest. */
static void hold(struct attacker *attacker, int fd)
{
	int *held = &attacker->held[attacker->next_held++ % NR_HELD];

	if (*held >= 0)
		close(*held);
	*held = fd;
}

static void reset(int fd)
{
	const struct linger at_once = {.l_onoff = 1, .l_linger = 0};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(fd);
}

static void talk(struct attacker *attacker, int fd, size_t len)
{
	uint8_t bytes[BURST];

	any_bytes(attacker, bytes, len);
	usleep(200); /* it is connected by then, as a rule */
	if (send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return;
}

static void hold_many(struct attacker *attacker, unsigned int victim, enum port port)
{
	for (int i = 0; i < AT_ONCE; i++)
		hold(attacker, start(attacker, victim, port));
}

static void close_many(struct attacker *attacker, unsigned int victim, enum port port)
{
	int fd;

	for (int i = 0; i < AT_ONCE; i++) {
		fd = start(attacker, victim, port);
		if (fd >= 0)
			close(fd);
	}
}

static void reset_many(struct attacker *attacker, unsigned int victim, enum port port)
{
	int fd;

	for (int i = 0; i < AT_ONCE; i++) {
		fd = start(attacker, victim, port);
		if (fd < 0)
			continue;
		talk(attacker, fd, 16);
		reset(fd);
	}
}

static void talk_rubbish(struct attacker *attacker, unsigned int victim, enum port port)
{
	int fd = start(attacker, victim, port);

	if (fd < 0)
		return;
	talk(attacker, fd, 1 + any_number(attacker) % (BURST - 1));
	hold(attacker, fd);
}

static void inner_silent(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	hold_many(attacker, victim, INNER);
}

static void inner_storm(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	close_many(attacker, victim, INNER);
}

static void inner_resets(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	reset_many(attacker, victim, INNER);
}

static void inner_rubbish(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	talk_rubbish(attacker, victim, INNER);
}

static void inner_one_byte(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	int fd = start(attacker, victim, INNER);

	(void)name;
	if (fd < 0)
		return;
	talk(attacker, fd, 1);
	hold(attacker, fd);
}

static void line_silent(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	hold_many(attacker, victim, LIFELINE);
}

static void line_storm(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	close_many(attacker, victim, LIFELINE);
}

static void line_resets(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	reset_many(attacker, victim, LIFELINE);
}

static void line_rubbish(struct attacker *attacker, unsigned int victim, unsigned int name)
{
	(void)name;
	talk_rubbish(attacker, victim, LIFELINE);
}

const struct attack socket_attacks[] = {
	{"inner-silent", "Hold connections to the inner port and say nothing.", inner_silent},
	{"inner-storm", "Connect to the inner port and close, very often.", inner_storm},
	{"inner-resets", "Reset connections to the inner port.", inner_resets},
	{"inner-rubbish", "Send random bytes to the inner port.", inner_rubbish},
	{"inner-one-byte", "Send one byte to the inner port and wait.", inner_one_byte},
	{"line-silent", "Hold connections to the lifeline.", line_silent},
	{"line-storm", "Connect to the lifeline and close, very often.", line_storm},
	{"line-resets", "Reset connections to the lifeline.", line_resets},
	{"line-rubbish", "Send random bytes to the lifeline.", line_rubbish},
};
const unsigned int nr_socket_attacks = sizeof(socket_attacks) / sizeof(socket_attacks[0]);
