/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/hmem.h"

#include "base/log.h"
#include "device/load.h"

int nm_hmem_load(struct nm_reason *ret_why)
{
	return nm_devices_load(ret_why) ? 0 : -FI_ENODATA;
}

int nm_hmem_mark(const struct iovec *iov, void *const *desc, size_t count,
		 struct nm_hmem_iov *ret_marked)
{
	if (count > NM_IOV_MAX)
		return -FI_EINVAL;
	ret_marked->nr = count;
	ret_marked->is_device = false;
	for (size_t i = 0; i < count; i++) {
		uintptr_t number = desc ? (uintptr_t)desc[i] : 0;
		const struct nm_device_ops *ops;

		ret_marked->iov[i] = iov[i];
		if (!number)
			continue;
		ops = number <= NM_DEVICE_MAX ? nm_device_plugged((unsigned int)number) : NULL;
		if (!ops) {
			nm_warn("an operation was refused: descriptor %p is not one that "
				"fi_mr_desc() gave for a region of nearmetal",
				desc[i]);
			return -FI_EINVAL;
		}
		if (iov[i].iov_len > 0 && !ops->has((uintptr_t)iov[i].iov_base, iov[i].iov_len)) {
			nm_warn("an operation was refused: its descriptor says %s, but %zu bytes at "
				"%p are in no registered buffer of it; pass the descriptor of the "
				"region that holds them, and NULL for host memory",
				ops->name, iov[i].iov_len, iov[i].iov_base);
			return -FI_EFAULT;
		}
		ret_marked->iov[i].iov_base =
			nm_device_mark((unsigned int)number, (uintptr_t)iov[i].iov_base);
		ret_marked->is_device = true;
	}
	if (ret_marked->is_device && count == 1)
		ret_marked->iov[ret_marked->nr++] = (struct iovec){NULL, 0};
	return 0;
}

int nm_hmem_find(const void *buf, size_t len, struct nm_hmem_iov *ret_marked)
{
	const struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	void *desc = (void *)(uintptr_t)nm_devices_find(buf, len);

	return nm_hmem_mark(&iov, &desc, 1, ret_marked);
}

int nm_hmem_error(int err)
{
	return err == -EIO ? -FI_EIO : err == -ENOMEM ? -FI_ENOMEM : -FI_EINVAL;
}
