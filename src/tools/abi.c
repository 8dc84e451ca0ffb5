/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between the C code and everything else, as the compiler sees it. */
#include "base/channel.h"
#include "base/params.h"
#include "connect/address.h"
#include "connect/message.h"
#include "engine/move.h"
#include "shm/layout.h"
#include "tools/info.h"
#include "tools/json.h"
#include "vmseg/check.h"
#include "vmseg/layout.h"

struct field {
	const char *name;
	size_t offset, size;
};

#define FIELD(type, name)                                                                          \
	{                                                                                          \
#name, offsetof(struct type, name), sizeof(((struct type *)0)->name)               \
	}

static const struct field header_fields[] = {
	FIELD(nm_window_header, magic),
	FIELD(nm_window_header, version),
	FIELD(nm_window_header, features),
	FIELD(nm_window_header, geometry.size),
	FIELD(nm_window_header, geometry.nr_lanes),
	FIELD(nm_window_header, geometry.ring_slots),
	FIELD(nm_window_header, geometry.chunk_size),
	FIELD(nm_window_header, geometry.nr_chunks),
	FIELD(nm_window_header, geometry.lanes_off),
	FIELD(nm_window_header, geometry.rings_off),
	FIELD(nm_window_header, geometry.pool_off),
	FIELD(nm_window_header, id),
	FIELD(nm_window_header, state),
};

static const struct field lane_fields[] = {
	FIELD(nm_lane, consumed),
	FIELD(nm_lane, chunks_freed),
	FIELD(nm_lane, writer_proof),
	FIELD(nm_lane, reader_proof),
};

static const struct field slot_fields[] = {
	FIELD(nm_slot, control),	  FIELD(nm_slot, head.tag),
	FIELD(nm_slot, head.data),	  FIELD(nm_slot, head.payload),
	FIELD(nm_slot, head.chunk.index), FIELD(nm_slot, head.chunk.offset),
	FIELD(nm_slot, head.chunk.len),	  FIELD(nm_slot, body),
};

static const struct field address_fields[] = {
	FIELD(nm_address, version),   FIELD(nm_address, inner_len), FIELD(nm_address, who.id),
	FIELD(nm_address, who.place), FIELD(nm_address, inner),
};

static const struct field segment_host_fields[] = {
	FIELD(nm_vmseg_host, magic),	 FIELD(nm_vmseg_host, version),
	FIELD(nm_vmseg_host, features),	 FIELD(nm_vmseg_host, token),
	FIELD(nm_vmseg_host, size),	 FIELD(nm_vmseg_host, part_off),
	FIELD(nm_vmseg_host, part_size), FIELD(nm_vmseg_host, nr_parts),
	FIELD(nm_vmseg_host, state),	 FIELD(nm_vmseg_host, epoch),
};

static const struct field segment_part_fields[] = {
	FIELD(nm_vmseg_part, magic),	 FIELD(nm_vmseg_part, version),
	FIELD(nm_vmseg_part, features),	 FIELD(nm_vmseg_part, generation),
	FIELD(nm_vmseg_part, index),	 FIELD(nm_vmseg_part, nr_slots),
	FIELD(nm_vmseg_part, nr_cells),	 FIELD(nm_vmseg_part, slots_off),
	FIELD(nm_vmseg_part, cells_off), FIELD(nm_vmseg_part, space_off),
	FIELD(nm_vmseg_part, numa),	 FIELD(nm_vmseg_part, vcpu_numa),
	FIELD(nm_vmseg_part, state),	 FIELD(nm_vmseg_part, epoch),
	FIELD(nm_vmseg_part, knock),	 FIELD(nm_vmseg_part, echo),
};

static const struct field segment_slot_fields[] = {
	FIELD(nm_vmseg_slot, control),	   FIELD(nm_vmseg_slot, window_off),
	FIELD(nm_vmseg_slot, window_size), FIELD(nm_vmseg_slot, id),
	FIELD(nm_vmseg_slot, heartbeat),   FIELD(nm_vmseg_slot, posted),
	FIELD(nm_vmseg_slot, gone_ns),
};

static const struct field segment_cell_fields[] = {
	FIELD(nm_vmseg_cell, sequence),	     FIELD(nm_vmseg_cell, to_part_generation),
	FIELD(nm_vmseg_cell, to_generation), FIELD(nm_vmseg_cell, to_part),
	FIELD(nm_vmseg_cell, to_slot),	     FIELD(nm_vmseg_cell, len),
	FIELD(nm_vmseg_cell, bytes),
};

static void print_struct(struct nm_json *json, const char *name, size_t size,
			 const struct field *fields, size_t nr)
{
	size_t i;

	nm_json_open(json, name, '{');
	nm_json_number(json, "size", size);
	nm_json_open(json, "fields", '{');
	for (i = 0; i < nr; i++) {
		nm_json_open(json, fields[i].name, '{');
		nm_json_number(json, "offset", fields[i].offset);
		nm_json_number(json, "size", fields[i].size);
		nm_json_close(json, '}');
	}
	nm_json_close(json, '}');
	nm_json_close(json, '}');
}

