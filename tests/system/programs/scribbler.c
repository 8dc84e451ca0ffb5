/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: scribbler honest|scribbler SECONDS DIRECTORY NAME OTHER...
 *
 * Every process exchanges messages with all OTHERs, one at a time each way, and finds their
 * addresses in files of the directory that have their names. An honest one keeps one endpoint. The
 * scribbler opens one after the other and, while it is in use, writes random bytes over the whole
 * of its window, as a process can that has gone wrong or means harm: slots, counters, header, pool.
 * Between virtual machines it writes over all that it may write to: the machine's own part of an
 * ivshmem segment, everybody's of a DAX device. SCRIBBLER_LOCK then names the machine's lock file,
 * which it empties before each endpoint as a boot does, so that its part is made anew.
 * SCRIBBLER_ALL names memory that is everybody's and that nobody may write to: the scribbler tries
 * that, too, and looks what became of it.
 *
 * Prints one line per other: NAME good N spoiled N errors N; and after SCRIBBLER_ALL how many words
 * it tried and how many stayed: all tried N kept N. Whoever waits for one exchange longer
 * than anything may take ends with status 3; nothing may crash.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "endpoint.h"

#define OTHERS_MAX 4
#define SIZE_MAX_BYTES 500000
#define ROUND_S 1.0   /* life of an endpoint of the scribbler */
#define GRACE_S 3.    /* how much later another may have started */
#define LONGEST_S 20. /* an exchange, whatever becomes of it */

static const size_t sizes[] = {8, 500, 5000, 70000, SIZE_MAX_BYTES, 100};

struct other {
	const char *name;
	char known[2 * ADDRESS_MAX + 1]; /* its address as last inserted */
	fi_addr_t at;
	bool running, refused;
	unsigned int nr_open; /* operations of this exchange that have not ended */
	double since;
	uint64_t number;
	struct operation send, recv;
	unsigned long good, spoiled, errors;
	unsigned long good_before; /* this endpoint */
};

static struct endpoint endpoint;
static struct other others[OTHERS_MAX];
static unsigned int nr_others;
static const char *directory, *own_name;
static double end; /* what comes later is not counted: others close */
static _Atomic bool scribbling;

/* SCRIBBLER_ALL */
static struct {
	uint64_t *words;
	size_t nr_words;
	unsigned long tried, kept;
} all;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what, int status)
{
	fprintf(stderr, "%s: %s\n", own_name, what);
	_exit(status);
}

/* Show my address under my name, all of it at once. */
static void publish(void)
{
	char path[512], hidden[520];
	FILE *file;
	size_t i;

	snprintf(path, sizeof(path), "%s/%s", directory, own_name);
	snprintf(hidden, sizeof(hidden), "%s.new", path);
	file = fopen(hidden, "w");
	if (!file)
		fail("cannot write its address", 2);
	for (i = 0; i < endpoint.address_len; i++)
		fprintf(file, "%02x", endpoint.address[i]);
	if (fclose(file) || rename(hidden, path))
		fail("cannot show its address", 2);
}

/* Has OTHER shown another address than the one in use? */
static void look_for(struct other *o)
{
	char path[512], text[sizeof(o->known)] = "";
	uint8_t address[ADDRESS_MAX];
	unsigned int byte;
	FILE *file;
	size_t i;

	snprintf(path, sizeof(path), "%s/%s", directory, o->name);
	file = fopen(path, "r");
	if (!file)
		return;
	if (!fgets(text, sizeof(text), file) || strlen(text) != 2 * ADDRESS_MAX ||
	    !strcmp(text, o->known)) {
		fclose(file);
		return;
	}
	fclose(file);
	for (i = 0; i < ADDRESS_MAX; i++) {
		sscanf(text + 2 * i, "%2x", &byte);
		address[i] = (uint8_t)byte;
	}
	if (fi_av_insert(endpoint.av, address, 1, &o->at, 0, NULL) != 1)
		fail("an address cannot be inserted", 2);
	memcpy(o->known, text, sizeof(text));
	o->refused = false;
}

