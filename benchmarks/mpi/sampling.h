/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every benchmark shares: a set of short samples, percentiles of it, and the output format.
 *
 * A shared machine steals processors for milliseconds at a time, so one long average says nothing.
 * A point is measured as many samples of a few hundred microseconds, and percentiles of them are
 * printed: p2 is the undisturbed machine, p50 the machine as it was.
 *
 * Output ("nearmetal-bench 1"): the first line names format and program, "# key value" lines
 * follow, then tables: a "# table NAME" line, a line of column names, rows of as many numbers,
 * "# end NAME". The last line is "# done PROGRAM"; output without it is a truncated run.
 */
#ifndef NM_BENCH_SAMPLING_H
#define NM_BENCH_SAMPLING_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 4096

struct samples {
	double value[SAMPLES_MAX];
	int nr;
};

static inline void samples_add(struct samples *samples, double value)
{
	if (samples->nr < SAMPLES_MAX)
		samples->value[samples->nr++] = value;
}

static inline int samples_compare(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

static inline void samples_sort(struct samples *samples)
{
	qsort(samples->value, (size_t)samples->nr, sizeof(samples->value[0]), samples_compare);
}

/* Nearest-rank percentile of sorted samples; at least one sample must be there. */
static inline double samples_percentile(const struct samples *sorted, int percent)
{
	return sorted->value[(sorted->nr - 1) * percent / 100];
}

/* Bytes as "123", "64K", "4M", "20G". Returns 0, or -EINVAL. */
static inline int size_parse(const char *text, uint64_t *ret_bytes)
{
	char *end;
	uint64_t value;
	int shift = 0;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || text[0] == '-')
		return -EINVAL;
	if (*end == 'K' || *end == 'M' || *end == 'G') {
		shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 30;
		end++;
	}
	if (*end || value > (UINT64_MAX >> shift))
		return -EINVAL;
	*ret_bytes = value << shift;
	return 0;
}

/* A number of at least min and at most max. Returns 0, or -EINVAL. */
static inline int number_parse(const char *text, double min, double max, double *ret_value)
{
	char *end;
	double value;

	errno = 0;
	value = strtod(text, &end);
	if (errno || end == text || *end || !(value >= min && value <= max))
		return -EINVAL;
	*ret_value = value;
	return 0;
}

/* A well-mixed 64-bit word out of another (the finalizer of splitmix64). */
static inline uint64_t mix64(uint64_t word)
{
	word += 0x9e3779b97f4a7c15u;
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
	return word ^ (word >> 31);
}

/*
 * Payload: byte i of the stream with this key. Words differ by position and by key, so a message
 * that is shifted, mixed up with another, or stale is never taken for the right one.
 */
static inline uint64_t payload_word(uint64_t key, size_t index)
{
	return (key + index) * 0x9e3779b97f4a7c15u;
}

static inline void payload_fill(void *buffer, size_t bytes, uint64_t key)
{
	uint8_t *out = buffer;
	size_t i, words = bytes / 8;
	uint64_t word;

	for (i = 0; i < words; i++) {
		word = payload_word(key, i);
		memcpy(out + 8 * i, &word, 8);
	}
	word = payload_word(key, words);
	memcpy(out + 8 * words, &word, bytes % 8);
}

/* Offset of the first wrong byte, or bytes when all are right. */
static inline size_t payload_check(const void *buffer, size_t bytes, uint64_t key)
{
	const uint8_t *in = buffer;
	size_t i, words = bytes / 8;
	uint64_t word, got, wrong = 0;

	for (i = 0; i < words; i++) {
		memcpy(&got, in + 8 * i, 8);
		wrong |= got ^ payload_word(key, i);
	}
	word = payload_word(key, words);
	if (!wrong && !memcmp(in + 8 * words, &word, bytes % 8))
		return bytes;
	for (i = 0; i < bytes; i++) {
		word = payload_word(key, i / 8);
		if (in[i] != ((const uint8_t *)&word)[i % 8])
			break;
	}
	return i;
}

#endif
