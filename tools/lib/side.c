/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/side.h"

#include "lib/util.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPIN_NS  50000u /* in caller-driven mode, before sleeping */
#define SLEEP_MS 10     /* and how long at most: timers of the engine want their turn */
#define TICK_MS  200

/* --- memory --- */

static void *map_bytes(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no memory for a buffer of %" PRIu64 " bytes (--buffer): %s", bytes,
		    strerror(errno));
	return p;
}

static uint64_t src_bytes(const struct side *s)
{
	uint64_t bytes = s->blocks * s->spec->block_bytes;

	return bytes != 0 ? bytes : 1;
}

static uint64_t dst_bytes(const struct side *s)
{
	return src_bytes(s) + 2 * (uint64_t)SIDE_GUARD_BYTES;
}

/* A fixed permutation, the same on both sides: swap each place with a random earlier one. */
static void shuffle(uint32_t *list, uint64_t count, uint64_t seed)
{
	uint64_t x = seed * 2 + 1;

	for (uint64_t i = 1; i < count; i++) {
		uint64_t k;
		uint32_t t;

		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		k = (x >> 33) % (i + 1);
		t = list[i];
		list[i] = list[k];
		list[k] = t;
	}
}

static void make_memory(struct side *s)
{
	const struct spec *spec = s->spec;

	s->blocks = spec_slots(spec) * spec->batch;
	if (spec->block_bytes == 0)
		s->blocks = spec->batch;
	s->src = map_bytes(src_bytes(s));
	memset(s->src, 0x5a, src_bytes(s));
	s->dst = (uint8_t *)map_bytes(dst_bytes(s)) + SIDE_GUARD_BYTES;
	memset(s->dst - SIDE_GUARD_BYTES, 0xa5, dst_bytes(s));
	s->in_order = must_alloc(s->blocks, sizeof(*s->in_order));
	s->to_block = must_alloc(s->blocks, sizeof(*s->to_block));
	for (uint64_t i = 0; i < s->blocks; i++) {
		s->in_order[i] = (uint32_t)i;
		s->to_block[i] = (uint32_t)i;
	}
	if (spec->shuffle)
		shuffle(s->to_block, s->blocks, spec->seed);
}

/* --- engine --- */

static void on_peer(void *context, const struct wimm_peer_event *event)
{
	struct side *s = context;

	if (event->kind != WIMM_PEER_DOWN || atomic_load(&s->lost) != 0)
		return;
	(void)snprintf(s->lost_text, sizeof(s->lost_text), "%s (%s)", event->text,
	               wimm_status_name(event->cause));
	atomic_store(&s->lost, 1);
	side_wake(s);
}

static void open_engine(struct side *s, const char *nics)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine_stats stats = WIMM_ENGINE_STATS_INIT;

	opts.provider = s->spec->provider[0] != '\0' ? s->spec->provider : NULL;
	opts.nics = nics;
	opts.progress = s->spec->caller ? WIMM_PROGRESS_CALLER : WIMM_PROGRESS_THREADS;
	opts.on_peer_event = on_peer;
	opts.context = s;
	must(wimm_engine_open(&opts, &s->engine), "opening the engine");
	must(wimm_engine_get_stats(s->engine, &stats), "statistics");
	s->nics = stats.nics;
}

void side_open(struct side *s, const struct spec *spec, const char *nics, struct channel *channel)
{
	*s = (struct side){ .spec = spec, .channel = channel };
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->wake_fd < 0)
		die("eventfd: %s", strerror(errno));
	make_memory(s);
	open_engine(s, nics);
	must(wimm_reg_mr(s->engine, s->src, src_bytes(s), NULL, &s->src_mr),
	     "registering the source");
	must(wimm_reg_mr(s->engine, s->dst - SIDE_GUARD_BYTES, dst_bytes(s), NULL, &s->dst_mr),
	     "registering the destination");
}

