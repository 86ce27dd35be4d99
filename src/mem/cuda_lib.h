/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_CUDA_LIB_H
#define MEM_CUDA_LIB_H

/* The CUDA driver, loaded at run time: neither the build nor a host without a GPU needs anything
 * of it. The few types of its interface are declared here, as they are fixed for good. */

#include <stddef.h>
#include <stdint.h>

#include <wimm/status.h>

typedef int cu_result; /* 0: success */
typedef uint64_t cu_ptr;

#define CU_OK                 0
#define CU_NOT_READY          600
#define CU_STREAM_FLAG        1u /* non-blocking: not ordered with the default stream */
#define CU_STREAM_PER_THREAD  2u /* a handle; 0 and 1 are the default stream of all threads */
#define CU_EVENT_NO_TIMING    2u
#define CU_CAPTURE_RELAXED    2
#define CU_HOST_ALLOC_FLAGS   3u /* portable, mapped */
#define CU_HOST_REG_FLAGS     3u
#define CU_IPC_LAZY_PEER      1u
#define CU_HANDLE_POSIX_FD    1
#define CU_RANGE_DMA_BUF_FD   1
#define CU_ACCESS_READ_WRITE  3
#define CU_LOCATION_DEVICE    1
#define CU_MEMORY_DEVICE      2u

enum cu_pointer_attribute {
	CU_PTR_MEMORY_TYPE = 2,
	CU_PTR_IS_MANAGED = 8,
	CU_PTR_DEVICE = 9,
	CU_PTR_LEGACY_IPC = 10,
	CU_PTR_MAPPING_SIZE = 18,
	CU_PTR_MAPPING_BASE = 19,
};

enum cu_device_attribute {
	CU_DEV_SM_COUNT = 16,
	CU_DEV_PCI_BUS = 33,
	CU_DEV_PCI_DEVICE = 34,
	CU_DEV_PCI_DOMAIN = 50,
	CU_DEV_GPU_DIRECT_RDMA = 116,
	CU_DEV_FLUSH_OPTIONS = 117,
	CU_DEV_WRITES_ORDERING = 118,
	CU_DEV_DMA_BUF = 124,
};

#define CU_FLUSH_OPTION_HOST  1
#define CU_FLUSH_TARGET_CTX   0
#define CU_ORDERING_NONE      0
#define CU_ORDERING_OWNER     100
#define CU_ORDERING_ALL       200

struct cu_ctx;
struct cu_stream;
struct cu_event;
struct cu_module;
struct cu_function;

struct cu_ipc_handle {
	uint8_t bytes[64];
};

struct cu_location {
	int type;
	int id;
};

struct cu_access {
	struct cu_location location;
	int flags;
};

