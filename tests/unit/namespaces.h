/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces for processes of tests. Call before the process has threads. */
#ifndef NM_TEST_NAMESPACES_H
#define NM_TEST_NAMESPACES_H

#include <stdbool.h>

/* Does this machine let us make them? */
bool user_namespaces_work(void);
bool pid_namespaces_work(void);
/* As a container of an ordinary user is: root of its own, and nobody special outside. */
void enter_user_namespace(void);
/* Go on as pid 1 of a new PID namespace; what called it waits for that and ends like it. */
void enter_pid_namespace(void);

#endif
