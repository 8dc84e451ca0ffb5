/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks every mark of base/fault.h: a victim that dies, stops or is late at the mark, a survivor
 * that converses with it, and a third with whom the survivor must be able to converse afterwards; a
 * guest comes to the victim first and closes. The survivor ends in bounded time, sees no byte that
 * is not the victim's own, and keeps no descriptor, mapping or socket.
 *
 * They meet in one of four worlds: in one rundir, or in a segment between three virtual
 * machines, of which the guest shares the victim's; there the next who comes must get a slot. Marks
 * that the first world knows are only killed in the second. In the third world all have a network
 * beside the segment, which the victim's machine leaves and comes back to; in the fourth they have
 * nothing but a network, whose device goes and comes back. Only marks that the worlds before do not
 * know are walked in these two.
 *
 * usage: walk [--sample] [NAME...]   these marks alone; without, all that the linker has put into
 *                                    the table. --sample: each mark in one of its ways, by turns
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cable.h"
#include "common.h"
#include "connect/rundir.h"
#include "machines.h"
#include "network.h"
#include "talk.h"
#include "transport/transport.h"

enum { VICTIM, SURVIVOR, THIRD, GUEST, NR_ROLES };
enum { IN_DIRECTORY, IN_SEGMENT, IN_MOVE, IN_PAUSE, NR_WORLDS };
static const uint32_t machine_of[NR_ROLES] = {[SURVIVOR] = 1, [THIRD] = 2};
static const char *const world_names[] = {"in a directory", "in a segment",
					  "in a segment that is left", "in a network that pauses"};
/* Marks are walked by so many at a time: most of it is waiting. */
enum { NR_WALKERS = 4 };
/*
 * Each process pauses in four of these. ways_in() also kills at the second of four, in which both
 * pause.
 */
enum { NR_PAUSES = 6 };
enum { EXIT_GOOD = 0, EXIT_LOST = 10, EXIT_DEFECT = 20 };
#define PATIENCE_NS (60 * NM_NS_PER_S)
#define STOPPED_NS (60 * NM_NS_PER_MS)
#define MOVE_NS (20 * NM_NS_PER_S)

/* What all processes of a run see. */
struct shared {
	struct nm_address addresses[NR_ROLES];
	_Atomic int open[NR_ROLES]; /* 1: open; 2: never will be */
	char words[256];
	_Atomic uint32_t seen[]; /* by world, then by mark */
};

struct run {
	struct talker talkers[NR_ROLES];
	const char *mark;
	unsigned int world;
	enum nm_fault_action action;
	unsigned int nth;
	pid_t pids[NR_ROLES];
	int status[NR_ROLES];
	bool ended[NR_ROLES];
};

static struct shared *shared;
static bool sampled;
/* In memory: whoever writes to a mapped file waits while a disk takes its pages, seconds on a busy one. */
static char dir_path[] = "/dev/shm/nearmetal-walk-XXXXXX";

static void wait_for(unsigned int role)
{
	while (!atomic_load(&shared->open[role]))
		nap(NM_NS_PER_MS);
}

/* A defect ends the process, in words that the driver prints. */
static enum talk_end converse(struct run *run, unsigned int me, unsigned int other,
			      unsigned int nth)
{
	static const char *const words[] = {
		[TALK_MIXED] = "saw bytes or completions that are not its own",
		[TALK_HUNG] = "waited in vain",
	};
	enum talk_end end = talk(&run->talkers[me], &shared->addresses[other], nth);

	if (end == TALK_MIXED || end == TALK_HUNG) {
		snprintf(shared->words, sizeof(shared->words), "process %u with %u: %s", me, other,
			 words[end]);
		_exit(EXIT_DEFECT);
	}
	return end;
}

static bool has_segment(unsigned int world)
{
	return world == IN_SEGMENT || world == IN_MOVE;
}

static void open_talker(struct run *run, unsigned int role)
{
	int err = talker_open(&run->talkers[role]);

	if (err) {
		snprintf(shared->words, sizeof(shared->words), "process %u cannot open: %s", role,
			 strerror(-err));
		_exit(EXIT_DEFECT);
	}
	/* Its machine is asked to leave the segment before it has met anybody, and then stays. */
	if (role == VICTIM && has_segment(run->world) &&
	    !machines_leave_and_return(dir_path, machine_of[role],
				       run->talkers[role].address.who.id)) {
		snprintf(shared->words, sizeof(shared->words),
			 "the victim does not leave and return");
		_exit(EXIT_DEFECT);
	}
	shared->addresses[role] = run->talkers[role].address;
	atomic_store(&shared->open[role], 1);
}

