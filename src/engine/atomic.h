/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Atomic operations on memory: which exist, and how one is done on local bytes. Values equal those
 * of libfabric's enum fi_datatype and enum fi_op (asserted by the provider).
 */
#ifndef NM_ENGINE_ATOMIC_H
#define NM_ENGINE_ATOMIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/protocol.h" /* NM_ATOMIC_MAX_BYTES: limit of one operation */

/* ISO C has no name for them. */
__extension__ typedef __int128 nm_int128;
__extension__ typedef unsigned __int128 nm_uint128;

enum nm_datatype {
	NM_INT8,
	NM_UINT8,
	NM_INT16,
	NM_UINT16,
	NM_INT32,
	NM_UINT32,
	NM_INT64,
	NM_UINT64,
	NM_FLOAT,
	NM_DOUBLE,
	NM_FLOAT_COMPLEX,
	NM_DOUBLE_COMPLEX,
	NM_LONG_DOUBLE,
	NM_LONG_DOUBLE_COMPLEX,
	NM_INT128,
	NM_UINT128,
	NM_NR_DATATYPES
};

enum nm_atomic_op {
	NM_MIN,
	NM_MAX,
	NM_SUM,
	NM_PROD,
	NM_LOR,
	NM_LAND,
	NM_BOR,
	NM_BAND,
	NM_LXOR,
	NM_BXOR,
	NM_ATOMIC_READ,
	NM_ATOMIC_WRITE,
	NM_CSWAP,
	NM_CSWAP_NE,
	NM_CSWAP_LE,
	NM_CSWAP_LT,
	NM_CSWAP_GE,
	NM_CSWAP_GT,
	NM_MSWAP,
	NM_NR_ATOMIC_OPS
};

enum nm_atomic_kind {
	NM_ATOMIC_UPDATE,  /* change the target */
	NM_ATOMIC_FETCH,   /* and return what was there */
	NM_ATOMIC_COMPARE, /* change it if a comparison holds, and return what was there */
	NM_NR_ATOMIC_KINDS
};

/* Bytes of one element; 0: no such datatype. */
size_t nm_atomic_size(uint32_t datatype);
/* Does this operation exist for this datatype in this family of calls? */
bool nm_atomic_valid(enum nm_atomic_kind kind, uint32_t datatype, uint32_t op);

/*
 * nm_atomic_apply - do a valid operation on COUNT elements at TARGET.
 * OPERAND and COMPARE are aligned for the datatype, and so is TARGET; OPERAND is not used by
 * NM_ATOMIC_READ, COMPARE only by the compare-and-swap family. What was there before goes to
 * ret_before, when that is not NULL. Not atomic by itself: the engine does one after the other.
 */
void nm_atomic_apply(uint32_t datatype, uint32_t op, void *target, const void *operand,
		     const void *compare, size_t count, void *ret_before);

#endif
