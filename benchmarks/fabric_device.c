/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from and to memory of a GPU over the public libfabric interface, each beside the copies of
 * the driver that limit it. Output: mpi/sampling.h, with a table for each pair of memories (H: host,
 * D: device; first the sender's) and for one and both directions. In each table:
 *
 *   time_*_us           the message until its receiver's answer; both directions: both messages
 *   bandwidth_p50_MBps  bytes of the message, or of both, by the median of these times
 *   copy_p50_MBps       the same bytes copied on the GPU alone, from device to device
 *   pinned_p50_MBps     the same bytes through pinned host memory: to the device, from it, or both at
 *                       the same time where a message needs both
 *   of_copy_p50, of_pinned_p50
 *                       median of the ratios of neighbouring samples, 1: as fast as the copy
 *
 * A sample of each takes turns, so a disturbance of the machine hits all of them. Messages of memory
 * of the host alone (H H) have no copy of the driver, and are left out.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"
#include "fabric_job.h"
#include "mpi/sampling.h"

#define TAG 1
#define TAG_ANSWER 2
#define NO_GPU 1
#define PAGE 4096

static const int percents[] = {2, 25, 50, 75, 98};
#define NR_PERCENTS (sizeof(percents) / sizeof(percents[0]))

/* Memory of one kind: what is sent, and what is received into. */
struct memory {
	char *out, *in;
	void *desc;
	bool pinned;
};

struct bench {
	struct job job;
	struct memory host, device;
	struct fid_mr *mr;
	size_t largest;
	int nr_samples;
};

/* The limits of one size, by the samples that stand beside those of the message. */
struct beside {
	struct samples message, copy, pinned, of_copy, of_pinned;
};

static double seconds_since(uint64_t start)
{
	return (double)(job_now_ns() - start) * 1e-9;
}

static void send(struct bench *b, const struct memory *m, size_t len, uint64_t tag)
{
	struct job *job = &b->job;

	JOB_RETRY(job, &job->main,
		  fi_tsend(job->main.ep, m->out, len, m->desc, job->main.peers[1 - job->rank], tag,
			   NULL));
}

static void receive(struct bench *b, const struct memory *m, size_t len, uint64_t tag)
{
	struct job *job = &b->job;

	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, m->in, len, m->desc, job->main.peers[1 - job->rank], tag,
			   0, NULL));
}

/* Rank 0 sends FROM, rank 1 receives INTO; if BOTH, also the other way. Then rank 1 answers. */
static void message(struct bench *b, const struct memory *from, const struct memory *into,
		    size_t len, bool both)
{
	struct job *job = &b->job;
	const bool sends = job->rank == 0 || both, receives = job->rank == 1 || both;

	if (job->rank == 0)
		receive(b, &b->host, 0, TAG_ANSWER);
	if (receives)
		receive(b, into, len, TAG);
	if (sends)
		send(b, from, len, TAG);
	if (receives)
		job_wait(job, job->main.rx_cq);
	if (sends)
		job_wait(job, job->main.tx_cq);
	if (job->rank == 0) {
		job_wait(job, job->main.rx_cq);
	} else {
		send(b, &b->host, 0, TAG_ANSWER);
		job_wait(job, job->main.tx_cq);
	}
}

/* Seconds for as many bytes as a message moves in one direction. */
static double copy_on_device(struct bench *b, size_t len)
{
	uint64_t start = job_now_ns();

	device_copy(b->device.in, b->device.out, len);
	return seconds_since(start);
}

static double copy_pinned(struct bench *b, bool from_device, bool to_device, size_t len)
{
	uint64_t start = job_now_ns();

	if (from_device && to_device)
		device_copy_both(b->host.in, b->device.out, b->device.in, b->host.out, len);
	else if (from_device)
		device_copy(b->host.in, b->device.out, len);
	else
		device_copy(b->device.in, b->host.out, len);
	return seconds_since(start);
}

static double rate_of(struct samples *times, double bytes)
{
	return bytes / samples_percentile(times, 50) * 1e-6;
}

