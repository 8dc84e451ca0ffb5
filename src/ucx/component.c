/* SPDX-License-Identifier: Apache-2.0 */
/* What UCX finds when it loads libuct_nearmetal.so from UCX_PLUGIN_PATH. */
#include <dlfcn.h>

#include "base/log.h"
#include "base/params.h"
#include "ucx/face.h"

/* ---- The memory domain: messages are copied, so nothing is registered ---- */

static void md_close(uct_md_h md)
{
	(void)md;
}

static ucs_status_t md_query(uct_md_h md, uct_md_attr_v2_t *attr)
{
	(void)md;
	uct_md_base_md_query(attr);
	attr->access_mem_types = UCS_BIT(UCS_MEMORY_TYPE_HOST);
	return UCS_OK;
}

#define UNSUPPORTED ucs_empty_function_return_unsupported
static const struct uct_md_ops md_ops = {
	.close = md_close,
	.query = md_query,
	.others = {UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED,
		   UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED},
};

static ucs_status_t md_open(uct_component_h component, const char *name,
			    const uct_md_config_t *config, uct_md_h *ret_md)
{
	static struct uct_md md = {.ops = &md_ops, .component = &nm_ucx_component};

	(void)component;
	(void)name;
	(void)config;
	*ret_md = &md;
	return UCS_OK;
}

/* No device with an environment that is not valid: UCX then uses its other transports. */
static ucs_status_t query_devices(uct_md_h md, uct_tl_device_resource_t **ret_devices,
				  unsigned int *ret_nr)
{
	if (!nm_params()) {
		*ret_devices = NULL;
		*ret_nr = 0;
		return UCS_OK;
	}
	return uct_single_device_resource(md, "memory", UCT_DEVICE_TYPE_SHM,
					  UCS_SYS_DEVICE_ID_UNKNOWN, ret_devices, ret_nr);
}

struct uct_component nm_ucx_component = {
	.name = "nearmetal",
	.query_md_resources = uct_md_query_single_md_resource,
	.md_open = md_open,
	.cm_open = UNSUPPORTED,
	.rkey_unpack = uct_md_stub_rkey_unpack,
	.rkey_ptr = UNSUPPORTED,
	.rkey_release = ucs_empty_function_return_success,
	.rkey_compare = uct_base_rkey_compare,
	.md_config =
		{
			.name = "nearmetal memory domain",
			.prefix = "NEARMETAL_",
			.table = uct_md_config_table,
			.size = NM_UCX_MD_CONFIG_SIZE,
		},
	.cm_config = UCS_CONFIG_EMPTY_GLOBAL_LIST_ENTRY,
	.tl_list = UCS_LIST_INITIALIZER(&nm_ucx_component.tl_list, &nm_ucx_component.tl_list),
	.md_vfs_init = ucs_empty_function,
};

/* Nested, as in UCX's transports: so UCX_FAILURE and the like are valid for these, too. */
static ucs_config_field_t config_table[] = {
	{.name = "", .dfl_value = "", .parser = UCS_CONFIG_TYPE_TABLE(uct_iface_config_table)},
	{.name = NULL},
};

static uct_tl_t transport = {
	.name = "nearmetal",
	.query_devices = query_devices,
	.iface_open = nm_ucx_iface_open,
	.config =
		{
			.name = "nearmetal transport",
			.prefix = "NEARMETAL_",
			.table = config_table,
			.size = sizeof(struct uct_iface_config),
		},
};

static uct_tl_t copies = {
	.name = "nearcma",
	.query_devices = query_devices,
	.iface_open = nm_ucx_copy_iface_open,
	.config =
		{
			.name = "nearcma transport",
			.prefix = "NEARCMA_",
			.table = config_table,
			.size = sizeof(struct uct_iface_config),
		},
};

/* ---- Which UCX ---- */

/* SYMBOL of a library that is loaded already, or NULL. */
static void *find(const char *library, const char *symbol)
{
	void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
	void *found = handle ? dlsym(handle, symbol) : NULL;

	if (handle)
		dlclose(handle);
	return found;
}

bool nm_ucx_abi_check(struct nm_reason *ret_reason)
{
	void (*get_version)(unsigned int *major, unsigned int *minor, unsigned int *release);
	unsigned int major, minor, release;

	/* A program of uct alone has no libucp, and libuct does not say its version. */
	*(void **)&get_version = find("libucp.so.0", "ucp_get_version");
	if (get_version) {
		get_version(&major, &minor, &release);
		if (major != NM_UCX_MAJOR || minor != NM_UCX_MINOR) {
			nm_reason_set(ret_reason, "it is for UCX %d.%d, and this is %u.%u.%u",
				      NM_UCX_MAJOR, NM_UCX_MINOR, major, minor, release);
			return false;
		}
	}
	/* Older ones lack the last slot of uct_iface_internal_ops_t, later ones have more slots. */
	if (!find("libuct.so.0", "uct_ep_put_sgl_zcopy") ||
	    find("libuct.so.0", "uct_ep_outstanding_purge")) {
		nm_reason_set(ret_reason, "it is for UCX %d.%d, and libuct is of another version",
			      NM_UCX_MAJOR, NM_UCX_MINOR);
		return false;
	}
	if (uct_base_iface_t_class.size != sizeof(uct_base_iface_t)) {
		nm_reason_set(ret_reason,
			      "this libuct was built with options that change its structures: an "
			      "interface has %zu bytes instead of %zu",
			      uct_base_iface_t_class.size, sizeof(uct_base_iface_t));
		return false;
	}
	return true;
}

/* Called by UCX after it loaded this library; after an error it unloads it. */
__attribute__((visibility("default"))) ucs_status_t ucs_module_global_init(void);
ucs_status_t ucs_module_global_init(void)
{
	struct nm_reason why;

	if (!nm_ucx_abi_check(&why)) {
		nm_error("libuct_nearmetal.so is not used: %s", why.text);
		return UCS_ERR_UNSUPPORTED;
	}
	uct_component_register(&nm_ucx_component);
	/* UCX opens them in this order, and copy.c needs what the first opened. */
	uct_tl_register(&nm_ucx_component, &transport);
	uct_tl_register(&nm_ucx_component, &copies);
	return UCS_OK;
}
