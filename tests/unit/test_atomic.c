/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation on every datatype, locally and at a target. */
#include "engine/atomic.h"

#include <complex.h>
#include <errno.h>
#include <stdalign.h>
#include <string.h>
#include <sys/mman.h>

#include "traffic.h"

/* target, operand, compare -> expected, and what was there before. */
#define CHECK_OP(type, datatype, op, a, b, c, expected)                                            \
	do {                                                                                       \
		type t_ = (a), o_ = (b), k_ = (c), before_ = 0;                                    \
		nm_atomic_apply(datatype, op, &t_, &o_, &k_, 1, &before_);                         \
		if (!(t_ == (type)(expected)) || !(before_ == (type)(a)))                          \
			nm_test_fail(__FILE__, __LINE__, "%s, %s", #datatype, #op);                \
	} while (0)

#define CHECK_COMMON(type, datatype)                                                               \
	do {                                                                                       \
		CHECK_OP(type, datatype, NM_SUM, 3, 4, 0, 7);                                      \
		CHECK_OP(type, datatype, NM_PROD, 3, 4, 0, 12);                                    \
		CHECK_OP(type, datatype, NM_LOR, 0, 4, 0, 1);                                      \
		CHECK_OP(type, datatype, NM_LOR, 0, 0, 0, 0);                                      \
		CHECK_OP(type, datatype, NM_LAND, 3, 4, 0, 1);                                     \
		CHECK_OP(type, datatype, NM_LAND, 3, 0, 0, 0);                                     \
		CHECK_OP(type, datatype, NM_LXOR, 3, 4, 0, 0);                                     \
		CHECK_OP(type, datatype, NM_LXOR, 3, 0, 0, 1);                                     \
		CHECK_OP(type, datatype, NM_ATOMIC_READ, 3, 4, 0, 3);                              \
		CHECK_OP(type, datatype, NM_ATOMIC_WRITE, 3, 4, 0, 4);                             \
		CHECK_OP(type, datatype, NM_CSWAP, 3, 4, 3, 4);                                    \
		CHECK_OP(type, datatype, NM_CSWAP, 3, 4, 5, 3);                                    \
		CHECK_OP(type, datatype, NM_CSWAP_NE, 3, 4, 3, 3);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_NE, 3, 4, 5, 4);                                 \
	} while (0)

#define CHECK_ORDERED(type, datatype)                                                              \
	do {                                                                                       \
		CHECK_COMMON(type, datatype);                                                      \
		CHECK_OP(type, datatype, NM_MIN, 3, 4, 0, 3);                                      \
		CHECK_OP(type, datatype, NM_MIN, 4, 3, 0, 3);                                      \
		CHECK_OP(type, datatype, NM_MAX, 3, 4, 0, 4);                                      \
		CHECK_OP(type, datatype, NM_MAX, 4, 3, 0, 4);                                      \
		CHECK_OP(type, datatype, NM_CSWAP_LE, 3, 9, 3, 9);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_LE, 3, 9, 4, 3);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_LT, 3, 9, 3, 3);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_LT, 3, 9, 2, 9);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_GE, 3, 9, 3, 9);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_GE, 3, 9, 2, 3);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_GT, 3, 9, 3, 3);                                 \
		CHECK_OP(type, datatype, NM_CSWAP_GT, 3, 9, 4, 9);                                 \
	} while (0)

#define CHECK_INTEGER(type, datatype)                                                              \
	do {                                                                                       \
		CHECK_ORDERED(type, datatype);                                                     \
		CHECK_OP(type, datatype, NM_BOR, 5, 3, 0, 7);                                      \
		CHECK_OP(type, datatype, NM_BAND, 5, 3, 0, 1);                                     \
		CHECK_OP(type, datatype, NM_BXOR, 5, 3, 0, 6);                                     \
		CHECK_OP(type, datatype, NM_MSWAP, 0x55, 0x22, 0x0f, 0x52);                        \
	} while (0)

