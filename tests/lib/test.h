/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LIB_TEST_H
#define TESTS_LIB_TEST_H

/* What every cmocka test includes first: cmocka needs these four before itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif

/* How long a test waits for something that ought to happen: only a hang takes that long. */
#define TEST_DEADLINE_MS (TEST_SANITIZED ? 90000u : 30000u)

/* Waits until `cond` holds, letting others run in between; false at the deadline. */
bool test_wait_until(bool (*cond)(void *arg), void *arg, unsigned deadline_ms);

/* A new empty folder below $TMPDIR or /tmp; removed with its files at exit of the process. */
const char *test_dir(void);
/* Path of a file in test_dir(), in a static buffer, written with `text` when that is not NULL. */
const char *test_file(const char *name, const char *text);

/* Random seed of a test: $WIMM_SEED if set, else `fallback`; printed, so that a run can repeat. */
uint64_t test_seed(uint64_t fallback);

/* Factor for loop counts: $WIMM_TEST_SCALE (1..1000), 1 if unset. */
unsigned test_scale(void);

/* Ends the present case as skipped; the summary of a run lists skips by this reason. A program
 * that cannot run any case prints "skipped: <reason>" itself and returns TEST_SKIPPED. */
#define test_skip(reason)                                                                          \
	do {                                                                                       \
		print_message("skipped: %s\n", (reason));                                          \
		skip();                                                                            \
	} while (0)
#define TEST_SKIPPED 77

/* Write `bytes` to a pipe, then read as many, each if it is not NULL. A failure fails the case. */
void test_talk(int fd, const void *out, void *in, size_t bytes);

#define assert_ok(expr) assert_int_equal((expr), 0)

#endif
