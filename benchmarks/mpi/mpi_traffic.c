// SPDX-License-Identifier: Apache-2.0
/*
 * Seeded random traffic between all ranks (each with itself, too): every kind of send, receives
 * with and without wildcards, probes, cancelled receives, persistent requests, strided layouts.
 * Each message is compared with the plan: its size, its content, and its place in the order of
 * the messages of its source with its tag. The first violation ends the job with exit code 1.
 *
 * The test itself cannot deadlock: see traffic_send.h for sends; a receive blocks only for any
 * message from anybody, and only in a rank whose own sends are complete; receives that could take
 * none of the messages on their way are harmless, since unexpected messages are probed for.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "traffic_receive.h"
#include "traffic_send.h"

struct options {
	uint64_t messages, seed, cap;
	double patience; /* seconds without progress before the watchdog speaks */
	const char *end; /* the file that ends the traffic, or NULL: one plan is enough */
};

static const char usage[] =
	"usage: mpi_traffic [-n MESSAGES] [-s SEED] [-b BYTES] [-w SECONDS] [-e FILE]\n"
	"  -n MESSAGES  at least so many messages in all (default 10000)\n"
	"  -s SEED      of the plan (default 1); the same seed makes the same traffic\n"
	"  -b BYTES     at most so many payload bytes in all (default 1G); sizes are log-uniform\n"
	"               from 0 to 8 MiB, with a lower upper bound for most if the cap asks for it\n"
	"  -w SECONDS   patience of the watchdog (default 60)\n"
	"  -e FILE      another plan, with the next seed, until FILE exists where rank 0 runs\n"
	"Example: mpirun -n 4 mpi_traffic -n 10000 -s 7 -b 1G\n";

static const char *const mode_names[NR_SEND_MODES] = {"isend", "issend", "persistent",
						      "send",  "ssend",	 "bsend"};
static const char *const way_names[NR_WAYS] = {"any_source_any_tag",
					       "any_tag",
					       "any_source",
					       "directed",
					       "persistent",
					       "iprobe",
					       "improbe",
					       "probe",
					       "mprobe",
					       "strided"};

static struct job job;
static struct plan plan;
static struct {
	uint64_t messages, bytes;
} planned; /* in all plans */
static struct sender sender;
static struct receiver receiver;
static uint64_t random_state;

/* Watchdog: SIGALRM once a second; the main loop beats. */
static volatile uint64_t beats;
static const char *volatile phase = "start";
static volatile uint32_t current_round;
static int patience;

static void watchdog_print(void)
{
	char text[2048];
	int used, i;

	used = snprintf(text, sizeof(text),
			"STUCK rank %d of %d: %s, round %u of %u; sent %lu, received %lu, "
			"verified %lu\n",
			job.rank, job.nr_ranks, phase, current_round, plan.rounds, sender.sent,
			receiver.arrived, receiver.verified);
	for (i = 0; i < NR_SENDS; i++)
		if (sender.outgoing[i].active)
			used += snprintf(
				text + used, sizeof(text) - (size_t)used,
				"STUCK rank %d:   sends %zu bytes to rank %d, tag %d (%s)\n",
				job.rank, sender.outgoing[i].message.bytes,
				sender.outgoing[i].message.dest,
				tags[sender.outgoing[i].message.tag],
				mode_names[sender.outgoing[i].message.mode]);
	for (i = 0; i < NR_RECORDS && used < (int)sizeof(text) - 128; i++)
		if (receiver.record[i].state != RECORD_FREE)
			used += snprintf(text + used, sizeof(text) - (size_t)used,
					 "STUCK rank %d:   %s for source %d, tag %d\n", job.rank,
					 receiver.record[i].state == RECORD_OPEN ? "waits" :
										   "holds",
					 receiver.record[i].source, receiver.record[i].tag);
	if (write(STDERR_FILENO, text, (size_t)used) < 0)
		_exit(1);
}

static void watchdog_tick(int number)
{
	static uint64_t seen;
	static int idle;

	(void)number;
	idle = beats == seen ? idle + 1 : 0;
	seen = beats;
	if (idle == patience)
		watchdog_print();
	if (idle >= 2 * patience + 3) /* the others had time to print, too */
		_exit(1);
}

