/* SPDX-License-Identifier: Apache-2.0 */
/* NEARMETAL_ON_LOSS: which ends of peers and operations are losses, and how a process ends then. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/params.h"
#include "provider/on_loss.h"
#include "traffic.h"

enum { BIG = 100000 };

/* What node 0 was called for. */
static struct nm_lost seen;
static unsigned int nr_seen;
static size_t nr_completions; /* that were there already */
static char label[64], reason[256];

static void see(void *arg, const struct nm_lost *lost)
{
	struct mesh **mesh = arg;
	const struct nm_cqueue *cq = mesh_node(*mesh, 0)->cq;

	seen = *lost;
	nr_seen++;
	nr_completions = cq->tail - cq->head;
	snprintf(label, sizeof(label), "%s", lost->label);
	snprintf(reason, sizeof(reason), "%s", lost->reason);
}

static struct mesh *mesh_of_three(void)
{
	static struct mesh *mesh;
	const struct mesh_options options = {.nr_nodes = 3, .lost = see, .lost_arg = &mesh};

	nr_seen = 0;
	mesh = mesh_create(&options);
	return mesh;
}

static void meet(struct mesh *mesh, unsigned int other)
{
	char in[1];

	send_to(mesh, 0, other, "x", 1, 999, NM_TAGGED, NULL);
	recv_from(mesh, other, NULL, in, 1, 999, 0, TAGGED, NULL);
	mesh_wait(mesh, other);
	send_to(mesh, other, 0, "x", 1, 999, NM_TAGGED, NULL);
	recv_from(mesh, 0, NULL, in, 1, 999, 0, TAGGED, NULL);
	mesh_wait(mesh, 0);
}

NM_TEST(failed_operations_are_reported_together_after_their_completions)
{
	struct mesh *mesh = mesh_of_three();
	char *buf = calloc(1, BIG), in[8];
	struct iovec iov = {in, 8};
	struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.len = 8}},
		.nr_remote = 1,
		.peer = mesh_peer(mesh, 0, 1),
	};

	meet(mesh, 1);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, TAGGED, NULL);
	recv_from(mesh, 0, NULL, in, 8, 2, 0, TAGGED, NULL);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 2), in, 8, 3, 0, TAGGED, NULL);
	send_to(mesh, 0, 1, buf, BIG, 4, NM_TAGGED, NULL);
	NM_CHECK_EQ(nm_engine_read(mesh_node(mesh, 0)->engine, &rma), 0);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	NM_CHECK_EQ(nr_seen, 1);
	NM_CHECK_EQ(nr_completions, 4);
	NM_CHECK(nm_identity_equal(&seen.who, &mesh_node(mesh, 1)->address.who));
	NM_CHECK_EQ(seen.failed.receives, 2);
	NM_CHECK_EQ(seen.failed.sends, 1);
	NM_CHECK_EQ(seen.failed.accesses, 1);
	NM_CHECK_STR(label, "node");
	NM_CHECK_STR(reason, "node 1 ended");
	free(buf);
	mesh_destroy(mesh);
}

/* An MPI may wait for its answer in a buffer for messages of all. */
NM_TEST(the_death_of_a_known_peer_is_reported_even_if_no_operation_failed)
{
	struct mesh *mesh = mesh_of_three();
	char in[8];

	meet(mesh, 1);
	recv_from(mesh, 0, NULL, in, 8, 0, 0, UNTAGGED | NM_MULTI_RECV, NULL);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	NM_CHECK_EQ(nr_seen, 1);
	NM_CHECK_EQ(seen.failed.receives + seen.failed.sends + seen.failed.accesses, 0);
	mesh_destroy(mesh);
}

/* A visitor that the program does not know may come and go, unless it spoils an operation. */
NM_TEST(the_death_of_a_stranger_is_reported_when_a_receive_fails)
{
	struct mesh *mesh = mesh_of_three();
	char in[8];

	meet(mesh, 1);
	nm_engine_forget(mesh_node(mesh, 0)->engine, &mesh_node(mesh, 1)->address.who);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	NM_CHECK_EQ(nr_seen, 0);
	recv_from(mesh, 0, NULL, in, 8, 1, 0, TAGGED, NULL);
	NM_CHECK_EQ(nr_seen, 1);
	NM_CHECK_EQ(seen.failed.receives, 1);
	NM_CHECK_STR(reason, "node 1 ended");
	mesh_destroy(mesh);
}

