/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that block: fi_cq_sread() and fi_cntr_wait() sleep until something wakes them.
 *
 *   fabric_sleep CASE   one of the table below
 *
 * A test that sets NEARMETAL_SLEEP_MS to PATIENCE_S, which began before, makes every wake-up count:
 * who is not woken is ended by the alarm. Who is to be asleep is given time to fall asleep; where
 * that is too short, the case says nothing and is good all the same.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "endpoint.h"

#define PATIENCE_S 60
#define FALL_ASLEEP_MS 100
#define NR_MESSAGES 300
#define MAX_PAUSE_US 700 /* polled through, dozed through and slept through */
#define MAX_SIZE 100000
#define FOR_EVER (-1)

static const size_t sizes[] = {0, 8, 300, 5000, MAX_SIZE};

static void check(bool good, const char *what, long value)
{
	if (good)
		return;
	fprintf(stderr, "fabric_sleep: %s: %ld\n", what, value);
	_exit(1);
}

static void pause_us(long us)
{
	const struct timespec time = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&time, NULL);
}

static void open_endpoint(struct endpoint *e, enum fi_threading threading)
{
	int err = endpoint_open(e, threading);

	check(!err, "endpoint_open", err);
}

static fi_addr_t insert(const struct endpoint *at, const void *address)
{
	fi_addr_t peer;
	int nr = fi_av_insert(at->av, address, 1, &peer, 0, NULL);

	check(nr == 1, "fi_av_insert", nr);
	return peer;
}

/* The completion that comes next; the call may sleep. */
static void await(struct endpoint *e)
{
	struct fi_cq_tagged_entry entry;
	ssize_t nr = fi_cq_sread(e->cq, &entry, 1, NULL, FOR_EVER);

	check(nr == 1, "fi_cq_sread", nr);
}

static void post(struct endpoint *e, enum operation_kind kind, fi_addr_t peer, void *buffer,
		 size_t size, uint64_t tag)
{
	ssize_t err;

	do {
		err = kind == OPERATION_RECV ?
			      fi_trecv(e->ep, buffer, size, NULL, peer, tag, 0, NULL) :
			      fi_tsend(e->ep, buffer, size, NULL, peer, tag, NULL);
		if (err == -FI_EAGAIN)
			fi_cq_read(e->cq, NULL, 0);
	} while (err == -FI_EAGAIN);
	check(!err, "post", err);
}

/* A child process with an endpoint, and ours, which know each other. */
struct pair {
	struct endpoint mine;
	fi_addr_t peer;
	pid_t child;
};

static void meet(struct pair *pair, int in, int out)
{
	uint8_t address[ADDRESS_MAX];

	open_endpoint(&pair->mine, FI_THREAD_DOMAIN);
	check(write(out, pair->mine.address, ADDRESS_MAX) == ADDRESS_MAX, "write", 0);
	check(read(in, address, ADDRESS_MAX) == ADDRESS_MAX, "read", 0);
	pair->peer = insert(&pair->mine, address);
}

