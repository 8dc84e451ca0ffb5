/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/hmem.h"

#include "base/log.h"
#include "provider/cuda.h"
#include "provider/level_zero.h"
#include "provider/rocm.h"

static const struct {
	unsigned int number;
	const struct nm_device_ops *(*load)(struct nm_reason *ret_why);
} interfaces[] = {
	{NM_CUDA_NUMBER, nm_cuda_load},
	{NM_ROCM_NUMBER, nm_rocm_load},
	{NM_LEVEL_ZERO_NUMBER, nm_level_zero_load},
};

int nm_hmem_load(struct nm_reason *ret_why)
{
	int err = -FI_ENODATA;

	for (size_t i = 0; i < NM_ARRAY_SIZE(interfaces); i++) {
		struct nm_reason why = {""};
		const struct nm_device_ops *ops = interfaces[i].load(&why);

		if (ops)
			err = nm_device_plug(interfaces[i].number, ops);
		else if (i == 0)
			*ret_why = why;
		else
			nm_reason_add(ret_why, "; %s", why.text);
	}
	return err;
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
	void *desc = NULL;

	for (size_t i = 0; i < NM_ARRAY_SIZE(interfaces) && len > 0 && !desc; i++) {
		const struct nm_device_ops *ops = nm_device_plugged(interfaces[i].number);

		if (ops && ops->has((uintptr_t)buf, len))
			desc = (void *)(uintptr_t)interfaces[i].number;
	}
	return nm_hmem_mark(&iov, &desc, 1, ret_marked);
}

int nm_hmem_error(int err)
{
	return err == -EIO ? -FI_EIO : err == -ENOMEM ? -FI_ENOMEM : -FI_EINVAL;
}
