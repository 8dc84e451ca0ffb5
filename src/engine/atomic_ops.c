/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of atomic operations: one function per datatype, made by one of three macros. */
#include <complex.h>
#include <string.h>

#include "engine/atomic.h"

typedef void (*apply_fn)(uint32_t op, void *target, const void *operand, const void *compare,
			 size_t count);

#define LOOP(expression)                                                                           \
	for (size_t i = 0; i < count; i++) {                                                       \
		const T a = t[i], b = o[i];                                                        \
		t[i] = (T)(expression);                                                            \
	}                                                                                          \
	break
#define LOOP_COMPARE(expression)                                                                   \
	for (size_t i = 0; i < count; i++) {                                                       \
		const T a = t[i], b = o[i], c = k[i];                                              \
		t[i] = (T)(expression);                                                            \
	}                                                                                          \
	break

/*
 * A swap that does not happen stores nothing: the owner of the memory, or another process that
 * shares it, may be changing an element that a compare failed on.
 */
#define LOOP_SWAP(condition)                                                                       \
	for (size_t i = 0; i < count; i++) {                                                       \
		const T a = t[i], c = k[i];                                                        \
		if (condition)                                                                     \
			t[i] = o[i];                                                               \
	}                                                                                          \
	break

/* Integers are added and multiplied without sign: they wrap, and overflow is defined. */
#define CASES_INTEGER                                                                              \
	case NM_SUM:                                                                               \
		LOOP((W)a + (W)b);                                                                 \
	case NM_PROD:                                                                              \
		LOOP((W)a *(W)b);                                                                  \
	case NM_BOR:                                                                               \
		LOOP(a | b);                                                                       \
	case NM_BAND:                                                                              \
		LOOP(a &b);                                                                        \
	case NM_BXOR:                                                                              \
		LOOP(a ^ b);                                                                       \
	case NM_MSWAP:                                                                             \
		LOOP_COMPARE((b & c) | (a & ~c));
#define CASES_REAL                                                                                 \
	case NM_SUM:                                                                               \
		LOOP(a + b);                                                                       \
	case NM_PROD:                                                                              \
		LOOP(a *b);
#define CASES_ORDERED                                                                              \
	case NM_MIN:                                                                               \
		LOOP(b < a ? b : a);                                                               \
	case NM_MAX:                                                                               \
		LOOP(b > a ? b : a);                                                               \
	case NM_CSWAP_LE:                                                                          \
		LOOP_SWAP(c <= a);                                                                 \
	case NM_CSWAP_LT:                                                                          \
		LOOP_SWAP(c < a);                                                                  \
	case NM_CSWAP_GE:                                                                          \
		LOOP_SWAP(c >= a);                                                                 \
	case NM_CSWAP_GT:                                                                          \
		LOOP_SWAP(c > a);
#define CASES_ALL                                                                                  \
	case NM_LOR:                                                                               \
		LOOP(a || b);                                                                      \
	case NM_LAND:                                                                              \
		LOOP(a &&b);                                                                       \
	case NM_LXOR:                                                                              \
		LOOP(!a != !b);                                                                    \
	case NM_ATOMIC_WRITE:                                                                      \
		LOOP(((void)a, b));                                                                \
	case NM_CSWAP:                                                                             \
		LOOP_SWAP(c == a);                                                                 \
	case NM_CSWAP_NE:                                                                          \
		LOOP_SWAP(c != a);

/* W: the type that sums and products of integers are made in. */
#define DEFINE_APPLY(name, type, wide, cases)                                                      \
	static void apply_##name(uint32_t op, void *target, const void *operand,                   \
				 const void *compare, size_t count)                                \
	{                                                                                          \
		typedef type T;                                                                    \
		typedef wide W __attribute__((unused));                                            \
		T *t = target;                                                                     \
		const T *o = operand, *k = compare;                                                \
                                                                                                   \
		switch (op) {                                                                      \
			cases CASES_ALL default : break; /* NM_ATOMIC_READ changes nothing */      \
		}                                                                                  \
	}

