/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of device_matrix share: matrix.c runs it, faults.c does wrong. */
#ifndef NM_TEST_DEVICE_MATRIX_H
#define NM_TEST_DEVICE_MATRIX_H

#include "fabric_job.h"
#include "gpu.h"

#define KEY_HOST 10
#define KEY_DEVICE 11
#define KEY_OTHER 12
#define ROOM 8192 /* for atomics, whatever the largest message */

enum op { SEND, SEND_PIECES, SEND_DATA, INJECT, TAGGED, SYNCHRONOUS, PUT, GET, NR_MOVES };

extern const char *const op_names[NR_MOVES];

struct matrix {
	struct job job;
	size_t largest;
	uint64_t seed;
	unsigned int nr_cases;
	char *host, *device; /* LARGEST + ROOM bytes each: source and target of this rank */
	struct fid_mr *host_mr, *device_mr;
	char *scratch;
	bool has_no_context; /* the thread calls the provider without one */
};

#define EXPECT(m, condition)                                                                       \
	do {                                                                                       \
		if (!(condition))                                                                  \
			job_fail(&(m)->job, "not so: %s (line %d)", #condition, __LINE__);         \
	} while (0)

char *memory_of(const struct matrix *m, bool on_device);
void *desc_of(const struct matrix *m, bool on_device);
/* Register memory of a GPU, or what is not. Returns fi_mr_regattr()'s result. */
int region(struct matrix *m, void *base, size_t len, uint64_t key, struct fid_mr **ret_mr);
/* This rank's device memory and its region. */
void open_device(struct matrix *m);
void close_device(struct matrix *m);
/* Take one completion. 0, or the error of an error completion, which is in *RET_ERR too. */
int take(struct matrix *m, struct fid_cq *cq, struct fi_cq_tagged_entry *ret_entry, int *ret_err);

/* What became of an operation at both ends. */
struct outcome {
	int call, origin, target; /* libfabric errors, 0: none */
	bool is_right;		  /* the bytes are where they belong */
	unsigned int calls;	  /* of the driver at the rank that was to fail */
};

/*
 * One operation of rank 0 with the bytes of m->seed. If FAIL, the driver's call number FAIL fails at
 * rank FAILS. The same outcome is returned at both ranks.
 */
struct outcome move(struct matrix *m, enum op op, size_t len, bool from, bool to, int fails,
		    unsigned int fail);
/* The same without a failure, and it must be right. */
void expect_right(struct matrix *m, enum op op, size_t len, bool from, bool to);
/* All operations, sizes and sides. */
void moves(struct matrix *m);

/* Do large messages go by the driver's handles? */
bool is_by_handle(const struct matrix *m);

/* faults.c */
void wrong_pointers(struct matrix *m);
void freed_buffers(struct matrix *m);
void breaks_in_flight(struct matrix *m);
void resets(struct matrix *m);
void failures(struct matrix *m);

#endif
