/* SPDX-License-Identifier: Apache-2.0 */
#include "duo.h"

#include "plat/clock.h"
#include "plat/thread.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct prov_ops *const ops = &prov_host_ops;

bool duo_fail(struct duo_side *s, const char *what)
{
	if (s->shared->text[0] == '\0')
		(void)snprintf(s->shared->text, sizeof(s->shared->text), "%s", what);
	return false;
}

static void count(struct duo_side *s, const struct prov_cqe *cqe)
{
	switch (cqe->kind) {
	case PROV_PATH_UP:
		s->up = true;
		break;
	case PROV_PATH_DOWN:
		s->down = true;
		s->down_status = cqe->status;
		(void)duo_fail(s, cqe->text);
		break;
	case PROV_IMM:
		atomic_fetch_add(&s->shared->imms[cqe->imm % 4], cqe->count);
		break;
	case PROV_DONE:
		if (cqe->status == WIMM_OK)
			s->done_ok += cqe->count;
		if (cqe->status == WIMM_E_CANCELLED) {
			s->cancelled += cqe->count;
			s->cancelled_sent += cqe->flags & PROV_CQE_SENT ? cqe->count : 0;
			s->reading += cqe->flags & PROV_CQE_READING ? cqe->count : 0;
		}
		break;
	default:
		break;
	}
}

void duo_turn(struct duo_side *s)
{
	struct prov_cqe cqes[64];
	uint32_t n = ops->poll(s->dev, clock_now_ns(), cqes, 64);

	for (uint32_t i = 0; i < n; i++)
		count(s, &cqes[i]);
	if (n == 0)
		plat_thread_yield();
}

/* Tell how far we are and wait until the other is as far. */
static bool meet(struct duo_side *s, uint32_t who, uint32_t step)
{
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;

	atomic_store(&s->shared->step[who], step);
	while (atomic_load(&s->shared->step[1 - who]) < step) {
		if (clock_now_ns() > deadline)
			return duo_fail(s, "the other process does not come");
		plat_thread_yield();
	}
	return true;
}

static bool join(struct duo_side *s, uint32_t who)
{
	struct prov_args args = { .nic = "any", .max_regions = 4 };
	uint64_t deadline = clock_now_ns() + TEST_DEADLINE_MS * CLOCK_NS_PER_MS;
	struct prov_error error = { 0 };
	struct prov_caps caps;

	if (ops->open(&args, &caps, &s->dev, &error) != WIMM_OK)
		return duo_fail(s, error.text);
	s->mem = aligned_alloc(4096, DUO_MEM_BYTES);
	memset(s->mem, who == 0 ? 1 : 2, DUO_MEM_BYTES);
	if (who == 1) {
		s->shared->mem_addr = (uint64_t)(uintptr_t)s->mem;
		if (ops->reg(s->dev, s->mem, DUO_MEM_BYTES, PROV_REG_REMOTE, UINT64_C(7) << 32,
		             &s->shared->key, &error) != WIMM_OK)
			return duo_fail(s, error.text);
	}
	ops->addr(s->dev, &s->shared->addr[who]);
	if (!meet(s, who, 1))
		return false;
	s->path = ops->path_open(s->dev, &s->shared->addr[1 - who], who == 0, s,
	                         &s->shared->offer[who], &(struct prov_error){ 0 });
	if (!meet(s, who, 2))
		return false;
	ops->path_connect(s->path, &s->shared->offer[1 - who]);
	while (!s->up && !s->down) {
		if (clock_now_ns() > deadline)
			return duo_fail(s, "the path does not come up");
		duo_turn(s);
	}
	return s->up;
}

static bool refused(struct duo_side *s, uint32_t who)
{
	if (join(s, who))
		return duo_fail(s, "the path has come up");
	return s->down && s->down_status == WIMM_E_PEER_REFUSED;
}

static bool be_a(const struct duo *duo, struct duo_side *s)
{
	if (duo->before_a && !duo->before_a(s))
		return false;
	if (duo->refused)
		return refused(s, 0);
	return join(s, 0) && duo->act_a(s);
}

static bool be_b(const struct duo *duo, struct duo_side *s)
{
	atomic_store(&s->shared->pid_b, getpid());
	if (duo->before_b && !duo->before_b(s))
		return false;
	if (duo->refused)
		return refused(s, 1);
	if (!join(s, 1))
		return false;
	while (!atomic_load(&s->shared->over)) {
		struct host_rx *rx = &((struct host_path *)s->path)->rx;

		duo_turn(s);
		atomic_store(&s->shared->fetched, rx->done < rx->count ? rx->off : 0);
	}
	return !duo->end_b || duo->end_b(s);
}

static pid_t start(const struct duo *duo, struct duo_shared *shared, bool b)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		struct duo_side s = { .shared = shared };

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit((b ? be_b(duo, &s) : be_a(duo, &s)) ? 0 : 1);
	}
	return child;
}

void duo_run(const struct duo *duo)
{
	struct duo_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
	                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status_a = -1;
	int status_b = -1;
	pid_t a;
	pid_t b;

	assert_ptr_not_equal(shared, MAP_FAILED);
	a = start(duo, shared, false);
	if (duo->b_in_pid_namespace) {
		/* Its first child is the first process there; ours stays where it is. */
		b = fork();
		if (b == 0) {
			int status = 1;

			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (unshare(CLONE_NEWPID) == 0)
				(void)waitpid(start(duo, shared, true), &status, 0);
			else
				(void)snprintf(shared->text, sizeof(shared->text), "unshare");
			_exit(status != 0);
		}
	} else {
		b = start(duo, shared, true);
	}
	assert_int_equal(waitpid(a, &status_a, 0), a);
	atomic_store(&shared->over, 1);
	assert_int_equal(waitpid(b, &status_b, 0), b);
	if (status_a != 0 || status_b != 0)
		fail_msg("a %#x b %#x: %s", status_a, status_b, shared->text);
	(void)munmap(shared, sizeof(*shared));
}

struct prov_wr duo_wr(const struct duo_side *s, uint64_t token, uint64_t off, uint64_t len,
                      uint32_t imm)
{
	return (struct prov_wr){
		.token = token,
		.src = s->mem + off,
		.len_bytes = len,
		.remote_addr = s->shared->mem_addr + off,
		.remote_key = s->shared->key,
		.imm = imm,
		.flags = PROV_WR_IMM,
	};
}
