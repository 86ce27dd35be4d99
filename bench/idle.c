/* SPDX-License-Identifier: Apache-2.0 */

/* CPU time of an idle engine with connected peers, over some seconds.
 *
 *   idle [--peers 10] [--seconds 10] [--json]
 *
 * The peers are engines of a child process; only the parent's one engine is measured, with its
 * threads: all of what it does is heartbeats. */

#include "must.h"
#include "util.h"

#include <wimm/engine.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEERS_MAX = 64, CONNECT_WAIT_MS = 20000 };

static struct wimm_engine *open_engine(void)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine;

	opts.provider = "tcp";
	opts.nics = "127.0.0.1:0";
	must(wimm_engine_open(&opts, &engine), "open");
	return engine;
}

/* The child: writes its engines' addresses, then waits for the other end to close. */
static void be_peers(int out, int stop, uint32_t count)
{
	struct wimm_engine *engine[PEERS_MAX];
	char byte;

	for (uint32_t i = 0; i < count; i++) {
		struct wimm_net_addr addr = { 0 };

		engine[i] = open_engine();
		must(wimm_main_address(engine[i], &addr), "address");
		if (write(out, &addr, sizeof(addr)) != sizeof(addr))
			bench_die("write");
	}
	while (read(stop, &byte, 1) > 0)
		;
	for (uint32_t i = 0; i < count; i++)
		must(wimm_engine_close(&engine[i]), "close");
}

static void connect_all(struct wimm_engine *engine, int in, uint32_t count)
{
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;
	int waited_ms = 0;

	for (uint32_t i = 0; i < count; i++) {
		struct wimm_net_addr addr;
		wimm_peer peer;

		if (read(in, &addr, sizeof(addr)) != sizeof(addr))
			bench_die("read");
		must(wimm_add_peer(engine, &addr, NULL, &peer), "add_peer");
	}
	do {
		must(wimm_engine_get_stats(engine, &stats), "stats");
		(void)poll(NULL, 0, 10);
		waited_ms += 10;
	} while (stats.peers_up < count && waited_ms < CONNECT_WAIT_MS);
	if (stats.peers_up < count) {
		(void)fprintf(stderr, "%" PRIu32 " of %" PRIu32 " peers are connected\n",
		              stats.peers_up, count);
		exit(1);
	}
}

static void measure(struct wimm_engine *engine, uint32_t peers, uint32_t seconds, bool json)
{
	struct wimm_engine_stats before = WIMM_ENGINE_STATS_INIT;
	struct wimm_engine_stats after = WIMM_ENGINE_STATS_INIT;
	double cpu;
	double wall;

	(void)poll(NULL, 0, 1000); /* what connecting left behind */
	must(wimm_engine_get_stats(engine, &before), "stats");
	cpu = bench_cpu_s();
	wall = bench_now_s();
	(void)poll(NULL, 0, (int)seconds * 1000);
	cpu = bench_cpu_s() - cpu;
	wall = bench_now_s() - wall;
	must(wimm_engine_get_stats(engine, &after), "stats");
	if (after.peers_up != peers) {
		(void)fprintf(stderr, "a peer was lost in between\n");
		exit(1);
	}
	printf(json ? "{\"name\": \"idle\", \"peers\": %" PRIu32 ", \"seconds\": %.3f, \"cpu_s\": "
	              "%.6f, \"core_percent\": %.4f, \"worker_steps\": %" PRIu64 "}\n"
	            : "idle engine, %" PRIu32 " peers, %.1f s: %.6f s of CPU, %.4f %% of a core, "
	              "%" PRIu64 " turns of the worker\n",
	       peers, wall, cpu, cpu / wall * 100, after.worker_steps - before.worker_steps);
}

int main(int argc, char **argv)
{
	uint32_t peers = 10;
	uint32_t seconds = 10;
	bool json = false;
	struct wimm_engine *engine;
	int addrs[2];
	int stop[2];
	pid_t child;
	int status;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			json = true;
		else if (strcmp(argv[i], "--peers") == 0 && i + 1 < argc)
			peers = (uint32_t)bench_size(argv[++i]);
		else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
			seconds = (uint32_t)bench_size(argv[++i]);
		else
			return 2;
	}
	if (peers > PEERS_MAX || pipe(addrs) != 0 || pipe(stop) != 0)
		bench_die("pipe");
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		(void)close(stop[1]);
		be_peers(addrs[1], stop[0], peers);
		_exit(0);
	}
	(void)close(stop[0]);
	engine = open_engine();
	connect_all(engine, addrs[0], peers);
	measure(engine, peers, seconds, json);
	(void)close(stop[1]);
	must(wimm_engine_close(&engine), "close");
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("peers");
	return 0;
}
