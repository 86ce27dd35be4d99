/* SPDX-License-Identifier: Apache-2.0 */
/* The test's side of a puppet: start, orders, signals. */
#include "faults/order.h"
#include "faults/puppet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PUPPETS_MAX 64

extern char **environ;

static struct puppet *puppets[PUPPETS_MAX]; /* of this case */

static void order_send(struct puppet *p, const struct order *o)
{
	assert_int_equal(send(p->link, o, sizeof(*o), MSG_NOSIGNAL), sizeof(*o));
}

static void answer_read(struct puppet *p, struct answer *a)
{
	struct pollfd pfd = { .fd = p->link, .events = POLLIN };

	if (poll(&pfd, 1, TEST_DEADLINE_MS) != 1)
		fail_msg("process %d does not answer", p->pid);
	if (recv(p->link, a, sizeof(*a), 0) != sizeof(*a))
		fail_msg("process %d is gone", p->pid);
	if (a->status != WIMM_OK)
		fail_msg("process %d: %s: %s", p->pid, wimm_status_name(a->status), a->text);
}

static void obey(struct puppet *p, const struct order *o, struct answer *a)
{
	order_send(p, o);
	answer_read(p, a);
}

static void spawn(struct puppet *p, int mem_fd)
{
	posix_spawn_file_actions_t actions;
	int pair[2];
	char link_text[16], mem_text[16];
	char *argv[] = { (char *)(uintptr_t)"puppet", (char *)(uintptr_t)PUPPET_ARG, link_text,
		         mem_text, NULL };

	assert_ok(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	/* Descriptors above what the library of the test has open, without their close-on-exec. */
	snprintf(link_text, sizeof(link_text), "%d", PUPPET_LINK_FD);
	snprintf(mem_text, sizeof(mem_text), "%d", mem_fd >= 0 ? PUPPET_MEM_FD : -1);
	assert_ok(posix_spawn_file_actions_init(&actions));
	assert_ok(posix_spawn_file_actions_adddup2(&actions, pair[1], PUPPET_LINK_FD));
	if (mem_fd >= 0)
		assert_ok(posix_spawn_file_actions_adddup2(&actions, mem_fd, PUPPET_MEM_FD));
	assert_ok(posix_spawn(&p->pid, "/proc/self/exe", &actions, NULL, argv, environ));
	posix_spawn_file_actions_destroy(&actions);
	close(pair[1]);
	p->link = pair[0];
}

static void open_there(struct puppet *p, const struct puppet_opts *opts)
{
	struct order o = { .kind = ORDER_OPEN };
	struct answer a;
	const struct wimm_engine_opts any = node_opts_nics(1);

	snprintf(o.text, sizeof(o.text), "%s", opts->nics != NULL ? opts->nics : any.nics);
	snprintf(o.provider, sizeof(o.provider), "%s", cfg.provider);
	o.a = (uint64_t)(uintptr_t)opts->at;
	o.b = opts->bytes;
	o.c = opts->heartbeat_ms;
	o.d = opts->peer_timeout_ms;
	o.flags = opts->driven;
	obey(p, &o, &a);
	p->addr = a.addr;
	p->desc = a.desc;
	p->extra_fds = (uint32_t)a.a;
}

static void start(struct puppet *p, const struct puppet_opts *opts, int mem_fd)
{
	spawn(p, mem_fd);
	open_there(p, opts);
}

static struct puppet *puppet_new(void)
{
	for (unsigned i = 0; i < PUPPETS_MAX; i++) {
		if (puppets[i] != NULL)
			continue;
		puppets[i] = calloc(1, sizeof(*puppets[i]));
		assert_non_null(puppets[i]);
		return puppets[i];
	}
	fail_msg("more than %d processes in one case", PUPPETS_MAX);
	return NULL;
}

struct puppet *puppet_start(const struct puppet_opts *opts)
{
	struct puppet *p = puppet_new();
	int fd = -1;

	p->bytes = opts->bytes;
	if (opts->bytes != 0) {
		fd = memfd_create("wimm-test", MFD_CLOEXEC);
		assert_true(fd >= 0);
		assert_ok(ftruncate(fd, (off_t)opts->bytes));
		p->mem = mmap(NULL, opts->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(p->mem, MAP_FAILED);
	}
	start(p, opts, fd);
	if (fd >= 0)
		close(fd);
	return p;
}

void puppet_nics(const struct puppet *p, char *out, size_t out_bytes)
{
	char text[WIMM_NET_ADDR_MAX_TEXT];
	char *from;

	assert_ok(wimm_net_addr_to_string(&p->addr, text, sizeof(text)));
	text[strcspn(text, "#")] = '\0';
	from = strchr(text, ':') + 1; /* behind the provider */
	snprintf(out, out_bytes, "%s", from);
}

void puppet_connect(struct puppet *p, const struct wimm_net_addr *to)
{
	struct order o = { .kind = ORDER_CONNECT, .addr = *to };
	struct answer a;

	obey(p, &o, &a);
}

void puppet_write(struct puppet *p, const struct wimm_mr_desc *to, const struct puppet_write *w)
{
	struct order o = { .kind = ORDER_WRITE, .desc = *to, .write = *w };
	struct answer a;

	obey(p, &o, &a);
}

void puppet_tally(struct puppet *p, struct puppet_tally *out)
{
	struct order o = { .kind = ORDER_TALLY };
	struct answer a;

	obey(p, &o, &a);
	*out = a.tally;
}

uint64_t puppet_imm(struct puppet *p, uint32_t imm)
{
	struct order o = { .kind = ORDER_IMM, .imm = imm };
	struct answer a;

	obey(p, &o, &a);
	return a.a;
}

uint32_t puppet_events(struct puppet *p, wimm_peer_event_kind kind)
{
	struct order o = { .kind = ORDER_EVENTS, .imm = (uint32_t)kind };
	struct answer a;

	obey(p, &o, &a);
	return (uint32_t)a.a;
}

void puppet_reregister_begin(struct puppet *p)
{
	struct order o = { .kind = ORDER_REREGISTER };

	order_send(p, &o);
}

void puppet_reregister_end(struct puppet *p)
{
	struct answer a;

	answer_read(p, &a);
	p->desc = a.desc;
}

void puppet_reregister(struct puppet *p)
{
	puppet_reregister_begin(p);
	puppet_reregister_end(p);
}

void puppet_limit_fds(struct puppet *p, uint32_t more)
{
	struct order o = { .kind = ORDER_LIMIT_FDS, .a = more };
	struct answer a;

	obey(p, &o, &a);
}

struct imm_goal {
	struct puppet *p;
	uint32_t imm;
	uint64_t count;
};

static bool imm_there(void *arg)
{
	struct imm_goal *g = arg;

	return puppet_imm(g->p, g->imm) >= g->count;
}

void puppet_imm_reaches(struct puppet *p, uint32_t imm, uint64_t count)
{
	struct imm_goal g = { p, imm, count };

	assert_wait(imm_there, &g);
	assert_int_equal(puppet_imm(p, imm), count);
}

struct settle_goal {
	struct puppet *p;
	uint64_t count;
	struct puppet_tally tally;
};

static bool settled(void *arg)
{
	struct settle_goal *g = arg;

	puppet_tally(g->p, &g->tally);
	return g->tally.done + g->tally.failed >= g->count;
}

void puppet_settled(struct puppet *p, uint64_t count, struct puppet_tally *out)
{
	struct settle_goal g = { .p = p, .count = count };

	assert_wait(settled, &g);
	*out = g.tally;
}

static int reap(struct puppet *p)
{
	int status = 0;

	while (waitpid(p->pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	p->pid = 0;
	close(p->link);
	return status;
}

void puppet_end(struct puppet *p)
{
	struct order o = { .kind = ORDER_END };
	int status;

	order_send(p, &o);
	status = reap(p);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("a process ended with status %#x", (unsigned)status);
}

void puppet_leave(struct puppet *p)
{
	struct order o = { .kind = ORDER_LEAVE };

	order_send(p, &o);
	(void)reap(p);
}

void puppet_kill(struct puppet *p)
{
	assert_ok(kill(p->pid, SIGKILL));
	(void)reap(p);
}

void puppet_stop(struct puppet *p)
{
	int status = 0;

	assert_ok(kill(p->pid, SIGSTOP));
	while (waitpid(p->pid, &status, WUNTRACED) < 0)
		assert_int_equal(errno, EINTR);
	assert_true(WIFSTOPPED(status));
}

void puppet_continue(struct puppet *p)
{
	assert_ok(kill(p->pid, SIGCONT));
}

static void puppet_free(struct puppet *p)
{
	if (p->pid != 0) {
		(void)kill(p->pid, SIGKILL);
		(void)reap(p);
	}
	if (p->mem != NULL && p->mem != MAP_FAILED)
		munmap(p->mem, p->bytes);
	free(p);
}

void puppet_done(struct puppet *p)
{
	for (unsigned i = 0; i < PUPPETS_MAX; i++)
		if (puppets[i] == p)
			puppets[i] = NULL;
	puppet_free(p);
}

void puppets_sweep(void)
{
	for (unsigned i = 0; i < PUPPETS_MAX; i++) {
		if (puppets[i] != NULL)
			puppet_free(puppets[i]);
		puppets[i] = NULL;
	}
}
