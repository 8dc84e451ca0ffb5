/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a tuning file. Pure. */
#include "transport/tuning.h"

#include <errno.h>
#include <string.h>

#include "base/compiler.h"

#define WORDS_MAX 5
#define MAX_LINES 4000

static const char *const class_names[NM_SELECT_NR_CLASSES] = {"64K", "256K", "1M", "more"};
static const char *const load_names[NM_SELECT_NR_LOADS] = {"lone", "stream"};
static const char *const protocol_names[NM_NR_PROTOCOLS] = {
	[NM_PROTOCOL_EAGER] = "",    [NM_PROTOCOL_POOL] = "pool", [NM_PROTOCOL_POOL_PAST] = "past",
	[NM_PROTOCOL_PULL] = "pull", [NM_PROTOCOL_BOTH] = "both", [NM_PROTOCOL_HEAP] = "heap"};

/* A part of the text, not terminated. */
struct word {
	const char *at;
	size_t len;
};

struct parser {
	struct nm_tuning *tuning;
	struct nm_reason *why;
	unsigned int line;
	bool has_placement, has_rate, ended;
	bool skips; /* ignore the lines of this placement */
};

static NM_COLD int bad(const struct parser *p, const char *what)
{
	nm_reason_set(p->why, "line %u: %s", p->line, what);
	return -EBADMSG;
}

static bool is_word(struct word word, const char *text)
{
	return word.len == strlen(text) && !memcmp(word.at, text, word.len);
}

static int find(struct word word, const char *const *names, int nr)
{
	for (int i = 0; i < nr; i++)
		if (names[i][0] && is_word(word, names[i]))
			return i;
	return -1;
}

/* Decimal digits without a sign or leading zero, at most MAX. */
static bool parse_number(struct word word, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (word.len < 1 || word.len > 19 || (word.len > 1 && word.at[0] == '0'))
		return false;
	for (size_t i = 0; i < word.len; i++) {
		if (word.at[i] < '0' || word.at[i] > '9')
			return false;
		value = value * 10 + (uint64_t)(word.at[i] - '0');
	}
	*ret_value = value;
	return value <= max;
}

/* The rest of a line; allowed once. */
static int take_text(const struct parser *p, struct word rest, char *ret_text)
{
	if (ret_text[0])
		return bad(p, "said before");
	if (rest.len < 1 || rest.len >= NM_TUNING_TEXT_MAX)
		return bad(p, "1 to 127 bytes of text are expected");
	memcpy(ret_text, rest.at, rest.len);
	ret_text[rest.len] = '\0';
	return 0;
}

static int take_cache(struct parser *p, const struct word *words, int nr)
{
	uint64_t level, bytes;

	if (nr != 2 || !parse_number(words[0], 3, &level) || level < 1 ||
	    !parse_number(words[1], UINT64_C(1) << 40, &bytes) || !bytes)
		return bad(p, "a level from 1 to 3 and a number of bytes are expected");
	if (p->tuning->machine.caches[level])
		return bad(p, "said before");
	p->tuning->machine.caches[level] = bytes;
	return 0;
}

static int take_placement(struct parser *p, const struct word *words, int nr)
{
	bool is_near = nr == 1 && is_word(words[0], "near");

	if (!is_near && !(nr == 1 && is_word(words[0], "far")))
		return bad(p, "near or far is expected");
	if (p->has_placement && (is_near || !p->tuning->is_near))
		return bad(p, "near comes first, each once");
	/* The first placement, near, is used: far peers show their rate with the first messages. */
	p->skips = p->has_placement;
	if (!p->has_placement)
		p->tuning->is_near = is_near;
	p->has_placement = true;
	return 0;
}

static int take_rate(struct parser *p, const struct word *words, int nr)
{
	int class, load, protocol;
	uint64_t mbps;
	uint32_t *place;

	if (!p->has_placement)
		return bad(p, "a placement comes first");
	if (nr != 4)
		return bad(p, "class, load, protocol and MB/s are expected");
	class = find(words[0], class_names, NM_SELECT_NR_CLASSES);
	load = find(words[1], load_names, NM_SELECT_NR_LOADS);
	protocol = find(words[2], protocol_names, NM_NR_PROTOCOLS);
	if (class < 0 || load < 0 || protocol < 0)
		return bad(p, "unknown class, load or protocol");
	if (!parse_number(words[3], NM_TUNING_MBPS_MAX, &mbps) || !mbps)
		return bad(p, "a rate from 1 to 10000000 MB/s is expected");
	if (p->skips)
		return 0;
	place = &p->tuning->rates[class][load][protocol];
	if (*place)
		return bad(p, "said before");
	*place = (uint32_t)mbps;
	p->has_rate = true;
	return 0;
}

