/* SPDX-License-Identifier: Apache-2.0 */
/* The other side of a puppet: a process that carries out orders. It knows nothing of cmocka. */
#include "faults/order.h"

#include "base/alloc.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define REMOTES_MAX 16

static struct {
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	uint8_t *mem;
	uint64_t bytes;
	struct {
		struct wimm_mr_desc desc;
		struct wimm_remote_mr *mr;
	} remote[REMOTES_MAX];
	uint32_t remotes;
	/* Guarded by lock. */
	pthread_mutex_t lock;
	struct puppet_tally tally;
	uint64_t events[8];
} me = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void on_event(void *context, const struct wimm_peer_event *event)
{
	(void)context;
	pthread_mutex_lock(&me.lock);
	me.events[event->kind & 7]++;
	pthread_mutex_unlock(&me.lock);
}

static void on_done(void *context, const struct wimm_done *done)
{
	(void)context;
	pthread_mutex_lock(&me.lock);
	if (done->status == WIMM_OK) {
		me.tally.done++;
	} else {
		me.tally.failed++;
		me.tally.last_status = done->status;
		snprintf(me.tally.text, sizeof(me.tally.text), "%s", done->text);
	}
	pthread_mutex_unlock(&me.lock);
}

/* Descriptors beyond the three of every process, the link, the memory and the folder read. */
static uint32_t extra_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t n = 0;

	for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
		int fd = atoi(e->d_name);

		n += e->d_name[0] != '.' && fd > 2 && fd != PUPPET_LINK_FD &&
		     fd != PUPPET_MEM_FD && fd != dirfd(dir);
	}
	if (dir != NULL)
		closedir(dir);
	return n;
}

static wimm_status map_region(const struct order *o)
{
	int fixed = o->a != 0 ? MAP_FIXED_NOREPLACE : 0;

	me.bytes = o->b;
	if (me.bytes == 0)
		return WIMM_OK;
	me.mem = mmap((void *)(uintptr_t)o->a, me.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed,
	              PUPPET_MEM_FD, 0);
	return me.mem == MAP_FAILED ? WIMM_E_NOMEM : WIMM_OK;
}

static wimm_status register_region(struct answer *a)
{
	wimm_status st;

	if (me.bytes == 0)
		return WIMM_OK;
	st = wimm_reg_mr(me.engine, me.mem, me.bytes, NULL, &me.mr);
	return st == WIMM_OK ? wimm_mr_get_desc(me.mr, &a->desc) : st;
}

static wimm_status do_open(const struct order *o, struct answer *a)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	wimm_status st;

	a->a = extra_descriptors();
	opts.provider = o->provider;
	opts.nics = o->text;
	opts.heartbeat_ms = (uint32_t)o->c;
	opts.peer_timeout_ms = (uint32_t)o->d;
	opts.on_peer_event = on_event;
	opts.progress = o->flags != 0 ? WIMM_PROGRESS_CALLER : WIMM_PROGRESS_THREADS;
	opts.max_ops = 4096;
	st = wimm_engine_open(&opts, &me.engine);
	if (st == WIMM_OK)
		st = map_region(o);
	if (st == WIMM_OK)
		st = wimm_main_address(me.engine, &a->addr);
	return st == WIMM_OK ? register_region(a) : st;
}

static bool is_up(void *arg)
{
	struct wimm_engine_stats s = WIMM_ENGINE_STATS_INIT;

	(void)arg;
	return wimm_engine_get_stats(me.engine, &s) == WIMM_OK && s.peers_up != 0;
}

static wimm_status do_connect(const struct order *o)
{
	wimm_peer peer;
	wimm_status st = wimm_add_peer(me.engine, &o->addr, NULL, &peer);

	if (st == WIMM_OK && !test_wait_until(is_up, NULL, TEST_DEADLINE_MS))
		st = WIMM_E_TIMEOUT;
	return st;
}

/* The handle of a descriptor, opened when it is first named. */
static wimm_status remote_get(const struct wimm_mr_desc *desc, struct wimm_remote_mr **out)
{
	wimm_status st;

	for (uint32_t i = 0; i < me.remotes; i++) {
		if (me.remote[i].desc.len_bytes == desc->len_bytes &&
		    memcmp(me.remote[i].desc.bytes, desc->bytes, desc->len_bytes) == 0) {
			*out = me.remote[i].mr;
			return WIMM_OK;
		}
	}
	if (me.remotes == REMOTES_MAX)
		return WIMM_E_LIMIT;
	st = wimm_open_remote_mr(me.engine, desc, out);
	if (st != WIMM_OK)
		return st;
	me.remote[me.remotes].desc = *desc;
	me.remote[me.remotes++].mr = *out;
	return WIMM_OK;
}