/* The victim's machine is asked for STATE, and its messages use CHANNEL soon. */
static enum talk_end move(struct run *run, enum nm_vmseg_state state, enum nm_channel channel)
{
	struct talker *me = &run->talkers[VICTIM];
	const struct nm_identity *other = &shared->addresses[SURVIVOR].who;
	uint64_t deadline = nm_clock_ns() + MOVE_NS;
	int err = machines_ask(dir_path, machine_of[VICTIM], state);

	while (!err && !talks_on(me, other, channel)) {
		if (nm_clock_ns() > deadline)
			return TALK_LOST;
		nm_engine_progress(me->engine);
		nap(NM_NS_PER_MS / 4);
	}
	return err ? TALK_LOST : TALK_GOOD;
}

/* Its segment is given up, and described again. */
static enum talk_end give_up_and_find(struct run *run)
{
	uint64_t deadline = nm_clock_ns() + MOVE_NS;

	if (!machines_hide(dir_path, machine_of[VICTIM], true))
		return TALK_LOST;
	while (machines_are_mapped() && nm_clock_ns() < deadline) {
		nm_engine_progress(run->talkers[VICTIM].engine);
		nap(NM_NS_PER_MS / 4);
	}
	if (machines_are_mapped() || !machines_hide(dir_path, machine_of[VICTIM], false))
		return TALK_LOST;
	return TALK_GOOD;
}

/* Away, without a segment, and back, with a conversation each time. */
static enum talk_end move_there_and_back(struct run *run)
{
	uint64_t deadline = nm_clock_ns() + MOVE_NS;
	enum talk_end end = move(run, NM_VMSEG_QUIESCE, NM_CHANNEL_NET);
	int err = -EBUSY;

	while (end == TALK_GOOD && err == -EBUSY && nm_clock_ns() < deadline) {
		nm_engine_progress(run->talkers[VICTIM].engine);
		err = machines_ask(dir_path, machine_of[VICTIM], NM_VMSEG_FROZEN);
	}
	if (end == TALK_GOOD && err)
		end = TALK_LOST;
	if (end == TALK_GOOD)
		end = converse(run, VICTIM, SURVIVOR, 1);
	if (end == TALK_GOOD)
		end = give_up_and_find(run);
	if (end == TALK_GOOD)
		end = move(run, NM_VMSEG_RUN, NM_CHANNEL_VMSEG);
	return end == TALK_GOOD ? converse(run, VICTIM, SURVIVOR, 2) : end;
}

/* The device of ROLE's machine goes, and is there again. The dead do not hold it up. */
static void pause_network(struct run *run, unsigned int role)
{
	uint64_t deadline = nm_clock_ns() + MOVE_NS;

	network_ask();
	while (!network_is_given_up()) {
		nm_engine_progress(run->talkers[role].engine);
		nap(NM_NS_PER_MS / 4);
		if (nm_clock_ns() < deadline)
			continue;
		snprintf(shared->words, sizeof(shared->words),
			 "process %u does not give its network up", role);
		_exit(EXIT_DEFECT);
	}
	network_return();
}

/* The victim, the survivor, and both at once, with a conversation each time. */
static enum talk_end pause_by_turns(struct run *run, unsigned int me, unsigned int other)
{
	enum talk_end end = TALK_GOOD;

	for (unsigned int i = 0; i < NR_PAUSES && end == TALK_GOOD; i++) {
		if (i % 3 != other)
			pause_network(run, me);
		end = converse(run, me, other, 1 + i);
	}
	return end;
}

static int play_victim(struct run *run)
{
	enum talk_end end;

	nm_fault_arm(run->mark, run->action, run->nth);
	/* How often it comes by when nothing happens. */
	if (run->action == NM_FAULT_NONE)
		nm_fault_count(shared->seen + run->world * nr_places());
	open_talker(run, VICTIM);
	wait_for(GUEST);
	end = converse(run, VICTIM, GUEST, 0);
	if (end == TALK_GOOD && !talk_until_gone(&run->talkers[VICTIM], &shared->addresses[GUEST]))
		end = TALK_HUNG;
	wait_for(SURVIVOR);
	if (end == TALK_GOOD)
		end = converse(run, VICTIM, SURVIVOR, 0);
	if (end == TALK_GOOD && run->world == IN_MOVE)
		end = move_there_and_back(run);
	if (end == TALK_GOOD && run->world == IN_PAUSE)
		end = pause_by_turns(run, VICTIM, SURVIVOR);
	talker_close(&run->talkers[VICTIM]);
	return end == TALK_GOOD ? EXIT_GOOD : EXIT_LOST;
}

