/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libcuda that nearmetal calls, declared here because its headers may be missing.
 * The names with _v2 are those that the headers of CUDA 3.2 and later give to the same functions.
 */
#ifndef NM_DEVICE_CUDA_DRIVER_H
#define NM_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* Handles are pointers to types that only the driver knows. */
typedef void *nm_cuda_context;
typedef void *nm_cuda_stream;
typedef void *nm_cuda_event;

#define NM_CUDA_MEMORY_DEVICE 2u	   /* CU_MEMORYTYPE_DEVICE */
#define NM_CUDA_STREAM_NON_BLOCKING 1u	   /* does not wait for the program's default stream */
#define NM_CUDA_EVENT_NO_TIMING 2u	   /* CU_EVENT_DISABLE_TIMING */
#define NM_CUDA_NOT_READY 600		   /* CUDA_ERROR_NOT_READY, of event_query */
#define NM_CUDA_HOST_REGISTER_PORTABLE 1u  /* pinned for all contexts */
#define NM_CUDA_HOST_REGISTER_READ_ONLY 8u /* the processor only reads it here */

/* By this another process opens an allocation. */
struct nm_cuda_handle {
	char bytes[64];
};
#define NM_CUDA_OPEN_PEER_ACCESS 1u /* on a GPU of another one */

enum nm_cuda_attribute {
	NM_CUDA_POINTER_CONTEXT = 1,
	NM_CUDA_POINTER_MEMORY_TYPE = 2,
	NM_CUDA_POINTER_BUFFER_ID = 7, /* never used twice in a process */
	NM_CUDA_POINTER_DEVICE = 9,
	NM_CUDA_POINTER_RANGE_START = 11,
	NM_CUDA_POINTER_RANGE_SIZE = 12,
};

/* X(field, symbol, arguments). All return 0 or an error code of the driver. */
#define NM_CUDA_FUNCTIONS(X)                                                                       \
	X(init, "cuInit", (unsigned int flags))                                                    \
	X(error_string, "cuGetErrorString", (int error, const char **ret_text))                    \
	X(device_count, "cuDeviceGetCount", (int *ret_count))                                      \
	X(primary_retain, "cuDevicePrimaryCtxRetain", (nm_cuda_context * ret_context, int device)) \
	X(push, "cuCtxPushCurrent_v2", (nm_cuda_context context))                                  \
	X(pop, "cuCtxPopCurrent_v2", (nm_cuda_context * ret_context))                              \
	X(attribute, "cuPointerGetAttribute",                                                      \
	  (void *ret_value, enum nm_cuda_attribute attribute, uint64_t pointer))                   \
	X(stream_create, "cuStreamCreate", (nm_cuda_stream * ret_stream, unsigned int flags))      \
	X(stream_destroy, "cuStreamDestroy_v2", (nm_cuda_stream stream))                           \
	X(stream_wait, "cuStreamSynchronize", (nm_cuda_stream stream))                             \
	X(event_create, "cuEventCreate", (nm_cuda_event * ret_event, unsigned int flags))          \
	X(event_destroy, "cuEventDestroy_v2", (nm_cuda_event event))                               \
	X(event_record, "cuEventRecord", (nm_cuda_event event, nm_cuda_stream stream))             \
	X(event_query, "cuEventQuery", (nm_cuda_event event))                                      \
	X(event_wait, "cuEventSynchronize", (nm_cuda_event event))                                 \
	X(copy, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t len, nm_cuda_stream stream))  \
	X(alloc, "cuMemAlloc_v2", (uint64_t * ret_address, size_t len))                            \
	X(free, "cuMemFree_v2", (uint64_t address))                                                \
	X(host_register, "cuMemHostRegister_v2", (void *pages, size_t len, unsigned int flags))    \
	X(host_unregister, "cuMemHostUnregister", (void *pages))                                   \
	X(share, "cuIpcGetMemHandle", (struct nm_cuda_handle * ret_handle, uint64_t address))      \
	X(open, "cuIpcOpenMemHandle_v2",                                                           \
	  (uint64_t * ret_address, struct nm_cuda_handle handle, unsigned int flags))              \
	X(close, "cuIpcCloseMemHandle", (uint64_t address))

/* Drivers before CUDA 11.7 have none of these: NULL. */
#define NM_CUDA_OPTIONAL(X)                                                                        \
	X(range_handle, "cuMemGetHandleForAddressRange",                                           \
	  (void *ret_handle, uint64_t address, size_t len, int kind, unsigned long long flags))
#define NM_CUDA_RANGE_DMABUF 1 /* kind: the handle is a file descriptor */

struct nm_cuda_driver {
#define NM_CUDA_FUNCTION(field, symbol, arguments) int(*field) arguments;
	NM_CUDA_FUNCTIONS(NM_CUDA_FUNCTION)
	NM_CUDA_OPTIONAL(NM_CUDA_FUNCTION)
#undef NM_CUDA_FUNCTION
};

#endif
