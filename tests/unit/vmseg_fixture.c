/* SPDX-License-Identifier: Apache-2.0 */
#include "vmseg_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

static uint8_t token[NM_VMSEG_TOKEN_LEN] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2};

static unsigned int number_in_use;

void segment_use(unsigned int number)
{
	number_in_use = number;
	token[15] = (uint8_t)(2 + number);
}

static const char *path(void)
{
	static char text[NM_VMSEG_PATH_MAX];

	snprintf(text, sizeof(text), "%s/segment", nm_test_dir());
	if (number_in_use)
		snprintf(text, sizeof(text), "%s/segment-%u", nm_test_dir(), number_in_use);
	return text;
}

const char *segment_file(uint32_t nr_parts, uint64_t part_size)
{
	struct nm_vmseg_host host;
	struct nm_reason why;
	int fd;

	NM_CHECK_EQ(nm_vmseg_host_init(nr_parts, part_size, token, &host, &why), 0);
	fd = open(path(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(ftruncate(fd, (off_t)host.size), 0);
	NM_CHECK_EQ(pwrite(fd, &host, sizeof(host), 0), sizeof(host));
	close(fd);
	return path();
}

struct nm_vmseg_config segment_config(uint32_t part)
{
	struct nm_vmseg_config config = {
		.device = NM_VMSEG_DAX, .part = part, .numa = -1, .vcpu_numa = -1};

	snprintf(config.all, sizeof(config.all), "%s", path());
	snprintf(config.lock, sizeof(config.lock), "%s/lock%u-%u", nm_test_dir(), number_in_use,
		 part);
	memcpy(config.token, token, sizeof(token));
	return config;
}

struct nm_vmseg *segment_attach(uint32_t part)
{
	struct nm_vmseg_config config = segment_config(part);
	struct nm_vmseg *segment = NULL;
	struct nm_reason why = {""};

	if (nm_vmseg_attach(&config, &segment, &why))
		nm_test_fail(__FILE__, __LINE__, "machine %u does not attach: %s", part, why.text);
	return segment;
}

struct nm_geometry segment_geometry(const struct nm_vmseg *segment)
{
	struct nm_geometry geometry;
	struct nm_reason why = {""};

	if (nm_vmseg_geometry(segment, 8, 4, 16, 4096, SEGMENT_MIB, &geometry, &why))
		nm_test_fail(__FILE__, __LINE__, "no window fits: %s", why.text);
	return geometry;
}

struct nm_vmseg_claim *segment_open(struct nm_vmseg *segment, char name,
				    struct nm_window *ret_window)
{
	const uint8_t id[6] = {(uint8_t)name, 'i', 'd'};
	struct nm_geometry geometry = segment_geometry(segment);
	struct nm_vmseg_claim *claim = NULL;
	struct nm_reason why = {""};
	struct nm_window window;

	if (nm_vmseg_claim(segment, id, geometry.size, &claim, &why) ||
	    nm_vmseg_open(claim, &geometry, &window, &why))
		nm_test_fail(__FILE__, __LINE__, "endpoint %c does not open: %s", name, why.text);
	if (ret_window)
		*ret_window = window;
	return claim;
}

int segment_find(struct nm_vmseg *segment, const uint8_t id[6], struct nm_vmseg_peer *ret_peer)
{
	uint64_t cursor = 0;

	while (nm_vmseg_next(segment, &cursor, ret_peer))
		if (ret_peer->state == NM_VMSEG_RUN &&
		    !memcmp(ret_peer->id, id, sizeof(ret_peer->id)))
			return 0;
	return -ENOENT;
}

void segment_poke(uint64_t offset, const void *bytes, size_t len)
{
	int fd = open(path(), O_RDWR | O_CLOEXEC);

	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(pwrite(fd, bytes, len, (off_t)offset), len);
	close(fd);
}

uint64_t segment_part_offset(uint32_t part, uint64_t part_size)
{
	return NM_VMSEG_ALIGN + part * part_size;
}

static uint32_t told_endpoints;

void segment_tell_endpoints(uint32_t nr)
{
	told_endpoints = nr;
}

const char *segment_describe(const struct nm_vmseg_config *config, const char *name)
{
	static char file[NM_VMSEG_PATH_MAX];
	char fresh[NM_VMSEG_PATH_MAX + 8];
	uint32_t part = config->part;
	FILE *out;

	snprintf(file, sizeof(file), "%s/%s", nm_test_dir(), name);
	snprintf(fresh, sizeof(fresh), "%s.new", file);
	out = fopen(fresh, "w");
	NM_CHECK(out != NULL);
	fprintf(out,
		"version = 1\ndevice = dax\nall = %s\nlock = %s\npart = %u\ntoken = ", config->all,
		config->lock, part);
	for (size_t i = 0; i < sizeof(config->token); i++)
		fprintf(out, "%02x", config->token[i]);
	fprintf(out, "\nnuma = %u\nvcpu_numa = %u\ndistances =", part, part);
	for (uint32_t i = 0; i < MACHINES; i++)
		fprintf(out, " %d", i == part ? 10 : 21);
	if (told_endpoints)
		fprintf(out, "\nendpoints = %u", told_endpoints);
	fputc('\n', out);
	NM_CHECK_EQ(fclose(out), 0);
	NM_CHECK_EQ(chmod(fresh, 0600), 0);
	NM_CHECK_EQ(rename(fresh, file), 0);
	return file;
}

static void write_config(uint32_t part)
{
	struct nm_vmseg_config config = segment_config(part);

	setenv("NEARMETAL_SEGMENT", segment_describe(&config, "segment.conf"), 1);
}

int segment_enter_machine(uint32_t part)
{
	char ledger[NM_VMSEG_PATH_MAX];
	int fd;

	snprintf(ledger, sizeof(ledger), "%s/machines", nm_test_dir());
	/* Children of the case do the same at the same time. */
	fd = open(ledger, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(flock(fd, LOCK_EX), 0);
	if (access(path(), F_OK))
		segment_file(MACHINES, MACHINE_SIZE);
	write_config(part);
	return fd;
}

int segment_enter_next_machine(void)
{
	return segment_enter_machine(nm_test_next() % MACHINES);
}