static int play_survivor(struct run *run)
{
	unsigned int fds = count_entries("/proc/self/fd"), nr_windows;
	enum talk_end end;

	open_talker(run, SURVIVOR);
	wait_for(VICTIM);
	end = converse(run, SURVIVOR, VICTIM, 0);
	for (unsigned int i = 1; i < 3 && run->world == IN_MOVE && end == TALK_GOOD; i++)
		end = converse(run, SURVIVOR, VICTIM, i);
	if (run->world == IN_PAUSE && end == TALK_GOOD)
		end = pause_by_turns(run, SURVIVOR, VICTIM);
	/* The dead do not answer. */
	if (run->world == IN_PAUSE && end != TALK_GOOD)
		pause_network(run, SURVIVOR);
	/* The engine does not wait for who has not opened yet. */
	wait_for(THIRD);
	if (converse(run, SURVIVOR, THIRD, 0) != TALK_GOOD) {
		snprintf(shared->words, sizeof(shared->words), "cannot go on with a third");
		return EXIT_DEFECT;
	}
	talker_close(&run->talkers[SURVIVOR]);
	nr_windows = count_mappings("nearmetal-window") + count_mappings(dir_path);
	if (count_entries("/proc/self/fd") != fds || nr_windows) {
		snprintf(shared->words, sizeof(shared->words), "left %u descriptors, %u windows",
			 count_entries("/proc/self/fd") - fds, nr_windows);
		return EXIT_DEFECT;
	}
	return end == TALK_GOOD ? EXIT_GOOD : EXIT_LOST;
}

static int play_third(struct run *run)
{
	open_talker(run, THIRD);
	wait_for(SURVIVOR);
	if (converse(run, THIRD, SURVIVOR, 0) != TALK_GOOD)
		return EXIT_DEFECT;
	talker_close(&run->talkers[THIRD]);
	return EXIT_GOOD;
}

static int play_guest(struct run *run)
{
	/* The victim makes its machine's part, and may die while the machine is asked to leave. */
	if (has_segment(run->world)) {
		wait_for(VICTIM);
		if (!machines_stay(dir_path, machine_of[GUEST]))
			return EXIT_DEFECT;
	}
	open_talker(run, GUEST);
	wait_for(VICTIM);
	converse(run, GUEST, VICTIM, 0);
	talker_close(&run->talkers[GUEST]);
	return EXIT_GOOD;
}

