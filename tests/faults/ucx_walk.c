/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The marks of base/fault.h under the UCX face (src/ucx), without UCX: a victim that dies, stops or
 * is late at a mark, a survivor that exchanges messages, direct copies and wake-ups with it, and a
 * third with whom the survivor must be able to do so afterwards. Every message is whole and in
 * order, each end of a peer is reported, all ends in bounded time, and the survivor keeps no
 * descriptor and no mapping.
 *
 * usage: ucx_walk [--sample] [NAME...]   as walk.c
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "common.h"
#include "connect/rundir.h"
#include "ucx/face.h"

enum { VICTIM, SURVIVOR, THIRD, NR_ROLES };
enum { EXIT_GOOD = 0, EXIT_LOST = 10, EXIT_DEFECT = 20 };
enum { UNKNOWN, OPEN, NEVER };
#define NR_MESSAGES 300u
#define COPY_LEN 5000u
#define PATIENCE_NS (30 * NM_NS_PER_S)
#define STOPPED_NS (60 * NM_NS_PER_MS)

struct shared {
	struct nm_identity who[NR_ROLES];
	uint64_t bytes[NR_ROLES]; /* address of COPY_LEN bytes */
	_Atomic int open[NR_ROLES];
	_Atomic uint32_t seen[];
};

static struct shared *shared;
static char dir_path[] = "/dev/shm/nearmetal-walk-ucx-XXXXXX";
static struct nm_ucx_iface *face;
static unsigned int role, got[NR_ROLES];
static bool is_lost;
static uint8_t own_bytes[COPY_LEN];

static _Noreturn void defect(const char *what)
{
	fprintf(stderr, "ucx_walk: role %u: %s\n", role, what);
	_exit(EXIT_DEFECT);
}

/* ---- One process ---- */

static uint32_t length_of(uint32_t number)
{
	static const uint32_t lengths[] = {0, 8, 40, 200, 1000, 16000};

	return lengths[number % 6];
}

static void fill(uint8_t *bytes, uint32_t len, uint32_t from, uint32_t number)
{
	for (uint32_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(i * 7 + number * 13 + from);
}

ucs_status_t uct_iface_handle_ep_err(uct_iface_h iface, uct_ep_h ep, ucs_status_t status)
{
	(void)iface;
	(void)ep;
	(void)status;
	is_lost = true;
	return UCS_OK;
}

/* A message: 4 bytes each of sender and number, then what fill() says. */
static ucs_status_t take(void *arg, void *data, size_t len, unsigned int flags)
{
	static uint8_t expected[20000];
	uint32_t from, number;

	(void)arg;
	(void)flags;
	memcpy(&from, data, 4);
	memcpy(&number, (uint8_t *)data + 4, 4);
	if (len < 8 || from >= NR_ROLES || number != got[from] || len != 8 + length_of(number))
		defect("a message that was not sent, or not now");
	fill(expected, length_of(number), from, number);
	if (memcmp(expected, (uint8_t *)data + 8, len - 8) != 0)
		defect("bytes of a message differ");
	got[from]++;
	return UCS_OK;
}

static size_t pack(void *to, void *arg)
{
	uint32_t number = *(const uint32_t *)arg;

	memcpy(to, &role, 4);
	memcpy((uint8_t *)to + 4, &number, 4);
	fill((uint8_t *)to + 8, length_of(number), role, number);
	return 8 + length_of(number);
}

static ucs_status_t send_one(uct_ep_h ep, uint32_t number)
{
	uint8_t bytes[8 + 200];
	uint64_t header;
	ssize_t len;

	if (length_of(number) > 200) {
		len = nm_ucx_ep_am_bcopy(ep, 3, pack, &number, 0);
		return len < 0 ? (ucs_status_t)len : UCS_OK;
	}
	pack(bytes, &number);
	memcpy(&header, bytes, 8);
	return nm_ucx_ep_am_short(ep, 3, header, bytes + 8, length_of(number));
}

static void progress(void)
{
	struct nm_transport *t = face->transports[0];
	unsigned int nr;

	face->in_progress = true;
	nr = t->ops->progress(t);
	face->in_progress = false;
	if (face->is_armed)
		nm_ucx_wake_up(face, nr > 0);
	nm_ucx_peers_progress(face);
	nm_ucx_eps_progress(face);
}

static void sleep_once(int fd)
{
	struct pollfd descriptor = {fd, POLLIN, 0};

	if (nm_ucx_iface_event_arm(&face->base.super, UCT_EVENT_RECV) == UCS_OK &&
	    poll(&descriptor, 1, 10000) != 1)
		defect("it was not woken");
}

static void copy_once(struct nm_peer *peer, unsigned int other)
{
	uint8_t bytes[COPY_LEN], expected[COPY_LEN];
	const uct_iov_t iov = {bytes, COPY_LEN, NULL, 0, 1};

	if (!peer->link || !peer->link->remote_copy)
		return;
	if (nm_ucx_copy(peer, true, &iov, 1, shared->bytes[other]) != UCS_OK)
		return;
	fill(expected, COPY_LEN, other, 0);
	if (memcmp(bytes, expected, COPY_LEN) != 0)
		defect("bytes of a direct copy differ");
}

/* NR_MESSAGES both ways. False: the other one was lost. */
static bool converse(unsigned int other, int fd)
{
	const uint64_t until = nm_clock_ns() + PATIENCE_NS;
	struct nm_ucx_address address = {NM_UCX_ADDRESS_VERSION, 0, {{0}, {0}}, face->max_bcopy};
	const uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR,
		.iface = &face->base.super,
		.iface_addr = (const uct_iface_addr_t *)&address,
	};
	uint32_t nr_sent = 0;
	struct nm_ucx_ep *ep;
	uct_ep_h base;

	while (!atomic_load(&shared->open[other]))
		nap(NM_NS_PER_MS);
	if (atomic_load(&shared->open[other]) == NEVER)
		return false;
	address.who = shared->who[other];
	is_lost = false;
	if (nm_ucx_ep_create(&params, &base) != UCS_OK)
		return false;
	ep = nm_ucx_ep_of(base);
	while (!is_lost && (nr_sent < NR_MESSAGES || got[other] < NR_MESSAGES || ep->peer->held)) {
		ucs_status_t status = UCS_ERR_NO_RESOURCE;

		if (nr_sent < NR_MESSAGES && nr_sent <= got[other] + 20)
			status = send_one(base, nr_sent);
		nr_sent += status == UCS_OK;
		if (nr_sent % 50 == 49 && status == UCS_OK)
			copy_once(ep->peer, other);
		if (status != UCS_OK && nr_sent >= got[other] + 20)
			sleep_once(fd);
		progress();
		/* It closed normally before it had everything. */
		if (ep->peer->state == NM_UCX_PEER_DOWN)
			nm_ucx_ep_check(base, 0, NULL);
		if (nm_clock_ns() > until)
			defect("it did not end");
	}
	nm_ucx_ep_destroy(base);
	return !is_lost;
}

