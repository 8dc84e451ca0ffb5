/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for each program of fabtests in the tests of its runner, with the options that the
 * runner gives. Server and client meet over TCP (-E), open an endpoint each, and exchange one
 * message each way over the provider. With -i one process only asks for the provider.
 *
 *	fi_stand_in -i -p PROVIDER
 *	fi_stand_in -p PROVIDER -E [SERVER]		likewise -x -E, and -u FILE SERVER -E
 *
 * FILE has the line "prov_name: NAME", and then the client prints its count as ubertest does.
 */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#define PORT 47634
#define NAME_MAX_LEN 64
#define ADDRESS_MAX 256
#define CONNECT_TRIES 50

struct card {
	uint64_t len;
	uint8_t address[ADDRESS_MAX];
};

static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;

static int fail(const char *what, int err)
{
	fprintf(stderr, "%s: %s\n", what, fi_strerror(abs(err)));
	return abs(err);
}

static bool transfer(int fd, void *bytes, size_t len, bool out)
{
	ssize_t done;

	for (size_t at = 0; at < len; at += (size_t)done) {
		done = out ? write(fd, (char *)bytes + at, len - at) :
			     read(fd, (char *)bytes + at, len - at);
		if (done <= 0)
			return false;
	}
	return true;
}

/* A connection to SERVER, or to whoever connects if that is NULL. -1: none. */
static int meet(const char *server)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1, met = -1;

	if (server) {
		inet_pton(AF_INET, server, &at.sin_addr);
		for (int i = 0; i < CONNECT_TRIES; i++, usleep(100000))
			if (!connect(fd, (void *)&at, sizeof(at)))
				return fd;
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		if (!bind(fd, (void *)&at, sizeof(at)) && !listen(fd, 1))
			met = accept(fd, NULL, NULL);
	}
	close(fd);
	return met;
}

static int find(const char *provider, struct fi_info **ret_info)
{
	struct fi_info *hints = fi_allocinfo();
	int err;

	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup(provider);
	err = fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, ret_info);
	fi_freeinfo(hints);
	return err;
}

static int open_endpoint(struct fi_info *info, struct card *ret_card)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 64};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fid_fabric *fabric;
	size_t len = sizeof(ret_card->address);
	int err;

	err = fi_fabric(info->fabric_attr, &fabric, NULL);
	if (!err)
		err = fi_domain(fabric, info, &domain, NULL);
	if (!err)
		err = fi_av_open(domain, &av_attr, &av, NULL);
	if (!err)
		err = fi_cq_open(domain, &cq_attr, &cq, NULL);
	if (!err)
		err = fi_endpoint(domain, info, &ep, NULL);
	if (!err)
		err = fi_ep_bind(ep, &av->fid, 0);
	if (!err)
		err = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
	if (!err)
		err = fi_enable(ep);
	if (!err)
		err = fi_getname(&ep->fid, ret_card->address, &len);
	ret_card->len = len;
	return err;
}

static int wait_for(int nr)
{
	struct fi_cq_entry entry;
	ssize_t got;

	while (nr) {
		got = fi_cq_read(cq, &entry, 1);
		if (got == 1)
			nr--;
		else if (got != -FI_EAGAIN)
			return (int)got;
	}
	return 0;
}

/* One message each way. */
static int exchange(fi_addr_t peer)
{
	static uint64_t sent = 47, got;
	static struct fi_context2 contexts[2];
	ssize_t err;

	err = fi_recv(ep, &got, sizeof(got), NULL, FI_ADDR_UNSPEC, &contexts[0]);
	if (err)
		return (int)err;
	while ((err = fi_send(ep, &sent, sizeof(sent), NULL, peer, &contexts[1])) == -FI_EAGAIN)
		fi_cq_read(cq, NULL, 0);
	if (!err)
		err = wait_for(2);
	return err ? (int)err : got == sent ? 0 : -FI_EIO;
}

static void read_name(const char *path, char name[NAME_MAX_LEN])
{
	FILE *file = fopen(path, "r");
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, " prov_name: %63[^,\n]", name);
	if (file)
		fclose(file);
}

static int two_sides(const char *server, char name[NAME_MAX_LEN])
{
	struct card own = {0}, other = {0};
	struct fi_info *info = NULL;
	fi_addr_t peer;
	char done = 1;
	int fd, err;

	fd = meet(server);
	if (fd < 0)
		return fail("no connection", FI_ENOTCONN);
	if (!transfer(fd, name, NAME_MAX_LEN, server))
		return fail("no name of a provider", FI_EIO);
	err = find(name, &info);
	if (err)
		return fail("fi_getinfo", err);
	err = open_endpoint(info, &own);
	if (err)
		return fail("endpoint", err);
	if (!transfer(fd, &own, sizeof(own), true) || !transfer(fd, &other, sizeof(other), false))
		return fail("no address", FI_EIO);
	if (fi_av_insert(av, other.address, 1, &peer, 0, NULL) != 1)
		return fail("fi_av_insert", FI_EINVAL);
	err = exchange(peer);
	if (err)
		return fail("exchange", err);
	/* Neither side leaves before both have their message. */
	if (!transfer(fd, &done, 1, true) || !transfer(fd, &done, 1, false))
		return fail("the other side left", FI_EIO);
	fi_close(&ep->fid);
	return 0;
}

int main(int argc, char **argv)
{
	char name[NAME_MAX_LEN] = "";
	struct fi_info *info = NULL;
	const char *server = NULL;
	bool alone = false, counts = false;
	int err;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-i"))
			alone = true;
		else if (!strcmp(argv[i], "-p") && i + 1 < argc)
			snprintf(name, sizeof(name), "%s", argv[++i]);
		else if (!strcmp(argv[i], "-I"))
			i++;
		else if (!strcmp(argv[i], "-u") && i + 1 < argc && (counts = true))
			read_name(argv[++i], name);
		else if (argv[i][0] != '-')
			server = argv[i];
	}
	if (alone) {
		err = find(name, &info);
		return err ? fail("fi_getinfo", err) : 0;
	}
	err = two_sides(server, name);
	if (counts)
		printf("Success: %d\nENODATA: %d\nERROR: %d\n", !err, err == FI_ENODATA,
		       err && err != FI_ENODATA);
	return err;
}