/* The next line, without its end; false: no line is left. */
static bool next_line(const char **text, size_t *len, struct word *ret_line)
{
	const char *end = memchr(*text, '\n', *len);

	if (!end)
		return false;
	*ret_line = (struct word){*text, (size_t)(end - *text)};
	*len -= ret_line->len + 1;
	*text = end + 1;
	return true;
}

/* Words between single spaces; -1: too many, an empty one, or an unprintable character. */
static int split(struct word line, struct word *ret_words)
{
	int nr = 0;

	while (line.len) {
		const char *space = memchr(line.at, ' ', line.len);
		size_t len = space ? (size_t)(space - line.at) : line.len;

		if (!len || nr == WORDS_MAX)
			return -1;
		ret_words[nr++] = (struct word){line.at, len};
		if (!space)
			return nr;
		line.at += len + 1;
		line.len -= len + 1;
		if (!line.len)
			return -1;
	}
	return nr;
}

static bool is_printable(struct word line)
{
	for (size_t i = 0; i < line.len; i++)
		if (line.at[i] < 0x20 || line.at[i] > 0x7e)
			return false;
	return true;
}

static int take_line(struct parser *p, struct word line)
{
	const char *space = memchr(line.at, ' ', line.len);
	struct word first = {line.at, space ? (size_t)(space - line.at) : line.len};
	struct word rest = {space ? space + 1 : line.at + line.len,
			    space ? line.len - first.len - 1 : 0};
	struct word words[WORDS_MAX];
	int nr;

	if (!is_printable(line))
		return bad(p, "a character that cannot be printed");
	if (is_word(first, "evidence"))
		return 0;
	if (is_word(first, "cpu"))
		return take_text(p, rest, p->tuning->machine.cpu);
	if (is_word(first, "kernel"))
		return take_text(p, rest, p->tuning->machine.kernel);
	if (is_word(first, "date"))
		return take_text(p, rest, p->tuning->date);
	nr = split(rest, words);
	if (nr < 0)
		return bad(p, "words are separated by single spaces, at most five");
	if (is_word(first, "cache"))
		return take_cache(p, words, nr);
	if (is_word(first, "placement"))
		return take_placement(p, words, nr);
	if (is_word(first, "rate"))
		return take_rate(p, words, nr);
	if (!is_word(line, "end"))
		return bad(p, "unknown line");
	p->ended = true;
	return 0;
}

int nm_tuning_parse(const char *text, size_t len, struct nm_tuning *ret_tuning,
		    struct nm_reason *ret_reason)
{
	struct nm_tuning tuning = {.is_near = false};
	struct parser p = {.tuning = &tuning, .why = ret_reason, .line = 1};
	struct word line;
	int err;

	if (!next_line(&text, &len, &line) || !is_word(line, "nearmetal-tuning 1"))
		return bad(&p, "'nearmetal-tuning 1' is expected: another release wrote it, or it "
			       "is no tuning file");
	while (!p.ended) {
		p.line++;
		if (!next_line(&text, &len, &line) || p.line > MAX_LINES)
			return bad(&p, "it is cut off: its last line is not 'end'");
		err = take_line(&p, line);
		if (err)
			return err;
	}
	if (len)
		return bad(&p, "something follows 'end'");
	if (!tuning.machine.cpu[0] || !tuning.machine.kernel[0] || !tuning.date[0] || !p.has_rate)
		return bad(&p, "cpu, kernel, date and at least one rate are needed");
	*ret_tuning = tuning;
	return 0;
}

int nm_tuning_check(const struct nm_tuning *tuning, const struct nm_tuning_machine *here,
		    struct nm_reason *ret_reason)
{
	const struct nm_tuning_machine *there = &tuning->machine;

	if (here->cpu[0] && strcmp(here->cpu, there->cpu) != 0) {
		nm_reason_set(ret_reason, "measured on another machine: %.60s, not %.60s",
			      there->cpu, here->cpu);
		return -ESTALE;
	}
	for (int level = 1; level < 4; level++)
		if (here->caches[level] && there->caches[level] &&
		    here->caches[level] != there->caches[level]) {
			nm_reason_set(ret_reason,
				      "measured on another machine: %llu bytes of L%d, not %llu",
				      (unsigned long long)there->caches[level], level,
				      (unsigned long long)here->caches[level]);
			return -ESTALE;
		}
	if (here->kernel[0] && strcmp(here->kernel, there->kernel) != 0) {
		nm_reason_set(ret_reason, "measured under kernel %.60s, not %.60s", there->kernel,
			      here->kernel);
		return -ESTALE;
	}
	return 0;
}

const char *nm_tuning_class_name(int class)
{
	return class_names[class];
}

const char *nm_tuning_load_name(int load)
{
	return load_names[load];
}

const char *nm_tuning_protocol_name(int protocol)
{
	return protocol_names[protocol];
}