static void print_row(struct beside *s, size_t len, double bytes)
{
	struct samples *all[] = {&s->message, &s->copy, &s->pinned, &s->of_copy, &s->of_pinned};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		samples_sort(all[i]);
	printf("%zu %d 1", len, s->message.nr);
	for (size_t i = 0; i < NR_PERCENTS; i++)
		printf(" %.4f", samples_percentile(&s->message, percents[i]) * 1e6);
	printf(" %.3f %.3f %.3f %.4f %.4f\n", rate_of(&s->message, bytes),
	       rate_of(&s->copy, (double)len), rate_of(&s->pinned, (double)len),
	       samples_percentile(&s->of_copy, 50), samples_percentile(&s->of_pinned, 50));
	fflush(stdout);
}

static void measure(struct bench *b, bool from_device, bool to_device, bool both, size_t len)
{
	static struct beside s;
	const struct memory *from = from_device ? &b->device : &b->host;
	const struct memory *into = to_device ? &b->device : &b->host;
	const double bytes = (double)len * (both ? 2 : 1);
	int nr = len > 1 << 20	? b->nr_samples / 16 + 1 :
		 len > 64 << 10 ? b->nr_samples / 4 + 1 :
				  b->nr_samples;

	memset(&s, 0, sizeof(s));
	/* The first ones warm up: connections, pinned blocks, handles. */
	for (int i = -2; i < nr; i++) {
		uint64_t start = job_now_ns();
		double took, copy, pinned;

		message(b, from, into, len, both);
		took = seconds_since(start);
		if (b->job.rank)
			continue;
		copy = copy_on_device(b, len);
		pinned = copy_pinned(b, from_device, to_device, len);
		if (i < 0)
			continue;
		samples_add(&s.message, took);
		samples_add(&s.copy, copy);
		samples_add(&s.pinned, pinned);
		samples_add(&s.of_copy, copy * bytes / (double)len / took);
		samples_add(&s.of_pinned, pinned * bytes / (double)len / took);
	}
	if (!b->job.rank)
		print_row(&s, len, bytes);
}

static void table(struct bench *b, bool from_device, bool to_device, bool both)
{
	char name[32];

	snprintf(name, sizeof(name), "fabric_device_%c%c%s", from_device ? 'D' : 'H',
		 to_device ? 'D' : 'H', both ? "_both" : "");
	if (!b->job.rank)
		printf("# table %s\nsize_B samples batch time_p2_us time_p25_us time_p50_us "
		       "time_p75_us time_p98_us bandwidth_p50_MBps copy_p50_MBps pinned_p50_MBps "
		       "of_copy_p50 of_pinned_p50\n",
		       name);
	for (size_t len = 8; len <= b->largest; len *= 2)
		measure(b, from_device, to_device, both, len);
	if (!b->job.rank)
		printf("# end %s\n", name);
}

/* A pattern goes from the device of rank 0 to that of rank 1, and is looked at there. */
static void verify(struct bench *b)
{
	const uint64_t seed = 7;
	size_t len = b->largest;

	b->job.phase = "verify";
	if (b->job.rank == 0) {
		job_fill(b->host.out, len, seed);
		device_copy(b->device.out, b->host.out, len);
	}
	message(b, &b->device, &b->device, len, false);
	if (b->job.rank == 1) {
		device_copy(b->host.in, b->device.in, len);
		if (job_verify(b->host.in, len, seed) != len)
			job_fail(&b->job, "wrong bytes arrived");
	}
	job_barrier(&b->job);
}

static void open_memory(struct bench *b)
{
	struct iovec iov;
	struct fi_mr_attr attr = {.mr_iov = &iov,
				  .iov_count = 1,
				  .access = FI_SEND | FI_RECV,
				  .requested_key = 1,
				  .iface = FI_HMEM_CUDA};
	size_t room = (2 * b->largest + PAGE - 1) / PAGE * PAGE;

	b->host.out = aligned_alloc(PAGE, room);
	if (!b->host.out)
		job_fail(&b->job, "no memory");
	memset(b->host.out, 0, room);
	b->host.in = b->host.out + b->largest;
	b->device.out = device_alloc(room);
	b->device.in = b->device.out + b->largest;
	iov = (struct iovec){b->device.out, room};
	job_check(&b->job, fi_mr_regattr(b->job.domain, &attr, 0, &b->mr), "fi_mr_regattr");
	b->device.desc = fi_mr_desc(b->mr);
	b->host.pinned = device_pin(b->host.out, room);
	if (b->job.rank == 0)
		printf("# host-memory %s\n",
		       b->host.pinned ? "pinned" : "pageable: the driver pins none");
}