static bool open_face(void)
{
	struct nm_reason why;

	face = calloc(1, sizeof(*face));
	nm_ucx_peers_init(face);
	face->has_copies = true;
	face->address.version = NM_ADDRESS_VERSION;
	if (nm_identity_create(&face->address.who) ||
	    nm_shm_kind.create(&face->sink, &face->address, &face->transports[0], &why))
		return false;
	face->nr_transports = 1;
	face->max_bcopy = face->transports[0]->max_payload / 2;
	face->max_short = 216;
	face->outgoing = malloc(face->max_bcopy);
	face->arrived = malloc(NM_UCX_MESSAGE_MAX);
	for (unsigned int i = 0; i < UCT_AM_ID_MAX; i++)
		face->base.am[i] = (uct_am_handler_t){take, NULL, 0};
	fill(own_bytes, COPY_LEN, role, 0);
	shared->who[role] = face->address.who;
	shared->bytes[role] = (uintptr_t)own_bytes;
	return true;
}

static void close_face(void)
{
	nm_ucx_wake_free(face);
	face->transports[0]->close_by_ns = nm_clock_ns() + NM_NS_PER_S;
	face->transports[0]->ops->destroy(face->transports[0]);
	nm_ucx_peers_free(face);
	free(face->outgoing);
	free(face->arrived);
	free(face);
}

static _Noreturn void act(void)
{
	unsigned int before = count_entries("/proc/self/fd");
	bool is_good = false;
	int fd;

	if (!open_face() || nm_ucx_iface_event_fd_get(&face->base.super, &fd) != UCS_OK)
		defect("no interface");
	atomic_store(&shared->open[role], OPEN);
	if (role == SURVIVOR) {
		is_good = converse(VICTIM, fd);
		if (!converse(THIRD, fd))
			defect("the third was lost");
	} else {
		is_good = converse(SURVIVOR, fd);
	}
	close_face();
	if (role != VICTIM &&
	    (count_entries("/proc/self/fd") != before || count_mappings("nearmetal-window")))
		defect("something was left open");
	_exit(is_good ? EXIT_GOOD : EXIT_LOST);
}

/* ---- Runs ---- */

