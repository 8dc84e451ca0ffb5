/* SPDX-License-Identifier: Apache-2.0 */
#include "stand_in.h"
#include "stand_in_private.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK (2u << 20)

struct pinned {
	struct pinned *next;
	const struct context *context;
	char *pages;
	size_t len;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
struct allocation *allocations;
static struct pinned *pinned;
static uint64_t last_id;
static int nr_gpus;
static bool is_initialized;
struct context primary[64];
static unsigned int nr_calls, fails_at, nr_reached;

_Thread_local struct context *stack[32];
_Thread_local unsigned int depth;

EXPORT void nm_stand_in_fail(unsigned int nth)
{
	pthread_mutex_lock(&mutex);
	nr_calls = 0;
	fails_at = nth;
	pthread_mutex_unlock(&mutex);
}

EXPORT unsigned int nm_stand_in_calls(void)
{
	return nr_calls;
}

EXPORT bool nm_stand_in_step(void)
{
	bool fails;

	pthread_mutex_lock(&mutex);
	fails = ++nr_calls == fails_at;
	pthread_mutex_unlock(&mutex);
	return fails;
}

int enter(void)
{
	pthread_mutex_lock(&mutex);
	if (++nr_calls == fails_at) {
		pthread_mutex_unlock(&mutex);
		return INJECTED;
	}
	if (!is_initialized) {
		pthread_mutex_unlock(&mutex);
		return NOT_INITIALIZED;
	}
	return OK;
}

void enter_anyway(void)
{
	pthread_mutex_lock(&mutex);
}

int leave(int result)
{
	pthread_mutex_unlock(&mutex);
	return result;
}

struct context *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

int enter_context(void)
{
	int err = enter();

	return err || current() ? err : leave(INVALID_CONTEXT);
}

struct allocation *allocation_of(uint64_t address)
{
	struct allocation *a = allocations;

	while (a && (address < a->start || address - a->start >= a->mapped))
		a = a->next;
	return a;
}

/* ---- what the provider calls ---- */

EXPORT int cuInit(unsigned int flags)
{
	const char *gpus = getenv("NM_STAND_IN_GPUS");
	int err;

	(void)flags;
	pthread_mutex_lock(&mutex);
	err = ++nr_calls == fails_at ? INJECTED : OK;
	if (!err && !is_initialized) {
		is_initialized = true;
		nr_gpus = gpus ? atoi(gpus) : 2;
	}
	return leave(err);
}

EXPORT int cuGetErrorString(int error, const char **ret_text)
{
	static const struct {
		int error;
		const char *text;
	} texts[] = {
		{INVALID_VALUE, "invalid argument"},
		{OUT_OF_MEMORY, "out of memory"},
		{NOT_INITIALIZED, "initialization error"},
		{INVALID_DEVICE, "invalid device ordinal"},
		{INVALID_CONTEXT, "invalid device context"},
		{INVALID_HANDLE, "invalid resource handle"},
		{NOT_READY, "device not ready"},
		{ALREADY_REGISTERED, "part or all of the memory is mapped already"},
		{INJECTED, "failure of the test"},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].error == error) {
			*ret_text = texts[i].text;
			return OK;
		}
	return INVALID_VALUE;
}

EXPORT int cuDeviceGetCount(int *ret_count)
{
	int err = enter();

	if (err)
		return err;
	*ret_count = nr_gpus;
	return leave(OK);
}

EXPORT int cuDevicePrimaryCtxRetain(struct context **ret_context, int device)
{
	int err = enter();

	if (err)
		return err;
	if (device < 0 || device >= nr_gpus)
		return leave(INVALID_DEVICE);
	primary[device].device = device;
	*ret_context = &primary[device];
	return leave(OK);
}

EXPORT int cuCtxPushCurrent_v2(struct context *context)
{
	int err = enter();

	if (err)
		return err;
	if (!context || context->is_dead || depth == 32)
		return leave(INVALID_CONTEXT);
	stack[depth++] = context;
	return leave(OK);
}

