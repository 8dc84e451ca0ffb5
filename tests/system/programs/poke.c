// SPDX-License-Identifier: Apache-2.0
/* poke FILE OFFSET TEXT: writes through a mapping, as a hostile guest does; prints what it reads. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	const long page = sysconf(_SC_PAGESIZE);
	long off;
	char *map;
	int fd;

	if (argc != 4)
		return 2;
	off = strtol(argv[2], NULL, 0);
	fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	map = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off & -page);
	if (map == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	memcpy(map + off % page, argv[3], strlen(argv[3]));
	printf("%.*s\n", (int)strlen(argv[3]), map + off % page);
	return 0;
}
