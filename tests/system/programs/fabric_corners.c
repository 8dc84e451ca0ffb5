/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Corners of the libfabric interface that programs other than MPIs turn: what fi_getinfo() says of
 * addresses, receives without FI_DIRECTED_RECV, event queues, descriptors to wait on, memory of devices.
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define VERSION FI_VERSION(1, 14)

static const char *current;

#define EXPECT(good) expect(good, #good, __LINE__)

static void expect(bool good, const char *what, int line)
{
	if (good)
		return;
	fprintf(stderr, "%s, line %d: not so: %s\n", current, line, what);
	exit(1);
}

static struct fi_info *ask(const char *node, uint64_t flags, uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;

	hints->caps = caps;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("nearmetal");
	EXPECT(!fi_getinfo(VERSION, node, NULL, flags, hints, &info));
	fi_freeinfo(hints);
	return info;
}

/* One endpoint and what it needs. */
struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
};

static void side_open(struct side *s, uint64_t caps, enum fi_wait_obj wait)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = wait};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

	s->info = ask(NULL, 0, caps);
	EXPECT(!fi_fabric(s->info->fabric_attr, &s->fabric, NULL));
	EXPECT(!fi_domain(s->fabric, s->info, &s->domain, NULL));
	EXPECT(!fi_av_open(s->domain, &av_attr, &s->av, NULL));
	EXPECT(!fi_cq_open(s->domain, &cq_attr, &s->cq, NULL));
	EXPECT(!fi_endpoint(s->domain, s->info, &s->ep, NULL));
	EXPECT(!fi_ep_bind(s->ep, &s->av->fid, 0));
	EXPECT(!fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(!fi_enable(s->ep));
}

static void side_close(struct side *s)
{
	EXPECT(!fi_close(&s->ep->fid));
	EXPECT(!fi_close(&s->cq->fid));
	EXPECT(!fi_close(&s->av->fid));
	EXPECT(!fi_close(&s->domain->fid));
	EXPECT(!fi_close(&s->fabric->fid));
	fi_freeinfo(s->info);
}

static fi_addr_t insert_itself(struct side *s)
{
	char name[64];
	size_t len = sizeof(name);
	fi_addr_t addr;

	EXPECT(!fi_getname(&s->ep->fid, name, &len));
	EXPECT(fi_av_insert(s->av, name, 1, &addr, 0, NULL) == 1);
	return addr;
}

static void check_addresses_of_info(void)
{
	struct fi_info *info = ask(NULL, 0, FI_MSG);
	fi_addr_t addr;
	struct side s;

	EXPECT(info->src_addr && info->src_addrlen == 64);
	EXPECT(!info->dest_addr && !info->dest_addrlen);
	fi_freeinfo(info);
	info = ask("somewhere", FI_SOURCE, FI_MSG);
	EXPECT(info->src_addr && !info->dest_addr);
	fi_freeinfo(info);

	/* Nobody's: there is nothing to send to before the peer's own address is here. */
	info = ask("somewhere", 0, FI_MSG);
	EXPECT(info->dest_addr && info->dest_addrlen == 64);
	side_open(&s, FI_MSG, FI_WAIT_NONE);
	EXPECT(fi_av_insert(s.av, info->dest_addr, 1, &addr, 0, NULL) == 0);
	EXPECT(addr == FI_ADDR_NOTAVAIL);
	side_close(&s);
	fi_freeinfo(info);
}

/* Without FI_DIRECTED_RECV the source of a receive says nothing, and need not exist. */
static void check_directed_receive(void)
{
	char out = 7, in = 0;
	struct fi_cq_tagged_entry entry;
	struct side s;
	fi_addr_t me;
	int nr = 0;

	side_open(&s, FI_MSG, FI_WAIT_NONE);
	EXPECT(!(s.info->caps & FI_DIRECTED_RECV));
	EXPECT(!fi_recv(s.ep, &in, sizeof(in), NULL, 1234, NULL));
	me = insert_itself(&s);
	EXPECT(!fi_send(s.ep, &out, sizeof(out), NULL, me, NULL));
	while (nr < 2)
		nr += fi_cq_read(s.cq, &entry, 1) == 1;
	EXPECT(in == out);
	side_close(&s);

	side_open(&s, FI_MSG | FI_DIRECTED_RECV, FI_WAIT_NONE);
	EXPECT(s.info->caps & FI_DIRECTED_RECV);
	EXPECT(fi_recv(s.ep, &in, sizeof(in), NULL, 1234, NULL) == -FI_EINVAL);
	side_close(&s);
}