/* Never fails by order: a test could not tell from where the thread then is. */
EXPORT int cuCtxPopCurrent_v2(struct context **ret_context)
{
	if (!depth)
		return INVALID_CONTEXT;
	*ret_context = stack[--depth];
	return OK;
}

static int attribute(const struct allocation *a, int what, void *ret_value)
{
	switch (what) {
	case 1:
		memcpy(ret_value, &a->context, sizeof(a->context));
		return OK;
	case 2:
		memcpy(ret_value, &(unsigned int){2}, sizeof(unsigned int));
		return OK;
	case 7:
		memcpy(ret_value, &a->id, sizeof(a->id));
		return OK;
	case 9:
		memcpy(ret_value, &a->context->device, sizeof(int));
		return OK;
	case 11:
		memcpy(ret_value, &a->start, sizeof(a->start));
		return OK;
	case 12:
		memcpy(ret_value, &a->size, sizeof(a->size));
		return OK;
	default:
		return INVALID_VALUE;
	}
}

EXPORT int cuPointerGetAttribute(void *ret_value, int what, uint64_t address)
{
	const struct allocation *a;
	int err = enter();

	if (err)
		return err;
	a = allocation_of(address);
	if (a && a->bytes && address - a->start < a->size)
		return leave(attribute(a, what, ret_value));
	for (struct pinned *p = pinned; p && what == 2; p = p->next)
		if (address - (uintptr_t)p->pages < p->len) {
			memcpy(ret_value, &(unsigned int){1}, sizeof(unsigned int));
			return leave(OK);
		}
	return leave(INVALID_VALUE);
}

char *reach(uint64_t address, size_t len)
{
	const struct allocation *a = allocation_of(address);

	if (!a)
		return (char *)(uintptr_t)address; /* of the host */
	if (!a->bytes || len > a->size - (address - a->start))
		return NULL;
	return a->bytes + (address - a->start);
}

EXPORT void nm_stand_in_reached(void)
{
	pthread_mutex_lock(&mutex);
	nr_reached++;
	pthread_mutex_unlock(&mutex);
}

EXPORT unsigned int nm_stand_in_direct(void)
{
	unsigned int nr;

	pthread_mutex_lock(&mutex);
	nr = nr_reached;
	nr_reached = 0;
	pthread_mutex_unlock(&mutex);
	return nr;
}

EXPORT char *nm_stand_in_reach(uint64_t address, size_t len)
{
	char *bytes;

	pthread_mutex_lock(&mutex);
	bytes = allocation_of(address) ? reach(address, len) : NULL;
	pthread_mutex_unlock(&mutex);
	return bytes;
}

/* What this file descriptor shows stays as long as somebody maps it. */
EXPORT int cuMemGetHandleForAddressRange(void *ret_handle, uint64_t address, size_t size, int kind,
					 unsigned long long flags)
{
	const struct allocation *a;
	int err = enter_context(), file;

	if (err)
		return err;
	a = allocation_of(address);
	if (kind != 1 || flags || address % PAGE || size % PAGE || !a || !a->bytes ||
	    a->start != address || a->mapped != size)
		return leave(INVALID_VALUE);
	file = fcntl(a->file, F_DUPFD_CLOEXEC, 0);
	memcpy(ret_handle, &file, sizeof(file));
	return leave(file < 0 ? OUT_OF_MEMORY : OK);
}

void empty(const struct context *context)
{
	struct pinned **at = &pinned;

	empty_streams(context);
	for (struct allocation *a = allocations; a; a = a->next)
		if (a->context == context && a->bytes)
			release(a);
	while (*at) {
		struct pinned *p = *at;

		if (p->context == context) {
			*at = p->next;
			free(p);
		} else {
			at = &p->next;
		}
	}
}