static pid_t start(unsigned int as, const char *mark, enum nm_fault_action action, unsigned int nth)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	role = as;
	if (as == VICTIM && mark)
		nm_fault_arm(mark, action, nth);
	nm_fault_count(as == VICTIM && !mark ? shared->seen : NULL);
	act();
}

/* True if all ended as they may. */
static bool run(const char *mark, enum nm_fault_action action, unsigned int nth)
{
	int status[NR_ROLES] = {0};
	pid_t pids[NR_ROLES], pid;
	bool is_good;

	for (unsigned int i = 0; i < NR_ROLES; i++)
		atomic_store(&shared->open[i], UNKNOWN);
	for (unsigned int i = 0; i < NR_ROLES; i++)
		pids[i] = start(i, mark, action, nth);
	for (unsigned int left = NR_ROLES; left;) {
		int word;

		pid = waitpid(-1, &word, WUNTRACED);
		for (unsigned int i = 0; i < NR_ROLES; i++) {
			if (pids[i] != pid)
				continue;
			if (WIFSTOPPED(word)) {
				nap(STOPPED_NS);
				kill(pid, SIGCONT);
				continue;
			}
			status[i] = word;
			left--;
			if (i == VICTIM && !atomic_load(&shared->open[i]))
				atomic_store(&shared->open[i], NEVER);
		}
	}
	is_good = WIFEXITED(status[SURVIVOR]) && WIFEXITED(status[THIRD]) &&
		  WEXITSTATUS(status[THIRD]) == EXIT_GOOD;
	if (action == NM_FAULT_KILL)
		is_good &=
			WEXITSTATUS(status[SURVIVOR]) != EXIT_DEFECT &&
			(WIFSIGNALED(status[VICTIM]) || WEXITSTATUS(status[VICTIM]) == EXIT_GOOD);
	else
		is_good &= !status[SURVIVOR] && !status[VICTIM];
	if (!is_good)
		printf("not ok %s %s: victim %x, survivor %x, third %x\n", mark ? mark : "no mark",
		       action_names[action], status[VICTIM], status[SURVIVOR], status[THIRD]);
	return is_good;
}

/* Remove the rundir. Whatever nearmetal does not remove there itself is a defect. */
static unsigned int remove_place(void)
{
	struct dirent *entry;
	struct nm_rundir dir;
	struct nm_reason why;
	unsigned int nr = 0;
	DIR *stream;

	if (!nm_rundir_open(dir_path, &dir, &why)) {
		nm_rundir_reap(&dir, 0);
		nm_rundir_close(&dir);
	}
	stream = opendir(dir_path);
	while (stream && (entry = readdir(stream))) {
		if (unlinkat(dirfd(stream), entry->d_name, 0))
			continue; /* "." and ".." */
		printf("not ok: %s is left in the rundir\n", entry->d_name);
		nr++;
	}
	if (stream)
		closedir(stream);
	return nr + (rmdir(dir_path) != 0);
}

int main(int argc, char **argv)
{
	bool is_sampled = argc > 1 && !strcmp(argv[1], "--sample");
	size_t size = sizeof(*shared) + nr_places() * sizeof(shared->seen[0]);
	unsigned int nr_marks = 0, nr_bad = 0;

	shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || !mkdtemp(dir_path))
		return 1;
	setenv("NEARMETAL_RUNDIR", dir_path, 1);
	setenv("NEARMETAL_POOL_SIZE", "1M", 1);
	setenv("NEARMETAL_LOG", "error", 0);
	nr_bad += !run(NULL, NM_FAULT_NONE, 1);
	for (size_t i = 0; i < nr_places(); i++) {
		const char *name = __start_nm_faults[i]->name;
		bool is_first = true;

		/* Marks of inlined functions occur more than once. */
		for (size_t n = 0; n < i && is_first; n++)
			is_first =
				!shared->seen[n] || strcmp(__start_nm_faults[n]->name, name) != 0;
		if (!shared->seen[i] || !is_first || !is_wanted(name, argv + 1 + is_sampled))
			continue;
		nr_marks++;
		for (unsigned int action = NM_FAULT_KILL; action <= NM_FAULT_DELAY; action++) {
			unsigned int often = shared->seen[i];

			if (is_sampled && action != NM_FAULT_KILL + nr_marks % 3)
				continue;
			nr_bad += !run(name, action, 1);
			if (!is_sampled && often > 2)
				nr_bad += !run(name, action, often / 2);
		}
	}
	nr_bad += !run(NULL, NM_FAULT_NONE, 1);
	nr_bad += remove_place();
	printf("%u marks, %u defects\n", nr_marks, nr_bad);
	return nr_bad || !nr_marks;
}
