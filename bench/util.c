/* SPDX-License-Identifier: Apache-2.0 */
#include "util.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

void bench_die(const char *what)
{
	(void)fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

uint64_t bench_size(const char *text)
{
	char *end;
	uint64_t v = strtoull(text, &end, 10);

	switch (*end) {
	case 'G':
		v <<= 10; /* fall through */
	case 'M':
		v <<= 10; /* fall through */
	case 'K':
		v <<= 10;
		end++;
		break;
	default:
		break;
	}
	if (end == text || *end != '\0') {
		errno = EINVAL;
		bench_die(text);
	}
	return v;
}

double bench_now_s(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double bench_cpu_s(void)
{
	struct rusage own;
	struct rusage children;
	double us;

	(void)getrusage(RUSAGE_SELF, &own);
	(void)getrusage(RUSAGE_CHILDREN, &children);
	us = (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec + children.ru_utime.tv_usec +
	              children.ru_stime.tv_usec);
	return (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + children.ru_utime.tv_sec +
	                children.ru_stime.tv_sec) +
	       us * 1e-6;
}

void bench_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

void bench_look_again(void)
{
	static long cpus;

	if (cpus == 0)
		cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (cpus == 1)
		(void)sched_yield();
}

void *bench_shared(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		bench_die("mmap");
	memset(mem, 0x5a, bytes);
	return mem;
}

void bench_print(const struct bench_result *r, bool json)
{
	double bytes = (double)r->block_bytes * (double)r->blocks;
	double gb_s = bytes / r->seconds * 1e-9;
	double cpu = r->cpu_seconds / (bytes * 1e-9);
	double per_s = (double)r->blocks / r->seconds;

	if (json)
		printf("{\"name\": \"%s\", \"block_bytes\": %" PRIu64 ", \"batch\": %" PRIu64
		       ", \"blocks\": %" PRIu64
		       ", \"seconds\": %.6f, \"bandwidth_gb_s\": %.3f, \"cpu_s_per_gb\": %.3f, "
		       "\"blocks_per_s\": %.0f}\n",
		       r->name, r->block_bytes, r->batch, r->blocks, r->seconds, gb_s, cpu, per_s);
	else
		printf("%-14s %8" PRIu64 " B  batch %3" PRIu64
		       "  %7.3f GB/s  %6.3f cpu s/GB  %10.0f blocks/s\n",
		       r->name, r->block_bytes, r->batch, gb_s, cpu, per_s);
}