static void start(struct pair *pair, void (*play)(struct pair *pair))
{
	int there[2], back[2];

	check(!pipe(there) && !pipe(back), "pipe", 0);
	pair->child = fork();
	check(pair->child >= 0, "fork", 0);
	if (pair->child) {
		meet(pair, back[0], there[1]);
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(PATIENCE_S);
	meet(pair, there[0], back[1]);
	play(pair);
	endpoint_close(&pair->mine);
	_exit(0);
}

static void finish(struct pair *pair, int expected)
{
	int status, err;

	check(waitpid(pair->child, &status, 0) == pair->child, "waitpid", 0);
	check(status == expected, "the other process ended with", status);
	err = endpoint_close(&pair->mine);
	check(!err, "endpoint_close", err);
}

static size_t size_of(unsigned int message)
{
	return sizes[message % (sizeof(sizes) / sizeof(sizes[0]))];
}

static void send_now_and_then(struct pair *pair)
{
	static uint8_t buffer[MAX_SIZE];
	unsigned int seed = 1;

	for (unsigned int i = 0; i < NR_MESSAGES; i++) {
		pattern_fill(buffer, size_of(i), i);
		post(&pair->mine, OPERATION_SEND, pair->peer, buffer, size_of(i), i);
		await(&pair->mine);
		pause_us(rand_r(&seed) % MAX_PAUSE_US);
	}
	/* Until the last is taken. */
	post(&pair->mine, OPERATION_RECV, pair->peer, NULL, 0, NR_MESSAGES);
	await(&pair->mine);
}

/* Nothing is lost, whatever the moment at which it comes. */
static void messages(void)
{
	static uint8_t buffer[MAX_SIZE];
	struct pair pair;

	start(&pair, send_now_and_then);
	for (unsigned int i = 0; i < NR_MESSAGES; i++) {
		memset(buffer, 0, sizeof(buffer));
		post(&pair.mine, OPERATION_RECV, pair.peer, buffer, MAX_SIZE, i);
		await(&pair.mine);
		check(pattern_check(buffer, size_of(i), i) == size_of(i), "wrong byte in message",
		      i);
	}
	post(&pair.mine, OPERATION_SEND, pair.peer, NULL, 0, NR_MESSAGES);
	await(&pair.mine);
	finish(&pair, 0);
}

static void send_one_and_die(struct pair *pair)
{
	post(&pair->mine, OPERATION_SEND, pair->peer, NULL, 0, 1);
	await(&pair->mine);
	pause_us(FALL_ASLEEP_MS * 2000L);
	raise(SIGKILL);
}

/* The death of the one it waits for ends the sleep, with an error. */
static void death(void)
{
	struct fi_cq_err_entry error = {0};
	struct fi_cq_tagged_entry entry;
	struct pair pair;
	char byte;
	ssize_t nr;

	start(&pair, send_one_and_die);
	post(&pair.mine, OPERATION_RECV, pair.peer, NULL, 0, 1);
	await(&pair.mine);
	post(&pair.mine, OPERATION_RECV, pair.peer, &byte, 1, 2);
	nr = fi_cq_sread(pair.mine.cq, &entry, 1, NULL, FOR_EVER);
	check(nr == -FI_EAVAIL, "fi_cq_sread", nr);
	nr = fi_cq_readerr(pair.mine.cq, &error, 0);
	check(nr == 1 && error.err == ECONNRESET, "fi_cq_readerr", error.err);
	finish(&pair, SIGKILL);
}

static void send_first(struct pair *pair)
{
	pause_us(FALL_ASLEEP_MS * 1000L);
	post(&pair->mine, OPERATION_SEND, pair->peer, NULL, 0, 1);
	await(&pair->mine);
	post(&pair->mine, OPERATION_RECV, pair->peer, NULL, 0, 2);
	await(&pair->mine);
}

/* Somebody new comes while we sleep. */
static void visit(void)
{
	struct pair pair;

	start(&pair, send_first);
	post(&pair.mine, OPERATION_RECV, FI_ADDR_UNSPEC, NULL, 0, 1);
	await(&pair.mine);
	post(&pair.mine, OPERATION_SEND, pair.peer, NULL, 0, 2);
	await(&pair.mine);
	finish(&pair, 0);
}

/* A call in a thread of its own, and what it returned. */
struct call {
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	uint64_t value;
	long result;
	pthread_t thread;
};

static void *read_queue(void *arg)
{
	struct fi_cq_tagged_entry entry;
	struct call *call = arg;

	call->result = fi_cq_sread(call->cq, &entry, 1, NULL, FOR_EVER);
	return NULL;
}

static void *wait_for_counter(void *arg)
{
	struct call *call = arg;

	call->result = fi_cntr_wait(call->cntr, call->value, FOR_EVER);
	return NULL;
}

static void let_sleep(struct call *call, void *(*function)(void *call))
{
	int err = pthread_create(&call->thread, NULL, function, call);

	check(!err, "pthread_create", err);
	pause_us(FALL_ASLEEP_MS * 1000L);
}

static void expect(struct call *call, long result)
{
	pthread_join(call->thread, NULL);
	check(call->result == result, "a call that slept returned", call->result);
}

static void signalled(void)
{
	struct endpoint e;
	struct call call;
	int err;

	open_endpoint(&e, FI_THREAD_SAFE);
	call = (struct call){.cq = e.cq};
	let_sleep(&call, read_queue);
	err = fi_cq_signal(e.cq);
	check(!err, "fi_cq_signal", err);
	expect(&call, -FI_EAGAIN);
	/* Kept for who comes later, once. */
	fi_cq_signal(e.cq);
	read_queue(&call);
	check(call.result == -FI_EAGAIN, "fi_cq_sread", call.result);
	check(!endpoint_close(&e), "endpoint_close", 0);
}

/* What another thread of the domain does brings what a sleeper waits for. */
static void completed_by_another(void)
{
	struct endpoint e, other;
	struct call call;
	fi_addr_t there;

	open_endpoint(&e, FI_THREAD_SAFE);
	open_endpoint(&other, FI_THREAD_SAFE);
	there = insert(&e, other.address);
	call = (struct call){.cq = e.cq};
	let_sleep(&call, read_queue);
	/* It is complete as soon as it is taken. */
	post(&e, OPERATION_SEND, there, NULL, 0, 1);
	expect(&call, 1);
	check(!endpoint_close(&e), "endpoint_close", 0);
	check(!endpoint_close(&other), "endpoint_close", 0);
}

/* What it leaves to be done wakes one who does it: nobody else polls. */
static void left_by_another(void)
{
	struct endpoint e;
	struct call call;
	fi_addr_t myself;
	ssize_t rc;

	open_endpoint(&e, FI_THREAD_SAFE);
	myself = insert(&e, e.address);
	rc = fi_trecv(e.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 7, 0, NULL);
	check(!rc, "fi_trecv", rc);
	call = (struct call){.cq = e.cq};
	let_sleep(&call, read_queue);
	rc = fi_tinject(e.ep, NULL, 0, myself, 7);
	check(!rc, "fi_tinject", rc);
	expect(&call, 1);
	check(!endpoint_close(&e), "endpoint_close", 0);
}

static void counted_by_another(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
	struct endpoint e;
	struct call call;
	int err;

	open_endpoint(&e, FI_THREAD_SAFE);
	call = (struct call){.value = 3};
	err = fi_cntr_open(e.domain, &attr, &call.cntr, NULL);
	check(!err, "fi_cntr_open", err);
	let_sleep(&call, wait_for_counter);
	fi_cntr_add(call.cntr, 1);
	fi_cntr_add(call.cntr, 2);
	expect(&call, 0);
	call.value = 4;
	let_sleep(&call, wait_for_counter);
	fi_cntr_adderr(call.cntr, 1);
	expect(&call, -FI_EAVAIL);
	check(!fi_close(&call.cntr->fid), "fi_close", 0);
	check(!endpoint_close(&e), "endpoint_close", 0);
}

static void open_second(const struct endpoint *first, struct fid_ep **ret_ep,
			struct fid_cq **ret_cq, uint8_t address[ADDRESS_MAX])
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
	size_t len = ADDRESS_MAX;
	int err = fi_cq_open(first->domain, &attr, ret_cq, NULL);

	if (!err)
		err = fi_endpoint(first->domain, first->info, ret_ep, NULL);
	if (!err)
		err = fi_ep_bind(*ret_ep, &first->av->fid, 0);
	if (!err)
		err = fi_ep_bind(*ret_ep, &(*ret_cq)->fid, FI_TRANSMIT | FI_RECV);
	if (!err)
		err = fi_enable(*ret_ep);
	if (!err)
		err = fi_getname(&(*ret_ep)->fid, address, &len);
	check(!err, "a second endpoint", err);
}

