/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

/* What the programs of bench/ share: pinned processes, sizes with suffixes, a line of result. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_WALK_BYTES (64u << 20) /* memory is walked over this much, so caches do not flatter */

struct bench_result {
	const char *name;
	uint64_t block_bytes;
	uint64_t batch;
	uint64_t blocks;
	double seconds;
	double cpu_seconds; /* of both processes, while they worked */
};

/* "4K", "1M": powers of 1024. Ends the program when it is none. */
uint64_t bench_size(const char *text);
double bench_now_s(void);
/* CPU time of this process so far, and of its children that have ended. */
double bench_cpu_s(void);
/* Pin the calling process to a CPU; where that is refused it runs unpinned. */
void bench_pin(int cpu);
/* After a look that found nothing: where there is one CPU, the other process's turn. */
void bench_look_again(void);
/* Zeroed, shared by a fork, touched. Ends the program when there is none. */
void *bench_shared(size_t bytes);
/* Print the figure, as one line of JSON or of text. */
void bench_print(const struct bench_result *r, bool json);
/* Ends the program with a message and errno. */
_Noreturn void bench_die(const char *what);

#endif
