/* SPDX-License-Identifier: Apache-2.0 */
/* A store of pinned host memory: pinning takes longer than copying, so what comes back is kept. */
#include "mem/cuda_queue.h"

#include "base/tsa.h"
#include "plat/mutex.h"

enum {
	CLASS_MIN_SHIFT = 12, /* 4 KiB */
	CLASSES = 14,         /* to 32 MiB; larger ones are not kept */
	KEPT_A_CLASS = 16,
	HEAD_BYTES = 64,
};

struct head {
	struct head *next;
	uint32_t class;
};

static struct mutex lock = MUTEX_INIT;
static struct head *kept[CLASSES] TSA(guarded_by(lock));
static uint32_t kept_count[CLASSES] TSA(guarded_by(lock));

static uint32_t class_of(uint64_t bytes)
{
	uint32_t class = 0;

	while (class < CLASSES && bytes > UINT64_C(1) << (class + CLASS_MIN_SHIFT))
		class++;
	return class;
}

void *cuda_host_alloc(uint64_t len_bytes)
{
	uint64_t bytes = len_bytes + HEAD_BYTES;
	uint32_t class = class_of(bytes);
	int device = mem_cuda_active_device();
	const struct cuda_lib *lib;
	struct head *head = NULL;
	void *ptr = NULL;

	if (device < 0 || bytes < len_bytes)
		return NULL;
	mutex_lock(&lock);
	if (class < CLASSES && kept[class]) {
		head = kept[class];
		kept[class] = head->next;
		kept_count[class]--;
	}
	mutex_unlock(&lock);
	if (!head) {
		if (mem_cuda_enter(device, &lib) != WIMM_OK)
			return NULL;
		if (class < CLASSES)
			bytes = UINT64_C(1) << (class + CLASS_MIN_SHIFT);
		if (lib->host_alloc(&ptr, bytes, CU_HOST_ALLOC_FLAGS) != CU_OK)
			ptr = NULL;
		mem_cuda_leave(lib);
		head = ptr;
	}
	if (!head)
		return NULL;
	head->class = class;
	return (uint8_t *)head + HEAD_BYTES;
}

void cuda_host_free(void *ptr)
{
	struct head *head = ptr ? (struct head *)(void *)((uint8_t *)ptr - HEAD_BYTES) : NULL;
	const struct cuda_lib *lib;
	int device;

	if (!head)
		return;
	mutex_lock(&lock);
	if (head->class < CLASSES && kept_count[head->class] < KEPT_A_CLASS) {
		head->next = kept[head->class];
		kept[head->class] = head;
		kept_count[head->class]++;
		head = NULL;
	}
	mutex_unlock(&lock);
	device = head ? mem_cuda_active_device() : -1;
	if (head && device >= 0 && mem_cuda_enter(device, &lib) == WIMM_OK) {
		(void)lib->host_free(head);
		mem_cuda_leave(lib);
	}
}