void side_close(struct side *s)
{
	if (s->remote != NULL)
		must(wimm_close_remote_mr(s->engine, s->remote), "closing the remote region");
	must(wimm_engine_close(&s->engine), "closing the engine");
	(void)munmap(s->src, src_bytes(s));
	(void)munmap(s->dst - SIDE_GUARD_BYTES, dst_bytes(s));
	free(s->in_order);
	free(s->to_block);
	(void)close(s->wake_fd);
}

void side_tell(struct side *s, cJSON *message)
{
	struct wimm_mr_desc desc;
	char hex[2 * WIMM_MR_DESC_MAX_BYTES + 1];

	must(wimm_mr_get_desc(s->dst_mr, &desc), "describing the destination");
	hex_encode(desc.bytes, desc.len_bytes, hex);
	if (cJSON_AddStringToObject(message, "region", hex) == NULL ||
	    cJSON_AddNumberToObject(message, "nics", s->nics) == NULL)
		die("out of memory");
}

void side_hear(struct side *s, const cJSON *message)
{
	struct wimm_mr_desc desc;
	size_t len;

	if (!hex_decode(member_text(message, "region"), desc.bytes, sizeof(desc.bytes), &len))
		die("the other side's region is no hexadecimal text");
	desc.len_bytes = (uint32_t)len;
	must(wimm_open_remote_mr(s->engine, &desc, &s->remote), "the other side's region");
	if (wimm_remote_mr_len_bytes(s->remote) != dst_bytes(s))
		die("the other side's region has %" PRIu64 " bytes, not %" PRIu64,
		    wimm_remote_mr_len_bytes(s->remote), dst_bytes(s));
	s->remote_nics = (uint32_t)member_u64(message, "nics", 1, WIMM_MAX_NICS);
}

/* --- waiting --- */

void side_wake(struct side *s)
{
	const uint64_t one = 1;

	/* A full counter is readable all the same. */
	if (write(s->wake_fd, &one, sizeof(one)) != sizeof(one))
		return;
}

/* Caller-driven: run the engine until it is quiet for a while. False: done() said yes. */
static bool drive(struct side *s, bool (*done)(void *arg), void *arg)
{
	uint64_t quiet_since = 0;

	for (;;) {
		int busy;
		uint64_t now;

		must(wimm_progress(s->engine, &busy), "progress");
		if (done(arg))
			return false;
		if (busy != 0) {
			quiet_since = 0;
			continue;
		}
		now = now_ns();
		if (quiet_since == 0)
			quiet_since = now;
		if (now - quiet_since > SPIN_NS)
			return true;
	}
}

/* Sleep until something may have changed. Returns whether the channel has something to say. */
static bool sleep_on(struct side *s)
{
	struct pollfd pfd[2] = { { .fd = s->channel->fd, .events = POLLIN },
		                 { .fd = s->wake_fd, .events = POLLIN } };
	uint64_t count;

	if (s->spec->caller) {
		must(wimm_progress_wait(s->engine, 0), "progress");
		pfd[1].fd = wimm_progress_fd(s->engine);
	}
	if (poll(pfd, 2, s->spec->caller ? SLEEP_MS : TICK_MS) < 0 && errno != EINTR)
		die("poll: %s", strerror(errno));
	if (!s->spec->caller && read(s->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		die("eventfd: %s", strerror(errno));
	return (pfd[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
}

bool side_wait(struct side *s, bool (*done)(void *arg), uint64_t (*progress)(void *arg), void *arg)
{
	uint64_t seen = progress(arg);
	uint64_t since = now_ns();

	for (;;) {
		/* What the peer said before it went is heard before its loss counts. */
		bool lost = atomic_load(&s->lost) != 0;
		bool said;

		if (done(arg) || (s->spec->caller && !drive(s, done, arg)))
			return true;
		said = sleep_on(s);
		if (done(arg))
			return true;
		if (said)
			return false;
		if (lost)
			die("the peer was lost: %s", s->lost_text);
		if (progress(arg) != seen) {
			seen = progress(arg);
			since = now_ns();
		} else if (now_ns() - since > SIDE_MAX_WAIT_S * UINT64_C(1000000000)) {
			die("nothing has moved for %u s; given up", SIDE_MAX_WAIT_S);
		}
	}
}
