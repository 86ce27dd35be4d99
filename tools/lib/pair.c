/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/pair.h"

#include "lib/hist.h"
#include "lib/pattern.h"
#include "lib/util.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wimm/imm.h>
#include <wimm/transfer.h>

#define PROTOCOL 1

#define POISON 0xa5
#define ROUNDS 2
#define SLOTS  24u
#define GAP    64u
#define TAIL   (1u << 20) /* behind the slots, for the figures */
#define IMM    0x5eedu

#define SMALL_WRITES 200
#define LARGE_WRITES 32
#define ANSWER_S     90u
#define WRITE_US     30000000u /* deadline of a write */
#define LAST_COUNT_NS UINT64_C(2000000000)

static const uint32_t sizes[] = { 8, 64, 1000, 4096, 65536, 262144 };

static uint32_t slot_bytes(uint32_t i)
{
	return sizes[i % (sizeof(sizes) / sizeof(sizes[0]))];
}

static uint64_t slot_at(uint32_t i)
{
	uint64_t at = GAP;

	for (uint32_t k = 0; k < i; k++)
		at += slot_bytes(k) + GAP;
	return at;
}

static uint64_t region_bytes(void)
{
	return slot_at(SLOTS) + TAIL;
}

static void add_text(cJSON *m, const char *name, const char *text)
{
	if (cJSON_AddStringToObject(m, name, text) == NULL)
		die("out of memory");
}

static void add_number(cJSON *m, const char *name, double value)
{
	if (cJSON_AddNumberToObject(m, name, value) == NULL)
		die("out of memory");
}

/* An engine with this NIC alone, and its memory. False: *error says why not. */
struct end {
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	uint8_t *mem;
};

static bool end_open(struct end *e, const char *provider, const char *nic, char *error,
                     size_t error_bytes)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	wimm_status st;

	*e = (struct end){ .mem = must_alloc(1, region_bytes()) };
	opts.provider = provider;
	opts.nics = nic;
	st = wimm_engine_open(&opts, &e->engine);
	if (st == WIMM_OK)
		st = wimm_reg_mr(e->engine, e->mem, region_bytes(), NULL, &e->mr);
	if (st == WIMM_OK)
		return true;
	(void)snprintf(error, error_bytes, "%s: %s", wimm_status_name(st), wimm_last_error_text());
	return false;
}

static void end_close(struct end *e)
{
	if (wimm_engine_close(&e->engine) != WIMM_OK)
		die("closing an engine");
	free(e->mem);
}

/* --- client --- */

struct wait {
	sem_t done;
	wimm_status status;
	char text[256];
};

static void on_done(void *context, const struct wimm_done *done)
{
	struct wait *w = context;

	w->status = done->status;
	(void)snprintf(w->text, sizeof(w->text), "%s", done->text);
	(void)sem_post(&w->done);
}

/* Submit and wait; false: w says what was wrong. */
static bool write_one(struct end *e, struct wimm_remote_mr *to, uint64_t at, uint64_t len,
                      bool counted, struct wait *w)
{
	const struct wimm_on_done done = { .fn = on_done, .context = w };
	struct wimm_write wr = WIMM_WRITE_INIT;

	/* Pinned: what is asked about is this NIC, also where another way is shorter. */
	wr.flags = WIMM_BLOCK | WIMM_PIN_NIC | (counted ? WIMM_IMM : 0);
	wr.imm = IMM;
	wr.src = e->mr;
	wr.dst = to;
	wr.src_offset_bytes = at;
	wr.dst_offset_bytes = at;
	wr.len_bytes = len;
	wr.deadline_us = WRITE_US;
	w->status = wimm_submit_single_write(e->engine, &wr, &done, NULL);
	if (w->status != WIMM_OK) {
		(void)snprintf(w->text, sizeof(w->text), "%s", wimm_last_error_text());
		return false;
	}
	while (sem_wait(&w->done) != 0)
		;
	return w->status == WIMM_OK;
}

static void measure(struct end *e, struct wimm_remote_mr *to, struct wait *w,
                    struct pair_result *out)
{
	struct hist *h = must_alloc(1, sizeof(*h));
	uint64_t at = slot_at(SLOTS);
	uint64_t start;

	hist_clear(h);
	for (int i = 0; i < SMALL_WRITES; i++) {
		start = now_ns();
		if (!write_one(e, to, at, 8, false, w))
			break;
		hist_add(h, now_ns() - start);
	}
	out->us_p50 = hist_us(h, 0.5);
	free(h);
	start = now_ns();
	for (int i = 0; i < LARGE_WRITES; i++)
		if (!write_one(e, to, at, TAIL, false, w))
			return;
	out->gb_s = (double)LARGE_WRITES * TAIL / (double)(now_ns() - start);
}

