/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transport shares with libuct beyond its public headers: the layout of the structures that
 * libuct reads from a transport, and the functions that it exports for transports. UCX installs no
 * header for them and promises nothing about them, so this file describes one version, 1.22, and
 * nm_ucx_abi_check() refuses every other one. tests/system/test_ucx.py compares each offset with the
 * debug information of the library (docs/design/ucx.md).
 *
 * The structures with a foreign name have the members of that name in libuct, in its order. Members
 * that this transport never touches have the type void * or bytes of the same size.
 */
#ifndef NM_UCX_ABI_H
#define NM_UCX_ABI_H

#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp_version.h>
#include <ucs/config/parser.h>
#include <ucs/datastruct/linear_func.h>
#include <ucs/datastruct/list.h>
#include <ucs/debug/log_def.h>
#include <ucs/sys/stubs.h>
#include <ucs/type/class.h>
#include <ucs/type/cpu_set.h>
#include <uct/api/uct.h>

#include "base/reason.h"

#if UCP_API_VERSION != UCP_VERSION(1, 22)
#error "the structures of this file are those of UCX 1.22"
#endif

#define NM_UCX_MAJOR 1
#define NM_UCX_MINOR 22

/* ---- Memory domain and component ---- */

struct uct_md_config; /* no member is used; libuct has one char */
#define NM_UCX_MD_CONFIG_SIZE 1

typedef struct uct_md_attr_v2 {
	uint64_t field_mask;
	uint64_t max_alloc;
	size_t max_reg;
	uint64_t flags;
	uint64_t reg_mem_types, reg_nonblock_mem_types, cache_mem_types, gva_mem_types;
	uint64_t detect_mem_types, alloc_mem_types, access_mem_types, dmabuf_mem_types;
	ucs_linear_func_t reg_cost;
	char component_name[UCT_COMPONENT_NAME_MAX];
	size_t rkey_packed_size;
	ucs_cpu_set_t local_cpus;
	size_t exported_mkey_packed_size;
	char global_id[256];
	size_t reg_alignment;
	uint8_t required_mem_flags;
} uct_md_attr_v2_t;

struct uct_md_ops {
	void (*close)(uct_md_h md);
	ucs_status_t (*query)(uct_md_h md, uct_md_attr_v2_t *attr);
	/* These and the rest of uct_md_ops: each returns UCS_ERR_UNSUPPORTED here. */
	ucs_status_t (*others[10])(void);
};

struct uct_md {
	const struct uct_md_ops *ops;
	uct_component_h component;
};

struct uct_component {
	const char name[UCT_COMPONENT_NAME_MAX];
	ucs_status_t (*query_md_resources)(uct_component_h component,
					   uct_md_resource_desc_t **ret_resources,
					   unsigned int *ret_nr);
	ucs_status_t (*md_open)(uct_component_h component, const char *name,
				const uct_md_config_t *config, uct_md_h *ret_md);
	ucs_status_t (*cm_open)(void);
	void *rkey_unpack;
	ucs_status_t (*rkey_ptr)(void);
	ucs_status_t (*rkey_release)(void);
	void *rkey_compare;
	ucs_config_global_list_entry_t md_config;
	ucs_config_global_list_entry_t cm_config;
	ucs_list_link_t tl_list;
	ucs_list_link_t list;
	uint64_t flags;
	void (*md_vfs_init)(void);
};

/* ---- Transport ---- */

typedef struct uct_tl_device_resource {
	char name[UCT_DEVICE_NAME_MAX];
	uct_device_type_t type;
	ucs_sys_device_t sys_device;
} uct_tl_device_resource_t;

typedef struct uct_tl {
	char name[UCT_TL_NAME_MAX];
	ucs_status_t (*query_devices)(uct_md_h md, uct_tl_device_resource_t **ret_devices,
				      unsigned int *ret_nr);
	ucs_status_t (*iface_open)(uct_md_h md, uct_worker_h worker,
				   const uct_iface_params_t *params,
				   const uct_iface_config_t *config, uct_iface_h *ret_iface);
	ucs_config_global_list_entry_t config;
	ucs_list_link_t list;
} uct_tl_t;

struct uct_iface_config {
	struct {
		uct_alloc_method_t *methods;
		unsigned int count;
	} alloc_methods;
	int failure;
	size_t max_num_eps;
};

/* ---- Interface ---- */

typedef struct uct_iface_is_reachable_params {
	uint64_t field_mask;
	const uct_device_addr_t *device_addr;
	const uct_iface_addr_t *iface_addr;
	char *info_string;
	size_t info_string_length;
	int scope;
	size_t device_addr_length;
	size_t iface_addr_length;
} uct_iface_is_reachable_params_t;
#define UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR UCS_BIT(1)
#define UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH UCS_BIT(6)

typedef struct uct_ep_is_connected_params {
	uint64_t field_mask;
	const uct_device_addr_t *device_addr;
	const uct_iface_addr_t *iface_addr;
	const uct_ep_addr_t *ep_addr;
} uct_ep_is_connected_params_t;
#define UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR UCS_BIT(1)

