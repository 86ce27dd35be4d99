/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/launch.h"

#include "lib/about.h"
#include "lib/ranks.h"
#include "lib/run.h"
#include "lib/util.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANK_WAIT_S 60u
#define DIAL_WAIT_S 3u

enum { KEY_LOCAL = 0x200, KEY_PROVIDER };

static const struct argp_option options[] = {
	{ "nics", 'd', "LIST|N", 0,
	  "local NICs with commas between; for tcp addresses, or interface names. With --local "
	  "a number takes so many loopback addresses",
	  10 },
	{ "device", 'd', NULL, OPTION_ALIAS, NULL, 10 },
	{ "device-list", 'd', NULL, OPTION_ALIAS, NULL, 10 },
	{ "local", KEY_LOCAL, NULL, 0, "start the target on this machine, too", 10 },
	{ "provider", KEY_PROVIDER, "NAME", 0, "tcp or sim; else the setting WIMM_PROVIDER", 10 },
	{ "port", 'p', "PORT", 0, "of the connection on which both sides agree; 18515", 10 },
	{ 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct launch *l = state->input;
	uint64_t port;

	switch (key) {
	case 'd':
		l->nics = arg;
		return 0;
	case KEY_LOCAL:
		l->local = true;
		return 0;
	case KEY_PROVIDER:
		l->provider = arg;
		/* Who names what moves the bytes wants to see that, not a short cut. */
		(void)setenv("WIMM_SAME_HOST", "off", 0);
		return 0;
	case 'p':
		if (!parse_u64(arg, 1, UINT16_MAX, &port))
			argp_error(state, "port \"%s\": 1 to 65535 is wanted", arg);
		l->port = (uint16_t)port;
		l->port_given = true;
		return 0;
	case ARGP_KEY_END:
		if (l->local && l->host != NULL)
			argp_error(state, "--local starts a target here; leave out \"%s\"",
			           l->host);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp launch_argp = { options, parse, NULL, NULL, NULL, NULL, NULL };

void launch_init(struct launch *l)
{
	*l = (struct launch){ .port = LAUNCH_PORT, .channel.fd = -1 };
}

void launch_provider(const struct launch *l, char *out, unsigned out_bytes)
{
	if (l->provider == NULL) {
		about_setting("provider", out, out_bytes);
		return;
	}
	if (strlen(l->provider) >= out_bytes)
		die("provider \"%s\": wimm info lists the names there are", l->provider);
	(void)snprintf(out, out_bytes, "%s", l->provider);
}

/* --- NICs --- */

static bool provider_is(const struct launch *l, const char *name)
{
	char provider[32];

	launch_provider(l, provider, sizeof(provider));
	return strcmp(provider, name) == 0;
}

/* One item of a list. A tcp address without a port gets any free one: the library would take the
 * well-known one, which a second process on this machine cannot have. */
static size_t add_nic(struct launch *l, size_t len, const char *item, size_t item_len)
{
	const char *colon = memchr(item, ':', item_len);
	bool more = colon != NULL && memchr(colon + 1, ':', item_len - (size_t)(colon + 1 - item));
	bool bracket = item_len != 0 && item[0] == '[';
	bool port = bracket ? item[item_len - 1] != ']' : colon != NULL && !more;
	int n;

	if (!provider_is(l, "tcp") || port)
		n = snprintf(l->nic_list + len, sizeof(l->nic_list) - len, "%s%.*s",
		             len != 0 ? "," : "", (int)item_len, item);
	else
		n = snprintf(l->nic_list + len, sizeof(l->nic_list) - len,
		             more && !bracket ? "%s[%.*s]:0" : "%s%.*s:0", len != 0 ? "," : "",
		             (int)item_len, item);
	len += (size_t)n;
	if (len >= sizeof(l->nic_list))
		die("--nics: a list of more than %zu bytes", sizeof(l->nic_list) - 1);
	return len;
}

static void copy_nics(struct launch *l)
{
	const char *at = l->nics;
	size_t len = 0;

	for (;;) {
		size_t item_len = strcspn(at, ",");

		if (item_len == 0) {
			(void)fprintf(stderr,
			              "wimm: --nics \"%s\": names with commas between are "
			              "wanted\n",
			              l->nics);
			exit(STATUS_USAGE);
		}
		len = add_nic(l, len, at, item_len);
		at += item_len;
		if (*at == '\0')
			return;
		at++;
	}
}

/* "2" becomes two loopback addresses, which only two sides on one machine can use. */
static void plan_nics(struct launch *l)
{
	uint64_t count = 0;
	size_t len = 0;

	if (l->nics != NULL && !parse_u64(l->nics, 0, UINT64_MAX, &count)) {
		copy_nics(l);
		return;
	}
	if (l->nics != NULL && (count == 0 || count > WIMM_MAX_NICS)) {
		(void)fprintf(stderr, "wimm: --nics %s: 1 to %d are wanted\n", l->nics,
		              WIMM_MAX_NICS);
		exit(STATUS_USAGE);
	}
	if (count != 0 && !l->local)
		die("--nics %s: a number goes with --local only; name the addresses or interfaces "
		    "(wimm info lists them)",
		    l->nics);
	if (!l->local)
		return;
	for (uint64_t i = 0; i < (count != 0 ? count : 1); i++) {
		char nic[32] = "any";

		if (provider_is(l, "tcp"))
			(void)snprintf(nic, sizeof(nic), "127.0.0.%u:0", (unsigned)i + 1);
		len += (size_t)snprintf(l->nic_list + len, sizeof(l->nic_list) - len, "%s%s",
		                        i != 0 ? "," : "", nic);
	}
}

const char *launch_nics(const struct launch *l)
{
	return l->nic_list[0] != '\0' ? l->nic_list : NULL;
}

/* --- a target of our own --- */

int launch_target_main(int argc, char **argv)
{
	struct channel channel;
	uint64_t fd;

	if (argc != 3 || !parse_u64(argv[1], 0, 1u << 20, &fd))
		die("this command is started by wimm itself");
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	channel_init(&channel, (int)fd, "the client");
	run_target(&channel, NULL, argv[2][0] != '\0' ? argv[2] : NULL, false);
	channel_close(&channel);
	return 0;
}

static void start_process(struct launch *l, int fd)
{
	char number[16];
	char *argv[] = { "wimm", "target", number, l->nic_list, NULL };

	(void)snprintf(number, sizeof(number), "%d", fd);
	(void)fflush(NULL);
	l->child = fork();
	if (l->child < 0)
		die("fork: %s", strerror(errno));
	if (l->child == 0) {
		(void)close(l->channel.fd);
		(void)execv("/proc/self/exe", argv);
		(void)fprintf(stderr, "wimm: starting the target: %s\n", strerror(errno));
		_exit(STATUS_FAILED);
	}
	(void)close(fd);
}

struct thread_args {
	int fd;
	char nic_list[512];
};

static void *target_thread(void *arg)
{
	struct thread_args *a = arg;
	struct channel channel;

	channel_init(&channel, a->fd, "the client");
	run_target(&channel, NULL, a->nic_list, true);
	channel_close(&channel);
	free(a);
	return NULL;
}

/* Simulated NICs meet inside one process only. */
static void start_thread(struct launch *l, int fd)
{
	struct thread_args *a = must_alloc(1, sizeof(*a));
	pthread_t thread;
	int code;

	a->fd = fd;
	(void)snprintf(a->nic_list, sizeof(a->nic_list), "%s", l->nic_list);
	code = pthread_create(&thread, NULL, target_thread, a);
	if (code != 0)
		die("starting the target: %s", strerror(code));
	(void)pthread_detach(thread);
}

static void start_local(struct launch *l)
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0)
		die("socketpair: %s", strerror(errno));
	l->client = true;
	l->shares_process = provider_is(l, "sim");
	(void)snprintf(l->target, sizeof(l->target), l->shares_process ? "thread" : "process");
	channel_init(&l->channel, fd[0], "the target");
	if (l->shares_process)
		start_thread(l, fd[1]);
	else
		start_process(l, fd[1]);
}

/* --- coming together --- */

static void serve(struct launch *l, uint32_t wait_s)
{
	channel_serve(&l->channel, l->port, wait_s, wait_s == 0);
	run_target(&l->channel, l->provider, launch_nics(l), false);
	channel_close(&l->channel);
}

static void dial(struct launch *l, const char *host, uint32_t wait_s)
{
	l->client = true;
	(void)snprintf(l->target, sizeof(l->target), "host %s", host);
	channel_dial(&l->channel, host, l->port, wait_s);
}

static void meet_rank(struct launch *l, const struct ranks *ranks)
{
	if (ranks->count != 2)
		die("%s has started %u processes: two are wanted, rank 0 the target and rank 1 the "
		    "client",
		    ranks->launcher, ranks->count);
	if (!l->port_given && ranks->port != 0)
		l->port = ranks->port;
	if (ranks->rank == 0) {
		serve(l, RANK_WAIT_S);
		return;
	}
	if (ranks->host[0] == '\0')
		die("%s does not say where rank 0 runs: set MASTER_ADDR to its host",
		    ranks->launcher);
	dial(l, ranks->host, RANK_WAIT_S);
}

bool launch_connect(struct launch *l)
{
	struct ranks ranks;

	plan_nics(l);
	if (!l->local && provider_is(l, "sim"))
		die("provider sim works inside one machine's process only: use --local");
	if (l->local)
		start_local(l);
	else if (l->host != NULL)
		dial(l, l->host, DIAL_WAIT_S);
	else if (ranks_find(&ranks))
		meet_rank(l, &ranks);
	else
		serve(l, 0);
	return l->client;
}

void launch_finish(struct launch *l)
{
	int status;

	run_goodbye(&l->channel);
	channel_close(&l->channel);
	if (l->child == 0)
		return;
	if (waitpid(l->child, &status, 0) != l->child || status != 0)
		die("the target process did not end well (status %d)", status);
}
