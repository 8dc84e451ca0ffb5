/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint that sends nothing: it reports which channel reaches each given address. */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/params.h"
#include "device/load.h"
#include "engine/device_way.h"
#include "tools/info.h"
#include "tools/json.h"
#include "transport/select.h"
#include "transport/transport.h"

#define HEX_LEN (2 * NM_ADDRESS_LEN)
#define LINE_MAX_LEN 1024
#define PROGRESS_MS 50

/* A peer with a link. A second question about it gets the same answer. */
struct known_peer {
	struct known_peer *next;
	struct nm_identity who;
	struct nm_link *link;
};

struct prober {
	struct nm_address address;
	/* The transports that share memory with their peers, best first; and why others are absent. */
	struct nm_transport *places[NM_NR_CHANNELS];
	unsigned int nr_places;
	struct nm_reason nowhere;
	const struct nm_params *params;
	const struct nm_device_ops *device; /* the first interface; NULL: no GPU */
	struct known_peer *known;
	char line[LINE_MAX_LEN];
	size_t len;
	bool skipping; /* the rest of a line that was too long */
};

static struct nm_peer *accept_source(struct nm_transport *from, const struct nm_identity *who,
				     const struct nm_peer_label *label)
{
	(void)who;
	(void)label;
	return (struct nm_peer *)from;
}

static void ignore_packet(struct nm_transport *from, struct nm_peer *source,
			  const struct nm_packet *pkt, const void *payload)
{
	(void)from;
	(void)source;
	(void)pkt;
	(void)payload;
}

static void ignore_end(struct nm_transport *from, struct nm_peer *source, int err,
		       const struct nm_reason *why)
{
	(void)from;
	(void)source;
	(void)err;
	(void)why;
}

