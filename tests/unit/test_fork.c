/* SPDX-License-Identifier: Apache-2.0 */
/* What is done around fork() for those who watch: before, in the parent, in the child, no more. */
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/fork.h"
#include "harness.h"

struct watcher {
	struct nm_fork_watch watch;
	int before, in_parent, in_child;
};

static struct watcher *watcher_of(struct nm_fork_watch *watch)
{
	return nm_container_of(watch, struct watcher, watch);
}

static void before(struct nm_fork_watch *watch)
{
	watcher_of(watch)->before++;
}

static void in_parent(struct nm_fork_watch *watch)
{
	watcher_of(watch)->in_parent++;
}

static void in_child(struct nm_fork_watch *watch)
{
	watcher_of(watch)->in_child++;
}

static struct watcher one, two, three;

static void watch(struct watcher *watcher)
{
	watcher->watch = (struct nm_fork_watch){
		.before = before, .in_parent = in_parent, .in_child = in_child};
	nm_fork_watch(&watcher->watch);
}

/* A child, and what it finds; it forks once more, when nobody watches any longer. */
static int fork_and_look(void)
{
	pid_t child = fork(), grandchild;
	int status = -1;

	if (child == 0) {
		if (one.in_child != 1 || two.in_child != 0 || three.in_child != 1)
			_exit(1);
		nm_fork_unwatch(&one.watch);
		grandchild = fork();
		if (grandchild == 0)
			_exit(one.in_child != 1 || one.before != 1);
		waitpid(grandchild, &status, 0);
		_exit(status != 0 || one.in_parent != 0);
	}
	NM_CHECK(child > 0);
	NM_CHECK_EQ(waitpid(child, &status, 0), child);
	return status;
}

NM_TEST(watchers_are_asked_around_a_fork)
{
	watch(&one);
	watch(&two);
	watch(&three);
	nm_fork_unwatch(&two.watch);
	/* Unknown by now. */
	nm_fork_unwatch(&two.watch);
	NM_CHECK_EQ(fork_and_look(), 0);
	NM_CHECK_EQ(one.before, 1);
	NM_CHECK_EQ(one.in_parent, 1);
	NM_CHECK_EQ(one.in_child, 0);
	NM_CHECK_EQ(two.before, 0);
	nm_fork_unwatch(&one.watch);
	nm_fork_unwatch(&three.watch);
}

NM_TEST(handlers_may_be_missing)
{
	three.watch = (struct nm_fork_watch){0};
	nm_fork_watch(&three.watch);
	watch(&one);
	NM_CHECK_EQ(fork_and_look(), 1 << 8);
	NM_CHECK_EQ(one.in_parent, 1);
	nm_fork_unwatch(&one.watch);
	nm_fork_unwatch(&three.watch);
}