static void started(struct other *o, int err)
{
	if (!err) {
		o->nr_open++;
		return;
	}
	/* Nothing goes to this address any more; there will be another one. */
	o->errors += now() < end;
	o->refused = true;
}

static int try(struct operation *op)
{
	double until = now() + LONGEST_S;
	int err;

	while ((err = operation_start(&endpoint, op)) == -FI_EAGAIN) {
		fi_cq_read(endpoint.cq, NULL, 0);
		if (now() > until)
			fail("a send found no room in time", 3);
	}
	return err;
}

static void begin(struct other *o)
{
	size_t size = sizes[o->number % (sizeof(sizes) / sizeof(sizes[0]))];

	o->running = true;
	o->since = now();
	o->recv.kind = OPERATION_RECV;
	o->send.kind = OPERATION_SEND;
	o->recv.tagged = o->send.tagged = true;
	o->recv.peer = o->send.peer = o->at;
	o->recv.ignore = UINT64_MAX;
	o->recv.size = SIZE_MAX_BYTES;
	o->send.size = size;
	o->send.tag = o->number++;
	pattern_fill(o->send.buffer, size, o->send.tag);
	started(o, try(&o->recv));
	if (!o->refused)
		started(o, try(&o->send));
	o->running = o->nr_open > 0;
}

static void ended(void *context, const struct fi_cq_tagged_entry *entry, int err)
{
	unsigned int i;

	for (i = 0; i < nr_others; i++) {
		struct other *o = &others[i];

		if (context != &o->send.context && context != &o->recv.context)
			continue;
		o->running = --o->nr_open > 0;
		if (err)
			o->errors += now() < end;
		else if (context == &o->send.context)
			continue;
		else if (entry->len <= SIZE_MAX_BYTES &&
			 pattern_check(o->recv.buffer, entry->len, entry->tag) == entry->len)
			o->good++;
		else
			o->spoiled++;
		return;
	}
}

static void take_completions(void)
{
	struct fi_cq_tagged_entry entries[8];
	struct fi_cq_err_entry error = {0};
	ssize_t nr = fi_cq_read(endpoint.cq, entries, 8), i;

	if (nr == -FI_EAVAIL && fi_cq_readerr(endpoint.cq, &error, 0) == 1)
		ended(error.op_context, NULL, error.err);
	for (i = 0; i < nr; i++)
		ended(entries[i].op_context, &entries[i], 0);
}

static void turn(void)
{
	static double looked;
	unsigned int i;

	take_completions();
	if (now() - looked > 0.02) {
		looked = now();
		for (i = 0; i < nr_others; i++)
			look_for(&others[i]);
	}
	for (i = 0; i < nr_others; i++) {
		struct other *o = &others[i];

		if (!o->running && o->known[0] && !o->refused)
			begin(o);
		if (o->running && now() - o->since > LONGEST_S)
			fail(o->name, 3);
	}
}

static bool is_window(const char *line)
{
	static const char *const names[] = {"nearmetal-window", "/resource2", "/dev/dax"};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strstr(line, names[i]))
			return true;
	return false;
}

/* The largest memory that others see and this process may write, as the kernel lists it. */
static uint64_t *find_window(size_t *ret_words)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to, found = 0;
	char line[512], rights[8];

	*ret_words = 0;
	while (maps && fgets(line, sizeof(line), maps)) {
		if (!is_window(line) || sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 ||
		    rights[1] != 'w' || (uint64_t *)from == all.words ||
		    (to - from) / sizeof(uint64_t) <= *ret_words)
			continue;
		found = from;
		*ret_words = (to - from) / sizeof(uint64_t);
	}
	if (maps)
		fclose(maps);
	if (!found)
		fail("has no window", 2);
	return (uint64_t *)found;
}

