/* SPDX-License-Identifier: Apache-2.0 */
/* A program over UCX ends at the first thing that is not as expected. */
#ifndef UCX_CHECK_H
#define UCX_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what);                         \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#endif
