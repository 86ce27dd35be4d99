/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"

static void assert_that_holds_evaluates_once(void **state)
{
	/* Goal: ASSERT may wrap a call that must happen, in release too. */
	int calls = 0;

	(void)state;
	ASSERT(++calls == 1);
	assert_int_equal(calls, 1);
	DASSERT(calls == 1);
}

static void assert_that_breaks_aborts_and_names_the_condition(void **state)
{
	/* Goal: the process ends by SIGABRT and stderr has condition and file. */
	char text[512];
	size_t len = 0;
	int status;
	int fds[2];
	pid_t pid;

	(void)state;
	assert_ok(pipe(fds));
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		ASSERT(pid != 0);
		_exit(0);
	}
	close(fds[1]);
	for (;;) {
		ssize_t got = read(fds[0], text + len, sizeof(text) - 1 - len);

		if (got <= 0)
			break;
		len += (size_t)got;
	}
	text[len] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "pid != 0"));
	assert_non_null(strstr(text, "assert_test.c"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(assert_that_holds_evaluates_once),
		cmocka_unit_test(assert_that_breaks_aborts_and_names_the_condition),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