static void watchdog_start(double seconds)
{
	struct sigaction action = {.sa_handler = watchdog_tick, .sa_flags = SA_RESTART};
	struct itimerval second = {{1, 0}, {1, 0}};

	patience = (int)seconds;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &second, NULL);
}

static uint64_t random_next(void)
{
	return random_state = mix64(random_state);
}

/* Posts one receive with a random mix of wildcards. */
static bool post_some(uint64_t dice)
{
	int source = (int)((dice >> 8) % (uint64_t)job.nr_ranks);
	int tag = tags[(dice >> 24) % (uint64_t)NR_TAGS];
	bool persistent = (dice >> 40) % 8 == 0;

	/* Without wildcards left to cancel, the listener comes to its blocking probes. */
	if (receiver.quirks.no_wildcard_cancel && plan_listener(&plan, current_round) == job.rank)
		return receive_post(&receiver, source, tag, persistent);
	switch (dice % 8) {
	case 0:
	case 1:
	case 2:
		return receive_post(&receiver, MPI_ANY_SOURCE, MPI_ANY_TAG, persistent);
	case 3:
	case 4:
		return receive_post(&receiver, source, MPI_ANY_TAG, persistent);
	case 5:
		return receive_post(&receiver, MPI_ANY_SOURCE, tag, persistent);
	default:
		return receive_post(&receiver, source, tag, persistent);
	}
}

static bool has_room(void)
{
	int i;

	for (i = 0; i < NR_RECORDS; i++)
		if (receiver.record[i].state == RECORD_FREE)
			return true;
	return false;
}

/* Takes one message that no posted receive wanted, if there is one. */
static bool take_unexpected(uint64_t dice)
{
	bool narrow = dice % 4 == 0, strided = (dice >> 2) % 2;
	int source = narrow ? (int)((dice >> 8) % (uint64_t)job.nr_ranks) : MPI_ANY_SOURCE;
	int tag = narrow ? tags[(dice >> 24) % (uint64_t)NR_TAGS] : MPI_ANY_TAG;
	MPI_Message message;
	MPI_Status status;
	int flag;

	if (!has_room())
		return false;
	if ((dice >> 3) % 2 && !receiver.quirks.no_matched_probe) {
		MPI_Improbe(source, tag, MPI_COMM_WORLD, &flag, &message, &status);
		if (flag)
			receive_probed(&receiver, &status, &message, strided);
		receiver.way[WAY_IMPROBE] += flag != 0;
	} else {
		MPI_Iprobe(source, tag, MPI_COMM_WORLD, &flag, &status);
		if (flag)
			receive_probed(&receiver, &status, NULL, strided);
		receiver.way[WAY_IPROBE] += flag != 0;
	}
	return flag != 0;
}

static void cancel_all(void)
{
	struct record *record, *oldest;

	do {
		oldest = NULL;
		for (record = receiver.record; record < receiver.record + NR_RECORDS; record++)
			if (receive_can_cancel(&receiver, record) &&
			    (!oldest || record->order < oldest->order))
				oldest = record;
		if (oldest)
			record_cancel(&receiver, oldest);
	} while (oldest);
}

static bool cancel_some(uint64_t dice)
{
	struct record *record = &receiver.record[dice % NR_RECORDS];

	if (!receive_can_cancel(&receiver, record))
		return false;
	record_cancel(&receiver, record);
	return true;
}

/* Waits for any message; only without posted receives and with no send of our own under way. */
static void take_blocking(uint64_t dice)
{
	MPI_Message message;
	MPI_Status status;

	phase = "probe";
	if (dice % 2 && !receiver.quirks.no_matched_probe) {
		MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
		receive_probed(&receiver, &status, &message, dice & 2);
		receiver.way[WAY_MPROBE]++;
	} else {
		MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
		receive_probed(&receiver, &status, NULL, dice & 2);
		receiver.way[WAY_PROBE]++;
	}
	phase = "traffic";
}

/* Whether the rank only receives for a while, by blocking probes. */
static bool wants_blocking(uint64_t dice, uint32_t end)
{
	return sender.index >= end && !send_outstanding(&sender) &&
	       (plan_listener(&plan, current_round) == job.rank ? dice % 4 : dice % 64 == 0);
}