/* One round: what the target saw. False: the pair does not carry writes. */
static bool round_lead(struct channel *channel, struct end *e, struct wimm_remote_mr *to,
                       uint32_t round, struct wait *w, struct pair_result *out)
{
	cJSON *m = channel_message("round");
	bool ok = true;

	add_number(m, "round", round);
	channel_send(channel, m);
	cJSON_Delete(channel_recv(channel, "poisoned", ANSWER_S));
	for (uint32_t i = 0; i < SLOTS && ok; i++) {
		pattern_fill(e->mem + slot_at(i), slot_bytes(i), pattern_key(1, round, i));
		ok = write_one(e, to, slot_at(i), slot_bytes(i), true, w);
	}
	channel_send(channel, channel_message(ok ? "written" : "abandon"));
	m = channel_recv(channel, "seen", ANSWER_S);
	out->writes += (uint32_t)member_u64(m, "writes", 0, SLOTS);
	if (ok && member_text(m, "wrong")[0] != '\0') {
		out->visible = false;
		(void)snprintf(out->reason, sizeof(out->reason), "%s", member_text(m, "wrong"));
	}
	cJSON_Delete(m);
	return ok;
}

static void learn_way(struct end *e, struct wimm_remote_mr *to, struct pair_result *out)
{
	struct wimm_peer_info info = WIMM_PEER_INFO_INIT;

	if (wimm_peer_get_info(e->engine, wimm_remote_mr_peer(to), &info) == WIMM_OK)
		(void)snprintf(out->way, sizeof(out->way), "%s", info.way);
}

static void try_pair(struct channel *channel, struct end *e, const char *desc_hex,
                     struct pair_result *out)
{
	struct wimm_remote_mr *to = NULL;
	struct wimm_mr_desc desc;
	struct wait w = { .status = WIMM_OK };
	size_t len;

	if (!hex_decode(desc_hex, desc.bytes, sizeof(desc.bytes), &len))
		die("the other side's region is no hexadecimal text");
	desc.len_bytes = (uint32_t)len;
	must(wimm_open_remote_mr(e->engine, &desc, &to), "the other side's region");
	if (sem_init(&w.done, 0, 0) != 0)
		die("no semaphore");
	out->visible = true;
	out->reached = true;
	for (uint32_t r = 0; r < ROUNDS && out->reached && out->visible; r++)
		out->reached = round_lead(channel, e, to, r, &w, out);
	if (out->reached)
		measure(e, to, &w, out);
	if (!out->reached || w.status != WIMM_OK) {
		out->reached = false;
		out->visible = false;
		(void)snprintf(out->reason, sizeof(out->reason), "%s: %s",
		               wimm_status_name(w.status), w.text);
	}
	learn_way(e, to, out);
	must(wimm_close_remote_mr(e->engine, to), "closing the remote region");
	(void)sem_destroy(&w.done);
}

void pair_check(struct channel *channel, const char *provider, const char *nic,
                const char *target_nic, struct pair_result *out)
{
	cJSON *m = channel_message("pair");
	char error[300];
	struct end e;

	*out = (struct pair_result){ 0 };
	add_text(m, "nic", target_nic);
	channel_send(channel, m);
	m = channel_recv(channel, "ready", ANSWER_S);
	if (!end_open(&e, provider, nic, error, sizeof(error)))
		(void)snprintf(out->reason, sizeof(out->reason), "here: %s", error);
	else if (member_text(m, "error")[0] != '\0')
		(void)snprintf(out->reason, sizeof(out->reason), "there: %s",
		               member_text(m, "error"));
	else
		try_pair(channel, &e, member_text(m, "region"), out);
	cJSON_Delete(m);
	end_close(&e);
	channel_send(channel, channel_message("next"));
	cJSON_Delete(channel_recv(channel, "closed", ANSWER_S));
}

void pair_greet(struct channel *channel, const char *provider, struct nic_list *out)
{
	cJSON *m = channel_message("check");

	add_number(m, "protocol", PROTOCOL);
	add_text(m, "version", WIMM_VERSION_STRING);
	add_text(m, "provider", provider);
	channel_send(channel, m);
	m = channel_recv(channel, "nics", ANSWER_S);
	nics_from_json(cJSON_GetObjectItemCaseSensitive(m, "nics"), out);
	cJSON_Delete(m);
}

/* --- target --- */

static bool said_something(const struct channel *channel)
{
	struct pollfd pfd = { .fd = channel->fd, .events = POLLIN };

	return poll(&pfd, 1, 0) > 0;
}

/* The bytes of slot i, now; and that nothing but the slots so far was written. */
static bool look(const uint8_t *mem, uint32_t round, uint32_t i, char *wrong, size_t room)
{
	size_t len = slot_bytes(i);
	size_t same = pattern_check(mem + slot_at(i), len, pattern_key(1, round, i));
	size_t clean;

	if (same != len) {
		(void)snprintf(wrong, room,
		               "write %u of %zu bytes was counted before its bytes could be read: "
		               "byte %zu was %s",
		               i, len, same,
		               mem[slot_at(i) + same] == POISON ? "still poison" : "another");
		return false;
	}
	clean = poison_check(mem + slot_at(i) + len, GAP, POISON);
	if (clean != GAP) {
		(void)snprintf(wrong, room, "byte %zu behind write %u was overwritten", clean, i);
		return false;
	}
	return true;
}

