/* SPDX-License-Identifier: Apache-2.0 */
/* Machines of moving.h that leave their segment, give it up, and come to another one or part. */
#ifndef NM_TEST_HOMES_H
#define NM_TEST_HOMES_H

#include "moving.h"
#include "transport/vmseg/home.h"

/* The machine of each endpoint: its segment, its part there, and how far its move is. */
struct machine {
	unsigned int segment, part;
	enum { STAYS, ASKED, AWAY } place;
};
extern struct machine machines[MOVING_MAX];

/* moving_create() in segment 0. Segment 1 is there, too. */
void start(unsigned int nr);
struct shm_transport *shm_of(unsigned int i);
/* nm_vmseg_ask() as the guest unit of endpoint I. */
int ask(unsigned int i, enum nm_vmseg_state state);
/* Mappings of a segment in this process. */
unsigned int count_mapped(unsigned int segment);
void begin_to_leave(unsigned int i);
/* As the guest unit: the description goes once the part is FROZEN. True: so has the segment. */
bool is_gone(unsigned int i);
/* begin_to_leave(), and all NR progress until I is gone. */
void leave_at_once(unsigned int i, unsigned int nr);
/* The guest unit of I describes a part, and says that the machine stays. */
void arrive(unsigned int i, unsigned int segment, unsigned int part);
/* The first NR progress once. */
void step(unsigned int nr);
/* Endpoint 0 hears HOME from endpoint 1. */
void say_home(uint64_t home, uint64_t opening);
/* Neither quarantined nor down. */
void check_sound(unsigned int a, unsigned int b);

#endif
