/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the stand-in: stand_in.c what only nearmetal calls, stand_in_streams.c the copies that
 * go on, stand_in_program.c the rest.
 */
#ifndef NM_TEST_DEVICE_STAND_IN_PRIVATE_H
#define NM_TEST_DEVICE_STAND_IN_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	ALREADY_REGISTERED = 712,
	INJECTED = 999,
};

struct context {
	int device;
	bool is_dead;
};

/* Never freed: an address that was of a device is known to be one that is no more. */
struct allocation {
	struct allocation *next;
	uint64_t start;
	size_t size, mapped;
	char *bytes; /* the mapping that can be read; NULL: freed */
	uint64_t id;
	struct context *context;
	int file; /* -1: of another process */
};

extern struct allocation *allocations;
extern struct context primary[64];
extern _Thread_local struct context *stack[32];
extern _Thread_local unsigned int depth;

/* The start of every function: OK with the mutex held, or why it fails. */
int enter(void);
/* enter() of a function that needs a current context. */
int enter_context(void);
int leave(int result);
/* After a failed enter(): the mutex is held all the same. */
void enter_anyway(void);
/* NULL: the thread has none. */
struct context *current(void);
/* The youngest allocation at ADDRESS, which may be freed. */
struct allocation *allocation_of(uint64_t address);
/* Both mappings of FILE, whose last page may be a part of one. */
struct allocation *allocation_create(int file, size_t size);
/* Its address stays taken, so that no other memory of this process gets it. */
void release(struct allocation *a);
/* All that lies in CONTEXT has gone. */
void empty(const struct context *context);
/* All copies of all streams are made. */
void finish_streams(void);
/* The part of empty() for streams and events. */
void empty_streams(const struct context *context);
/* Where the processor finds LEN bytes at ADDRESS. NULL: they are on no device any more. */
char *reach(uint64_t address, size_t len);

#endif
