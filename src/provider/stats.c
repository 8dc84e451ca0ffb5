/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One JSON file per endpoint: who it talked to, over which channel, why, and how much. It is how
 * a launcher proves which way the traffic of a job went. Written whole under a temporary name and
 * renamed, so a reader never sees half of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"
#include "provider/provider.h"

#define HEX_ID_LEN (2 * sizeof(((struct nm_identity *)NULL)->id) + 1)

struct writer {
	FILE *file;
	bool first;
};

static void hex_id(const struct nm_identity *who, char ret_text[HEX_ID_LEN])
{
	size_t i;

	for (i = 0; i < sizeof(who->id); i++)
		snprintf(ret_text + 2 * i, 3, "%02x", who->id[i]);
}

/* Labels and reasons hold words of peers: everything that is not plain ASCII is escaped. */
static void write_string(FILE *file, const char *text)
{
	fputc('"', file);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(file, "\\%c", c);
		else if (c < 0x20 || c > 0x7e)
			fprintf(file, "\\u%04x", c);
		else
			fputc(c, file);
	}
	fputc('"', file);
}

static void write_text(FILE *file, const char *name, const char *text)
{
	fprintf(file, ", \"%s\": ", name);
	write_string(file, text);
}

static void write_peer(void *arg, const struct nm_peer_facts *facts)
{
	struct writer *writer = arg;
	const struct nm_link_facts *link = &facts->link;
	FILE *file = writer->file;
	char id[HEX_ID_LEN];

	hex_id(&facts->who, id);
	fprintf(file, "%s\n  {\"id\": \"%s\"", writer->first ? "" : ",", id);
	writer->first = false;
	write_text(file, "label", link->label.text);
	write_text(file, "relation",
		   facts->connected ? nm_relation_name(link->relation) :
				      nm_relation_name(NM_RELATION_UNKNOWN));
	write_text(file, "channel",
		   nm_channel_name(facts->connected ? link->channel : NM_CHANNEL_NONE));
	write_text(file, "integrity",
		   nm_integrity_name(facts->connected ? link->integrity : NM_INTEGRITY_NONE));
	write_text(file, "reason", link->reason.text);
	fprintf(file,
		", \"sent_messages\": %llu, \"sent_bytes\": %llu, \"received_messages\": %llu, "
		"\"received_bytes\": %llu, \"down\": %s",
		(unsigned long long)facts->sent_messages, (unsigned long long)facts->sent_bytes,
		(unsigned long long)facts->received_messages,
		(unsigned long long)facts->received_bytes, facts->down ? "true" : "false");
	write_text(file, "down_reason", facts->down ? facts->down_reason.text : "");
	fprintf(file, ", \"quarantines\": %u", facts->nr_quarantines);
	write_text(file, "quarantine_reason", facts->quarantine_reason.text);
	fputc('}', file);
}

static bool write_all(FILE *file, const char *host, const char *id, struct nm_engine *engine)
{
	struct writer writer = {.file = file, .first = true};

	fprintf(file, "{\"version\": 1");
	write_text(file, "host", host);
	fprintf(file, ", \"pid\": %d", (int)getpid());
	write_text(file, "identity", id);
	fprintf(file, ", \"peers\": [");
	nm_engine_visit_peers(engine, write_peer, &writer);
	fprintf(file, "\n]}\n");
	return !ferror(file);
}

/* A host name is somebody else's text: in a file name it keeps only what cannot surprise. */
static void plain_host_name(char *ret_host, size_t room)
{
	char *c;

	if (gethostname(ret_host, room))
		snprintf(ret_host, room, "unknown");
	ret_host[room - 1] = '\0';
	for (c = ret_host; *c; c++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.",
			    *c))
			*c = '_';
}

void nm_stats_write(const struct nm_identity *who, struct nm_engine *engine)
{
	const struct nm_params *params = nm_params();
	char host[65], id[HEX_ID_LEN];
	char path[NM_PARAM_TEXT_MAX + 128], temporary[sizeof(path) + 8];
	FILE *file;
	bool good;
	int fd;

	if (!params || !params->stats_dir[0])
		return;
	plain_host_name(host, sizeof(host));
	hex_id(who, id);
	snprintf(path, sizeof(path), "%s/%s.%d.%s.json", params->stats_dir, host, (int)getpid(),
		 id);
	snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
	fd = mkostemp(temporary, O_CLOEXEC);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file) {
		nm_warn("no stats file %s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	good = write_all(file, host, id, engine);
	if (fclose(file) || !good || rename(temporary, path)) {
		nm_warn("stats file %s could not be written: %s", path, strerror(errno));
		unlink(temporary);
	}
}
