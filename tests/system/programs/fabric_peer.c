/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint that does what a test tells it: one command per line on standard input, one line of
 * standard output for everything that happens. It makes progress all the time unless it is paused.
 *
 *	open				ready ADDRESS | failed open ERR TEXT
 *	insert NAME ADDRESS		inserted NAME | failed NAME ERR TEXT
 *	send ID NAME SIZE TAG		posted ID | failed ID ERR TEXT, later done or error
 *	recv ID NAME|any SIZE TAG	likewise; TAG: a number, any, or - (an untagged message)
 *	flood NAME SIZE NUMBER TAG	flooding; later flooded SENT ERR TEXT, ERR 0: all were sent
 *	await ID BYTES			midway ID BYTES: that much of receive ID is here; paused now
 *	pause, resume			paused, resumed
 *	fork exit|exec|stay		forked PID; later child PID STATUS
 *	fds				fds NUMBER
 *	close				closed ERR: the process lives on
 *	exit CODE			nothing is closed before
 *
 * Later lines: done ID send; done ID recv LEN TAG good|bad; error ID ERR TEXT. The end of standard
 * input closes the endpoint in order.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "endpoint.h"

#define MAX_PEERS 16
#define READS_PER_TURN 256
#define FLOOD_DEPTH 64

struct flood {
	struct operation operation;
	bool active;
	uint64_t number, sent, done;
	int err;
};

static struct endpoint endpoint;
static struct operation *operations; /* in the order of their commands */
static struct flood flood;
static struct {
	char name[NAME_LEN];
	fi_addr_t address;
} peers[MAX_PEERS];
static unsigned int nr_peers, nr_children;
static bool paused;
static const struct operation *awaited;
static size_t awaited_bytes;

static void failed(const char *what, int err)
{
	printf("failed %s %d %s\n", what, -err, fi_strerror(-err));
}

static void finish(struct operation *operation)
{
	struct operation **at;

	for (at = &operations; *at != operation; at = &(*at)->next)
		;
	*at = operation->next;
	if (awaited == operation)
		awaited = NULL;
	free(operation->buffer);
	free(operation);
}

/* Nothing overtakes what waits before it for the same peer. */
static bool may_post(const struct operation *operation)
{
	const struct operation *o;

	for (o = operations; o != operation; o = o->next)
		if (!o->posted && o->peer == operation->peer)
			return false;
	return !operation->posted;
}

/* Whatever waits to be posted. */
static void post_waiting(void)
{
	struct operation *o, *next;
	int err;

	for (o = operations; o; o = next) {
		next = o->next;
		if (!may_post(o))
			continue;
		err = operation_start(&endpoint, o);
		if (err == -FI_EAGAIN)
			continue;
		if (err) {
			failed(o->id, err);
			finish(o);
		} else {
			o->posted = true;
			printf("posted %s\n", o->id);
		}
	}
}

static void end_flood(int err)
{
	flood.active = false;
	printf("flooded %llu %d %s\n", (unsigned long long)flood.sent, err, fi_strerror(err));
}

static void push_flood(void)
{
	int err = 0;

	while (flood.sent < flood.number && flood.sent - flood.done < FLOOD_DEPTH) {
		err = operation_start(&endpoint, &flood.operation);
		if (err)
			break;
		flood.sent++;
	}
	if (err && err != -FI_EAGAIN)
		end_flood(-err);
	else if (flood.done == flood.number)
		end_flood(flood.err);
}

static void report(struct operation *o, const struct fi_cq_tagged_entry *entry)
{
	bool good;

	if (o->kind == OPERATION_FLOOD) {
		flood.done++;
	} else if (o->kind == OPERATION_SEND) {
		printf("done %s send\n", o->id);
		finish(o);
	} else {
		good = pattern_check(o->buffer, entry->len, o->tagged ? entry->tag : 0) ==
		       entry->len;
		printf("done %s recv %zu %llu %s\n", o->id, entry->len,
		       (unsigned long long)entry->tag, good ? "good" : "bad");
		finish(o);
	}
}

