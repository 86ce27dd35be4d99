/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

/* What the programs of tests/gpu share: the driver's functions that the library has no use for, a
 * few kernels, checks and figures. Each figure is printed as "figure NAME VALUE UNIT", each case as
 * "ok NAME" or "FAILED NAME: why"; the status of the program is 1 if anything failed. */

#include "mem/cuda_queue.h"

#include <stdbool.h>
#include <stdint.h>

struct gpu {
	const struct cuda_lib *lib;
	int device;
	struct cu_stream *stream;
	struct cu_module *module;
	cu_result (*alloc)(cu_ptr *, size_t);
	cu_result (*free)(cu_ptr);
	cu_result (*copy)(cu_ptr, cu_ptr, size_t); /* waits */
	cu_result (*sync)(void);
	cu_result (*vmm_create)(uint64_t *, size_t, const void *, unsigned long long);
	cu_result (*capture)(struct cu_stream *, int);
	cu_result (*captured)(struct cu_stream *, void **);
	cu_result (*instantiate)(void **, void *, unsigned long long);
	cu_result (*graph_launch)(void *, struct cu_stream *);
	cu_result (*stream_wait64)(struct cu_stream *, cu_ptr, uint64_t, unsigned int);
};

extern struct gpu gpu;

/* Loads all and makes the card's context this thread's. Ends the program with 77 and the reason
 * where there is no card. */
void gpu_start(void);
cu_ptr gpu_alloc(uint64_t bytes);
/* The same by cuMemCreate() and cuMemMap(), exportable. */
cu_ptr gpu_alloc_vmm(uint64_t bytes);
void gpu_launch(struct cu_stream *stream, const char *kernel, unsigned int blocks,
                unsigned int threads, void **params);
void gpu_fill(cu_ptr to, uint64_t n, uint64_t seed, uint64_t first);
/* Bytes that are not as gpu_fill() made them. */
uint64_t gpu_check(cu_ptr at, uint64_t n, uint64_t seed, uint64_t first);
struct cu_stream *gpu_stream(void);
void gpu_sync(void);

#define MUST(expr)  gpu_must((expr), #expr, __FILE__, __LINE__)
#define CHECK(cond) gpu_check_true((cond), #cond, __FILE__, __LINE__)
/* A driver's or the library's status: 0, or the program ends. */
void gpu_must(int code, const char *what, const char *file, int line);
void gpu_check_true(bool ok, const char *what, const char *file, int line);

void gpu_case(const char *name); /* ends the one before */
int gpu_end(void);
void gpu_figure(const char *name, double value, const char *unit);
/* Sorts; 0 <= p <= 1. */
double gpu_percentile(double *values, uint64_t count, double p);
double gpu_now_s(void);

#endif
