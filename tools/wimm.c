/* SPDX-License-Identifier: Apache-2.0 */
/* The command `wimm`: finds the subcommand. */
#include "commands.h"

#include "lib/launch.h"
#include "lib/util.h"

#include <wimm/status.h>

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *help;
} commands[] = {
	{ "info", info_main, "this machine: providers, NICs, limits, settings" },
	{ "perf", perf_main, "measure and check write, paged, scatter, barrier, send" },
	{ "check", check_main, "every pair of NICs of two sides: reached, bytes readable, slow" },
	{ "kv", kv_main, "move the K/V cache of a model's shape" },
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *out)
{
	(void)fprintf(out, "Usage: wimm COMMAND [OPTION...]\n\n");
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		(void)fprintf(out, "  wimm %-6s %s\n", commands[i].name, commands[i].help);
	(void)fprintf(out, "\n\"wimm COMMAND --help\" lists the options; wimm(1) explains them.\n");
}

/* --num_iter is --num-iter to us, so that nixlbench's spelling works. */
static void dash_names(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (strncmp(argv[i], "--", 2) != 0)
			continue;
		for (char *at = argv[i]; *at != '\0' && *at != '='; at++)
			*at = *at == '_' ? '-' : *at;
	}
}

/* A stream that was closed would give its number to a connection, and what is printed would go
 * there. Held so that writing to it fails, which flush_output() tells. */
static void hold_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		(void)close(fd);
}

/* Results that did not get out are none. */
static int flush_output(int status)
{
	if (fflush(stdout) != 0 || ferror(stdout))
		die("writing the results: %s", strerror(errno));
	return status;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	char program[32];

	hold_streams();
	argp_err_exit_status = STATUS_USAGE;
	if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
		usage(stdout);
		return flush_output(0);
	}
	if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
		printf("wimm %s\n", WIMM_VERSION_STRING);
		return flush_output(0);
	}
	if (strcmp(name, "target") == 0)
		return launch_target_main(argc - 1, argv + 1);
	for (size_t i = 0; i < COMMAND_COUNT; i++) {
		if (strcmp(name, commands[i].name) != 0)
			continue;
		(void)snprintf(program, sizeof(program), "wimm %s", name);
		argv[1] = program;
		dash_names(argc - 1, argv + 1);
		return flush_output(commands[i].main(argc - 1, argv + 1));
	}
	if (argc > 1)
		(void)fprintf(stderr, "wimm: there is no command \"%s\"\n\n", name);
	usage(stderr);
	return STATUS_USAGE;
}
