/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

/* One function a subcommand; argv[0] is "wimm NAME". Returns the exit status. */
int info_main(int argc, char **argv);
int perf_main(int argc, char **argv);
int kv_main(int argc, char **argv);
int kv_bench_main(int argc, char **argv);
int check_main(int argc, char **argv);

#endif