/* X(field, symbol, required, parameters) */
#define CUDA_LIB_MAP(X)                                                                            \
	X(init, "cuInit", 1, (unsigned int))                                                       \
	X(driver_version, "cuDriverGetVersion", 1, (int *))                                        \
	X(error_name, "cuGetErrorName", 1, (cu_result, const char **))                             \
	X(device_count, "cuDeviceGetCount", 1, (int *))                                            \
	X(device_name, "cuDeviceGetName", 1, (char *, int, int))                                   \
	X(device_attribute, "cuDeviceGetAttribute", 1, (int *, int, int))                          \
	X(primary_retain, "cuDevicePrimaryCtxRetain", 1, (struct cu_ctx **, int))                  \
	X(primary_state, "cuDevicePrimaryCtxGetState", 1, (int, unsigned int *, int *))            \
	X(ctx_push, "cuCtxPushCurrent_v2", 1, (struct cu_ctx *))                                   \
	X(ctx_pop, "cuCtxPopCurrent_v2", 1, (struct cu_ctx **))                                    \
	X(ctx_current, "cuCtxGetCurrent", 1, (struct cu_ctx **))                                   \
	X(pointer_attribute, "cuPointerGetAttribute", 1, (void *, int, cu_ptr))                    \
	X(address_range, "cuMemGetAddressRange_v2", 1, (cu_ptr *, size_t *, cu_ptr))               \
	X(handle_for_range, "cuMemGetHandleForAddressRange", 0,                                    \
	  (void *, cu_ptr, size_t, int, unsigned long long))                                       \
	X(mem_alloc, "cuMemAlloc_v2", 0, (cu_ptr *, size_t))                                       \
	X(mem_free, "cuMemFree_v2", 0, (cu_ptr))                                                   \
	X(pointer_set, "cuPointerSetAttribute", 0, (const void *, int, cu_ptr))                    \
	X(host_alloc, "cuMemHostAlloc", 1, (void **, size_t, unsigned int))                        \
	X(host_free, "cuMemFreeHost", 1, (void *))                                                 \
	X(host_register, "cuMemHostRegister_v2", 1, (void *, size_t, unsigned int))                \
	X(host_unregister, "cuMemHostUnregister", 1, (void *))                                     \
	X(copy_async, "cuMemcpyAsync", 1, (cu_ptr, cu_ptr, size_t, struct cu_stream *))            \
	X(stream_create, "cuStreamCreateWithPriority", 1,                                          \
	  (struct cu_stream **, unsigned int, int))                                                \
	X(stream_destroy, "cuStreamDestroy_v2", 1, (struct cu_stream *))                           \
	X(stream_sync, "cuStreamSynchronize", 1, (struct cu_stream *))                             \
	X(stream_query, "cuStreamQuery", 1, (struct cu_stream *))                                  \
	X(stream_wait, "cuStreamWaitEvent", 1,                                                     \
	  (struct cu_stream *, struct cu_event *, unsigned int))                                   \
	X(stream_write64, "cuStreamWriteValue64_v2", 1,                                            \
	  (struct cu_stream *, cu_ptr, uint64_t, unsigned int))                                    \
	X(stream_ctx, "cuStreamGetCtx", 1, (struct cu_stream *, struct cu_ctx **))                 \
	X(stream_capturing, "cuStreamIsCapturing", 0, (struct cu_stream *, int *))                 \
	X(capture_mode, "cuThreadExchangeStreamCaptureMode", 0, (int *))                           \
	X(event_create, "cuEventCreate", 1, (struct cu_event **, unsigned int))                    \
	X(event_destroy, "cuEventDestroy_v2", 1, (struct cu_event *))                              \
	X(event_record, "cuEventRecord", 1, (struct cu_event *, struct cu_stream *))               \
	X(event_query, "cuEventQuery", 1, (struct cu_event *))                                     \
	X(module_load, "cuModuleLoadData", 1, (struct cu_module **, const void *))                 \
	X(module_function, "cuModuleGetFunction", 1,                                               \
	  (struct cu_function **, struct cu_module *, const char *))                               \
	X(launch, "cuLaunchKernel", 1,                                                             \
	  (struct cu_function *, unsigned int, unsigned int, unsigned int, unsigned int,           \
	   unsigned int, unsigned int, unsigned int, struct cu_stream *, void **, void **))        \
	X(ipc_get, "cuIpcGetMemHandle", 1, (struct cu_ipc_handle *, cu_ptr))                       \
	X(ipc_open, "cuIpcOpenMemHandle_v2", 1, (cu_ptr *, struct cu_ipc_handle, unsigned int))    \
	X(ipc_close, "cuIpcCloseMemHandle", 1, (cu_ptr))                                           \
	X(vmm_retain, "cuMemRetainAllocationHandle", 0, (uint64_t *, void *))                      \
	X(vmm_release, "cuMemRelease", 0, (uint64_t))                                              \
	X(vmm_export, "cuMemExportToShareableHandle", 0,                                           \
	  (void *, uint64_t, int, unsigned long long))                                             \
	X(vmm_import, "cuMemImportFromShareableHandle", 0, (uint64_t *, void *, int))              \
	X(vmm_reserve, "cuMemAddressReserve", 0,                                                   \
	  (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long))                                  \
	X(vmm_unreserve, "cuMemAddressFree", 0, (cu_ptr, size_t))                                  \
	X(vmm_map, "cuMemMap", 0, (cu_ptr, size_t, size_t, uint64_t, unsigned long long))          \
	X(vmm_unmap, "cuMemUnmap", 0, (cu_ptr, size_t))                                            \
	X(vmm_access, "cuMemSetAccess", 0, (cu_ptr, size_t, const struct cu_access *, size_t))     \
	X(flush_writes, "cuFlushGPUDirectRDMAWrites", 0, (int, int))

struct cuda_lib {
#define X(field, symbol, required, params) cu_result(*field) params;
	CUDA_LIB_MAP(X)
#undef X
};

/* The driver of the setting cuda_library, if this process uses it already: who has no GPU memory
 * pays for nothing. NULL: it does not. Thread: any. */
const struct cuda_lib *cuda_lib_used(void);
/* The same, loaded if need be. NULL: not there, `why` says so. Blocks: for the files. */
const struct cuda_lib *cuda_lib_load(char *why, size_t why_bytes);
/* Name of a driver's error. */
const char *cuda_lib_error(const struct cuda_lib *lib, cu_result code);

#endif
