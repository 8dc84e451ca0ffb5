/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver for machines without a GPU: libcuda.so.1 with the functions of libcuda that nearmetal and
 * its tests call. Device memory is a file that is mapped twice: where the program sees it no byte can
 * be read or written, and the stand-in copies through the other mapping. Copies on a stream are made
 * when the stream is waited for, not before.
 *
 * The environment: NM_STAND_IN_GPUS, the number of GPUs, 2 if it is not set.
 */
#ifndef NM_TEST_DEVICE_STAND_IN_H
#define NM_TEST_DEVICE_STAND_IN_H

/*
 * From now on call number NTH of the driver's functions fails with 999, counted from 1 by the whole
 * process; 0: none. cuGetErrorString() is not counted.
 */
void nm_stand_in_fail(unsigned int nth);
/* Calls since then. */
unsigned int nm_stand_in_calls(void);

#endif
