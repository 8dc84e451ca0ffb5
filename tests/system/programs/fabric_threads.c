/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threading over the public libfabric interface: every model is answered as it was asked for, and
 * with FI_THREAD_SAFE several threads post to one endpoint and read one completion queue at once.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "endpoint.h"

#define NR_THREADS 4
#define NR_MESSAGES 2000
#define MAX_SIZE 70000
#define PATIENCE_S 120

struct side {
	struct endpoint at;
	fi_addr_t peer;
};

struct worker {
	pthread_t thread;
	struct side *side;
	unsigned int number;
	bool sends;
};

static void check(bool good, const char *what, long value)
{
	if (good)
		return;
	fprintf(stderr, "%s: %ld\n", what, value);
	_exit(1);
}

static struct fi_info *ask(enum fi_threading threading)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	int err;

	check(hints, "fi_allocinfo", 0);
	hints->caps = FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = threading;
	hints->fabric_attr->prov_name = strdup("nearmetal");
	err = fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info);
	check(!err, "fi_getinfo", err);
	fi_freeinfo(hints);
	return info;
}

static void check_echo(void)
{
	static const enum fi_threading models[] = {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN,
						   FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT};
	struct fi_info *info;
	size_t i;

	for (i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		info = ask(models[i]);
		check(info->domain_attr->threading == models[i], "not the model that was asked for",
		      models[i]);
		fi_freeinfo(info);
	}
}

/* Marks as done whatever completes, whoever waits for it. */
static void poll_queue(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entries[4];
	ssize_t nr = fi_cq_read(cq, entries, 4), i;

	check(nr > 0 || nr == -FI_EAGAIN, "fi_cq_read", nr);
	for (i = 0; i < nr; i++)
		check(!atomic_exchange((atomic_bool *)entries[i].op_context, true),
		      "completed twice", i);
}

static uint8_t byte_of(const struct worker *w, unsigned int message, size_t at)
{
	return (uint8_t)(w->number * 31 + message * 7 + at);
}

static void transfer(struct worker *w, unsigned int message, uint8_t *buffer)
{
	size_t size = message * 37UL % (message % 50 ? 600 : MAX_SIZE), i;
	struct side *side = w->side;
	atomic_bool done = false;
	ssize_t err;

	for (i = 0; i < size; i++)
		buffer[i] = w->sends ? byte_of(w, message, i) : 0;
	do {
		err = w->sends ? fi_tsend(side->at.ep, buffer, size, NULL, side->peer, w->number,
					  &done) :
				 fi_trecv(side->at.ep, buffer, MAX_SIZE, NULL, FI_ADDR_UNSPEC,
					  w->number, 0, &done);
		if (err == -FI_EAGAIN)
			poll_queue(side->at.cq);
	} while (err == -FI_EAGAIN);
	check(!err, "post", err);
	while (!atomic_load(&done))
		poll_queue(side->at.cq);
	for (i = 0; i < size; i++)
		check(buffer[i] == byte_of(w, message, i), "wrong byte in message", message);
}

static void *work(void *arg)
{
	uint8_t *buffer = malloc(MAX_SIZE);
	struct worker *w = arg;
	unsigned int message;

	check(buffer, "malloc", MAX_SIZE);
	for (message = 0; message < NR_MESSAGES; message++)
		transfer(w, message, buffer);
	free(buffer);
	return NULL;
}

int main(void)
{
	struct worker workers[2 * NR_THREADS];
	struct side sides[2];
	unsigned int i;
	int err;

	alarm(PATIENCE_S);
	check_echo();
	for (i = 0; i < 2; i++) {
		err = endpoint_open(&sides[i].at, FI_THREAD_SAFE);
		check(!err, "endpoint_open", err);
	}
	for (i = 0; i < 2; i++) {
		err = fi_av_insert(sides[i].at.av, sides[1 - i].at.address, 1, &sides[i].peer, 0,
				   NULL);
		check(err == 1, "fi_av_insert", err);
	}
	for (i = 0; i < 2 * NR_THREADS; i++) {
		workers[i] = (struct worker){
			.side = &sides[i % 2], .number = i / 2, .sends = i % 2 == 0};
		err = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
		check(!err, "pthread_create", err);
	}
	for (i = 0; i < 2 * NR_THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	for (i = 0; i < 2; i++)
		check(!endpoint_close(&sides[i].at), "endpoint_close", i);
	printf("threads OK: %d messages\n", NR_THREADS * NR_MESSAGES);
	return 0;
}