static void run_round(uint32_t round, uint64_t incoming)
{
	uint32_t end = (round + 1) * PER_ROUND;
	uint64_t dice;
	bool moved;

	phase = "traffic";
	while (sender.index < end || send_outstanding(&sender) || receiver.arrived < incoming) {
		dice = random_next();
		if (receiver.arrived < incoming && wants_blocking(dice >> 4, end)) {
			cancel_all();
			if (receiver.arrived < incoming && !receive_posted(&receiver))
				take_blocking(dice >> 16);
			else
				receive_test(&receiver);
			beats = beats + 1;
			continue;
		}
		moved = dice % 2 ? send_next(&sender, end) : false;
		if ((dice >> 1) % 4 == 0 && receiver.arrived < incoming)
			moved |= post_some(dice >> 16);
		if ((dice >> 3) % 512 == 0)
			moved |= cancel_some(dice >> 16);
		moved |= send_test(&sender);
		moved |= receive_test(&receiver);
		if ((dice >> 12) % 2)
			moved |= take_unexpected(dice >> 16);
		if (moved)
			beats = beats + 1;
		else
			sched_yield();
	}
	if (receiver.arrived > incoming)
		job_fail(&job, "round %u: %lu messages came, %lu were sent", round,
			 receiver.arrived, incoming);
	phase = "barrier";
	MPI_Barrier(MPI_COMM_WORLD);
	beats = beats + 1;
}

static void finish(void)
{
	MPI_Status status;
	int flag;

	phase = "end";
	cancel_all();
	receive_settle(&receiver);
	if (receive_posted(&receiver))
		job_fail(&job, "%d receives are left though every message came",
			 receive_posted(&receiver));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
	if (flag)
		job_fail(&job, "a message nobody sent, from rank %d with tag %d", status.MPI_SOURCE,
			 status.MPI_TAG);
	if (receiver.verified != receiver.arrived)
		job_fail(&job, "%lu messages came, %lu were verified", receiver.arrived,
			 receiver.verified);
}

static void print_counts(const char *what, const char *const *names, const uint64_t *counts, int nr)
{
	uint64_t sums[16] = {0};
	int i;

	MPI_Reduce(counts, sums, nr, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (job.rank)
		return;
	printf("# %s", what);
	for (i = 0; i < nr; i++)
		printf(" %s=%lu", names[i], sums[i]);
	printf("\n");
}

static void report(uint64_t seed, double seconds)
{
	static const char *const names[] = {"messages",	 "bytes",	"strided",
					    "cancelled", "cancel_lost", "deferred"};
	uint64_t counts[] = {receiver.verified,	 receiver.bytes,       sender.strided,
			     receiver.cancelled, receiver.cancel_lost, receiver.deferred};

	print_counts("sent", mode_names, sender.mode, NR_SEND_MODES);
	print_counts("received", way_names, receiver.way, NR_WAYS);
	print_counts("counted", names, counts, 6);
	if (job.rank)
		return;
	printf("traffic OK: %lu messages, %lu bytes, %d ranks, seed %lu, %.1f s\n",
	       planned.messages, planned.bytes, job.nr_ranks, seed, seconds);
}

static int options_parse(int argc, char **argv, struct options *ret_options)
{
	struct options options = {.messages = 10000, .seed = 1, .cap = 1ull << 30, .patience = 60};
	int option, ret = 0;

	opterr = 0;
	while (!ret && (option = getopt(argc, argv, "n:s:b:w:e:")) != -1) {
		switch (option) {
		case 'n':
			ret = size_parse(optarg, &options.messages);
			break;
		case 's':
			ret = size_parse(optarg, &options.seed);
			break;
		case 'b':
			ret = size_parse(optarg, &options.cap);
			break;
		case 'w':
			ret = number_parse(optarg, 1, 86400, &options.patience);
			break;
		case 'e':
			options.end = optarg;
			break;
		default:
			ret = -EINVAL;
			break;
		}
	}
	if (ret || optind != argc || !options.messages)
		return -EINVAL;
	*ret_options = options;
	return 0;
}

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);

	if (!memory)
		job_fail(&job, "no memory for %zu bytes", bytes);
	memset(memory, POISON, bytes);
	return memory;
}