NM_TEST(integers)
{
	CHECK_INTEGER(int8_t, NM_INT8);
	CHECK_INTEGER(uint8_t, NM_UINT8);
	CHECK_INTEGER(int16_t, NM_INT16);
	CHECK_INTEGER(uint16_t, NM_UINT16);
	CHECK_INTEGER(int32_t, NM_INT32);
	CHECK_INTEGER(uint32_t, NM_UINT32);
	CHECK_INTEGER(int64_t, NM_INT64);
	CHECK_INTEGER(uint64_t, NM_UINT64);
	CHECK_INTEGER(nm_int128, NM_INT128);
	CHECK_INTEGER(nm_uint128, NM_UINT128);
	CHECK_OP(int8_t, NM_INT8, NM_MIN, 3, -4, 0, -4);
	CHECK_OP(uint8_t, NM_UINT8, NM_MIN, 3, 252, 0, 3);
	/* Overflow wraps and is no undefined behaviour. */
	CHECK_OP(int64_t, NM_INT64, NM_SUM, INT64_MAX, 1, 0, INT64_MIN);
	CHECK_OP(nm_int128, NM_INT128, NM_PROD, (nm_int128)INT64_MAX + 1, 4, 0, (nm_int128)1 << 65);
	CHECK_OP(nm_int128, NM_INT128, NM_MIN, (nm_int128)1 << 100, -1, 0, -1);
	CHECK_OP(nm_uint128, NM_UINT128, NM_SUM, ~(nm_uint128)0, 2, 0, 1);
	CHECK_OP(int32_t, NM_INT32, NM_PROD, INT32_MAX, 2, 0, -2);
	CHECK_OP(uint16_t, NM_UINT16, NM_PROD, 65535, 65535, 0, 1);
}

NM_TEST(floats)
{
	CHECK_ORDERED(float, NM_FLOAT);
	CHECK_ORDERED(double, NM_DOUBLE);
	CHECK_ORDERED(long double, NM_LONG_DOUBLE);
	CHECK_OP(double, NM_DOUBLE, NM_SUM, 0.25, 0.5, 0, 0.75);
	CHECK_COMMON(float complex, NM_FLOAT_COMPLEX);
	CHECK_COMMON(double complex, NM_DOUBLE_COMPLEX);
	CHECK_COMMON(long double complex, NM_LONG_DOUBLE_COMPLEX);
	CHECK_OP(double complex, NM_DOUBLE_COMPLEX, NM_PROD, 1 + 2 * I, 3 * I, 0, -6 + 3 * I);
}

/* The owner may be changing what a compare failed on: here, a store would be a fault. */
NM_TEST(a_swap_that_fails_stores_nothing)
{
	void *zeros = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	alignas(16) char ones[64], before[64];

	NM_CHECK(zeros != MAP_FAILED);
	memset(ones, 1, sizeof(ones));
	for (uint32_t type = 0; type < NM_NR_DATATYPES; type++) {
		nm_atomic_apply(type, NM_CSWAP, zeros, ones, ones, 1, before);
		nm_atomic_apply(type, NM_CSWAP_NE, zeros, ones, zeros, 1, before);
		if (!nm_atomic_valid(NM_ATOMIC_COMPARE, type, NM_CSWAP_LE))
			continue;
		nm_atomic_apply(type, NM_CSWAP_LE, zeros, ones, ones, 1, before);
		nm_atomic_apply(type, NM_CSWAP_LT, zeros, ones, ones, 1, before);
		nm_atomic_apply(type, NM_CSWAP_GT, zeros, ones, zeros, 1, before);
	}
	munmap(zeros, 4096);
}

