/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver for machines without a GPU: libcuda.so.1 with the functions of libcuda that nearmetal and
 * its tests call. Device memory is a file that is mapped twice: where the program sees it no byte can
 * be read or written, and the stand-in copies through the other mapping. A copy on a stream spoils its
 * target at once. It is made when the program waits for its stream or for an event after it, or asks
 * for that event the second time: bytes that are used too early, or written too early over those that
 * a copy has yet to read, are wrong.
 *
 * The environment: NM_STAND_IN_GPUS, the number of GPUs, 2 if it is not set.
 */
#ifndef NM_TEST_DEVICE_STAND_IN_H
#define NM_TEST_DEVICE_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * From now on call number NTH of the driver's functions fails with 999, counted from 1 by the whole
 * process; 0: none. cuGetErrorString() is not counted.
 */
void nm_stand_in_fail(unsigned int nth);
/* Calls since then. */
unsigned int nm_stand_in_calls(void);
/* The largest number of copies that went on at a time, since the last call of this function. */
unsigned int nm_stand_in_overlap(void);

/* For the adapter of the tests (adapter.c). */

/* A step that can fail, counted as a call. True: it is to fail. */
bool nm_stand_in_step(void);
/* Where the adapter finds LEN bytes at ADDRESS. NULL: they are on no device any more. */
char *nm_stand_in_reach(uint64_t address, size_t len);
/* One more, or one less, copy of the adapter goes on. */
void nm_stand_in_going(int change);
/* The adapter has sent or received a message of a device. */
void nm_stand_in_reached(void);
/* How many it has, since the last call of this function. */
unsigned int nm_stand_in_direct(void);

#endif
