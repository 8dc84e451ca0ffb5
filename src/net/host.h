/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libfabric that loaded this provider. The provider is never linked with libfabric: fi_getinfo
 * and its relatives have seven symbol versions, and a plain reference binds the oldest one or none.
 * So the functions are looked up at run time in the library that calls fi_prov_ini(), where dlsym()
 * returns the newest version. This also works with private, renamed and locally loaded copies.
 */
#ifndef NM_NET_HOST_H
#define NM_NET_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

struct nm_host {
	uint32_t version; /* fi_version(): struct fields newer than this do not exist */
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
		       const struct fi_info *hints, struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	const char *(*strerror)(int errnum);
	int (*log_enabled)(const struct fi_provider *prov, enum fi_log_level level,
			   enum fi_log_subsys subsys);
	void (*log)(const struct fi_provider *prov, enum fi_log_level level,
		    enum fi_log_subsys subsys, const char *func, int line, const char *fmt, ...);
};

/* Filled by fi_prov_ini() before libfabric can call anything else; constant from then on. */
extern struct nm_host nm_host;

/* The name of this provider in libfabric. */
#define NM_PROVIDER_NAME "nearmetal"

/*
 * True while this thread is inside an inner fi_getinfo(). libfabric then also asks this provider,
 * and the answer must be "nothing", or the recursion never ends.
 */
extern _Thread_local bool nm_host_asking;

#endif