static void report_error(void)
{
	struct fi_cq_err_entry entry = {0};
	struct operation *o;

	if (fi_cq_readerr(endpoint.cq, &entry, 0) != 1)
		return;
	o = entry.op_context;
	if (!o) {
		printf("error - %d %s\n", entry.err, fi_strerror(entry.err));
	} else if (o->kind == OPERATION_FLOOD) {
		flood.done++;
		if (flood.active)
			end_flood(entry.err);
	} else {
		printf("error %s %d %s\n", o->id, entry.err, fi_strerror(entry.err));
		finish(o);
	}
}

static bool awaited_is_here(void)
{
	size_t last = awaited_bytes ? (awaited_bytes - 1) & ~(size_t)7 : 0;
	uint64_t word = 0;

	if (!awaited)
		return false;
	/* Cheap first: the pattern has no zero word, and the buffer was cleared. */
	memcpy(&word, awaited->buffer + last, awaited_bytes - last);
	if (!word || pattern_check(awaited->buffer, awaited_bytes, awaited->tag) < awaited_bytes)
		return false;
	printf("midway %s %zu\n", awaited->id, awaited_bytes);
	awaited = NULL;
	paused = true;
	return true;
}

/* Returns whether anything completed. */
static bool progress(void)
{
	struct fi_cq_tagged_entry entry;
	bool any = false;
	unsigned int i;
	ssize_t got;

	for (i = 0; i < READS_PER_TURN && !awaited_is_here(); i++) {
		got = fi_cq_read(endpoint.cq, &entry, 1);
		if (got == -FI_EAVAIL) {
			report_error();
			any = true;
		} else if (got == 1) {
			report(entry.op_context, &entry);
			any = true;
		} else if (got != -FI_EAGAIN) {
			failed("progress", (int)got);
			exit(3);
		}
		if (flood.active)
			push_flood();
	}
	post_waiting();
	return any;
}

static bool find_peer(const char *name, fi_addr_t *ret_address)
{
	unsigned int i;

	*ret_address = FI_ADDR_UNSPEC;
	if (!strcmp(name, "any"))
		return true;
	for (i = 0; i < nr_peers; i++)
		if (!strcmp(peers[i].name, name))
			*ret_address = peers[i].address;
	return *ret_address != FI_ADDR_UNSPEC;
}

static bool fill_operation(struct operation *o, const char *id, const char *name, const char *size,
			   const char *tag)
{
	snprintf(o->id, sizeof(o->id), "%s", id);
	o->tagged = strcmp(tag, "-") != 0;
	o->ignore = strcmp(tag, "any") ? 0 : UINT64_MAX;
	o->tag = o->tagged && !o->ignore ? strtoull(tag, NULL, 10) : 0;
	o->size = strtoull(size, NULL, 10);
	o->buffer = calloc(1, o->size ? o->size : 1);
	if (!find_peer(name, &o->peer) || !o->buffer)
		return false;
	if (o->kind != OPERATION_RECV)
		pattern_fill(o->buffer, o->size, o->tag);
	return true;
}

static void add_operation(enum operation_kind kind, char **words)
{
	struct operation *o = calloc(1, sizeof(*o)), **at;

	if (!o)
		return;
	o->kind = kind;
	if (!fill_operation(o, words[1], words[2], words[3], words[4])) {
		failed(words[1], -FI_EINVAL);
		free(o->buffer);
		free(o);
		return;
	}
	for (at = &operations; *at; at = &(*at)->next)
		;
	*at = o;
	post_waiting();
}

static void start_flood(char **words)
{
	free(flood.operation.buffer);
	memset(&flood, 0, sizeof(flood));
	flood.operation.kind = OPERATION_FLOOD;
	flood.number = strtoull(words[3], NULL, 10);
	if (!fill_operation(&flood.operation, "flood", words[1], words[2], words[4])) {
		failed("flood", -FI_EINVAL);
		return;
	}
	flood.active = true;
	printf("flooding\n");
}

static void start_await(char **words)
{
	struct operation *o;

	for (o = operations; o && strcmp(o->id, words[1]); o = o->next)
		;
	awaited = o;
	awaited_bytes = strtoull(words[2], NULL, 10);
	if (!o || awaited_bytes > o->size) {
		awaited = NULL;
		failed(words[1], -FI_ENOENT);
	}
}