DEFINE_APPLY(int8, int8_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(uint8, uint8_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(int16, int16_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(uint16, uint16_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(int32, int32_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(uint32, uint32_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(int64, int64_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(uint64, uint64_t, uint64_t, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(int128, nm_int128, nm_uint128, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(uint128, nm_uint128, nm_uint128, CASES_INTEGER CASES_ORDERED)
DEFINE_APPLY(float, float, uint64_t, CASES_REAL CASES_ORDERED)
DEFINE_APPLY(double, double, uint64_t, CASES_REAL CASES_ORDERED)
DEFINE_APPLY(float_complex, float complex, uint64_t, CASES_REAL)
DEFINE_APPLY(double_complex, double complex, uint64_t, CASES_REAL)
DEFINE_APPLY(long_double, long double, uint64_t, CASES_REAL CASES_ORDERED)
DEFINE_APPLY(long_double_complex, long double complex, uint64_t, CASES_REAL)

/* What a family of datatypes can do. */
#define OPS_ALL                                                                                    \
	(1u << NM_LOR | 1u << NM_LAND | 1u << NM_LXOR | 1u << NM_SUM | 1u << NM_PROD |             \
	 1u << NM_ATOMIC_READ | 1u << NM_ATOMIC_WRITE | 1u << NM_CSWAP | 1u << NM_CSWAP_NE)
#define OPS_ORDERED                                                                                \
	(OPS_ALL | 1u << NM_MIN | 1u << NM_MAX | 1u << NM_CSWAP_LE | 1u << NM_CSWAP_LT |           \
	 1u << NM_CSWAP_GE | 1u << NM_CSWAP_GT)
#define OPS_INTEGER (OPS_ORDERED | 1u << NM_BOR | 1u << NM_BAND | 1u << NM_BXOR | 1u << NM_MSWAP)

static const struct {
	size_t size;
	apply_fn apply;
	uint32_t ops;
} datatypes[NM_NR_DATATYPES] = {
	[NM_INT8] = {1, apply_int8, OPS_INTEGER},
	[NM_UINT8] = {1, apply_uint8, OPS_INTEGER},
	[NM_INT16] = {2, apply_int16, OPS_INTEGER},
	[NM_UINT16] = {2, apply_uint16, OPS_INTEGER},
	[NM_INT32] = {4, apply_int32, OPS_INTEGER},
	[NM_UINT32] = {4, apply_uint32, OPS_INTEGER},
	[NM_INT64] = {8, apply_int64, OPS_INTEGER},
	[NM_UINT64] = {8, apply_uint64, OPS_INTEGER},
	[NM_FLOAT] = {sizeof(float), apply_float, OPS_ORDERED},
	[NM_DOUBLE] = {sizeof(double), apply_double, OPS_ORDERED},
	[NM_FLOAT_COMPLEX] = {sizeof(float complex), apply_float_complex, OPS_ALL},
	[NM_DOUBLE_COMPLEX] = {sizeof(double complex), apply_double_complex, OPS_ALL},
	[NM_LONG_DOUBLE] = {sizeof(long double), apply_long_double, OPS_ORDERED},
	[NM_LONG_DOUBLE_COMPLEX] = {sizeof(long double complex), apply_long_double_complex,
				    OPS_ALL},
	[NM_INT128] = {sizeof(nm_int128), apply_int128, OPS_INTEGER},
	[NM_UINT128] = {sizeof(nm_uint128), apply_uint128, OPS_INTEGER},
};

#define OPS_COMPARE                                                                                \
	(1u << NM_CSWAP | 1u << NM_CSWAP_NE | 1u << NM_CSWAP_LE | 1u << NM_CSWAP_LT |              \
	 1u << NM_CSWAP_GE | 1u << NM_CSWAP_GT | 1u << NM_MSWAP)

size_t nm_atomic_size(uint32_t datatype)
{
	return datatype < NM_NR_DATATYPES ? datatypes[datatype].size : 0;
}

bool nm_atomic_valid(enum nm_atomic_kind kind, uint32_t datatype, uint32_t op)
{
	uint32_t bit;

	if (datatype >= NM_NR_DATATYPES || op >= NM_NR_ATOMIC_OPS)
		return false;
	bit = 1u << op;
	if (!(datatypes[datatype].ops & bit))
		return false;
	switch (kind) {
	case NM_ATOMIC_UPDATE:
		return !(bit & OPS_COMPARE) && op != NM_ATOMIC_READ;
	case NM_ATOMIC_FETCH:
		return !(bit & OPS_COMPARE);
	case NM_ATOMIC_COMPARE:
		return bit & OPS_COMPARE;
	case NM_NR_ATOMIC_KINDS:
		break;
	}
	return false;
}

void nm_atomic_apply(uint32_t datatype, uint32_t op, void *target, const void *operand,
		     const void *compare, size_t count, void *ret_before)
{
	if (ret_before)
		memcpy(ret_before, target, count * datatypes[datatype].size);
	datatypes[datatype].apply(op, target, operand, compare, count);
}
