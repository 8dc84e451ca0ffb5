/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that measures when it is its turn, and sleeps otherwise. Many of them are started once
 * and then take turns of a few milliseconds, so that what is compared is measured side by side,
 * however often the machine moves its cores in between.
 *
 * DIR holds two kinds of pipes, made by whoever gives the turns:
 *
 *   order.RANK  one line per turn: "TURN SECONDS HOW TEST:SIZE,TEST:SIZE,...", the same for all
 *               ranks, with the time that a test may take; "end" or end of file: no more turns.
 *               HOW is "alone": others on these cores shall wait meanwhile (real-time scheduling,
 *               where the kernel allows it), or "shared"
 *   answer      "TURN" from rank 0 when it has everything
 *
 * Samples are kept and printed at the end, a row each, in the format of sampling.h: one table per
 * test with size_B, turn and time_us (per operation or message).
 */
#ifndef NM_BENCH_TURNS_H
#define NM_BENCH_TURNS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sampling.h"

#define TURN_TESTS_MAX 40
#define TURN_NAME_MAX 24
#define TURN_SAMPLES_MIN 3
#define TURN_SAMPLES_MAX 24

struct turn_test {
	char name[TURN_NAME_MAX];
	uint64_t size;
};

struct turn {
	long number;
	double seconds; /* for each test */
	int nr_tests;
	struct turn_test tests[TURN_TESTS_MAX];
};

struct turn_row {
	struct turn_test test;
	long turn;
	double seconds;
};

struct turns {
	FILE *orders;
	int answers; /* rank 0's; else -1 */
	struct turn now;
	struct turn_row *rows;
	size_t nr_rows, room;
};

/* Returns 0 or -errno. */
static inline int turns_open(struct turns *turns, const char *dir, int rank)
{
	char name[512];

	memset(turns, 0, sizeof(*turns));
	turns->answers = -1;
	snprintf(name, sizeof(name), "%s/order.%d", dir, rank);
	turns->orders = fopen(name, "re");
	if (!turns->orders)
		return -errno;
	if (rank)
		return 0;
	snprintf(name, sizeof(name), "%s/answer", dir);
	turns->answers = open(name, O_WRONLY | O_CLOEXEC);
	return turns->answers < 0 ? -errno : 0;
}

static inline int turn_parse_tests(struct turn *turn, char *text)
{
	char *word, *colon, *rest = NULL;

	for (word = strtok_r(text, ",\n", &rest); word; word = strtok_r(NULL, ",\n", &rest)) {
		struct turn_test *test = &turn->tests[turn->nr_tests];

		colon = strchr(word, ':');
		if (!colon || colon - word >= TURN_NAME_MAX || turn->nr_tests == TURN_TESTS_MAX ||
		    size_parse(colon + 1, &test->size))
			return -EINVAL;
		memcpy(test->name, word, (size_t)(colon - word));
		test->name[colon - word] = '\0';
		turn->nr_tests++;
	}
	return turn->nr_tests ? 0 : -EINVAL;
}

/*
 * Whether others on our cores wait while we run. A rank keeps it between turns, when it sleeps, so
 * that it wakes up at once. What the kernel does not allow is done without.
 */
static inline void turns_alone(bool alone)
{
	struct sched_param param = {.sched_priority = alone ? 1 : 0};

	if (sched_setscheduler(0, alone ? SCHED_RR | SCHED_RESET_ON_FORK : SCHED_OTHER, &param))
		errno = 0;
}

/* Sleeps until it is our turn. Returns 1 with turns->now; 0: no more turns; -EINVAL: no order. */
static inline int turns_next(struct turns *turns)
{
	struct turn *turn = &turns->now;
	char line[2048], how[8];
	int used = 0;

	memset(turn, 0, sizeof(*turn));
	if (!fgets(line, sizeof(line), turns->orders) || !strcmp(line, "end\n")) {
		turns_alone(false);
		return 0;
	}
	if (sscanf(line, "%ld %lf %7s %n", &turn->number, &turn->seconds, how, &used) != 3 || !used)
		return -EINVAL;
	if (!strcmp(how, "alone"))
		turns_alone(true);
	return turn_parse_tests(turn, line + used) ? -EINVAL : 1;
}

/* How many samples fit into the time of a test, when one takes SPENT seconds. */
static inline int turns_samples(const struct turns *turns, double spent)
{
	double fit = turns->now.seconds / (spent > 1e-9 ? spent : 1e-9);

	return fit < TURN_SAMPLES_MIN ? TURN_SAMPLES_MIN :
	       fit > TURN_SAMPLES_MAX ? TURN_SAMPLES_MAX :
					(int)fit;
}

/* Keeps one sample: seconds per operation or message. Returns 0 or -ENOMEM. */
static inline int turns_add(struct turns *turns, const struct turn_test *test, double seconds)
{
	if (turns->nr_rows == turns->room) {
		size_t room = turns->room ? 2 * turns->room : 4096;
		struct turn_row *rows = realloc(turns->rows, room * sizeof(*rows));

		if (!rows)
			return -ENOMEM;
		turns->rows = rows;
		turns->room = room;
	}
	turns->rows[turns->nr_rows++] = (struct turn_row){*test, turns->now.number, seconds};
	return 0;
}

/* Tells that the turn is over. Returns 0 or -errno. */
static inline int turns_done(struct turns *turns)
{
	char text[32];
	int len = snprintf(text, sizeof(text), "%ld\n", turns->now.number);

	if (turns->answers < 0)
		return 0;
	return write(turns->answers, text, (size_t)len) == len ? 0 : -EIO;
}

static inline void turns_print_test(const struct turns *turns, const char *name)
{
	size_t i;

	printf("# table %s\nsize_B turn time_us\n", name);
	for (i = 0; i < turns->nr_rows; i++) {
		const struct turn_row *row = &turns->rows[i];

		if (!strcmp(row->test.name, name))
			printf("%llu %ld %.4f\n", (unsigned long long)row->test.size, row->turn,
			       row->seconds * 1e6);
	}
	printf("# end %s\n", name);
}

/* Prints every table, in the order in which the tests came first. */
static inline void turns_print(const struct turns *turns)
{
	size_t i, j;

	for (i = 0; i < turns->nr_rows; i++) {
		for (j = 0; j < i; j++)
			if (!strcmp(turns->rows[j].test.name, turns->rows[i].test.name))
				break;
		if (j == i)
			turns_print_test(turns, turns->rows[i].test.name);
	}
}

static inline void turns_close(struct turns *turns)
{
	if (turns->orders)
		fclose(turns->orders);
	if (turns->answers >= 0)
		close(turns->answers);
	free(turns->rows);
}

#endif
