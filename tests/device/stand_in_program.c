/* SPDX-License-Identifier: Apache-2.0 */
/* What programs with device memory call, too. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stand_in_private.h"

EXPORT int cuCtxCreate_v2(struct context **ret_context, unsigned int flags, int device)
{
	struct context *context;
	int err = enter();

	(void)flags;
	if (err)
		return err;
	context = calloc(1, sizeof(*context));
	if (!context || depth == 32) {
		free(context);
		return leave(OUT_OF_MEMORY);
	}
	context->device = device;
	stack[depth++] = context;
	*ret_context = context;
	return leave(OK);
}

EXPORT int cuCtxDestroy_v2(struct context *context)
{
	int err = enter();

	if (err)
		return err;
	context->is_dead = true;
	if (current() == context)
		depth--;
	empty(context);
	return leave(OK);
}

/* As the real one: its handle stays good, but all that was in it is gone. */
EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
	int err = enter();

	if (err)
		return err;
	empty(&primary[device]);
	return leave(OK);
}

EXPORT int cuCtxSetCurrent(struct context *context)
{
	int err = enter();

	if (err)
		return err;
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	return leave(OK);
}

EXPORT int cuMemAlloc_v2(uint64_t *ret_address, size_t size)
{
	struct allocation *a = NULL;
	int err = enter_context(), file;

	if (err)
		return err;
	file = memfd_create("device", MFD_CLOEXEC);
	if (file >= 0 && size > 0 && ftruncate(file, (off_t)size) == 0)
		a = allocation_create(file, size);
	if (!a) {
		close(file);
		return leave(OUT_OF_MEMORY);
	}
	a->file = file;
	*ret_address = a->start;
	return leave(OK);
}

EXPORT int cuMemFree_v2(uint64_t address)
{
	struct allocation *a;
	int err = enter();

	if (err)
		return err;
	a = allocation_of(address);
	if (!a || !a->bytes || a->start != address)
		return leave(INVALID_VALUE);
	/* As the real one: copies that go on end first. */
	finish_streams();
	release(a);
	return leave(OK);
}

static int copy_now(uint64_t to, uint64_t from, size_t len)
{
	int err = enter();
	char *target, *source;

	if (err)
		return err;
	target = reach(to, len);
	source = reach(from, len);
	if (!current() || !target || !source)
		return leave(INVALID_VALUE);
	memcpy(target, source, len);
	return leave(OK);
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t len)
{
	return copy_now(to, (uintptr_t)from, len);
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t len)
{
	return copy_now((uintptr_t)to, from, len);
}

EXPORT int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t len)
{
	return copy_now(to, from, len);
}
