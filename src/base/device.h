/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User memory that loads and stores of this processor do not reach, for example of a GPU. Its
 * addresses are *marked*: bit 63 is set, which no user address of the host has; the next six bits
 * are the number of the device's interface, and 57 bits are its own. Marked addresses stand in
 * iovecs like any other; arithmetic within a buffer keeps the mark. All copies of a user's bytes
 * use the functions of user_copy.h. The only other code that looks at marks hands addresses to the
 * kernel.
 *
 * None is built in. docs/design/devices.md says what it takes to plug one in.
 */
#ifndef NM_BASE_DEVICE_H
#define NM_BASE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#define NM_DEVICE_MARK (UINT64_C(1) << 63)
_Static_assert(sizeof(void *) == 8, "bit 63 marks devices");
#define NM_DEVICE_SHIFT 57
#define NM_DEVICE_MAX 63 /* numbers are 1 to 63: those of libfabric's enum fi_hmem_iface */

/*
 * How an interface copies. Both are called under the lock of an engine or by its only thread, block
 * until the bytes are there, and cannot fail: what can fail is done when memory is registered.
 */
struct nm_device_ops {
	const char *name;
	void (*get)(void *to, uint64_t from, size_t len); /* from the device */
	void (*put)(uint64_t to, const void *from, size_t len);
};

/*
 * OPS serve interface NUMBER from now on; NULL: no interface. Before any endpoint is opened. 0 or
 * -EINVAL: there is no such number.
 */
int nm_device_plug(unsigned int number, const struct nm_device_ops *ops);
/* NULL: nothing is plugged in. */
const struct nm_device_ops *nm_device_plugged(unsigned int number);

static inline void *nm_device_mark(unsigned int number, uint64_t address)
{
	return (void *)(uintptr_t)(NM_DEVICE_MARK | (uint64_t)number << NM_DEVICE_SHIFT | address);
}

static inline bool nm_is_device(const void *address)
{
	return (intptr_t)address < 0;
}

/* Are LEN bytes from ADDRESS on of one device, or all of the host? */
bool nm_device_is_one_range(const void *address, size_t len);

/*
 * As memcpy(), one side marked. An interface that is not plugged in gives zeros and takes nothing.
 */
void nm_device_get(void *to, const void *from, size_t len) NM_COLD;
void nm_device_put(void *to, const void *from, size_t len) NM_COLD;

#endif
