/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance suite (conform.h): every slot is there, and does what the contract says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "conform.h"

CONFORMS(describes_what_it_is)
{
	struct nm_link_facts facts;

	start(fixture);
	node_a->transport->ops->describe(node_a->link, &facts);
	NM_CHECK_EQ(facts.channel, node_a->transport->kind->channel);
	NM_CHECK_STR(nm_relation_name(facts.relation), far_relation(fixture->relation));
	NM_CHECK(facts.reason.text[0] && facts.label.text[0]);
	NM_CHECK(node_a->transport->ops->drained(node_a->link));
	finish(fixture);
}

CONFORMS(has_every_slot)
{
	const struct nm_transport_ops *ops;
	const struct nm_copy_ops *copy;
	struct nm_link_facts facts;

	start(fixture);
	ops = node_a->transport->ops;
	NM_CHECK(ops->connect && ops->send && ops->drained && ops->describe && ops->check_alive);
	NM_CHECK(ops->sleep && ops->wake && ops->progress && ops->destroy);
	ops->destroy(NULL);
	copy = node_a->transport->copy;
	NM_CHECK_EQ(copy != NULL, fixture->copies);
	if (copy) {
		NM_CHECK(copy->read_remote && copy->write_remote && copy->publish && copy->revoke);
		NM_CHECK(copy->reach && copy->leave && copy->polled && copy->polls);
	}
	ops->describe(node_a->link, &facts);
	NM_CHECK_EQ(facts.remote_copy, node_a->link->remote_copy);
	NM_CHECK(fixture->copies ? facts.copy_reason.text[0] : !facts.remote_copy);
	NM_CHECK_EQ(node_a->transport->quarantine != NULL, fixture->quarantines);
	if (fixture->quarantines)
		NM_CHECK(node_a->transport->quarantine->cast_out &&
			 node_a->transport->quarantine->finish);
	NM_CHECK_EQ(node_a->transport->place != NULL,
		    fixture->has_places && !getenv("NEARMETAL_CHECKSUM"));
	finish(fixture);
}

CONFORMS(is_drained_once_it_is_safe)
{
	const struct nm_transport_ops *ops;

	start(fixture);
	ops = node_a->transport->ops;
	NM_CHECK(ops->drained(node_a->link));
	NM_CHECK_EQ(node_send(node_a, 1, 3000), 0);
	NM_CHECK_EQ(ops->drained(node_a->link), fixture->outlives);
	UNTIL(node_b->nr_packets == 1 && ops->drained(node_a->link));
	finish(fixture);
}

CONFORMS(living_peers_stay_up)
{
	unsigned int i;

	start(fixture);
	for (i = 0; i < 300; i++) {
		node_a->transport->ops->check_alive(node_a->link);
		progress_both();
		nm_test_sleep_ms(1);
	}
	settle();
	NM_CHECK_EQ(node_a->nr_down + node_b->nr_down, 0);
	NM_CHECK_EQ(node_b->nr_packets, 0);
	send_and_check(5, 3000);
	finish(fixture);
}

CONFORMS(sleepers_hear_arrivals)
{
	struct nm_doorbells first = {0}, second = {0};
	const struct nm_transport_ops *ops;
	bool is_heard;

	start(fixture);
	ops = node_a->transport->ops;
	is_heard = ops->sleep(node_a->transport, &first);
	NM_CHECK_EQ(is_heard, fixture->hears);
	NM_CHECK(!first.rung);
	NM_CHECK_EQ(node_send(node_b, 5, 100), 0);
	if (is_heard && !(fixture->kind->flags & NM_TRANSPORT_SILENT))
		NM_CHECK(nm_doorbells_wait(&first, 10 * NM_NS_PER_S) || nm_doorbells_are_refused());
	if (ops->sleep(node_a->transport, &second))
		NM_CHECK(second.rung);
	UNTIL(node_a->nr_packets == 1);
	NM_CHECK_EQ(node_a->last.tag, 5);
	ops->wake(node_a->transport);
	NM_CHECK_EQ(node_send(node_b, 6, 100), 0);
	UNTIL(node_a->nr_packets == 2);
	finish(fixture);
}

CONFORMS_IF(copies, copies_what_the_peer_shows)
{
	uint8_t theirs[64], ours[64] = {0};
	const struct iovec local = {ours, sizeof(ours)};
	const struct nm_span remote = {(uintptr_t)theirs, sizeof(theirs)};
	const struct nm_region region = {
		.key = 77, .base = remote.address, .len = remote.len, .access = 1};
	const uint64_t key = region.key;
	struct nm_region found = {0};
	const struct nm_copy_ops *copy;
	uint64_t now = nm_clock_ns();

	start(fixture);
	copy = node_a->transport->copy;
	NM_CHECK(node_a->link->remote_copy);
	fill_bytes(theirs, sizeof(theirs), 1);
	NM_CHECK_EQ(copy->reach(node_a->link, &key, 1, &found), -ENOKEY);
	NM_CHECK_EQ(copy->publish(node_b->transport, &region), 0);
	NM_CHECK_EQ(copy->reach(node_a->link, &key, 1, &found), 0);
	NM_CHECK(found.base == region.base && found.len == region.len);
	NM_CHECK_EQ(copy->read_remote(node_a->link, &local, 1, &remote, 1), sizeof(ours));
	NM_CHECK(bytes_match(ours, sizeof(ours), 1));
	fill_bytes(ours, sizeof(ours), 2);
	NM_CHECK_EQ(copy->write_remote(node_a->link, &local, 1, &remote, 1), sizeof(ours));
	NM_CHECK(bytes_match(theirs, sizeof(theirs), 2));
	copy->leave(node_a->link);
	copy->revoke(node_b->transport, key);
	copy->revoke(node_b->transport, key + 1);
	NM_CHECK_EQ(copy->reach(node_a->link, &key, 1, &found), -ENOKEY);
	copy->polled(node_b->transport, now);
	NM_CHECK(copy->polls(node_a->link, now));
	finish(fixture);
}

/* These sinks have no quarantined(): the end of the source takes its place. */
CONFORMS_IF(quarantines, cast_out_peers_go_down)
{
	start(fixture);
	NM_CHECK_EQ(node_send(node_b, 1, 8), 0);
	node_a->transport->quarantine->cast_out(node_a->transport, &node_a->source, "a test");
	NODE_UNTIL(node_a, node_a->nr_down);
	NM_CHECK_EQ(node_a->nr_packets, 0);
	NM_CHECK_EQ(node_a->down_err, -EBADMSG);
	NM_CHECK_HAS(node_a->down_why.text, "a test");
	NM_CHECK_EQ(node_send(node_a, 1, 8), -EPIPE);
	finish(fixture);
}

CONFORMS_IF(quarantines, finish_takes_what_was_sent_before)
{
	start(fixture);
	NM_CHECK_EQ(node_send(node_b, 1, 8), 0);
	node_a->transport->quarantine->finish(node_a->transport, &node_a->source);
	NM_CHECK_EQ(node_a->nr_packets, 1);
	NM_CHECK_EQ(node_a->nr_down, 1);
	NM_CHECK_EQ(node_a->down_err, -EBADMSG);
	NM_CHECK_EQ(node_send(node_a, 1, 8), -EPIPE);
	finish(fixture);
}