NM_TEST(a_receive_that_is_posted_after_the_death_is_reported)
{
	struct mesh *mesh = mesh_of_three();
	char in[8];

	meet(mesh, 1);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	nr_seen = 0;
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, TAGGED, NULL);
	NM_CHECK_EQ(nr_seen, 1);
	NM_CHECK_EQ(seen.failed.receives, 1);
	mesh_destroy(mesh);
}

NM_TEST(a_claimed_message_that_died_with_its_sender_is_reported)
{
	struct mesh *mesh = mesh_of_three();
	char *buf = calloc(1, BIG);

	meet(mesh, 1);
	send_to(mesh, 1, 0, buf, BIG, 1, NM_TAGGED, NULL);
	mesh_settle(mesh);
	recv_from(mesh, 0, NULL, NULL, 0, 1, 0, TAGGED | NM_PEEK | NM_CLAIM, buf);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	nr_seen = 0;
	recv_from(mesh, 0, NULL, buf, BIG, 0, 0, TAGGED | NM_CLAIM, buf);
	NM_CHECK_EQ(nr_seen, 1);
	NM_CHECK_EQ(seen.failed.receives, 1);
	free(buf);
	mesh_destroy(mesh);
}

/* A peer that breaks the protocol is lost, too. */
NM_TEST(a_violation_is_a_loss)
{
	struct mesh *mesh = mesh_of_three();
	const struct nm_packet senseless = {.op = 200};

	meet(mesh, 1);
	mesh_forge(mesh, 1, 0, &senseless, NULL);
	mesh_settle(mesh);
	NM_CHECK_EQ(nr_seen, 1);
	NM_CHECK_HAS(reason, "unknown kind");
	mesh_destroy(mesh);
}

NM_TEST(an_orderly_close_is_no_loss)
{
	struct mesh *mesh = mesh_of_three();
	char *buf = calloc(1, BIG);

	meet(mesh, 1);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), buf, 8, 1, 0, TAGGED, NULL);
	send_to(mesh, 0, 1, buf, BIG, 2, TAGGED, NULL);
	send_to(mesh, 1, 0, buf, BIG, 3, NM_TAGGED, NULL);
	mesh_settle(mesh);
	recv_from(mesh, 0, NULL, NULL, 0, 3, 0, TAGGED | NM_PEEK | NM_CLAIM, buf);
	mesh_wait(mesh, 0);
	mesh_kill(mesh, 1, 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), buf, 8, 1, 0, TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	recv_from(mesh, 0, NULL, buf, BIG, 0, 0, TAGGED | NM_CLAIM, buf);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	NM_CHECK_EQ(send_to(mesh, 0, 1, buf, 1, 2, TAGGED, NULL), -ECONNRESET);
	NM_CHECK_EQ(nr_seen, 0);
	free(buf);
	mesh_destroy(mesh);
}

NM_TEST(other_errors_are_no_losses)
{
	struct mesh *mesh = mesh_of_three();
	char in[8];
	struct iovec iov = {in, 8};
	struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.len = 8, .key = 77}},
		.nr_remote = 1,
		.peer = mesh_peer(mesh, 0, 1),
	};

	meet(mesh, 1);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, TAGGED, in);
	NM_CHECK_EQ(nm_engine_cancel(mesh_node(mesh, 0)->engine, in), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECANCELED);
	recv_from(mesh, 0, NULL, in, 2, 1, 0, TAGGED, NULL);
	send_to(mesh, 1, 0, "long", 4, 1, NM_TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, NM_ETRUNC);
	recv_from(mesh, 0, NULL, NULL, 0, 5, 0, TAGGED | NM_PEEK, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ENOMSG);
	NM_CHECK_EQ(nm_engine_write(mesh_node(mesh, 0)->engine, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, EACCES);
	NM_CHECK_EQ(nr_seen, 0);
	mesh_destroy(mesh);
}

