/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of fabric_traffic, one family per file. Every rank of the job runs every case. */
#ifndef NM_TEST_FABRIC_TRAFFIC_H
#define NM_TEST_FABRIC_TRAFFIC_H

#include "fabric_job.h"

struct traffic {
	struct job job;
	uint64_t seed;
	int nr_random; /* messages of the random case */
	bool huge;     /* also a message past 2 GiB */
};

struct traffic_case {
	const char *name;
	void (*run)(struct traffic *traffic);
};

/* Ends with an empty entry. */
extern const struct traffic_case traffic_messages[];
extern const struct traffic_case traffic_matching[];
extern const struct traffic_case traffic_remote[];
extern const struct traffic_case traffic_objects[];
extern const struct traffic_case traffic_threads[];

/* The two ranks that most cases are about; others only keep step. */
static inline bool traffic_is_pair(const struct traffic *traffic)
{
	return traffic->job.rank < 2;
}

static inline fi_addr_t traffic_other(const struct traffic *traffic)
{
	return traffic->job.main.peers[1 - traffic->job.rank];
}

#define EXPECT(traffic, condition)                                                                 \
	do {                                                                                       \
		if (!(condition))                                                                  \
			job_fail(&(traffic)->job, "not so: %s", #condition);                       \
	} while (0)

#endif
