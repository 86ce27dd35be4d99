/* SPDX-License-Identifier: Apache-2.0 */
/* A store of pinned host memory. The driver takes long to pin some, and to give it back it waits
 * for all that the card has been asked for, a whole graph of layers perhaps: what is used for lists
 * of pages is cut from slabs and stays. That is as much as was in use at one time. */
#include "mem/cuda_queue.h"

#include "base/tsa.h"
#include "plat/mutex.h"

enum {
	CLASS_MIN_SHIFT = 12, /* 4 KiB */
	CLASSES = 14,         /* to 32 MiB; larger ones are not kept */
	SLAB_CLASSES = 7,     /* to 256 KiB they are cut from slabs */
	KEPT_A_CLASS = 16,    /* of those that are not */
	SLAB_BYTES = 1 << 20,
	HEAD_BYTES = 64,
};

struct head {
	struct head *next;
	uint32_t class;
};

static struct mutex lock = MUTEX_INIT;
static struct head *kept[CLASSES] TSA(guarded_by(lock));
static uint32_t kept_count[CLASSES] TSA(guarded_by(lock));
static uint8_t *slab TSA(guarded_by(lock)); /* what is left of the last one */
static uint64_t slab_bytes TSA(guarded_by(lock));

static uint64_t class_bytes(uint32_t class)
{
	return UINT64_C(1) << (class + CLASS_MIN_SHIFT);
}

static uint32_t class_of(uint64_t bytes)
{
	uint32_t class = 0;

	while (class < CLASSES && bytes > class_bytes(class))
		class++;
	return class;
}

static void keep(struct head *head) TSA(requires_capability(lock))
{
	head->next = kept[head->class];
	kept[head->class] = head;
	kept_count[head->class]++;
}

/* NULL: there is none. */
static struct head *take(uint32_t class) TSA(requires_capability(lock))
{
	struct head *head = class < CLASSES ? kept[class] : NULL;

	if (head) {
		kept[class] = head->next;
		kept_count[class]--;
	} else if (class < SLAB_CLASSES && slab_bytes >= class_bytes(class)) {
		head = (struct head *)(void *)slab;
		slab += class_bytes(class);
		slab_bytes -= class_bytes(class);
	}
	return head;
}

/* Another slab; the rest of the one before is cut up. */
static void add_slab(uint8_t *bytes) TSA(requires_capability(lock))
{
	for (uint32_t class = SLAB_CLASSES; class-- > 0;) {
		while (slab_bytes >= class_bytes(class)) {
			struct head *head = (struct head *)(void *)slab;

			head->class = class;
			keep(head);
			slab += class_bytes(class);
			slab_bytes -= class_bytes(class);
		}
	}
	slab = bytes;
	slab_bytes = SLAB_BYTES;
}

static void *pin(uint64_t bytes)
{
	int device = mem_cuda_active_device();
	const struct cuda_lib *lib;
	void *ptr = NULL;

	if (device < 0 || mem_cuda_enter(device, &lib) != WIMM_OK)
		return NULL;
	if (lib->host_alloc(&ptr, bytes, CU_HOST_ALLOC_FLAGS) != CU_OK)
		ptr = NULL;
	mem_cuda_leave(lib);
	return ptr;
}

void cuda_host_prepare(void)
{
	uint8_t *bytes;
	bool have;

	mutex_lock(&lock);
	have = slab_bytes != 0;
	mutex_unlock(&lock);
	bytes = have ? NULL : pin(SLAB_BYTES);
	if (!bytes)
		return;
	mutex_lock(&lock);
	add_slab(bytes);
	mutex_unlock(&lock);
}

void *cuda_host_alloc(uint64_t len_bytes)
{
	uint64_t bytes = len_bytes + HEAD_BYTES;
	uint32_t class = class_of(bytes);
	struct head *head;

	if (bytes < len_bytes)
		return NULL;
	mutex_lock(&lock);
	head = take(class);
	mutex_unlock(&lock);
	if (!head && class < SLAB_CLASSES) {
		uint8_t *more = pin(SLAB_BYTES);

		mutex_lock(&lock);
		if (more)
			add_slab(more);
		head = take(class);
		mutex_unlock(&lock);
	} else if (!head) {
		head = pin(class < CLASSES ? class_bytes(class) : bytes);
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
	if (head->class < SLAB_CLASSES ||
	    (head->class < CLASSES && kept_count[head->class] < KEPT_A_CLASS)) {
		keep(head);
		head = NULL;
	}
	mutex_unlock(&lock);
	device = head ? mem_cuda_active_device() : -1;
	if (head && device >= 0 && mem_cuda_enter(device, &lib) == WIMM_OK) {
		(void)lib->host_free(head);
		mem_cuda_leave(lib);
	}
}