static void insert(const char *name, const char *hex)
{
	uint8_t bytes[ADDRESS_MAX] = {0};
	fi_addr_t address;
	unsigned int i;
	int got;

	for (i = 0; i < ADDRESS_MAX && sscanf(hex + 2 * i, "%2hhx", &bytes[i]) == 1; i++)
		;
	got = fi_av_insert(endpoint.av, bytes, 1, &address, 0, NULL);
	if (got != 1 || nr_peers == MAX_PEERS) {
		failed(name, got < 0 ? got : -FI_EINVAL);
		return;
	}
	snprintf(peers[nr_peers].name, NAME_LEN, "%s", name);
	peers[nr_peers++].address = address;
	printf("inserted %s\n", name);
}

static void open_endpoint(void)
{
	int err = endpoint_open(&endpoint, FI_THREAD_DOMAIN);
	size_t i;

	if (err) {
		failed("open", err);
		return;
	}
	printf("ready ");
	for (i = 0; i < endpoint.address_len; i++)
		printf("%02x", endpoint.address[i]);
	printf("\n");
}

static int close_endpoint(void)
{
	nr_peers = 0;
	return endpoint_close(&endpoint);
}

static void start_child(const char *how)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		/* What a program that knows nothing of us does in its child. */
		if (!strcmp(how, "exit"))
			exit(0);
		if (!strcmp(how, "exec"))
			execlp("true", "true", NULL);
		sleep(60);
		_exit(1);
	}
	nr_children += pid > 0;
	printf("forked %d\n", (int)pid);
}

static void reap_children(void)
{
	int status;
	pid_t pid;

	while (nr_children && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
		nr_children--;
		printf("child %d %d\n", (int)pid, status);
	}
}

static unsigned int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr - 3; /* two dots, and the directory itself */
}

static void obey(char **words, unsigned int nr)
{
	const char *what = words[0];

	if (!strcmp(what, "open"))
		open_endpoint();
	else if (!strcmp(what, "close"))
		printf("closed %d\n", close_endpoint());
	else if (!strcmp(what, "insert") && nr == 3)
		insert(words[1], words[2]);
	else if (!strcmp(what, "send") && nr == 5)
		add_operation(OPERATION_SEND, words);
	else if (!strcmp(what, "recv") && nr == 5)
		add_operation(OPERATION_RECV, words);
	else if (!strcmp(what, "flood") && nr == 5)
		start_flood(words);
	else if (!strcmp(what, "await") && nr == 3)
		start_await(words);
	else if (!strcmp(what, "pause") || !strcmp(what, "resume"))
		printf("%sd\n", (paused = !strcmp(what, "pause")) ? "pause" : "resume");
	else if (!strcmp(what, "fork") && nr == 2)
		start_child(words[1]);
	else if (!strcmp(what, "fds"))
		printf("fds %u\n", count_fds());
	else if (!strcmp(what, "exit") && nr == 2)
		exit(atoi(words[1]));
	else
		failed(what, -FI_EINVAL);
}

static void obey_line(char *line)
{
	char *words[6], *rest = NULL, *word;
	unsigned int nr = 0;

	for (word = strtok_r(line, " ", &rest); word && nr < 6; word = strtok_r(NULL, " ", &rest))
		words[nr++] = word;
	if (nr)
		obey(words, nr);
}

/* Returns false at the end of the input. */
static bool take_input(void)
{
	static char input[8192];
	static size_t len;
	char *end;
	ssize_t got = read(STDIN_FILENO, input + len, sizeof(input) - 1 - len);

	if (got <= 0)
		return got < 0 && errno == EINTR;
	len += (size_t)got;
	input[len] = '\0';
	while ((end = strchr(input, '\n'))) {
		*end = '\0';
		obey_line(input);
		len -= (size_t)(end + 1 - input);
		memmove(input, end + 1, len + 1);
	}
	return true;
}

int main(void)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	bool busy = false;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (;;) {
		if (poll(&in, 1, busy ? 0 : paused || !endpoint.ep ? 50 : 1) > 0 && !take_input())
			break;
		reap_children();
		busy = endpoint.ep && !paused && progress();
	}
	return close_endpoint() ? 4 : 0;
}