NM_TEST(what_is_valid)
{
	NM_CHECK(nm_atomic_valid(NM_ATOMIC_UPDATE, NM_INT32, NM_SUM));
	NM_CHECK(nm_atomic_valid(NM_ATOMIC_FETCH, NM_INT32, NM_SUM));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_COMPARE, NM_INT32, NM_SUM));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_UPDATE, NM_INT32, NM_ATOMIC_READ));
	NM_CHECK(nm_atomic_valid(NM_ATOMIC_FETCH, NM_INT32, NM_ATOMIC_READ));
	NM_CHECK(nm_atomic_valid(NM_ATOMIC_COMPARE, NM_INT32, NM_MSWAP));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_FETCH, NM_INT32, NM_CSWAP));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_UPDATE, NM_FLOAT, NM_BOR));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_COMPARE, NM_DOUBLE, NM_MSWAP));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_UPDATE, NM_DOUBLE_COMPLEX, NM_MAX));
	NM_CHECK(nm_atomic_valid(NM_ATOMIC_COMPARE, NM_FLOAT_COMPLEX, NM_CSWAP));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_UPDATE, NM_NR_DATATYPES, NM_SUM));
	NM_CHECK(!nm_atomic_valid(NM_ATOMIC_UPDATE, NM_INT8, NM_NR_ATOMIC_OPS));
	NM_CHECK(!nm_atomic_valid(NM_NR_ATOMIC_KINDS, NM_INT8, NM_SUM));
	NM_CHECK_EQ(nm_atomic_size(NM_NR_DATATYPES), 0);
	NM_CHECK_EQ(nm_atomic_size(NM_LONG_DOUBLE_COMPLEX), sizeof(long double complex));
}

/* ---- at a target ---- */

struct target {
	struct mesh *mesh;
	alignas(16) char bytes[256];
	struct nm_memory_region *region;
	struct nm_counter counter;
};

#define KEY 42

static void target_init(struct target *t, uint64_t access)
{
	struct iovec iov = {t->bytes, sizeof(t->bytes)};
	struct nm_memory_attr attr = {
		.iov = &iov,
		.nr_iov = 1,
		.access = access,
		.key = KEY,
		.counter = &t->counter,
	};

	*t = (struct target){.mesh = mesh_create(NULL)};
	NM_CHECK_EQ(nm_memory_register(mesh_node(t->mesh, 1)->memory, &attr, &t->region), 0);
}

static void target_fini(struct target *t)
{
	nm_memory_deregister(mesh_node(t->mesh, 1)->memory, t->region);
	mesh_destroy(t->mesh);
}

static struct nm_atomic atomic_on(struct target *t, uint64_t address, uint64_t len,
				  uint32_t datatype, uint32_t op, const struct iovec *operand)
{
	return (struct nm_atomic){
		.operand = operand,
		.nr_operand = operand ? 1 : 0,
		.remote = {{.address = address, .len = len, .key = KEY}},
		.nr_remote = 1,
		.datatype = datatype,
		.op = op,
		.peer = mesh_peer(t->mesh, 0, 1),
		.context = t,
		.flags = NM_COMPLETION,
	};
}

static struct nm_completion run(struct target *t, const struct nm_atomic *a)
{
	NM_CHECK_EQ(nm_engine_atomic(mesh_node(t->mesh, 0)->engine, a), 0);
	return mesh_wait(t->mesh, 0);
}