/* Ranks end one after another: an endpoint that closes does not need those that are gone. */
NM_TEST(an_endpoint_that_closes_reports_nothing)
{
	struct mesh *mesh = mesh_of_three();
	char *buf = calloc(1, BIG);

	meet(mesh, 1);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), buf, 8, 1, 0, TAGGED, NULL);
	send_to(mesh, 0, 1, buf, BIG, 2, TAGGED, NULL);
	nm_engine_retire(mesh_node(mesh, 0)->engine);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	mesh_destroy(mesh);
	NM_CHECK_EQ(nr_seen, 0);
	free(buf);
}

static void lose_a_peer(void *log)
{
	const struct mesh_options options = {
		.lost = nm_on_loss_end,
		.lost_arg =
			(void *)(uintptr_t)nm_on_loss_reason("auto", "Intel(R) MPI Library 2021"),
	};
	struct mesh *mesh = mesh_create(&options);
	char in[8];

	NM_CHECK(dup2(*(int *)log, STDERR_FILENO) >= 0);
	meet(mesh, 1);
	recv_from(mesh, 0, NULL, in, 8, 1, 0, TAGGED, NULL);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
}

NM_TEST(the_process_ends_with_its_exit_code_and_one_line)
{
	char path[4096], text[2048] = "";
	int log;

	snprintf(path, sizeof(path), "%s/log", nm_test_dir());
	log = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	NM_CHECK(log >= 0);
	nm_test_join(nm_test_fork(lose_a_peer, &log), NM_ON_LOSS_EXIT << 8);
	NM_CHECK(pread(log, text, sizeof(text) - 1, 0) > 0);
	NM_CHECK_HAS(text, "nearmetal: error: exit code 97: peer 000000000001 (node) was lost,");
	NM_CHECK_HAS(text, "failed receives: 1, sends: 0, accesses: 0,");
	NM_CHECK_HAS(text, "Intel MPI");
	NM_CHECK_HAS(text, "NEARMETAL_ON_LOSS=error");
	NM_CHECK_HAS(text, "Cause: node 1 ended\n");
	close(log);
}

/* A launcher that ends reads the errors of its ranks no more. */
NM_TEST(the_exit_code_does_not_depend_on_a_reader_of_the_line)
{
	int ends[2];

	NM_CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
	close(ends[0]);
	nm_test_join(nm_test_fork(lose_a_peer, &ends[1]), NM_ON_LOSS_EXIT << 8);
	close(ends[1]);
}

/* What MPI_Get_library_version() says, shortened. */
static const char open_mpi[] = "Open MPI v5.0.11, package: Open MPI, ident: 5.0.11";
static const char mpich[] = "MPICH Version:      5.0.2\nMPICH ABI:          18:2:6";
static const char intel[] = "Intel(R) MPI Library 2021.15 for Linux* OS\n";

NM_TEST(only_an_mpi_that_ignores_errors_ends_by_default)
{
	NM_CHECK(nm_on_loss_reason("auto", intel));
	NM_CHECK(!nm_on_loss_reason("auto", mpich));
	NM_CHECK(nm_on_loss_reason("auto", open_mpi));
	NM_CHECK(!nm_on_loss_reason("auto", ""));
	NM_CHECK(!nm_on_loss_reason("error", intel));
	NM_CHECK(!nm_on_loss_reason("error", open_mpi));
	NM_CHECK_HAS(nm_on_loss_reason("abort", ""), "NEARMETAL_ON_LOSS is abort");
}

/* This program has no MPI. */
NM_TEST(a_program_without_an_mpi_gets_errors)
{
	NM_CHECK(!nm_on_loss_here());
}

NM_TEST(the_knob_overrides_the_default)
{
	setenv("NEARMETAL_ON_LOSS", "abort", 1);
	NM_CHECK_HAS(nm_on_loss_here(), "NEARMETAL_ON_LOSS is abort");
}

NM_TEST(other_values_of_the_knob_are_refused)
{
	struct nm_params params;
	char message[256];

	setenv("NEARMETAL_ON_LOSS", "abrot", 1);
	NM_CHECK_EQ(nm_params_load(&params, message), -EINVAL);
	NM_CHECK_STR(message,
		     "NEARMETAL_ON_LOSS='abrot' is not allowed: give auto, abort or error");
}
