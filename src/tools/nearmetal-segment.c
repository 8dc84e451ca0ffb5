/* SPDX-License-Identifier: Apache-2.0 */
/* nearmetal-segment: the file that the virtual machines of one host share. */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/params.h"
#include "tools/segment_tool.h"

#define EXIT_USAGE 2

static const char help_text[] =
	"usage: nearmetal-segment create FILE --parts N --part-size SIZE [--token HEX] [--lead SIZE]\n"
	"       nearmetal-segment show FILE [--json]\n"
	"       nearmetal-segment find OWN ALL\n"
	"       nearmetal-segment quiesce|freeze|run CONFIG\n"
	"\n"
	"create writes the file that the virtual machines of one host share, before they start: one\n"
	"page of the host and one part for each machine. It refuses a file that exists.\n"
	"show prints the content of a segment: a file of the host, or the device in a guest.\n"
	"find prints, in a guest, which part of the device ALL the device OWN is, for the guest unit.\n"
	"The last three set the state of the own part, in a guest whose machine is to be moved:\n"
	"quiesce asks all endpoints to leave the segment, freeze confirms that they have (exit\n"
	"status 4: not yet), and run takes both back. CONFIG is /run/nearmetal/segment.conf.\n"
	"\n"
	"  --parts N         machines that share the file, 1 to 256\n"
	"  --part-size SIZE  memory of each machine: a power of two from 2M to 64G\n"
	"  --token HEX       32 hexadecimal digits by which machines recognize it; `-`: read from\n"
	"                    standard input; without: random\n"
	"  --lead SIZE       bytes before the host page, 0 or 2M: 2M for virtio-pmem and nvdimm\n"
	"                    whose DAX namespace describes itself in the file\n"
	"  --json            print JSON\n"
	"  --version, --help\n"
	"\n"
	"example: nearmetal-segment create /dev/shm/job-7 --parts 2 --part-size 64M\n";

static const struct option options[] = {
	{"parts", required_argument, NULL, 'p'}, {"part-size", required_argument, NULL, 's'},
	{"token", required_argument, NULL, 't'}, {"lead", required_argument, NULL, 'l'},
	{"json", no_argument, NULL, 'j'},	 {"version", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},	 {NULL, 0, NULL, 0},
};

int segment_failed(const char *hint, const char *fmt, ...)
{
	va_list args;

	fputs("nearmetal-segment: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	if (hint)
		fprintf(stderr, "%s\n", hint);
	return 1;
}

void segment_format_token(const uint8_t token[NM_VMSEG_TOKEN_LEN],
			  char ret_text[2 * NM_VMSEG_TOKEN_LEN + 1])
{
	for (int i = 0; i < NM_VMSEG_TOKEN_LEN; i++)
		sprintf(ret_text + (size_t)2 * i, "%02x", token[i]);
}

static int usage_error(const char *what)
{
	fprintf(stderr, "nearmetal-segment: %s\ntry: nearmetal-segment --help\n", what);
	return EXIT_USAGE;
}

/* The options of a command line. -1: go on; else the exit status. */
static int take_options(int argc, char **argv, struct segment_order *order, bool *ret_json)
{
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (option) {
		case 'p':
			if (!nm_params_parse_size(optarg, &order->nr_parts) || !order->nr_parts)
				return usage_error("--parts: give a number");
			break;
		case 's':
			if (!nm_params_parse_size(optarg, &order->part_size) || !order->part_size)
				return usage_error("--part-size: give a size, such as 64M");
			break;
		case 't':
			order->token_text = optarg;
			break;
		case 'l':
			if (!nm_params_parse_size(optarg, &order->lead) ||
			    (order->lead && order->lead != NM_VMSEG_ALIGN))
				return usage_error("--lead: give 0 or 2M");
			break;
		case 'j':
			*ret_json = true;
			break;
		case 'v':
			puts("nearmetal-segment " NM_VERSION);
			return 0;
		case 'h':
			fputs(help_text, stdout);
			return 0;
		default:
			return usage_error("unknown option");
		}
	}
	return -1;
}

/* The state that VERB sets; FREE: none. */
static enum nm_vmseg_state state_of(const char *verb)
{
	static const struct {
		const char *verb;
		enum nm_vmseg_state state;
	} states[] = {
		{"quiesce", NM_VMSEG_QUIESCE},
		{"freeze", NM_VMSEG_FROZEN},
		{"run", NM_VMSEG_RUN},
	};

	for (size_t i = 0; i < NM_ARRAY_SIZE(states); i++)
		if (!strcmp(verb, states[i].verb))
			return states[i].state;
	return NM_VMSEG_FREE;
}

int main(int argc, char **argv)
{
	static const char usage[] =
		"give `create FILE`, `show FILE`, `find OWN ALL`, or `quiesce`, `freeze` or `run` "
		"with CONFIG";
	struct segment_order order = {0};
	bool json = false, create, find;
	enum nm_vmseg_state state;
	const char *verb;
	int status;

	status = take_options(argc, argv, &order, &json);
	if (status >= 0)
		return status;
	find = optind < argc && !strcmp(argv[optind], "find");
	if (argc - optind != (find ? 3 : 2))
		return usage_error(usage);
	verb = argv[optind];
	order.path = argv[optind + 1];
	create = !strcmp(verb, "create");
	state = state_of(verb);
	if (!create && !state && !find && strcmp(verb, "show") != 0)
		return usage_error(usage);
	if (!create && (order.nr_parts || order.part_size || order.token_text || order.lead))
		return usage_error("only create has options other than --json");
	if ((create || state || find) && json)
		return usage_error("only show has the option --json");
	if (find)
		return segment_find(argv[optind + 1], argv[optind + 2]);
	if (state)
		return segment_ask(order.path, state);
	if (create && (!order.nr_parts || !order.part_size))
		return usage_error("create needs --parts and --part-size");
	return create ? segment_create(&order) : segment_show(order.path, json);
}