#define PRINT_STRUCT(json, type, fields)                                                           \
	print_struct(json, #type, sizeof(struct type), fields, NM_ARRAY_SIZE(fields))

static void print_knobs(struct nm_json *json)
{
	const struct nm_param_info *infos;
	size_t i, nr;

	infos = nm_param_infos(&nr);
	nm_json_open(json, "knobs", '[');
	for (i = 0; i < nr; i++) {
		nm_json_open(json, NULL, '{');
		nm_json_text(json, "name", infos[i].env);
		nm_json_text(json, "kind", infos[i].kind);
		nm_json_text(json, "default", infos[i].fallback);
		if (infos[i].max) {
			nm_json_number(json, "min", infos[i].min);
			nm_json_number(json, "max", infos[i].max);
			nm_json_bool(json, "power_of_two", infos[i].power_of_two);
		}
		nm_json_text(json, "unit", infos[i].unit);
		nm_json_text(json, "reason", infos[i].reason);
		nm_json_close(json, '}');
	}
	nm_json_close(json, ']');
}

/* The changes of a part's state: from, to. */
static void print_part_states(struct nm_json *json)
{
	nm_json_open(json, "part_states", '[');
	for (uint32_t from = NM_VMSEG_RUN; from <= NM_VMSEG_FROZEN; from++)
		for (uint32_t to = NM_VMSEG_RUN; to <= NM_VMSEG_FROZEN; to++) {
			if (!nm_vmseg_state_may_follow(from, (enum nm_vmseg_state)to))
				continue;
			nm_json_open(json, NULL, '[');
			nm_json_text(json, NULL, nm_vmseg_state_name(from));
			nm_json_text(json, NULL, nm_vmseg_state_name(to));
			nm_json_close(json, ']');
		}
	nm_json_close(json, ']');
}

/* The rows of a table of a move: state, event, next state. */
static void print_moves(struct nm_json *json, const char *name, const struct nm_move_table *table)
{
	nm_json_open(json, name, '[');
	for (unsigned int i = 0; i < table->nr_steps; i++) {
		const struct nm_move_step *step = &table->steps[i];

		nm_json_open(json, NULL, '[');
		nm_json_text(json, NULL, table->states[step->state]);
		nm_json_text(json, NULL, table->events[step->event]);
		nm_json_text(json, NULL, table->states[step->next]);
		nm_json_close(json, ']');
	}
	nm_json_close(json, ']');
}

static void print_segment(struct nm_json *json)
{
	char magic[32];

	nm_json_open(json, "segment", '{');
	nm_json_number(json, "version", NM_VMSEG_VERSION);
	snprintf(magic, sizeof(magic), "0x%016llx", (unsigned long long)NM_VMSEG_HOST_MAGIC);
	nm_json_text(json, "host_magic", magic);
	snprintf(magic, sizeof(magic), "0x%016llx", (unsigned long long)NM_VMSEG_PART_MAGIC);
	nm_json_text(json, "part_magic", magic);
	nm_json_number(json, "align", NM_VMSEG_ALIGN);
	nm_json_number(json, "min_part_size", NM_VMSEG_MIN_PART_SIZE);
	nm_json_number(json, "max_part_size", NM_VMSEG_MAX_PART_SIZE);
	nm_json_number(json, "max_parts", NM_VMSEG_MAX_PARTS);
	nm_json_number(json, "max_size", NM_VMSEG_MAX_SIZE);
	nm_json_number(json, "granule", NM_VMSEG_GRANULE);
	nm_json_open(json, "states", '[');
	for (uint32_t state = NM_VMSEG_FREE; state <= NM_VMSEG_GONE; state++)
		nm_json_text(json, NULL, nm_vmseg_state_name(state));
	nm_json_close(json, ']');
	print_part_states(json);
	nm_json_close(json, '}');
}

int nm_info_abi(void)
{
	struct nm_json json = {stdout, false};
	char magic[32];

	snprintf(magic, sizeof(magic), "0x%016llx", (unsigned long long)NM_LAYOUT_MAGIC);
	nm_json_open(&json, NULL, '{');
	nm_json_text(&json, "version", NM_VERSION);
	nm_json_number(&json, "layout_version", NM_LAYOUT_VERSION);
	nm_json_text(&json, "layout_magic", magic);
	nm_json_number(&json, "address_version", NM_ADDRESS_VERSION);
	nm_json_number(&json, "address_len", NM_ADDRESS_LEN);
	nm_json_open(&json, "channels", '[');
	for (enum nm_channel c = NM_CHANNEL_NONE; c < NM_NR_CHANNELS; c++)
		nm_json_text(&json, NULL, nm_channel_name(c));
	nm_json_close(&json, ']');
	print_segment(&json);
	print_moves(&json, "ways", &nm_ways);
	print_moves(&json, "places", &nm_places);
	nm_json_open(&json, "structs", '{');
	PRINT_STRUCT(&json, nm_window_header, header_fields);
	PRINT_STRUCT(&json, nm_lane, lane_fields);
	PRINT_STRUCT(&json, nm_slot, slot_fields);
	PRINT_STRUCT(&json, nm_address, address_fields);
	PRINT_STRUCT(&json, nm_vmseg_host, segment_host_fields);
	PRINT_STRUCT(&json, nm_vmseg_part, segment_part_fields);
	PRINT_STRUCT(&json, nm_vmseg_slot, segment_slot_fields);
	PRINT_STRUCT(&json, nm_vmseg_cell, segment_cell_fields);
	nm_json_close(&json, '}');
	print_knobs(&json);
	nm_json_close(&json, '}');
	putchar('\n');
	return fflush(stdout) ? 1 : 0;
}
