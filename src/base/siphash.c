/* SPDX-License-Identifier: Apache-2.0 */
#include "base/siphash.h"

struct state {
	uint64_t a, b, c, d;
};

static uint64_t rotate(uint64_t word, unsigned int bits)
{
	return word << bits | word >> (64 - bits);
}

static void half_round(uint64_t *x, uint64_t *y, uint64_t *z, uint64_t *w, unsigned int first,
		       unsigned int second)
{
	*x += *y;
	*z += *w;
	*y = rotate(*y, first) ^ *x;
	*w = rotate(*w, second) ^ *z;
	*x = rotate(*x, 32);
}

static void mix(struct state *s, unsigned int nr_rounds)
{
	while (nr_rounds--) {
		half_round(&s->a, &s->b, &s->c, &s->d, 13, 16);
		half_round(&s->c, &s->b, &s->a, &s->d, 17, 21);
	}
}

static uint64_t word_at(const uint8_t *bytes, size_t len)
{
	uint64_t word = 0;

	for (size_t i = 0; i < len; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

static void absorb(struct state *s, uint64_t word)
{
	s->d ^= word;
	mix(s, 2);
	s->a ^= word;
}

uint64_t nm_siphash(const uint8_t key[NM_SIPHASH_KEY_LEN], const void *bytes, size_t len)
{
	uint64_t low = word_at(key, 8), high = word_at(key + 8, 8);
	struct state s = {
		low ^ UINT64_C(0x736f6d6570736575),
		high ^ UINT64_C(0x646f72616e646f6d),
		low ^ UINT64_C(0x6c7967656e657261),
		high ^ UINT64_C(0x7465646279746573),
	};
	const uint8_t *at = bytes;
	size_t left = len;

	for (; left >= 8; left -= 8, at += 8)
		absorb(&s, word_at(at, 8));
	absorb(&s, word_at(at, left) | (uint64_t)len << 56);
	s.c ^= 0xff;
	mix(&s, 4);
	return s.a ^ s.b ^ s.c ^ s.d;
}
