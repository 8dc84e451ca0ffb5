/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forked child must not keep of its parent: copies of sockets, locks and descriptors by
 * which others show whether the parent lives. The owner of such objects embeds a watch and names
 * what is to be done around fork(). Threads: all functions, any thread; the handlers run in the
 * forking one.
 */
#ifndef NM_BASE_FORK_H
#define NM_BASE_FORK_H

struct nm_fork_watch {
	/* Filled by the owner; each may be NULL. They must neither watch nor unwatch. */
	void (*before)(struct nm_fork_watch *watch);	/* take what guards the owner's state */
	void (*in_parent)(struct nm_fork_watch *watch); /* give it back */
	void (*in_child)(struct nm_fork_watch *watch);	/* let go of everything; give it back */
	/* ours */
	struct nm_fork_watch *next;
};

/* WATCH stays where it is until nm_fork_unwatch(). Not while holding what `before` takes. */
void nm_fork_watch(struct nm_fork_watch *watch);
/* In a child, where all are forgotten, and for unknown ones, nothing is done. */
void nm_fork_unwatch(struct nm_fork_watch *watch);

#endif
