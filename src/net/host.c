/* SPDX-License-Identifier: Apache-2.0 */
#include "net/host.h"

struct nm_host nm_host;
_Thread_local bool nm_host_asking;
