/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "mem/memfd.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 3 * 4096 };

static void memfd_made_one_passes_the_check_and_cannot_change(void **state)
{
	/* Goal: what we make is what we accept, and nobody can pull it away. */
	void *a;
	void *b;
	int code;
	int fd;

	(void)state;
	assert_ok(memfd_make("test", BYTES, &fd, &code));
	assert_ok(memfd_check(fd, BYTES));
	assert_int_equal(memfd_check(fd, BYTES + 4096), WIMM_E_PROTOCOL);
	assert_int_not_equal(ftruncate(fd, 4096), 0);
	assert_int_not_equal(ftruncate(fd, 2 * BYTES), 0);
	assert_ok(memfd_map(fd, BYTES, &a));
	assert_ok(memfd_map(fd, BYTES, &b));
	memset(a, 7, BYTES);
	assert_int_equal(((const unsigned char *)b)[BYTES - 1], 7);
	memfd_unmap(a, BYTES);
	memfd_unmap(b, BYTES);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	(void)close(fd);
}

static void memfd_foreign_descriptors_are_refused(void **state)
{
	/* Goal: whatever else a peer may pass is refused: unsealed, unwritable, a file, a pipe. */
	int pipes[2];
	int fd;

	(void)state;
	fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_ok(ftruncate(fd, BYTES));
	assert_int_equal(memfd_check(fd, BYTES), WIMM_E_PROTOCOL);
	assert_ok(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	assert_int_equal(memfd_check(fd, BYTES), WIMM_E_PROTOCOL);
	assert_ok(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL));
	assert_int_equal(memfd_check(fd, BYTES), WIMM_E_PROTOCOL);
	(void)close(fd);
	fd = open(test_file("plain", "text"), O_RDWR | O_CLOEXEC);
	assert_int_equal(memfd_check(fd, 4), WIMM_E_PROTOCOL);
	(void)close(fd);
	assert_ok(pipe(pipes));
	assert_int_equal(memfd_check(pipes[0], 0), WIMM_E_PROTOCOL);
	(void)close(pipes[0]);
	(void)close(pipes[1]);
	assert_int_equal(memfd_check(-1, 0), WIMM_E_PROTOCOL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memfd_made_one_passes_the_check_and_cannot_change),
		cmocka_unit_test(memfd_foreign_descriptors_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