NM_TEST(update_fetch_and_compare)
{
	struct target t;
	int64_t operand[4] = {1, 2, 3, 4}, result[4] = {0}, compare[4] = {1, 0, 3, 0};
	int64_t *at_target = (int64_t *)t.bytes;
	struct iovec o = {operand, 32}, r = {result, 32}, k = {compare, 32};
	struct nm_atomic a;
	struct nm_completion c;

	target_init(&t, NM_REMOTE_READ | NM_REMOTE_WRITE);
	a = atomic_on(&t, 0, 32, NM_INT64, NM_SUM, &o);
	a.flags |= NM_REMOTE_CQ_DATA;
	a.data = 77;
	c = run(&t, &a);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_EQ(c.flags, NM_ATOMIC | NM_WRITE);
	NM_CHECK(c.context == &t);
	NM_CHECK(at_target[0] == 1 && at_target[3] == 4);
	c = mesh_wait(t.mesh, 1);
	NM_CHECK_EQ(c.flags, NM_ATOMIC | NM_REMOTE_WRITE | NM_REMOTE_CQ_DATA);
	NM_CHECK_EQ(c.data, 77);

	a = atomic_on(&t, 0, 32, NM_INT64, NM_PROD, &o);
	a.result = &r;
	a.nr_result = 1;
	c = run(&t, &a);
	NM_CHECK_EQ(c.flags, NM_ATOMIC | NM_READ);
	NM_CHECK(result[0] == 1 && result[3] == 4 && at_target[3] == 16);

	a = atomic_on(&t, 0, 32, NM_INT64, NM_CSWAP, &o);
	a.result = &r;
	a.compare = &k;
	a.nr_result = a.nr_compare = 1;
	operand[0] = 100;
	c = run(&t, &a);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK(at_target[0] == 100 && at_target[1] == 4);
	NM_CHECK(result[0] == 1 && result[1] == 4);

	a = atomic_on(&t, 8, 8, NM_INT64, NM_ATOMIC_READ, NULL);
	r.iov_len = 8;
	a.result = &r;
	a.nr_result = 1;
	run(&t, &a);
	NM_CHECK_EQ(result[0], 4);
	NM_CHECK_EQ(mesh_node(t.mesh, 0)->write.value, 1);
	NM_CHECK_EQ(mesh_node(t.mesh, 0)->read.value, 3);
	NM_CHECK_EQ(t.counter.value, 4);
	target_fini(&t);
}

NM_TEST(unaligned_and_scattered_targets)
{
	struct target t;
	double operand[6] = {1, 2, 3, 4, 5, 6}, value;
	struct iovec o[2] = {{operand, 8}, {operand + 1, 40}};
	struct nm_atomic a;

	target_init(&t, NM_REMOTE_WRITE);
	a = atomic_on(&t, 3, 16, NM_DOUBLE, NM_SUM, o);
	a.nr_operand = 2;
	a.remote[1] = (struct nm_remote){.address = 101, .len = 24, .key = KEY};
	a.remote[2] = (struct nm_remote){.address = 200, .len = 8, .key = KEY};
	a.nr_remote = 3;
	NM_CHECK_EQ(run(&t, &a).err, 0);
	NM_CHECK_EQ(run(&t, &a).err, 0);
	memcpy(&value, t.bytes + 11, 8);
	NM_CHECK(value == 4);
	memcpy(&value, t.bytes + 117, 8);
	NM_CHECK(value == 10);
	memcpy(&value, t.bytes + 200, 8);
	NM_CHECK(value == 12);
	target_fini(&t);
}

