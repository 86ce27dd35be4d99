/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H

/* A driver of CUDA made of ordinary memory, for tests on machines without a GPU. "Device memory"
 * is a memfd mapped without any permission at the address the library sees, so that a host access
 * to it ends the process, and once more where only this driver looks. Copies run at once, or when
 * the test says so. It shows what the library asks of a driver and when; it says nothing about
 * real hardware. */

#include <stddef.h>
#include <stdint.h>

struct fake_cuda_knobs {
	int hold;             /* copies wait for run() */
	int fail_copies;      /* code of every copy asked for; 0: they work */
	int inactive;         /* no primary context is in use */
	int empty_kernels;    /* they copy nothing and say that they have */
	int writes_ordering;  /* attributes of the device */
	int flush_options;
	int no_dmabuf;
	int devices;          /* how many there are */
	void *capturing;      /* a stream that is being captured into a graph, by a thread that
	                       * forbids others what would end that */
	uint64_t bad_copies;  /* by a stream of a card that has neither of the ends */
	uint64_t broken;      /* calls that have ended it nevertheless */
	uint64_t looks;       /* cuEventQuery() */
	uint64_t copies;      /* asked for, by engine and by kernel */
	uint64_t launches;
	uint64_t flushes;     /* cuFlushGPUDirectRDMAWrites() */
	/* Execute what waits; returns how much it was. */
	uint64_t (*run)(void);
	/* The readable and writable side of device memory. NULL: none there. */
	void *(*shadow)(uint64_t ptr);
	uint64_t (*alloc)(size_t bytes, int vmm);
	void (*free)(uint64_t ptr);
	uint64_t (*alloc_on)(int device, size_t bytes);
	uint64_t (*alloc_spanning)(size_t bytes); /* two mappings in a row */
	uint32_t (*objects)(void); /* allocations, maps, streams, events that are there */
	/* What is asked of a stream from now on waits until it is let go; others go on. */
	void (*block)(void *stream);
	void (*unblock)(void *stream);
	/* A function for a kernel of the test's own, whose parameters are 64 bits long each. */
	void (*kernel)(const char *name, unsigned int params, void (*run)(const uint64_t *params));
};

#define FAKE_CUDA_KNOBS "fake_cuda_knobs"

/* For those who load it without this header: tests/py. */
uint64_t fake_cuda_alloc(size_t bytes);
void fake_cuda_free(uint64_t ptr);
void *fake_cuda_shadow(uint64_t ptr);
void fake_cuda_block(void *stream);
void fake_cuda_unblock(void *stream);
uint64_t fake_cuda_looks(void);

#endif