static void print_address(const struct nm_address *address)
{
	const uint8_t *bytes = (const uint8_t *)address;
	struct nm_json json = {stdout, false};
	char hex[HEX_LEN + 1], node[256] = "";
	size_t i;

	for (i = 0; i < NM_ADDRESS_LEN; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	gethostname(node, sizeof(node) - 1);
	nm_json_open(&json, NULL, '{');
	nm_json_text(&json, "address", hex);
	nm_json_text(&json, "node", node);
	nm_json_close(&json, '}');
	putchar('\n');
	fflush(stdout);
}

static void print_verdict(const struct prober *prober, const char *label,
			  const struct nm_link_facts *facts)
{
	struct nm_json json = {stdout, false};

	nm_json_open(&json, NULL, '{');
	nm_json_text(&json, "peer", label);
	nm_json_text(&json, "relation", nm_relation_name(facts->relation));
	nm_json_text(&json, "channel", nm_channel_name(facts->channel));
	nm_json_text(&json, "integrity", nm_integrity_name(facts->integrity));
	nm_json_text(&json, "reason", facts->reason.text);
	nm_json_bool(&json, "direct_copies", facts->remote_copy);
	nm_json_text(&json, "copy_reason", facts->copy_reason.text);
	if (prober->device)
		nm_json_text(&json, "device_reason", facts->device.text);
	nm_json_close(&json, '}');
	putchar('\n');
	fflush(stdout);
}

static int hex_digit(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* 0, or -EINVAL. */
static int parse_hex(const char *text, size_t len, struct nm_address *ret_address)
{
	uint8_t bytes[NM_ADDRESS_LEN];
	int high, low;
	size_t i;

	if (len != HEX_LEN)
		return -EINVAL;
	for (i = 0; i < NM_ADDRESS_LEN; i++) {
		high = hex_digit(text[2 * i]);
		low = hex_digit(text[2 * i + 1]);
		if (high < 0 || low < 0)
			return -EINVAL;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	return nm_address_parse(bytes, sizeof(bytes), ret_address);
}

/* No memory channel reaches it: only the network is left, if it is allowed. */
static void set_network(const struct prober *prober, struct nm_link_facts *facts, const char *why)
{
	facts->relation = NM_RELATION_NETWORK;
	facts->channel =
		nm_params_channel_allowed(prober->params, "net") ? NM_CHANNEL_NET : NM_CHANNEL_NONE;
	nm_reason_set(&facts->reason, "%s", why);
}

/* Add one reason to the list that is reported if every channel fails. */
static void add_reason(struct nm_reason *all, const char *place, const char *why)
{
	size_t used = strlen(all->text);

	snprintf(all->text + used, sizeof(all->text) - used, "%s%s: %s", used ? "; " : "", place,
		 why);
}

static int connect_somewhere(struct prober *prober, const struct nm_address *address,
			     struct nm_link **ret_link, struct nm_reason *ret_reason)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct nm_reason all = prober->nowhere;
	int err = -EHOSTUNREACH;

	for (unsigned int i = 0; i < prober->nr_places && err; i++) {
		struct nm_transport *place = prober->places[i];
		struct nm_reason why = {""};

		while ((err = place->ops->connect(place, address, (struct nm_peer *)prober,
						  ret_link, &why)) == -EAGAIN)
			nanosleep(&pause, NULL);
		if (err)
			add_reason(&all, nm_channel_name(place->kind->channel), why.text);
	}
	*ret_reason = all;
	return err;
}

static int connect_and_remember(struct prober *prober, const struct nm_address *address,
				struct nm_link **ret_link, struct nm_reason *ret_reason)
{
	struct known_peer *known;
	int err;

	for (known = prober->known; known; known = known->next)
		if (nm_identity_equal(&known->who, &address->who)) {
			*ret_link = known->link;
			return 0;
		}
	known = calloc(1, sizeof(*known));
	if (!known) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = connect_somewhere(prober, address, &known->link, ret_reason);
	if (err) {
		free(known);
		return err;
	}
	known->who = address->who;
	known->next = prober->known;
	prober->known = known;
	*ret_link = known->link;
	return 0;
}

static void probe(struct prober *prober, const struct nm_address *address,
		  struct nm_link_facts *ret_facts)
{
	const struct nm_transport *transport = NULL;
	struct nm_reason why = {""};
	struct nm_link *link;

	memset(ret_facts, 0, sizeof(*ret_facts));
	if (nm_identity_equal(&address->who, &prober->address.who)) {
		ret_facts->relation = NM_RELATION_SELF;
		ret_facts->channel = NM_CHANNEL_SELF;
		nm_reason_set(&ret_facts->reason, "the endpoint itself");
	} else if (connect_and_remember(prober, address, &link, &why)) {
		set_network(prober, ret_facts, why.text);
	} else {
		transport = link->transport;
		transport->ops->describe(link, ret_facts);
	}
	if (prober->device)
		nm_device_way(prober->device, transport, ret_facts, NM_PLACES_UNKNOWN,
			      NM_PLACES_UNKNOWN, &ret_facts->device);
}

static void handle_line(struct prober *prober, char *line)
{
	struct nm_link_facts facts = {0};
	struct nm_address address;
	char *label;
	size_t len;

	line += strspn(line, " \t\r");
	len = strcspn(line, " \t\r");
	if (!len)
		return;
	label = line + len + strspn(line + len, " \t\r");
	label[strcspn(label, "\r")] = '\0';
	if (parse_hex(line, len, &address)) {
		facts.relation = NM_RELATION_UNKNOWN;
		nm_reason_set(&facts.reason,
			      "not an address: %d hexadecimal digits of version 1 are expected",
			      HEX_LEN);
	} else {
		probe(prober, &address, &facts);
	}
	line[len] = '\0';
	print_verdict(prober, *label ? label : line, &facts);
}

/* Returns false at the end of the input. */
static bool read_lines(struct prober *prober)
{
	char *start, *end;
	ssize_t got;

	got = read(STDIN_FILENO, prober->line + prober->len,
		   sizeof(prober->line) - 1 - prober->len);
	if (got <= 0)
		return got < 0 && errno == EINTR;
	prober->len += (size_t)got;
	prober->line[prober->len] = '\0';
	start = prober->line;
	while ((end = memchr(start, '\n', prober->len - (size_t)(start - prober->line)))) {
		*end = '\0';
		if (!prober->skipping)
			handle_line(prober, start);
		prober->skipping = false;
		start = end + 1;
	}
	prober->len -= (size_t)(start - prober->line);
	memmove(prober->line, start, prober->len);
	if (prober->len == sizeof(prober->line) - 1) {
		prober->skipping = true;
		prober->len = 0;
	}
	return true;
}

static void serve(struct prober *prober)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	bool open = true;

	while (open) {
		/* The service thread answers handshakes; progress() only notices closed peers. */
		if (poll(&input, 1, PROGRESS_MS) > 0)
			open = read_lines(prober);
		for (unsigned int i = 0; i < prober->nr_places; i++)
			prober->places[i]->ops->progress(prober->places[i]);
	}
}

static void open_places(struct prober *prober, const struct nm_sink *sink)
{
	const struct nm_transport_kind *kind = NULL;

	while ((kind = nm_transport_next(kind))) {
		const char *name = nm_channel_name(kind->channel);
		struct nm_reason why = {"not in NEARMETAL_CHANNELS"};
		int err = -EPERM;

		if (kind->flags & (NM_TRANSPORT_LOOPBACK | NM_TRANSPORT_NETWORK))
			continue;
		if (nm_params_channel_allowed(prober->params, name))
			err = kind->create(sink, &prober->address,
					   &prober->places[prober->nr_places], &why);
		if (!err)
			prober->nr_places++;
		else if (err != -ENOENT || !(kind->flags & NM_TRANSPORT_OPTIONAL))
			add_reason(&prober->nowhere, name, why.text);
	}
}

int nm_info_probe(void)
{
	struct prober prober = {.address = {.version = NM_ADDRESS_VERSION}};
	struct nm_sink sink = {
		.engine = &prober,
		.source_up = accept_source,
		.deliver = ignore_packet,
		.source_down = ignore_end,
	};
	struct nm_reason no_device;
	struct known_peer *next;
	int err;

	prober.params = nm_params();
	if (!prober.params)
		return 1;
	prober.device = nm_devices_load(&no_device);
	err = nm_identity_create(&prober.address.who);
	if (err) {
		fprintf(stderr, "nearmetal-info: no random numbers: %s\n", strerror(-err));
		return 1;
	}
	open_places(&prober, &sink);
	print_address(&prober.address);
	serve(&prober);
	for (unsigned int i = 0; i < prober.nr_places; i++)
		prober.places[i]->ops->destroy(prober.places[i]);
	for (; prober.known; prober.known = next) {
		next = prober.known->next;
		free(prober.known);
	}
	return 0;
}
