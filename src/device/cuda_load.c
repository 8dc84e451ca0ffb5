/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's library, found and started. */
#include "device/cuda.h"
#include "device/cuda_private.h"
#include "device/driver_library.h"

struct nm_cuda_driver nm_cuda;

const char *nm_cuda_words(int error)
{
	const char *text = NULL;

	if (nm_cuda.error_string(error, &text) != 0 || !text)
		text = "unknown error";
	return text;
}

const struct nm_device_ops *nm_cuda_load(struct nm_reason *ret_why)
{
	static const char *const names[] = {"libcuda.so.1", NULL};
	void *library = nm_driver_open(names, "no driver of NVIDIA", ret_why);
	int error, nr_gpus;

	if (!library)
		return NULL;
#define LOAD(field, symbol, arguments)                                                             \
	if (!nm_driver_function(library, symbol, &nm_cuda.field, ret_why))                         \
		return NULL;
	NM_CUDA_FUNCTIONS(LOAD)
#undef LOAD
#define LOAD(field, symbol, arguments) nm_driver_function(library, symbol, &nm_cuda.field, NULL);
	NM_CUDA_OPTIONAL(LOAD)
#undef LOAD
	error = nm_cuda.init(0);
	if (error) {
		nm_reason_set(ret_why, "the driver of NVIDIA does not start: %s (CUDA error %d)",
			      nm_cuda_words(error), error);
		return NULL;
	}
	error = nm_cuda.device_count(&nr_gpus);
	if (error || nr_gpus < 1) {
		nm_reason_set(ret_why, "the driver of NVIDIA shows no GPU: %s",
			      error ? nm_cuda_words(error) : "it counts none");
		return NULL;
	}
	return &nm_cuda_ops;
}