EXPORT int cuMemHostRegister_v2(void *pages, size_t len, unsigned int flags)
{
	struct pinned *p;
	int err = enter_context();

	(void)flags;
	if (err)
		return err;
	for (p = pinned; p; p = p->next)
		if ((char *)pages < p->pages + p->len && p->pages < (char *)pages + len)
			return leave(ALREADY_REGISTERED);
	p = calloc(1, sizeof(*p));
	if (!p)
		return leave(OUT_OF_MEMORY);
	*p = (struct pinned){.next = pinned, .context = current(), .pages = pages, .len = len};
	pinned = p;
	return leave(OK);
}

EXPORT int cuMemHostUnregister(void *pages)
{
	struct pinned **at = &pinned, *p;
	int err = enter();

	if (err)
		return err;
	while (*at && (*at)->pages != pages)
		at = &(*at)->next;
	p = *at;
	if (!p)
		return leave(INVALID_VALUE);
	*at = p->next;
	free(p);
	return leave(OK);
}

struct allocation *allocation_create(int file, size_t size)
{
	struct allocation *a = calloc(1, sizeof(*a));
	size_t mapped = (size + PAGE - 1) / PAGE * PAGE;
	void *seen = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, file, 0);
	void *bytes = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (!a || seen == MAP_FAILED || bytes == MAP_FAILED) {
		free(a);
		return NULL;
	}
	*a = (struct allocation){
		.next = allocations,
		.start = (uintptr_t)seen,
		.size = size,
		.mapped = mapped,
		.bytes = bytes,
		.id = ++last_id,
		.context = current(),
	};
	allocations = a;
	return a;
}

void release(struct allocation *a)
{
	munmap(a->bytes, a->mapped);
	a->bytes = NULL;
	/* Only the address is kept: a mapping of the file would keep its bytes. */
	if (mmap((void *)(uintptr_t)a->start, a->mapped, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		abort();
	/* The block of a small buffer stays, as if others lay in it: who has its handle reads it. */
	if (a->file >= 0 && a->size >= BLOCK)
		close(a->file);
}

/* How another process finds the file of an allocation. */
struct handle {
	int pid, file;
	size_t size;
	uint64_t inode; /* FILE is that of another file once the allocation is freed */
	char unused[40];
};

EXPORT int cuIpcGetMemHandle(void *ret_handle, uint64_t address)
{
	const struct allocation *a;
	struct stat file;
	int err = enter();

	if (err)
		return err;
	a = allocation_of(address);
	if (!a || !a->bytes || a->file < 0 || fstat(a->file, &file) < 0)
		return leave(INVALID_VALUE);
	/* Bytes to its callers, so of any alignment. */
	memcpy(ret_handle, &(struct handle){getpid(), a->file, a->size, file.st_ino, {0}},
	       sizeof(struct handle));
	return leave(OK);
}

/* The real one opens nothing of its own process, either. */
EXPORT int cuIpcOpenMemHandle_v2(uint64_t *ret_address, struct handle handle, unsigned int flags)
{
	struct allocation *a = NULL;
	struct stat found;
	char name[64];
	int err = enter_context(), file;

	(void)flags;
	if (err)
		return err;
	if (handle.pid == getpid())
		return leave(INVALID_CONTEXT);
	snprintf(name, sizeof(name), "/proc/%d/fd/%d", handle.pid, handle.file);
	file = open(name, O_RDWR | O_CLOEXEC);
	if (file >= 0 && fstat(file, &found) == 0 && found.st_ino == handle.inode &&
	    (size_t)found.st_size == handle.size)
		a = allocation_create(file, handle.size);
	close(file);
	if (!a)
		return leave(INVALID_VALUE);
	a->file = -1;
	*ret_address = a->start;
	return leave(OK);
}

EXPORT int cuIpcCloseMemHandle(uint64_t address)
{
	struct allocation *a;
	int err = enter();

	if (err)
		return err;
	a = allocation_of(address);
	if (!a || !a->bytes || a->file >= 0)
		return leave(INVALID_VALUE);
	release(a);
	return leave(OK);
}