/* What a target has seen of a round. */
struct watch {
	const uint8_t *mem;
	const uint64_t *word;
	uint64_t base; /* of the word, when the round began */
	uint32_t round;
	uint32_t seen;
	char wrong[300]; /* the first fault; "": none */
};

/* Compare what has been counted since. One write at a time is under way, so the newest is the one
 * to look at, at once. */
static bool watch_step(struct watch *w)
{
	if (w->seen == SLOTS || wimm_mirror_load(w->word) <= w->base + w->seen)
		return false;
	if (w->wrong[0] == '\0')
		(void)look(w->mem, w->round, w->seen, w->wrong, sizeof(w->wrong));
	w->seen++;
	return true;
}

static void round_follow(struct channel *channel, struct end *e, const uint64_t *word,
                         uint32_t round)
{
	struct watch w = { e->mem, word, wimm_mirror_load(word), round, 0, "" };
	uint64_t end_ns = UINT64_MAX;
	cJSON *m;

	memset(e->mem, POISON, slot_at(SLOTS));
	channel_send(channel, channel_message("poisoned"));
	while (w.seen < SLOTS && now_ns() < end_ns) {
		if (watch_step(&w) || end_ns != UINT64_MAX)
			continue;
		(void)sched_yield();
		/* It has written everything, so the last count is near; or it has given up. */
		if (said_something(channel))
			end_ns = now_ns() + LAST_COUNT_NS;
	}
	m = channel_recv_any(channel, ANSWER_S);
	if (m == NULL)
		die("the client has gone in mid-check");
	cJSON_Delete(m);
	if (w.seen < SLOTS && w.wrong[0] == '\0')
		(void)snprintf(w.wrong, sizeof(w.wrong), "%u of %u writes were counted", w.seen,
		               SLOTS);
	m = channel_message("seen");
	add_number(m, "writes", w.seen);
	add_text(m, "wrong", w.wrong);
	channel_send(channel, m);
}

static void ready(struct channel *channel, struct end *e, const char *error)
{
	char hex[2 * WIMM_MR_DESC_MAX_BYTES + 1] = "";
	cJSON *m = channel_message("ready");
	struct wimm_mr_desc desc;

	if (error[0] == '\0') {
		must(wimm_mr_get_desc(e->mr, &desc), "describing the memory");
		hex_encode(desc.bytes, desc.len_bytes, hex);
	}
	add_text(m, "region", hex);
	add_text(m, "error", error);
	channel_send(channel, m);
}

static void serve_pair(struct channel *channel, const char *provider, const char *nic)
{
	static _Thread_local uint64_t word;
	char error[300] = "";
	struct end e;

	if (end_open(&e, provider, nic, error, sizeof(error)))
		must(wimm_mirror_enable(e.engine, IMM, &word), "the mirror");
	ready(channel, &e, error);
	for (;;) {
		cJSON *m = channel_recv_any(channel, ANSWER_S);
		bool round = m != NULL && strcmp(member_text(m, "do"), "round") == 0;

		if (m == NULL)
			die("the client has gone in mid-check");
		if (round)
			round_follow(channel, &e, &word,
			             (uint32_t)member_u64(m, "round", 0, ROUNDS));
		cJSON_Delete(m);
		if (!round)
			break;
	}
	end_close(&e);
	channel_send(channel, channel_message("closed"));
}

void pair_serve(struct channel *channel, const cJSON *greeting, const char *provider,
                const char *nics)
{
	const char *asked = member_text(greeting, "provider");
	struct nic_list *list = must_alloc(1, sizeof(*list));
	cJSON *m;

	if (member_u64(greeting, "protocol", 0, UINT32_MAX) != PROTOCOL)
		die("the client is wimm %s, this is %s: use the same version on both sides",
		    member_text(greeting, "version"), WIMM_VERSION_STRING);
	if (provider != NULL && strcmp(provider, asked) != 0)
		die("the client asks for provider %s, this side was started with --provider %s",
		    asked, provider);
	nics_find(asked, nics, list);
	m = channel_message("nics");
	if (!cJSON_AddItemToObject(m, "nics", nics_to_json(list)))
		die("out of memory");
	channel_send(channel, m);
	free(list);
	for (;;) {
		m = channel_recv_any(channel, ANSWER_S);
		if (m == NULL || strcmp(member_text(m, "do"), "pair") != 0)
			break;
		serve_pair(channel, asked, member_text(m, "nic"));
		cJSON_Delete(m);
	}
	cJSON_Delete(m);
}
