/* SPDX-License-Identifier: Apache-2.0 */
/* nearmetal-info: abilities of this machine, and the channel to given endpoints, with reasons. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/info.h"

#define EXIT_USAGE 2

static const char help_text[] =
	"usage: nearmetal-info [--json]\n"
	"       nearmetal-info --abi [--json]\n"
	"       nearmetal-info meet [--rundir DIR]\n"
	"\n"
	"Without arguments: version, knobs and where their values come from, namespaces,\n"
	"caches, and whether processes can meet in shared memory here, with reasons.\n"
	"\n"
	"  --abi              layout of the shared bytes and all knobs, as JSON\n"
	"  meet               create an endpoint, print its address, then try every address\n"
	"                     that is written to me (a line each: ADDRESS [LABEL]) and print\n"
	"                     relation, channel, integrity and reason as a line of JSON;\n"
	"                     ends when stdin is closed\n"
	"  --rundir DIR       directory where neighbours meet (NEARMETAL_RUNDIR)\n"
	"  --json             print JSON\n"
	"  --version, --help\n"
	"\n"
	"example: nearmetal-info meet --rundir /dev/shm/job-7\n";

static const struct option options[] = {
	{"json", no_argument, NULL, 'j'},	  {"abi", no_argument, NULL, 'a'},
	{"rundir", required_argument, NULL, 'd'}, {"version", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},	  {NULL, 0, NULL, 0},
};

static int usage_error(const char *what)
{
	fprintf(stderr, "nearmetal-info: %s\ntry: nearmetal-info --help\n", what);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	bool json = false, abi = false, meet = false;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			json = true;
			break;
		case 'a':
			abi = true;
			break;
		case 'd':
			if (setenv("NEARMETAL_RUNDIR", optarg, 1))
				return usage_error("cannot set the rundir");
			break;
		case 'v':
			puts("nearmetal-info " NM_VERSION);
			return 0;
		case 'h':
			fputs(help_text, stdout);
			return 0;
		default:
			return usage_error("unknown option");
		}
	}
	if (optind < argc && !strcmp(argv[optind], "meet")) {
		meet = true;
		optind++;
	}
	if (optind < argc)
		return usage_error("unknown argument");
	if (meet && abi)
		return usage_error("--abi and meet do not go together");
	if (abi)
		return nm_info_abi();
	return meet ? nm_info_probe() : nm_info_machine(json);
}