static wimm_status do_write(const struct order *o)
{
	const struct wimm_on_done done = { .fn = on_done };
	struct wimm_write w = WIMM_WRITE_INIT;
	struct wimm_remote_mr *to;
	wimm_status st = remote_get(&o->desc, &to);

	if (st != WIMM_OK)
		return st;
	w.flags = o->write.flags;
	w.imm = o->write.imm;
	w.src = me.mr;
	w.dst = to;
	w.src_offset_bytes = o->write.src_offset;
	w.dst_offset_bytes = o->write.dst_offset;
	w.len_bytes = o->write.len_bytes;
	w.deadline_us = o->write.deadline_us;
	for (uint64_t i = 0; i < (o->write.count != 0 ? o->write.count : 1); i++) {
		st = wimm_submit_single_write(me.engine, &w, &done, NULL);
		pthread_mutex_lock(&me.lock);
		if (st == WIMM_OK) {
			me.tally.submitted++;
		} else {
			me.tally.refused++;
			me.tally.last_status = st;
			snprintf(me.tally.text, sizeof(me.tally.text), "%s",
			         wimm_last_error_text());
		}
		pthread_mutex_unlock(&me.lock);
		w.dst_offset_bytes += o->write.dst_step;
	}
	return WIMM_OK;
}

static bool flag_is_set(void *flag)
{
	return wimm_flag_load(flag) != 0;
}

static wimm_status do_reregister(struct answer *a)
{
	uint64_t flag = 0;
	struct wimm_on_done done = { .flag = &flag };
	wimm_status st = wimm_dereg_mr(me.engine, me.mr, &done);

	if (st != WIMM_OK)
		return st;
	if (!test_wait_until(flag_is_set, &flag, TEST_DEADLINE_MS))
		return WIMM_E_TIMEOUT;
	return register_region(a);
}

/* The limit counts numbers: those free below the highest one in use are filled first. */
static wimm_status do_limit_fds(uint32_t more)
{
	struct rlimit limit = { PUPPET_MEM_FD + 1 + more, PUPPET_MEM_FD + 1 + more };
	int fd;

	do {
		fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	} while (fd >= 0 && fd < PUPPET_MEM_FD);
	if (fd >= 0)
		close(fd);
	return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? WIMM_OK : WIMM_E_SYSTEM;
}

static void carry_out(const struct order *o, struct answer *a)
{
	switch (o->kind) {
	case ORDER_OPEN:
		a->status = do_open(o, a);
		break;
	case ORDER_CONNECT:
		a->status = do_connect(o);
		break;
	case ORDER_WRITE:
		a->status = do_write(o);
		break;
	case ORDER_TALLY:
		pthread_mutex_lock(&me.lock);
		a->tally = me.tally;
		pthread_mutex_unlock(&me.lock);
		break;
	case ORDER_IMM:
		a->status = wimm_poll_imm(me.engine, o->imm, &a->a);
		break;
	case ORDER_EVENTS:
		pthread_mutex_lock(&me.lock);
		a->a = me.events[o->imm & 7];
		pthread_mutex_unlock(&me.lock);
		break;
	case ORDER_REREGISTER:
		a->status = do_reregister(a);
		break;
	case ORDER_LIMIT_FDS:
		a->status = do_limit_fds((uint32_t)o->a);
		break;
	case ORDER_END:
	case ORDER_LEAVE:
		break;
	}
	if (a->status != WIMM_OK)
		snprintf(a->text, sizeof(a->text), "%s", wimm_last_error_text());
}

/* Close everything; 0 when nothing is left over. */
static int end(void)
{
	if (wimm_engine_close(&me.engine) != WIMM_OK)
		return 3;
	if (me.tally.submitted != me.tally.done + me.tally.failed) {
		fprintf(stderr, "%llu operations accepted, %llu settled\n",
		        (unsigned long long)me.tally.submitted,
		        (unsigned long long)(me.tally.done + me.tally.failed));
		return 4;
	}
	if (mem_live_blocks() != 0) {
		fprintf(stderr, "%llu blocks leaked\n", (unsigned long long)mem_live_blocks());
		return 5;
	}
	return 0;
}

int puppet_main(int argc, char **argv)
{
	struct order o;

	if (argc < 2 || strcmp(argv[1], PUPPET_ARG) != 0)
		return -1;
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* no puppet without its test */
	for (;;) {
		struct answer a = { .status = WIMM_OK };

		if (recv(PUPPET_LINK_FD, &o, sizeof(o), 0) != sizeof(o))
			_exit(2);
		if (o.kind == ORDER_LEAVE)
			_exit(0);
		if (o.kind == ORDER_END)
			return end();
		carry_out(&o, &a);
		if (send(PUPPET_LINK_FD, &a, sizeof(a), MSG_NOSIGNAL) != sizeof(a))
			_exit(2);
	}
}
