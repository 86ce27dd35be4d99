/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char dir_path[PATH_MAX];
static pid_t dir_owner; /* a forked child must not remove its parent's folder */

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

bool test_wait_until(bool (*cond)(void *arg), void *arg, unsigned deadline_ms)
{
	uint64_t end_ms = now_ms() + deadline_ms;

	while (!cond(arg)) {
		if (now_ms() >= end_ms)
			return false;
		sched_yield();
	}
	return true;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_dir(void)
{
	if (dir_owner == getpid())
		nftw(dir_path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_dir(void)
{
	const char *base = getenv("TMPDIR");

	if (dir_path[0] != '\0')
		return dir_path;
	snprintf(dir_path, sizeof(dir_path), "%s/wimm-test-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(dir_path)) {
		print_error("mkdtemp %s: %s\n", dir_path, strerror(errno));
		abort();
	}
	dir_owner = getpid();
	atexit(remove_dir);
	return dir_path;
}

const char *test_file(const char *name, const char *text)
{
	static char path[PATH_MAX + 256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", test_dir(), name);
	if (!text)
		return path;
	file = fopen(path, "we");
	if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
		print_error("%s: %s\n", path, strerror(errno));
		abort();
	}
	return path;
}

uint64_t test_seed(uint64_t fallback)
{
	const char *text = getenv("WIMM_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : fallback;

	print_message("seed 0x%llx (WIMM_SEED= repeats it)\n", (unsigned long long)seed);
	return seed;
}

unsigned test_scale(void)
{
	const char *text = getenv("WIMM_TEST_SCALE");
	unsigned long scale = text ? strtoul(text, NULL, 10) : 1;

	if (scale < 1)
		return 1;
	return scale > 1000 ? 1000 : (unsigned)scale;
}

void test_talk(int fd, const void *out, void *in, size_t bytes)
{
	if (out != NULL)
		assert_int_equal(write(fd, out, bytes), (ssize_t)bytes);
	if (in != NULL)
		for (size_t at = 0; at < bytes;) {
			ssize_t got = read(fd, (char *)in + at, bytes - at);

			assert_true(got > 0);
			at += (size_t)got;
		}
}