static void check_event_queue(void)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD};
	struct fi_eq_entry in = {.data = 5}, out = {0};
	struct fi_eq_err_entry error = {0};
	struct pollfd wait = {.events = POLLIN};
	struct fi_info *info = ask(NULL, 0, FI_MSG);
	struct fid_fabric *fabric;
	struct fid_eq *eq;
	struct fid *fid;
	uint32_t type = 0;

	EXPECT(!fi_fabric(info->fabric_attr, &fabric, NULL));
	EXPECT(!fi_eq_open(fabric, &attr, &eq, NULL));
	EXPECT(!fi_control(&eq->fid, FI_GETWAIT, &wait.fd));
	fid = &eq->fid;
	EXPECT(!fi_trywait(fabric, &fid, 1));
	EXPECT(poll(&wait, 1, 0) == 0);
	EXPECT(fi_eq_read(eq, &type, &out, sizeof(out), 0) == -FI_EAGAIN);
	EXPECT(fi_eq_sread(eq, &type, &out, sizeof(out), 1, 0) == -FI_EAGAIN);

	EXPECT(fi_eq_write(eq, FI_NOTIFY, &in, sizeof(in), 0) == sizeof(in));
	EXPECT(poll(&wait, 1, 0) == 1);
	EXPECT(fi_eq_readerr(eq, &error, 0) == -FI_EAGAIN);
	EXPECT(fi_eq_read(eq, &type, &out, 1, 0) == -FI_ETOOSMALL);
	EXPECT(fi_eq_read(eq, &type, &out, sizeof(out), FI_PEEK) == sizeof(out));
	EXPECT(type == FI_NOTIFY && out.data == 5);
	out.data = 0;
	EXPECT(fi_eq_sread(eq, &type, &out, sizeof(out), -1, 0) == sizeof(out) && out.data == 5);
	EXPECT(poll(&wait, 1, 0) == 0);
	/* One that nobody reads is freed with its queue. */
	EXPECT(fi_eq_write(eq, FI_NOTIFY, NULL, 0, 0) == 0);
	EXPECT(!fi_close(&eq->fid));
	EXPECT(!fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* A program that waits as the manual says never sleeps through a message. */
static void check_wait_descriptors(void)
{
	struct fi_cntr_attr cntr_attr = {.wait_obj = FI_WAIT_FD};
	struct pollfd wait = {.events = POLLIN};
	enum fi_wait_obj wait_obj = FI_WAIT_NONE;
	struct fid_cntr *cntr;
	struct fid *fids[2];
	struct side s;

	side_open(&s, FI_MSG, FI_WAIT_FD);
	EXPECT(!fi_cntr_open(s.domain, &cntr_attr, &cntr, NULL));
	fids[0] = &s.cq->fid;
	fids[1] = &cntr->fid;
	EXPECT(fi_trywait(s.fabric, &fids[0], 1) == -FI_EAGAIN);
	EXPECT(fi_trywait(s.fabric, &fids[1], 1) == -FI_EAGAIN);
	EXPECT(!fi_control(fids[0], FI_GETWAITOBJ, &wait_obj) && wait_obj == FI_WAIT_FD);
	EXPECT(!fi_control(fids[0], FI_GETWAIT, &wait.fd));
	EXPECT(poll(&wait, 1, 0) == 1);
	EXPECT(!fi_control(fids[1], FI_GETWAIT, &wait.fd));
	EXPECT(poll(&wait, 1, 0) == 1);
	EXPECT(!fi_close(&cntr->fid));
	side_close(&s);
	side_open(&s, FI_MSG, FI_WAIT_UNSPEC);
	EXPECT(fi_control(&s.cq->fid, FI_GETWAIT, &wait.fd) == -FI_ENODATA);
	side_close(&s);
}

/* A region's counter counts what others wrote there. Here: the endpoint itself, as its own peer. */
static void check_remote_events(void)
{
	struct fi_cntr_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	char source[8] = "written", target[8] = "";
	struct fid_cntr *cntr;
	struct fid_mr *mr;
	struct side s;

	side_open(&s, FI_MSG | FI_RMA | FI_RMA_EVENT, FI_WAIT_NONE);
	EXPECT(s.info->caps & FI_RMA_EVENT);
	EXPECT(!fi_cntr_open(s.domain, &attr, &cntr, NULL));
	EXPECT(!fi_mr_reg(s.domain, target, sizeof(target), FI_REMOTE_WRITE, 0, 7, FI_RMA_EVENT,
			  &mr, NULL));
	EXPECT(!fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	EXPECT(!fi_mr_enable(mr));
	EXPECT(!fi_write(s.ep, source, sizeof(source), NULL, insert_itself(&s), 0, 7, NULL));
	/* Nothing else is read: the counter drives the endpoint. */
	EXPECT(!fi_cntr_wait(cntr, 1, 10000));
	EXPECT(fi_cntr_read(cntr) == 1);
	EXPECT(!memcmp(source, target, sizeof(source)));
	EXPECT(!fi_close(&mr->fid));
	EXPECT(!fi_close(&cntr->fid));
	side_close(&s);
	side_open(&s, FI_MSG | FI_RMA, FI_WAIT_NONE);
	EXPECT(!(s.info->caps & FI_RMA_EVENT));
	side_close(&s);
}

static struct fi_info *ask_for_opened(const struct side *first, enum fi_threading threading)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;

	hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("nearmetal");
	hints->fabric_attr->fabric = first->fabric;
	hints->domain_attr->domain = first->domain;
	hints->domain_attr->threading = threading;
	EXPECT(!fi_getinfo(VERSION, NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	return info;
}

/* Memory of a device is refused in words, and never touched. */
static void check_device_memory(void)
{
	char bytes[64];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = FI_REMOTE_READ,
		.requested_key = 3,
		.iface = FI_HMEM_CUDA,
	};
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	struct fid_mr *mr = NULL;
	struct side s;

	hints->caps = FI_MSG | FI_HMEM;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("nearmetal");
	EXPECT(fi_getinfo(VERSION, NULL, NULL, 0, hints, &info) == -FI_ENODATA);
	fi_freeinfo(hints);
	side_open(&s, FI_MSG | FI_RMA, FI_WAIT_NONE);
	EXPECT(!(s.info->caps & FI_HMEM) && !(s.info->domain_attr->mr_mode & FI_MR_HMEM));
	EXPECT(fi_mr_regattr(s.domain, &attr, 0, &mr) == -FI_ENOSYS);
	attr.iface = (enum fi_hmem_iface)1000;
	EXPECT(fi_mr_regattr(s.domain, &attr, 0, &mr) == -FI_EINVAL);
	attr.iface = FI_HMEM_SYSTEM;
	EXPECT(fi_mr_regattr(s.domain, &attr, FI_HMEM_DEVICE_ONLY, &mr) == -FI_EBADFLAGS);
	EXPECT(!fi_mr_regattr(s.domain, &attr, 0, &mr));
	EXPECT(!fi_close(&mr->fid));
	side_close(&s);
}

static long private_bytes(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[128];
	long kib = 0;

	EXPECT(status != NULL);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "RssAnon: %ld", &kib);
	fclose(status);
	return kib * 1024;
}

/*
 * The inner provider hears of an address when something is first sent to it: its own vector takes 136
 * bytes and more for each.
 */
static void check_inner_addresses(void)
{
	enum { NR = 100000, EACH = 40, MORE = 6 << 20 };
	char name[64];
	size_t len = sizeof(name);
	fi_addr_t addr;
	struct side s;
	long before;

	side_open(&s, FI_MSG, FI_WAIT_NONE);
	EXPECT(!fi_getname(&s.ep->fid, name, &len) && len == 64);
	before = private_bytes();
	for (uint64_t i = 1; i <= NR; i++) {
		/* Another name and secret, as random as real ones, on another port of ours. */
		uint64_t word = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

		word = (word ^ word >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
		memcpy(name + 2, &word, 6);
		word *= UINT64_C(0x94d049bb133111eb);
		memcpy(name + 8, &word, 8);
		memcpy(name + 18, &i, 2);
		EXPECT(fi_av_insert(s.av, name, 1, &addr, 0, NULL) == 1);
	}
	EXPECT(private_bytes() - before < (long)NR * EACH + MORE);
	side_close(&s);
}

/* A program that names what it has open goes on with that, if it is ours and promises as much. */
static void check_opened_domain(void)
{
	struct fi_info *info;
	struct side s, other;

	side_open(&s, FI_MSG, FI_WAIT_NONE);
	info = ask_for_opened(&s, FI_THREAD_SAFE);
	EXPECT(info->fabric_attr->fabric == s.fabric && info->domain_attr->domain == s.domain);
	fi_freeinfo(info);
	other = s;
	other.fabric = (struct fid_fabric *)&info;
	other.domain = (struct fid_domain *)&info;
	info = ask_for_opened(&other, FI_THREAD_SAFE);
	EXPECT(!info->fabric_attr->fabric && !info->domain_attr->domain);
	fi_freeinfo(info);
	side_close(&s);

	s.info = ask(NULL, 0, FI_MSG);
	s.info->domain_attr->threading = FI_THREAD_DOMAIN;
	EXPECT(!fi_fabric(s.info->fabric_attr, &s.fabric, NULL));
	EXPECT(!fi_domain(s.fabric, s.info, &s.domain, NULL));
	info = ask_for_opened(&s, FI_THREAD_SAFE);
	EXPECT(info->fabric_attr->fabric == s.fabric && !info->domain_attr->domain);
	fi_freeinfo(info);
	info = ask_for_opened(&s, FI_THREAD_DOMAIN);
	EXPECT(info->domain_attr->domain == s.domain);
	fi_freeinfo(info);
	EXPECT(!fi_close(&s.domain->fid));
	EXPECT(!fi_close(&s.fabric->fid));
	fi_freeinfo(s.info);
}

/* Who waits at one queue of a domain still does its other endpoints' part for their peers. */
static void check_help(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	uint64_t one = 1, sum = 41;
	struct side waiting, target, initiator;
	struct fi_cq_tagged_entry entry;
	time_t end = time(NULL) + 30;
	size_t len = 64;
	struct fid_mr *mr;
	char name[64];
	fi_addr_t to;
	ssize_t got;

	side_open(&waiting, FI_MSG, FI_WAIT_NONE);
	target = waiting;
	target.info = ask_for_opened(&waiting, FI_THREAD_SAFE);
	EXPECT(!fi_av_open(target.domain, &av_attr, &target.av, NULL));
	EXPECT(!fi_cq_open(target.domain, &cq_attr, &target.cq, NULL));
	EXPECT(!fi_endpoint(target.domain, target.info, &target.ep, NULL));
	EXPECT(!fi_ep_bind(target.ep, &target.av->fid, 0));
	EXPECT(!fi_ep_bind(target.ep, &target.cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(!fi_enable(target.ep));
	EXPECT(!fi_mr_reg(target.domain, &sum, sizeof(sum), FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
	EXPECT(!fi_getname(&target.ep->fid, name, &len));

	side_open(&initiator, FI_MSG | FI_RMA | FI_ATOMIC, FI_WAIT_NONE);
	EXPECT(fi_av_insert(initiator.av, name, 1, &to, 0, NULL) == 1);
	/* It may come before the two have met. */
	while ((got = fi_atomic(initiator.ep, &one, 1, NULL, to, 0, 7, FI_UINT64, FI_SUM, NULL)) ==
		       -FI_EAGAIN &&
	       time(NULL) < end)
		EXPECT(fi_cq_read(initiator.cq, &entry, 1) == -FI_EAGAIN);
	EXPECT(!got);
	do {
		EXPECT(fi_cq_read(waiting.cq, &entry, 1) == -FI_EAGAIN);
		got = fi_cq_read(initiator.cq, &entry, 1);
	} while (got == -FI_EAGAIN && time(NULL) < end);
	EXPECT(got == 1 && sum == 42);
	side_close(&initiator);
	EXPECT(!fi_close(&mr->fid));
	EXPECT(!fi_close(&target.ep->fid));
	EXPECT(!fi_close(&target.cq->fid));
	EXPECT(!fi_close(&target.av->fid));
	fi_freeinfo(target.info);
	side_close(&waiting);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"addresses of fi_info", check_addresses_of_info},
	{"directed receive", check_directed_receive},
	{"event queue", check_event_queue},
	{"descriptors to wait on", check_wait_descriptors},
	{"remote events", check_remote_events},
	{"memory of devices", check_device_memory},
	{"inner addresses", check_inner_addresses},
	{"domain that is open", check_opened_domain},
	{"help for other endpoints", check_help},
};

/* usage: fabric_corners [CASE] */
int main(int argc, char **argv)
{
	size_t i, nr = sizeof(cases) / sizeof(cases[0]), nr_run = 0;

	for (i = 0; i < nr; i++) {
		current = cases[i].name;
		if (argc > 1 && strcmp(argv[1], current))
			continue;
		cases[i].run();
		nr_run++;
	}
	printf("corners OK: %zu cases\n", nr_run);
	return nr_run == 0;
}