static void close_memory(struct bench *b)
{
	job_barrier(&b->job);
	job_check(&b->job, fi_close(&b->mr->fid), "fi_close");
	device_free(b->device.out);
	if (b->host.pinned)
		device_unpin(b->host.out);
	free(b->host.out);
}

static void usage(FILE *to)
{
	fprintf(to,
		"usage: fabric_device [-r RANK -d DIR] [-p PROVIDER] [-t SAMPLES] [-x BYTES] "
		"[-w SECONDS] [-c]\n"
		"  -r RANK -d DIR  be this rank of two that are started one by one\n"
		"  -p PROVIDER     libfabric provider (default nearmetal)\n"
		"  -t SAMPLES      per size up to 64 KiB (default 100); larger sizes have fewer\n"
		"  -x BYTES        largest message (default 64M)\n"
		"  -w SECONDS      patience of the watchdog (default 300)\n"
		"  -c              only say whether there is a GPU\n"
		"Example: FI_PROVIDER_PATH=build/c/src/provider fabric_device\n");
}

/* A process that has used the driver must not fork ranks. Returns as device_open() does. */
static const char *ask_in_a_child(void)
{
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		const char *why = device_open();

		if (why)
			fprintf(stderr, "%s\n", why);
		_exit(why ? NO_GPU : 0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		return "a GPU is needed";
	return NULL;
}

int main(int argc, char **argv)
{
	struct job_options options = {
		.nr_ranks = 2,
		.rank = -1,
		.provider = "nearmetal",
		.patience_s = 300,
		.caps = FI_TAGGED | FI_DIRECTED_RECV | FI_HMEM,
	};
	static struct bench b = {.nr_samples = 100};
	uint64_t max = 64 << 20;
	const char *why;
	bool asks = false;
	int option;

	while ((option = getopt(argc, argv, JOB_OPTIONS "t:x:ch")) != -1) {
		if (job_option(&options, option, optarg))
			continue;
		if (option == 't')
			b.nr_samples = atoi(optarg);
		else if (option == 'c')
			asks = true;
		else if (option != 'x' || size_parse(optarg, &max)) {
			usage(option == 'h' ? stdout : stderr);
			return option == 'h' ? 0 : 2;
		}
	}
	if (b.nr_samples < 1 || b.nr_samples > SAMPLES_MAX || max < 8 || max > UINT64_C(1) << 30) {
		usage(stderr);
		return 2;
	}
	why = asks || options.rank >= 0 ? device_open() : ask_in_a_child();
	if (why) {
		fprintf(stderr, "%s\n", why);
		return NO_GPU;
	}
	if (asks) {
		printf("%s\n", *device_name() ? device_name() : "a GPU without a name");
		return 0;
	}
	b.largest = max;
	job_start(&b.job, &options);
	why = options.rank < 0 ? device_open() : NULL;
	if (why)
		job_fail(&b.job, "%s", why);
	if (!b.job.rank) {
		double link = device_link_MBps();

		job_print_head(&b.job, "fabric_device");
		printf("# gpu %s\n", *device_name() ? device_name() : "without a name");
		if (link > 0)
			printf("# pcie-limit-MBps %.0f\n", link);
		else
			printf("# pcie-limit-MBps not known: sysfs shows no link of the GPU\n");
	}
	open_memory(&b);
	verify(&b);
	b.job.phase = "measure";
	for (int both = 0; both < 2; both++)
		for (int sides = 1; sides < 4; sides++)
			table(&b, sides & 1, sides & 2, both);
	close_memory(&b);
	job_stop(&b.job);
	if (!b.job.rank)
		printf("# done fabric_device\n");
	return 0;
}