static void map_all(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat status;
	void *words;

	if (fd < 0 || fstat(fd, &status))
		fail("cannot open everybody's memory", 2);
	words = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		fail("cannot map everybody's memory", 2);
	close(fd);
	all.words = words;
	all.nr_words = (size_t)status.st_size / sizeof(uint64_t);
}

static void try_all(size_t at, uint64_t value)
{
	__atomic_store_n(&all.words[at], value, __ATOMIC_RELAXED);
	all.tried++;
	all.kept += __atomic_load_n(&all.words[at], __ATOMIC_RELAXED) == value;
}

static void *scribble(void *arg)
{
	uint64_t random = (uint64_t)(now() * 1e9) | 1;
	size_t nr_words, i = 0;
	uint64_t *words = find_window(&nr_words);

	(void)arg;
	/* In two sweeps at once: the small part in front is written over again and again. */
	while (atomic_load_explicit(&scribbling, memory_order_relaxed)) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		__atomic_store_n(&words[i++ % nr_words], random, __ATOMIC_RELAXED);
		__atomic_store_n(&words[random % 40000 % nr_words], random, __ATOMIC_RELAXED);
		/* Another value: its own part, which it may write to, is a part of all. */
		if (all.words)
			try_all(random % all.nr_words, ~random);
	}
	return NULL;
}

static void scribble_round(unsigned int round)
{
	/* In the midst of conversations, or as soon as others could find it. */
	double start, patience = round % 2 ? 0 : LONGEST_S;
	const char *lock = getenv("SCRIBBLER_LOCK");
	unsigned int nr_met;
	pthread_t thread;

	if (lock && truncate(lock, 0))
		fail("cannot empty the lock file", 2);
	if (endpoint_open(&endpoint, FI_THREAD_DOMAIN))
		fail("cannot open", 2);
	for (unsigned int i = 0; i < nr_others; i++) {
		others[i].known[0] = '\0';
		others[i].running = false;
		others[i].nr_open = 0;
		others[i].good_before = others[i].good;
	}
	publish();
	start = now();
	do {
		turn();
		for (unsigned int i = nr_met = 0; i < nr_others; i++)
			nr_met += others[i].good > others[i].good_before;
	} while (nr_met < nr_others && now() - start < patience);
	start = now();
	scribbling = true;
	if (pthread_create(&thread, NULL, scribble, NULL))
		fail("has no thread", 2);
	while (now() - start < ROUND_S)
		turn();
	scribbling = false;
	pthread_join(thread, NULL);
	if (endpoint_close(&endpoint))
		fail("cannot close", 2);
}

int main(int argc, char **argv)
{
	unsigned int i, round = 0;

	if (argc < 6 || argc - 5 > OTHERS_MAX)
		return 2;
	end = now() + atof(argv[2]);
	directory = argv[3];
	own_name = argv[4];
	nr_others = (unsigned int)argc - 5;
	for (i = 0; i < nr_others; i++) {
		others[i].name = argv[5 + i];
		others[i].send.buffer = malloc(SIZE_MAX_BYTES);
		others[i].recv.buffer = malloc(SIZE_MAX_BYTES);
	}
	if (!strcmp(argv[1], "scribbler")) {
		if (getenv("SCRIBBLER_ALL"))
			map_all(getenv("SCRIBBLER_ALL"));
		while (now() < end)
			scribble_round(round++);
	} else {
		if (endpoint_open(&endpoint, FI_THREAD_DOMAIN))
			fail("cannot open", 2);
		publish();
		/* Nobody closes before all have stopped to count. */
		while (now() < end + GRACE_S)
			turn();
		if (endpoint_close(&endpoint))
			fail("cannot close", 2);
	}
	for (i = 0; i < nr_others; i++)
		printf("%s good %lu spoiled %lu errors %lu\n", others[i].name, others[i].good,
		       others[i].spoiled, others[i].errors);
	if (all.words)
		printf("all tried %lu kept %lu\n", all.tried, all.kept);
	return 0;
}
