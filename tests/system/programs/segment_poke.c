/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads or writes one 64-bit word of a mapping, as a friend or as a vandal would:
 *   segment_poke read FILE OFFSET
 *   segment_poke write FILE OFFSET VALUE    maps read-write, whatever the file is meant for
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE (2UL << 20) /* DAX devices are mapped in pages of this size only */

int main(int argc, char **argv)
{
	bool write_it = argc == 5 && !strcmp(argv[1], "write");
	volatile uint64_t *word;
	uint64_t offset;
	void *page;
	int fd;

	if (!write_it && !(argc == 4 && !strcmp(argv[1], "read")))
		return 2;
	offset = strtoull(argv[3], NULL, 0);
	fd = open(argv[2], write_it ? O_RDWR : O_RDONLY);
	if (fd < 0) {
		fprintf(stderr, "open: %s\n", strerror(errno));
		return 1;
	}
	page = mmap(NULL, PAGE, write_it ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
		    (off_t)(offset - offset % PAGE));
	if (page == MAP_FAILED) {
		fprintf(stderr, "mmap: %s\n", strerror(errno));
		return 1;
	}
	word = (volatile uint64_t *)((char *)page + offset % PAGE);
	if (write_it)
		*word = strtoull(argv[4], NULL, 0);
	printf("%" PRIu64 "\n", *word);
	return 0;
}