struct reader {
	pthread_t thread;
	struct fid_ep *ep;
	struct fid_cq *cq;
};

static void *read_many(void *arg)
{
	struct fi_cq_tagged_entry entry;
	struct reader *reader = arg;
	ssize_t rc;

	for (unsigned int i = 0; i < NR_MESSAGES; i++) {
		rc = fi_trecv(reader->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, i, 0, NULL);
		check(!rc, "fi_trecv", rc);
		rc = fi_cq_sread(reader->cq, &entry, 1, NULL, FOR_EVER);
		check(rc == 1, "fi_cq_sread", rc);
	}
	return NULL;
}

/* Two threads of a domain sleep at two endpoints of it, and each gets what is its own. */
static void two_sleepers(void)
{
	uint8_t address[ADDRESS_MAX];
	struct reader readers[2];
	struct endpoint e, from;
	unsigned int seed = 2;
	fi_addr_t to[2];

	open_endpoint(&e, FI_THREAD_SAFE);
	open_endpoint(&from, FI_THREAD_SAFE);
	readers[0] = (struct reader){.ep = e.ep, .cq = e.cq};
	open_second(&e, &readers[1].ep, &readers[1].cq, address);
	to[0] = insert(&from, e.address);
	to[1] = insert(&from, address);
	for (int i = 0; i < 2; i++)
		check(!pthread_create(&readers[i].thread, NULL, read_many, &readers[i]),
		      "pthread_create", i);
	for (unsigned int i = 0; i < NR_MESSAGES; i++)
		for (int n = 0; n < 2; n++) {
			post(&from, OPERATION_SEND, to[n], NULL, 0, i);
			await(&from);
			pause_us(rand_r(&seed) % MAX_PAUSE_US);
		}
	for (int i = 0; i < 2; i++)
		pthread_join(readers[i].thread, NULL);
	check(!fi_close(&readers[1].ep->fid) && !fi_close(&readers[1].cq->fid), "fi_close", 0);
	check(!endpoint_close(&e), "endpoint_close", 0);
	check(!endpoint_close(&from), "endpoint_close", 0);
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A time that is over ends the sleep, and not before. */
static void timed_out(void)
{
	struct fi_cq_tagged_entry entry;
	struct endpoint e;
	uint64_t start = now_ms();
	ssize_t nr;

	open_endpoint(&e, FI_THREAD_DOMAIN);
	nr = fi_cq_sread(e.cq, &entry, 1, NULL, 50);
	check(nr == -FI_EAGAIN, "fi_cq_sread", nr);
	check(now_ms() - start >= 49, "it slept for ms", (long)(now_ms() - start));
	nr = fi_cq_sread(e.cq, &entry, 1, NULL, 0);
	check(nr == -FI_EAGAIN, "fi_cq_sread", nr);
	check(!endpoint_close(&e), "endpoint_close", 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{"messages", messages},
		{"death", death},
		{"visit", visit},
		{"signal", signalled},
		{"completed-by-another", completed_by_another},
		{"counted-by-another", counted_by_another},
		{"left-by-another", left_by_another},
		{"two-sleepers", two_sleepers},
		{"time-out", timed_out},
	};

	alarm(PATIENCE_S);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 2 && strcmp(argv[1], cases[i].name))
			continue;
		cases[i].run();
		printf("ok %s\n", cases[i].name);
		fflush(stdout);
	}
	return 0;
}
