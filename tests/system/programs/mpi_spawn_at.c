// SPDX-License-Identifier: Apache-2.0
/*
 * A rank asks the launcher for a child in a place of its choice; the child runs a shell command.
 * Usage: mpi_spawn_at HOST COMMAND. The child is this program with "child" in front.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	MPI_Comm other;
	MPI_Info info;

	MPI_Init(&argc, &argv);
	if (argc == 3 && !strcmp(argv[1], "child")) {
		if (system(argv[2]))
			printf("FAILED: %s\n", argv[2]);
		MPI_Comm_get_parent(&other);
	} else if (argc == 3) {
		char *words[] = {"child", argv[2], NULL};

		MPI_Info_create(&info);
		MPI_Info_set(info, "host", argv[1]);
		MPI_Comm_spawn(argv[0], words, 1, info, 0, MPI_COMM_SELF, &other,
			       MPI_ERRCODES_IGNORE);
	} else {
		return 2;
	}
	MPI_Comm_disconnect(&other);
	MPI_Finalize();
	return 0;
}
