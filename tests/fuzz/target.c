/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of one input, in every fuzzer and in whatever way it is started. A limit on the
 * processor time of the process, unlike libFuzzer's limit on time, also holds on a busy machine.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "target.h"

/* Under AddressSanitizer a whole corpus takes less than 0.2 s. */
#define INPUT_SECONDS 1
/* One allocation of an input, and all memory of the process. */
#define MALLOC_LIMIT "-malloc_limit_mb=64"
#define RSS_LIMIT "-rss_limit_mb=1024"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void too_slow(int signal)
{
	static const char words[] = "one input took more than a second of processor time\n";

	(void)signal;
	if (write(STDERR_FILENO, words, sizeof(words) - 1) < 0)
		_exit(1);
	abort();
}

/* libFuzzer reads its options after this. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char **options = calloc((size_t)*argc + 3, sizeof(*options));

	if (!options)
		abort();
	memcpy(options, *argv, (size_t)*argc * sizeof(*options));
	options[(*argc)++] = (char *)(uintptr_t)MALLOC_LIMIT;
	options[(*argc)++] = (char *)(uintptr_t)RSS_LIMIT;
	*argv = options;
	signal(SIGVTALRM, too_slow);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	static const struct itimerval bound = {.it_value.tv_sec = INPUT_SECONDS}, none;

	setitimer(ITIMER_VIRTUAL, &bound, NULL);
	nm_fuzz_input(bytes, len);
	setitimer(ITIMER_VIRTUAL, &none, NULL);
	return 0;
}