NM_TEST(the_largest_atomic_fits)
{
	struct mesh *mesh = mesh_create(NULL);
	uint64_t memory[128] = {0}, operand[128], compare[128] = {0}, result[128];
	struct iovec m = {memory, 1024}, o = {operand, 1024}, k = {compare, 1024},
		     r = {result, 1024};
	struct nm_memory_attr attr = {
		.iov = &m,
		.nr_iov = 1,
		.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
		.key = 1,
	};
	struct nm_memory_region *region;
	struct nm_atomic a = {
		.operand = &o,
		.nr_operand = 1,
		.compare = &k,
		.nr_compare = 1,
		.result = &r,
		.nr_result = 1,
		.nr_remote = 1,
		.remote = {{.len = 1024, .key = 1}},
		.datatype = NM_UINT64,
		.op = NM_CSWAP,
		.flags = NM_COMPLETION,
	};

	for (uint64_t i = 0; i < 128; i++)
		operand[i] = i;
	a.peer = mesh_peer(mesh, 0, 1);
	NM_CHECK_EQ(nm_memory_register(mesh_node(mesh, 1)->memory, &attr, &region), 0);
	NM_CHECK_EQ(nm_engine_atomic(mesh_node(mesh, 0)->engine, &a), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	NM_CHECK_EQ(memcmp(memory, operand, 1024), 0);
	o.iov_len = k.iov_len = r.iov_len = a.remote[0].len = 1032;
	NM_CHECK_EQ(nm_engine_atomic(mesh_node(mesh, 0)->engine, &a), -EINVAL);
	mesh_destroy(mesh);
}

NM_TEST(atomics_without_rights_are_refused)
{
	struct target t;
	int32_t value = 5, result;
	struct iovec o = {&value, 4}, r = {&result, 4};
	struct nm_atomic a;

	target_init(&t, NM_REMOTE_READ);
	a = atomic_on(&t, 0, 4, NM_INT32, NM_SUM, &o);
	NM_CHECK_EQ(run(&t, &a).err, EACCES);
	a.result = &r;
	a.nr_result = 1;
	NM_CHECK_EQ(run(&t, &a).err, EACCES);
	a.op = NM_ATOMIC_READ;
	NM_CHECK_EQ(run(&t, &a).err, 0);
	a.remote[0].address = sizeof(t.bytes) - 3;
	NM_CHECK_EQ(run(&t, &a).err, EACCES);
	a.remote[0].key = 1;
	NM_CHECK_EQ(run(&t, &a).err, EACCES);
	NM_CHECK_EQ(mesh_node(t.mesh, 0)->read.errors, 3);
	target_fini(&t);
}

NM_TEST(wrong_atomics_are_refused_at_once)
{
	struct target t;
	int32_t value = 5;
	struct iovec o = {&value, 4};
	struct nm_engine *engine;
	struct nm_atomic a;

	target_init(&t, NM_REMOTE_WRITE);
	engine = mesh_node(t.mesh, 0)->engine;
	a = atomic_on(&t, 0, 4, NM_INT64, NM_SUM, &o);
	NM_CHECK_EQ(nm_engine_atomic(engine, &a), -EINVAL);
	a = atomic_on(&t, 0, 8, NM_INT32, NM_SUM, &o);
	NM_CHECK_EQ(nm_engine_atomic(engine, &a), -EINVAL);
	a = atomic_on(&t, 0, 4, NM_FLOAT, NM_BAND, &o);
	NM_CHECK_EQ(nm_engine_atomic(engine, &a), -EINVAL);
	o.iov_len = 0;
	a = atomic_on(&t, 0, 0, NM_INT32, NM_SUM, &o);
	NM_CHECK_EQ(nm_engine_atomic(engine, &a), -EINVAL);
	target_fini(&t);
}

/* Atomics and messages of one initiator are executed in the order of the calls. */
NM_TEST(atomics_are_ordered)
{
	struct target t;
	int64_t value, result = 0;
	struct iovec o = {&value, 8}, r = {&result, 8};
	struct nm_atomic a;

	target_init(&t, NM_REMOTE_READ | NM_REMOTE_WRITE);
	for (value = 1; value <= 100; value++) {
		a = atomic_on(&t, 0, 8, NM_INT64, NM_ATOMIC_WRITE, &o);
		a.flags = 0;
		while (nm_engine_atomic(mesh_node(t.mesh, 0)->engine, &a) == -EAGAIN)
			mesh_step(t.mesh);
	}
	a = atomic_on(&t, 0, 8, NM_INT64, NM_ATOMIC_READ, NULL);
	a.result = &r;
	a.nr_result = 1;
	while (nm_engine_atomic(mesh_node(t.mesh, 0)->engine, &a) == -EAGAIN)
		mesh_step(t.mesh);
	mesh_wait(t.mesh, 0);
	NM_CHECK_EQ(result, 100);
	target_fini(&t);
}
