/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_CUDA_INT_H
#define TESTS_FAKE_CUDA_INT_H

/* What the files of the driver that is none share. */

#include "fake/cuda.h"

#include <pthread.h>
#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	INVALID_CONTEXT = 201,
	NOT_READY = 600,
	NOT_SUPPORTED = 801,
	RANGES = 256,
	OPS = 65536,
	DEVICES = 4,
	CAPTURE_RELAXED = 2,
	CAPTURE_UNSAFE = 901,
	UNIT = 2 << 20,
};

extern struct fake_cuda_knobs fake_cuda_knobs;
extern pthread_mutex_t fake_lock;
extern _Atomic uint32_t fake_objects;

/* --- cuda.c --- */
/* The device whose context is current; 0: none is. */
int fake_current(void);
bool fake_inside(void); /* a context */
void fake_enter(int device);
void fake_leave(void);
/* A call that another thread's capture does not survive. */
bool fake_unsafe(void);

/* --- cuda_graph.c --- */
void fake_kernel(const char *name, unsigned int params, void (*run)(const uint64_t *params));
int fake_kernel_launch(const char *name, void *stream, void **params);

/* --- cuda_memory.c --- */
/* Where the bytes of an address are. */
void *fake_host(uint64_t ptr);
void *fake_shadow(uint64_t ptr);
int fake_device(uint64_t ptr); /* that has it; -1: the host */
uint64_t fake_alloc(size_t bytes, int vmm);
uint64_t fake_alloc_on(int device, size_t bytes);
uint64_t fake_alloc_spanning(size_t bytes);
void fake_free(uint64_t ptr);

#endif
