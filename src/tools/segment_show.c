/* SPDX-License-Identifier: Apache-2.0 */
/* What is in a segment, as any machine or the host sees it. Reads only. */
#include <stdio.h>
#include <string.h>

#include "shm/sigbus.h"
#include "tools/json.h"
#include "tools/segment_tool.h"
#include "vmseg/check.h"
#include "vmseg/map.h"

struct view {
	const char *path;
	struct nm_vmseg_map map;
	struct nm_vmseg_host host;
	uint64_t lead;
};

struct part {
	uint32_t index;
	const uint8_t *at;
	struct nm_vmseg_part header;
	struct nm_vmseg_shape shape;
	int err; /* as nm_vmseg_part_check() */
	struct nm_reason why;
};

static void read_part(const struct view *view, uint32_t index, struct part *ret_part)
{
	struct part part = {.index = index};

	part.at = (const uint8_t *)view->map.base + view->lead + view->host.part_off +
		  index * view->host.part_size;
	part.err = nm_vmseg_read_part(part.at, index, view->host.part_size, &part.header,
				      &part.shape, &part.why);
	*ret_part = part;
}

static void format_id(const uint8_t id[6], char ret_text[13])
{
	for (int i = 0; i < 6; i++)
		sprintf(ret_text + (size_t)2 * i, "%02x", id[i]);
}

static void print_slot_json(struct nm_json *json, uint32_t index, const struct nm_vmseg_peer *peer)
{
	char id[13];

	format_id(peer->id, id);
	nm_json_open(json, NULL, '{');
	nm_json_number(json, "slot", index);
	nm_json_text(json, "state", nm_vmseg_state_name(peer->state));
	nm_json_text(json, "id", id);
	nm_json_number(json, "generation", peer->address.generation);
	nm_json_number(json, "heartbeat", peer->heartbeat);
	nm_json_number(json, "window_off", peer->window_off);
	nm_json_number(json, "window_size", peer->window_size);
	nm_json_close(json, '}');
}

static void print_part_json(struct nm_json *json, const struct part *part)
{
	struct nm_vmseg_peer peer;

	nm_json_open(json, NULL, '{');
	nm_json_number(json, "part", part->index);
	nm_json_bool(json, "in_use", !part->err);
	if (part->err) {
		nm_json_text(json, "reason", part->why.text);
	} else {
		nm_json_text(json, "state", nm_vmseg_state_name(atomic_load(&part->header.state)));
		nm_json_number(json, "epoch", atomic_load(&part->header.epoch));
		nm_json_number(json, "generation", atomic_load(&part->header.generation));
		nm_json_number(json, "nr_slots", part->shape.nr_slots);
		nm_json_number(json, "space", part->shape.part_size - part->shape.space_off);
		nm_json_open(json, "slots", '[');
		for (uint32_t i = 0; i < part->shape.nr_slots; i++)
			if (!nm_vmseg_read_slot(part->at, &part->shape, i, &peer))
				print_slot_json(json, i, &peer);
		nm_json_close(json, ']');
	}
	nm_json_close(json, '}');
}

static void print_json(const struct view *view)
{
	const struct nm_vmseg_host *host = &view->host;
	char token[2 * NM_VMSEG_TOKEN_LEN + 1];
	struct nm_json json = {stdout, false};
	struct part part;

	segment_format_token(host->token, token);
	nm_json_open(&json, NULL, '{');
	nm_json_text(&json, "file", view->path);
	nm_json_number(&json, "file_size", view->map.file_len);
	nm_json_number(&json, "lead", view->lead);
	nm_json_number(&json, "layout_version", host->version);
	nm_json_text(&json, "token", token);
	nm_json_text(&json, "state", nm_vmseg_state_name(atomic_load(&host->state)));
	nm_json_number(&json, "epoch", atomic_load(&host->epoch));
	nm_json_number(&json, "nr_parts", host->nr_parts);
	nm_json_number(&json, "part_size", host->part_size);
	nm_json_number(&json, "part_off", host->part_off);
	nm_json_number(&json, "size", host->size);
	nm_json_open(&json, "parts", '[');
	for (uint32_t i = 0; i < host->nr_parts; i++) {
		read_part(view, i, &part);
		print_part_json(&json, &part);
	}
	nm_json_close(&json, ']');
	nm_json_close(&json, '}');
	putchar('\n');
}

static void print_words(const struct view *view)
{
	const struct nm_vmseg_host *host = &view->host;
	char token[2 * NM_VMSEG_TOKEN_LEN + 1], id[13];
	struct nm_vmseg_peer peer;
	struct part part;

	segment_format_token(host->token, token);
	printf("%s: layout %u, token %s, %s\n", view->path, host->version, token,
	       nm_vmseg_state_name(atomic_load(&host->state)));
	printf("%u parts of %llu bytes from %llu on; %llu of %llu bytes used\n", host->nr_parts,
	       (unsigned long long)host->part_size, (unsigned long long)view->lead + host->part_off,
	       (unsigned long long)view->lead + host->size, (unsigned long long)view->map.file_len);
	for (uint32_t i = 0; i < host->nr_parts; i++) {
		read_part(view, i, &part);
		if (part.err) {
			printf("part %u: %s\n", i, part.why.text);
			continue;
		}
		printf("part %u: %s, %u slots, %llu bytes for windows\n", i,
		       segment_state_words(atomic_load(&part.header.state)), part.shape.nr_slots,
		       (unsigned long long)(part.shape.part_size - part.shape.space_off));
		for (uint32_t slot = 0; slot < part.shape.nr_slots; slot++) {
			if (nm_vmseg_read_slot(part.at, &part.shape, slot, &peer))
				continue;
			format_id(peer.id, id);
			printf("  slot %u: %s, endpoint %s, window of %llu bytes at %llu, "
			       "heartbeat %llu\n",
			       slot, nm_vmseg_state_name(peer.state), id,
			       (unsigned long long)peer.window_size,
			       (unsigned long long)peer.window_off,
			       (unsigned long long)peer.heartbeat);
		}
	}
}

int segment_show(const char *path, bool json)
{
	struct view view = {.path = path};
	struct nm_sigbus_guard guard = {0};
	struct nm_reason why = {""};
	int err;

	err = nm_vmseg_map(path, false, 0, 0, &view.map, &why);
	if (err)
		return segment_failed(NULL, "%s", why.text);
	/* Another process may truncate it during the read. */
	guard.start = (uintptr_t)view.map.base;
	guard.len = view.map.len;
	nm_sigbus_guard(&guard);
	err = nm_vmseg_find_host(&view.map, true, &view.host, &view.lead, &why);
	if (err)
		segment_failed(NULL, "%s: %s", path, why.text);
	else if (json)
		print_json(&view);
	else
		print_words(&view);
	if (!err && atomic_load(&guard.lost))
		err = segment_failed(NULL, "%s became shorter during the read", path);
	nm_sigbus_unguard(&guard);
	nm_vmseg_unmap(&view.map);
	return err || fflush(stdout) ? 1 : 0;
}