static void start(struct run *run, unsigned int role, int (*play)(struct run *))
{
	run->pids[role] = fork();
	if (run->pids[role] > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	machines_enter(dir_path, machine_of[role]);
	if (run->world == IN_PAUSE && !network_enter(dir_path, machine_of[role]))
		_exit(EXIT_DEFECT);
	_exit(play(run));
}

/* Let the stopped go on, and see who has ended. */
static void look_after(struct run *run, unsigned int role)
{
	int status;

	if (run->ended[role] ||
	    waitpid(run->pids[role], &status, WNOHANG | WUNTRACED) != run->pids[role])
		return;
	if (WIFSTOPPED(status)) {
		nap(STOPPED_NS);
		kill(run->pids[role], SIGCONT);
		return;
	}
	run->ended[role] = true;
	run->status[role] = status;
	if (!atomic_load(&shared->open[role]))
		atomic_store(&shared->open[role], 2);
}

static const char *wait_for_all(struct run *run)
{
	uint64_t deadline = nm_clock_ns() + PATIENCE_NS;
	unsigned int role, nr_ended;

	do {
		nap(NM_NS_PER_MS);
		for (nr_ended = role = 0; role < NR_ROLES; role++) {
			look_after(run, role);
			nr_ended += run->ended[role];
		}
	} while (nr_ended < NR_ROLES && nm_clock_ns() < deadline);
	for (role = 0; role < NR_ROLES; role++) {
		if (run->ended[role])
			continue;
		kill(run->pids[role], SIGKILL);
		waitpid(run->pids[role], &run->status[role], 0);
	}
	return nr_ended < NR_ROLES ? "somebody hangs" : NULL;
}

/* Whoever comes next removes what the dead have left: nothing else may be there. */
static const char *look_for_remains(const struct run *run)
{
	struct nm_rundir dir;
	struct nm_reason why;

	if (run->world == IN_MOVE && !machines_stay(dir_path, machine_of[VICTIM]))
		return "the victim's machine cannot stay";
	if (has_segment(run->world))
		return machines_remains(dir_path);
	if (run->world == IN_PAUSE)
		return network_remains(dir_path);
	if (nm_rundir_open(dir_path, &dir, &why))
		return "the rundir is gone";
	nm_rundir_reap(&dir, 0);
	nm_rundir_close(&dir);
	return count_entries(dir_path) > 2 ? "something is left in the rundir" : NULL;
}

static const char *judge(const struct run *run)
{
	int victim = run->status[VICTIM], survivor = run->status[SURVIVOR];
	bool was_killed = WIFSIGNALED(victim) && WTERMSIG(victim) == SIGKILL;

	if (!WIFEXITED(survivor) || !WIFEXITED(run->status[THIRD]) ||
	    !WIFEXITED(run->status[GUEST]))
		return "the survivor, the third or the guest crashed";
	if (WEXITSTATUS(survivor) == EXIT_DEFECT || WEXITSTATUS(run->status[THIRD]) ||
	    WEXITSTATUS(run->status[GUEST]))
		return shared->words;
	if (run->action == NM_FAULT_KILL && was_killed)
		return NULL;
	if (run->action == NM_FAULT_KILL && run->nth == 1)
		return "the victim never came by";
	/* Who only stopped or was late has lost nothing. */
	if (!WIFEXITED(victim) || WEXITSTATUS(victim))
		return "the victim ended badly";
	return WEXITSTATUS(survivor) ? "the survivor lost something without need" : NULL;
}

static bool walk(const char *mark, unsigned int world, enum nm_fault_action action,
		 unsigned int nth)
{
	struct run run = {.mark = mark, .world = world, .action = action, .nth = nth};
	const char *defect;
	unsigned int i;

	if (has_segment(world) && !machines_make(dir_path)) {
		printf("not ok: no segment can be made in %s\n", dir_path);
		return false;
	}
	for (i = 0; i < NR_ROLES; i++) {
		atomic_store(&shared->open[i], 0);
		run.talkers[i].number = i;
		run.talkers[i].create = world == IN_DIRECTORY ? nm_shm_kind.create :
					world == IN_PAUSE     ? network_create :
								nm_vmseg_kind.create;
		run.talkers[i].cables = world == IN_MOVE ? dir_path : NULL;
		run.talkers[i].all = shared->addresses;
		run.talkers[i].nr_all = NR_ROLES;
		run.talkers[i].address = (struct nm_address){
			.version = NM_ADDRESS_VERSION,
			.inner_len = world == IN_MOVE,
		};
		if (nm_identity_create(&run.talkers[i].address.who))
			return false;
		shared->addresses[i] = run.talkers[i].address;
	}
	start(&run, VICTIM, play_victim);
	start(&run, SURVIVOR, play_survivor);
	start(&run, THIRD, play_third);
	start(&run, GUEST, play_guest);
	defect = wait_for_all(&run);
	if (!defect)
		defect = judge(&run);
	if (!defect)
		defect = look_for_remains(&run);
	machines_remove(dir_path);
	cables_remove(dir_path);
	network_remove(dir_path);
	if (defect)
		printf("not ok %s, %s, %s at time %u: %s\n", mark, world_names[world],
		       action_names[action], nth, defect);
	return !defect;
}

/* A mark may stand in the table more than once. */
static uint32_t times_seen(const char *name, unsigned int world)
{
	const struct nm_fault_point *const *place;
	uint32_t nr = 0;

	for (place = __start_nm_faults; place < __stop_nm_faults; place++)
		if (!strcmp((*place)->name, name))
			nr += atomic_load(&shared->seen[world * nr_places() +
							(size_t)(place - __start_nm_faults)]);
	return nr;
}

static bool is_first(const struct nm_fault_point *const *place)
{
	const struct nm_fault_point *const *before;

	for (before = __start_nm_faults; before < place; before++)
		if (!strcmp((*before)->name, (*place)->name))
			return false;
	return true;
}

/* A way to walk a mark: where, what happens, and at which of the times that the victim comes by. */
struct way {
	unsigned int world;
	enum nm_fault_action action;
	unsigned int nth;
};

enum { NR_WAYS_IN_A_WORLD = 5 };

/* The ways in a world where the mark was SEEN so often. ALL: not only deaths. */
static unsigned int ways_in(struct way *ways, unsigned int world, uint32_t seen, bool all)
{
	unsigned int nr = 0;

	ways[nr++] = (struct way){world, NM_FAULT_KILL, 1};
	for (int action = NM_FAULT_STOP; all && action <= NM_FAULT_DELAY; action++)
		ways[nr++] = (struct way){world, (enum nm_fault_action)action, 1};
	/* In the middle of things and near their end too. */
	if (seen > 2)
		ways[nr++] = (struct way){world, NM_FAULT_KILL, seen / 2};
	if (all && seen > 4)
		ways[nr++] = (struct way){world, NM_FAULT_KILL, seen - seen / 4};
	return nr;
}

/* The TURN-th mark of all. */
static unsigned int walk_mark(const char *name, unsigned int turn)
{
	uint32_t here = times_seen(name, IN_DIRECTORY), there = times_seen(name, IN_SEGMENT);
	uint32_t moving = here || there ? 0 : times_seen(name, IN_MOVE);
	uint32_t pausing = here || there || moving ? 0 : times_seen(name, IN_PAUSE);
	struct way ways[NR_WORLDS * NR_WAYS_IN_A_WORLD];
	unsigned int nr = 0, bad = 0, i;

	if (!here && !there && !moving && !pausing) {
		printf("not ok %s: no conversation comes by it\n", name);
		return 1;
	}
	if (here)
		nr += ways_in(ways, IN_DIRECTORY, here, true);
	if (there)
		nr += ways_in(ways + nr, IN_SEGMENT, there, !here);
	if (moving)
		nr += ways_in(ways + nr, IN_MOVE, moving, true);
	if (pausing)
		nr += ways_in(ways + nr, IN_PAUSE, pausing, true);
	for (i = 0; i < nr; i++)
		if (!sampled || i == turn % nr)
			bad += !walk(name, ways[i].world, ways[i].action, ways[i].nth);
	if (!bad)
		printf("ok %s%s%s%s%s\n", name, here ? ", in a directory" : "",
		       there ? ", in a segment" : "", moving ? ", in a move" : "",
		       pausing ? ", in a pause" : "");
	return bad;
}

static int open_place(void)
{
	shared = mmap(NULL, sizeof(*shared) + NR_WORLDS * nr_places() * sizeof(shared->seen[0]),
		      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || !mkdtemp(dir_path))
		return -1;
	setenv("NEARMETAL_RUNDIR", dir_path, 1);
	return 0;
}

/* Walk every NR_WALKERS-th mark from FIRST on, of those in ONLY. Returns the exit status. */
static int walk_share(unsigned int first, char *const *only)
{
	const struct nm_fault_point *const *place;
	unsigned int bad = 0, world, i = 0, turn;

	if (open_place())
		return 1;
	/* Once without anything, which also counts who comes by what. */
	for (world = 0; world < NR_WORLDS; world++)
		bad += !walk("", world, NM_FAULT_NONE, 0);
	for (place = __start_nm_faults; place < __stop_nm_faults; place++) {
		if (!is_first(place) || !is_wanted((*place)->name, only) ||
		    (turn = i++) % NR_WALKERS != first)
			continue;
		/* A walker takes every fourth mark, and these shall take all ways too. */
		bad += walk_mark((*place)->name, turn + turn / NR_WALKERS);
	}
	rmdir(dir_path);
	return bad != 0;
}

int main(int argc, char **argv)
{
	const struct nm_fault_point *const *place;
	unsigned int nr = 0, bad = 0, i;
	int status;

	argv++;
	sampled = argc > 1 && !strcmp(*argv, "--sample");
	argv += sampled;
	setvbuf(stdout, NULL, _IOLBF, 0);
	setenv("NEARMETAL_LEASE_MS", "10", 1);
	/* A living one that gets no processor for so long would be given up. */
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "4000", 1);
	setenv("NEARMETAL_SEGMENT_ENDPOINTS", "4", 1);
	setenv("NEARMETAL_SEGMENT_LANES", "4", 1);
	setenv("NEARMETAL_CONNECT_MS", "3000", 1);
	setenv("NEARMETAL_MOVE_MS", "5000", 1);
	setenv("NEARMETAL_KEEPALIVE_MS", "50", 1);
	setenv("NEARMETAL_POOL_SIZE", "1M", 1);
	setenv("NEARMETAL_MAX_LOCAL_PEERS", "4", 1);
	setenv("NEARMETAL_LOG", "error", 0);
	for (i = 0; i < NR_WALKERS; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			exit(walk_share(i, argv));
		}
	for (i = 0; i < NR_WALKERS; i++)
		bad += wait(&status) < 0 || status;
	for (place = __start_nm_faults; place < __stop_nm_faults; place++)
		nr += is_first(place);
	printf("%u marks, %s\n", nr, bad ? "not all good" : "all good");
	return bad || !nr;
}