typedef enum uct_ep_operation {
	UCT_EP_OP_AM_SHORT,
	UCT_EP_OP_AM_BCOPY,
	UCT_EP_OP_AM_ZCOPY,
} uct_ep_operation_t;

typedef struct uct_perf_attr {
	uint64_t field_mask;
	uct_ep_operation_t operation;
	ucs_memory_type_t local_memory_type, remote_memory_type;
	ucs_sys_device_t local_sys_device, remote_sys_device;
	double send_pre_overhead, send_post_overhead, recv_overhead; /* seconds */
	uct_ppn_bandwidth_t bandwidth, path_bandwidth;
	ucs_linear_func_t latency;
	size_t max_inflight_eps;
	uint64_t flags;
} uct_perf_attr_t;
#define UCT_PERF_ATTR_FIELD_OPERATION UCS_BIT(0)
#define UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD UCS_BIT(5)

typedef struct uct_iface_internal_ops {
	void *iface_query_v2;
	ucs_status_t (*iface_estimate_perf)(uct_iface_h iface, uct_perf_attr_t *attr);
	void (*iface_vfs_refresh)(void);
	ucs_status_t (*ep_query)(void);
	ucs_status_t (*ep_invalidate)(void);
	ucs_status_t (*ep_connect_to_ep_v2)(void);
	int (*iface_is_reachable_v2)(const uct_iface_h iface,
				     const uct_iface_is_reachable_params_t *params);
	int (*ep_is_connected)(uct_ep_h ep, const uct_ep_is_connected_params_t *params);
	ucs_status_t (*ep_get_device_ep)(void);
	ucs_status_t (*ep_put_sgl_zcopy)(void);
} uct_iface_internal_ops_t;

typedef struct uct_am_handler {
	uct_am_callback_t cb;
	void *arg;
	uint32_t flags;
} uct_am_handler_t;

typedef struct uct_base_iface {
	uct_iface_t super;
	const uct_iface_internal_ops_t *internal_ops;
	uct_md_h md;
	void *worker;
	uct_am_handler_t am[UCT_AM_ID_MAX];
	uct_am_tracer_t am_tracer;
	void *am_tracer_arg;
	uct_error_handler_t err_handler;
	void *err_handler_arg;
	uint32_t err_handler_flags;
	uint32_t prog[2];
	unsigned int progress_flags;
	struct {
		unsigned int num_alloc_methods;
		uct_alloc_method_t alloc_methods[UCT_ALLOC_METHOD_LAST];
		int failure_level;
		size_t max_num_eps;
	} config;
} uct_base_iface_t;

/* ---- Functions and tables that libuct exports for transports ---- */

UCS_CLASS_DECLARE(uct_base_iface_t, uct_iface_ops_t *, const uct_iface_internal_ops_t *, uct_md_h,
		  uct_worker_h, const uct_iface_params_t *, const uct_iface_config_t *)

extern ucs_config_field_t uct_iface_config_table[];
extern ucs_config_field_t uct_md_config_table[];

void uct_component_register(uct_component_h component);
void uct_tl_register(uct_component_h component, uct_tl_t *tl);
ucs_status_t uct_md_query_single_md_resource(uct_component_h component,
					     uct_md_resource_desc_t **ret_resources,
					     unsigned int *ret_nr);
void uct_md_base_md_query(uct_md_attr_v2_t *attr);
ucs_status_t uct_single_device_resource(uct_md_h md, const char *name, uct_device_type_t type,
					ucs_sys_device_t sys_device,
					uct_tl_device_resource_t **ret_devices,
					unsigned int *ret_nr);
void uct_base_iface_query(uct_base_iface_t *iface, uct_iface_attr_t *attr);
void uct_base_iface_progress_enable(uct_iface_h iface, unsigned int flags);
void uct_base_iface_progress_disable(uct_iface_h iface, unsigned int flags);
ucs_status_t uct_base_iface_flush(uct_iface_h iface, unsigned int flags, uct_completion_t *comp);
ucs_status_t uct_base_iface_fence(uct_iface_h iface, unsigned int flags);
int uct_base_iface_is_reachable(const uct_iface_h iface, const uct_device_addr_t *device,
				const uct_iface_addr_t *address);
ucs_status_t uct_iface_handle_ep_err(uct_iface_h iface, uct_ep_h ep, ucs_status_t status);
void uct_iface_fill_info_str_buf(const uct_iface_is_reachable_params_t *params, const char *fmt,
				 ...);
ucs_status_t uct_base_iface_estimate_perf(uct_iface_h iface, uct_perf_attr_t *attr);
/* Only passed on to libuct; their own types have structures that are not used here. */
extern char uct_md_stub_rkey_unpack[], uct_base_rkey_compare[], uct_iface_base_query_v2[];

/* True if the libuct in this process is the one described here; else the reason. */
bool nm_ucx_abi_check(struct nm_reason *ret_reason);

#endif