static void find_quirks(struct quirks *ret_quirks)
{
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	MPI_Get_library_version(library, &length);
	ret_quirks->no_strided_mrecv = !strncmp(library, "Open MPI", 8);
	ret_quirks->no_matched_probe = !strncmp(library, "Open MPI v4", 11);
	ret_quirks->no_wildcard_cancel = !strncmp(library, "MPICH", 5);
	if (!job.rank && ret_quirks->no_strided_mrecv)
		printf("# excluded strided_mrecv Open MPI's mtl/ofi does not unpack it\n");
	if (!job.rank && ret_quirks->no_matched_probe)
		printf("# excluded matched_probe Open MPI 4's mtl/ofi never tells the sender of an "
		       "MPI_Ssend\n");
	if (!job.rank && ret_quirks->no_wildcard_cancel)
		printf("# excluded wildcard_cancel MPICH's ch4 loses messages by it\n");
}

static void set_up(const struct options *options)
{
	int i;

	sender.job = receiver.job = &job;
	sender.plan = receiver.plan = &plan;
	for (i = 0; i < NR_SENDS; i++)
		sender.outgoing[i].buffer = allocate(MESSAGE_MAX + RECEIVE_GUARD);
	for (i = 0; i < NR_RECORDS; i++)
		receiver.record[i].buffer = allocate(MESSAGE_MAX + RECEIVE_GUARD);
	receiver.cursor = calloc((size_t)job.nr_ranks * NR_TAGS, sizeof(receiver.cursor[0]));
	find_quirks(&receiver.quirks);
	sender.attached = allocate(ATTACHED_BYTES);
	if (!receiver.cursor)
		job_fail(&job, "no memory");
	MPI_Buffer_attach(sender.attached, (int)ATTACHED_BYTES);
	random_state = mix64(options->seed ^ ((uint64_t)(unsigned)job.rank << 32));
}

static void plan_begin(uint64_t seed, const struct options *options)
{
	if (plan_make(seed, job.nr_ranks, options->messages, options->cap, &plan))
		job_fail(&job, "%lu messages do not fit into %lu bytes", options->messages,
			 options->cap);
	planned.messages += plan.messages;
	planned.bytes += plan.bytes;
	if (!job.rank)
		printf("# plan messages=%lu bytes=%lu seed=%lu rounds=%u usual_max=%zu\n",
		       plan.messages, plan.bytes, plan.seed, plan.rounds, plan.usual_max);
	fflush(stdout);
	sender.index = 0;
	memset(receiver.cursor, 0, (size_t)job.nr_ranks * NR_TAGS * sizeof(receiver.cursor[0]));
	receiver.due_all = plan_incoming(&plan, job.rank, receiver.due);
}

static void plan_run(void)
{
	uint64_t incoming = receiver.arrived;
	uint32_t round;

	for (round = 0; round < plan.rounds; round++) {
		current_round = round;
		incoming += plan_round_incoming(&plan, round, job.rank);
		run_round(round, incoming);
	}
	finish();
}

/* Also keeps the next plan from a rank that still looks for messages nobody sent. */
static bool goes_on(const char *end)
{
	int more = !job.rank && end && access(end, F_OK);

	MPI_Allreduce(MPI_IN_PLACE, &more, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	return more;
}

static void tear_down(void)
{
	void *buffer;
	int i, size;

	MPI_Buffer_detach(&buffer, &size);
	for (i = 0; i < NR_SENDS; i++)
		free(sender.outgoing[i].buffer);
	for (i = 0; i < NR_RECORDS; i++)
		free(receiver.record[i].buffer);
	free(receiver.cursor);
	free(sender.attached);
}

int main(int argc, char **argv)
{
	struct options options = {0};
	uint64_t seed;
	double start;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &job.nr_ranks);
	job_help(argc, argv, usage);
	if (options_parse(argc, argv, &options)) {
		fputs(usage, stderr);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	job_begin(&job, "traffic");
	set_up(&options);
	watchdog_start(options.patience);
	start = MPI_Wtime();
	seed = options.seed;
	do {
		plan_begin(seed++, &options);
		plan_run();
	} while (goes_on(options.end));
	report(options.seed, MPI_Wtime() - start);
	tear_down();
	job_end(&job, "traffic");
	MPI_Finalize();
	return 0;
}
