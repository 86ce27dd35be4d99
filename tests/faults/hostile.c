/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that break the rules over real connections: each loses its own, nobody else notices
 * (contract C11). */
#include "faults/puppet.h"
#include "faults/raw.h"

#include "base/config.h"
#include "core/engine.h"
#include "lib/wire_samples.h"
#include "plat/rand.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A victim with an honest peer that has a session. */
struct scene {
	struct node *victim, *honest;
	struct wimm_remote_mr *to;
	uint32_t writes;
};

/* The time a newcomer has, short enough to wait for. */
#define HELLO_MS 300

static void scene_open(struct scene *s)
{
	setenv("WIMM_HELLO_TIMEOUT_MS", "300", 1);
	config_reload();
	s->victim = node_open(65536);
	s->honest = node_open(4096);
	s->to = remote_of(s->honest, s->victim);
	s->writes = 0;
	fill(s->honest->mem, 4096, 107);
	unsetenv("WIMM_HELLO_TIMEOUT_MS");
	config_reload();
}

/* The honest peer's session works, and is the one it was. */
static void scene_is_calm(struct scene *s)
{
	result_ok(write_imm(s->honest, s->to, 0, 0, 4096, 1));
	imm_reaches(s->victim, 1, ++s->writes);
	assert_true(holds(s->victim->mem, 4096, 107));
	assert_int_equal(node_events(s->honest, WIMM_PEER_DOWN), 0);
}

struct down_goal {
	struct node *node;
	uint32_t count;
};

static bool downs_are(void *arg)
{
	struct down_goal *g = arg;

	return node_events(g->node, WIMM_PEER_DOWN) >= g->count;
}

static void wait_downs(struct node *n, uint32_t count)
{
	struct down_goal g = { n, count };

	assert_wait(downs_are, &g);
	assert_int_equal(node_events(n, WIMM_PEER_DOWN), count);
}

struct up_goal {
	struct node *node;
	uint32_t count;
};

static bool ups_are(void *arg)
{
	struct up_goal *g = arg;

	return stats_of(g->node).peers_up >= g->count;
}

static void wait_up(struct node *n, uint32_t count)
{
	struct up_goal g = { n, count };

	assert_wait(ups_are, &g);
}

/* --- 107 --- */

/* Goal: whoever says nothing, or nothing that makes sense, is dropped in time. */
static void garbage_on_the_port_case_107_is_dropped_in_time(void **state)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
	uint8_t junk[4096], preface[TCP_PREFACE_BYTES];
	const uint8_t huge[4] = { 0xff, 0xff, 0xff, 0xff };
	struct scene s;
	int fd[6];

	(void)state;
	scene_open(&s);
	scene_is_calm(&s);
	assert_ok(rand_bytes(junk, sizeof(junk)));
	tcp_preface_encode(TCP_KIND_CTL, NULL, preface);
	fd[0] = raw_dial(&s.victim->addr, 0); /* nothing */
	fd[1] = raw_dial(&s.victim->addr, 0);
	(void)raw_send(fd[1], junk, sizeof(junk));
	fd[2] = raw_dial(&s.victim->addr, 0);
	(void)raw_send(fd[2], http, sizeof(http) - 1);
	fd[3] = raw_open(&s.victim->addr, 0, NULL); /* a message of 4 GiB */
	(void)raw_send(fd[3], huge, sizeof(huge));
	fd[4] = raw_open(&s.victim->addr, 0, NULL); /* a welcome, and no hello */
	fd[5] = raw_open(&s.victim->addr, 0, NULL);
	(void)raw_say_bytes(fd[5], junk, 64);
	for (int i = 0; i < 6; i++)
		raw_wait_closed(fd[i]);
	scene_is_calm(&s);
	for (int i = 0; i < 6; i++)
		raw_close(fd[i]);
	/* Half a preface, half a hello, and gone. */
	fd[0] = raw_dial(&s.victim->addr, 0);
	(void)raw_send(fd[0], preface, TCP_PREFACE_BYTES / 2);
	raw_close(fd[0]);
	fd[0] = raw_open(&s.victim->addr, 0, NULL);
	(void)raw_send(fd[0], "\x40\0\0\0\1\1", 6);
	raw_close(fd[0]);
	scene_is_calm(&s);
	assert_int_equal(node_events(s.victim, WIMM_PEER_DOWN), 0);
}

struct strangers {
	uint32_t count;
};

static void count_strangers(struct worker *w, void *arg)
{
	LIST_FOR_EACH(it, &w->strangers)
		((struct strangers *)arg)->count++;
}

static bool no_strangers(void *arg)
{
	struct node *n = arg;
	struct strangers s = { 0 };

	worker_call(&n->engine->worker, count_strangers, &s);
	return s.count == 0;
}

/* Goal: 200 half-open connections, and 400 that stop behind the preface, keep nobody out. */
static void half_open_connections_case_107_keep_nobody_out(void **state)
{
	struct scene s;
	struct node *newcomer;
	int fd[600];

	(void)state;
	scene_open(&s);
	scene_is_calm(&s);
	for (int i = 0; i < 200; i++)
		fd[i] = raw_dial(&s.victim->addr, 0);
	for (int i = 200; i < 600; i++)
		fd[i] = raw_open(&s.victim->addr, 0, NULL);
	newcomer = node_open(64);
	result_ok(write_imm(newcomer, remote_of(newcomer, s.victim), 0, 60000, 64, 2));
	scene_is_calm(&s);
	for (int i = 0; i < 600; i++) {
		raw_wait_closed(fd[i]);
		raw_close(fd[i]);
	}
	assert_wait(no_strangers, s.victim);
	scene_is_calm(&s);
}

/* Goal: an engine that runs out of descriptors serves whom it has, and newcomers later. */
static void descriptors_running_out_case_107_leave_the_engine_alive(void **state)
{
	const struct puppet_opts po = { .bytes = 4096 };
	struct puppet *v = puppet_start(&po);
	struct node *a = node_open(4096), *b = node_open(4096);
	struct wimm_remote_mr *to[2] = { NULL, NULL };
	struct result *late;
	int fd[128];

	(void)state;
	assert_ok(wimm_open_remote_mr(a->engine, &v->desc, &to[0]));
	result_ok(write_imm(a, to[0], 0, 0, 64, 1));
	puppet_limit_fds(v, 8); /* so many more than it has now */
	for (int i = 0; i < 128; i++)
		fd[i] = raw_dial(&v->addr, 0);
	for (int i = 0; i < 20; i++)
		result_ok(write_imm(a, to[0], 0, 0, 64, 1));
	puppet_imm_reaches(v, 1, 21);
	for (int i = 0; i < 128; i++)
		raw_close(fd[i]);
	assert_ok(wimm_open_remote_mr(b->engine, &v->desc, &to[1]));
	late = write_imm(b, to[1], 0, 0, 64, 2);
	result_ok(late);
	assert_int_equal(node_events(a, WIMM_PEER_DOWN), 0);
	puppet_end(v);
}

/* --- messages of the session --- */

static bool say_type(struct raw *r, enum wire_type type)
{
	struct wire_msg m;

	wire_sample_msg(type, 1, &m);
	return raw_say(r->ctl, &m);
}

static bool second_hello(struct raw *r)
{
	struct wire_msg m;

	raw_hello(r, &m);
	return raw_say(r->ctl, &m);
}

static bool ack_to_the_acceptor(struct raw *r)
{
	return raw_say(r->ctl, &r->ack);
}

static bool foreign_paths(struct raw *r)
{
	return say_type(r, WIRE_PATHS);
}

static bool foreign_marks(struct raw *r)
{
	struct wire_msg m = { .type = WIRE_CONFIRM };

	m.u.marks.id = 1;
	m.u.marks.path_count = r->path_count + 1;
	return raw_say(r->ctl, &m);
}

static bool random_message(struct raw *r)
{
	uint8_t junk[256];

	assert_ok(rand_bytes(junk, sizeof(junk)));
	junk[0] = WIRE_MAJOR;
	junk[1] |= 0x80; /* no type of ours */
	return raw_say_bytes(r->ctl, junk, sizeof(junk));
}

static bool empty_message(struct raw *r)
{
	return raw_say_bytes(r->ctl, "", 0);
}

static bool truncated_message(struct raw *r)
{
	struct wire_msg m;
	uint8_t bytes[4096];
	uint32_t len;

	wire_sample_msg(WIRE_MR_CHECK, 1, &m);
	len = wire_encode(&m, bytes, sizeof(bytes));
	return raw_say_bytes(r->ctl, bytes, len - 1);
}

static bool oversized_message(struct raw *r)
{
	const uint8_t len[4] = { 0, 0, 0, 0x40 };

	return raw_send(r->ctl, len, sizeof(len));
}

static bool higher_version(struct raw *r)
{
	const uint8_t m[8] = { WIRE_MAJOR + 1, WIRE_HEARTBEAT };

	return raw_say_bytes(r->ctl, m, sizeof(m));
}

static bool endless_questions(struct raw *r)
{
	enum { AT_ONCE = 1024 };
	struct wire_msg m = { .type = WIRE_MR_CHECK };
	uint8_t bytes[64] = { 0 };
	uint8_t *many;
	uint32_t len;
	bool closed = false;

	m.u.mr.generation = 1;
	len = wire_encode(&m, bytes + 4, sizeof(bytes) - 4);
	bytes[0] = (uint8_t)len;
	many = malloc((size_t)AT_ONCE * (4 + len));
	assert_non_null(many);
	for (uint32_t i = 0; i < AT_ONCE; i++)
		memcpy(many + (size_t)i * (4 + len), bytes, 4 + len);
	/* The answers are not read: where they find no room any more the session ends. */
	for (int i = 0; i < 10000 && !closed; i++)
		closed = !raw_send(r->ctl, many, (size_t)AT_ONCE * (4 + len));
	free(many);
	return closed;
}

/* --- frames of a path --- */

static struct tcp_desc into(const struct scene *s, uint64_t offset, uint32_t len)
{
	struct wire_desc d;
	struct tcp_desc desc = { .len_bytes = len, .flags = TCP_DESC_LAST };

	assert_ok(wire_desc_decode(&s->victim->desc, &d));
	desc.addr = d.base + offset;
	desc.key = d.key[0];
	return desc;
}

static const uint8_t zeros[65536];

static bool frame_random(struct raw *r, const struct scene *s)
{
	uint8_t junk[1024];

	(void)s;
	assert_ok(rand_bytes(junk, sizeof(junk)));
	junk[0] |= 0x80; /* no type of ours */
	return raw_send(r->path[0], junk, sizeof(junk));
}

static bool frame_foreign_key(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 64);

	d.key ^= UINT64_C(1) << 40;
	return raw_data(r->path[0], &d, zeros, 64);
}

static bool frame_out_of_bounds(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 65536 - 63, 64);

	return raw_data(r->path[0], &d, zeros, 64);
}

static bool frame_before_the_region(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 64);

	d.addr--;
	return raw_data(r->path[0], &d, zeros, 64);
}

static bool frame_lying_length(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 64);

	return raw_data(r->path[0], &d, zeros, 65);
}

static bool frame_bad_flags(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 64);

	d.flags = TCP_DESC_IMM | TCP_DESC_PART | TCP_DESC_LAST;
	return raw_data(r->path[0], &d, zeros, 64);
}

static bool frame_lone_part(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 0);

	d.flags = TCP_DESC_PART | TCP_DESC_LAST;
	d.parts = 1;
	return raw_data(r->path[0], &d, NULL, 0);
}

static bool frame_parts_disagree(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 0);

	d.flags = TCP_DESC_PART | TCP_DESC_LAST;
	d.op_seq = 5;
	d.parts = 3;
	if (!raw_data(r->path[0], &d, NULL, 0))
		return false;
	d.parts = 4;
	return raw_data(r->path[0], &d, NULL, 0);
}

static bool frame_ack_of_nothing(struct raw *r, const struct scene *s)
{
	uint8_t block[TCP_HDR_BYTES];
	struct tcp_hdr hdr = { .type = TCP_FRAME_ACK, .value = 1 };

	(void)s;
	tcp_hdr_encode(&hdr, block);
	return raw_send(r->path[0], block, sizeof(block));
}

static bool frame_cut_off(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 8192, 64);

	if (!raw_data(r->path[0], &d, NULL, 64) || !raw_send(r->path[0], zeros, 10))
		return false;
	return shutdown(r->path[0], SHUT_WR) == 0;
}

static bool frame_too_many_values(struct raw *r, const struct scene *s)
{
	struct tcp_desc d = into(s, 0, 0);

	d.flags = TCP_DESC_IMM | TCP_DESC_LAST;
	for (uint32_t i = 0; i <= 65536; i++) {
		d.imm = 1000 + i;
		if (!raw_data(r->path[0], &d, NULL, 0))
			return true;
	}
	return true;
}

/* A second connection with a token that is taken. */
static bool token_twice(struct raw *r, const struct scene *s)
{
	int again = raw_open(&s->victim->addr, 0, r->ack.u.hello.offer[0].bytes + 2);

	assert_true(again < 0);
	return frame_random(r, s);
}

static bool say_path(struct raw *r, enum wire_type type, uint32_t index, uint32_t seq)
{
	struct wire_msg m = { .type = type };
	uint8_t bytes[128];
	uint32_t len;

	m.u.path.index = index;
	m.u.path.seq = seq;
	m.u.path.offer = r->ack.u.hello.offer[0];
	len = wire_encode(&m, bytes, sizeof(bytes));
	assert_int_not_equal(len, 0);
	return raw_say_bytes(r->ctl, bytes, len);
}

static bool path_of_no_session(struct raw *r)
{
	return say_path(r, WIRE_PATH_OPEN, WIRE_MAX_PATHS - 1, 2);
}

static bool path_of_an_old_life(struct raw *r)
{
	return say_path(r, WIRE_PATH_OPEN, 0, 1);
}

static bool path_answer_to_the_acceptor(struct raw *r)
{
	return say_path(r, WIRE_PATH_STATE, 0, 1);
}

/* Why the node lost the last peer that it lost. */
static wimm_status last_cause(struct node *n)
{
	wimm_status cause = WIMM_OK;

	gate_lock();
	for (uint32_t i = 0; i < n->event_count; i++)
		if (n->event[i].kind == WIMM_PEER_DOWN)
			cause = n->event[i].cause;
	gate_unlock();
	return cause;
}

/* A path that ends ends the session here: it was the last. */
static void frame_costs_its_session(bool (*act)(struct raw *r, const struct scene *s),
                                    const char *what, struct scene *s, uint32_t downs)
{
	struct raw *r = malloc(sizeof(*r));

	assert_non_null(r);
	raw_session(r, &s->victim->addr);
	wait_up(s->victim, 2);
	if (!act(r, s))
		print_message("%s: closed early\n", what);
	for (uint32_t k = 1; k < r->path_count; k++) {
		raw_close(r->path[k]); /* the others would carry on */
		r->path[k] = -1;
	}
	wait_downs(s->victim, downs);
	scene_is_calm(s);
	raw_wait_closed(r->path[0]);
	raw_wait_closed(r->ctl);
	raw_end(r);
	free(r);
}

/* Goal: a wrong frame costs its sender the session, moves no byte, and disturbs nobody. */
static void hostile_frames_cost_their_sender_alone(void **state)
{
	static const struct {
		bool (*act)(struct raw *r, const struct scene *s);
		const char *what;
	} acts[] = {
#define X(name) { frame_##name, #name }
		X(random),
		X(foreign_key),
		X(out_of_bounds),
		X(before_the_region),
		X(lying_length),
		X(bad_flags),
		X(lone_part),
		X(parts_disagree),
		X(ack_of_nothing),
		X(cut_off),
		X(too_many_values),
#undef X
		{ token_twice, "token_twice" },
	};
	struct scene s;

	(void)state;
	scene_open(&s);
	scene_is_calm(&s);
	for (uint32_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
		frame_costs_its_session(acts[i].act, acts[i].what, &s, i + 1);
	assert_true(all_are(s.victim->mem + 4096, 65536 - 4096, 0));
	assert_int_equal(imm_now(s.victim, 1000), 0);
}

static void message_costs_its_session(bool (*act)(struct raw *r), wimm_status cause,
                                      const char *what, struct scene *s, uint32_t downs)
{
	struct raw *r = malloc(sizeof(*r));

	assert_non_null(r);
	raw_session(r, &s->victim->addr);
	wait_up(s->victim, 2);
	if (!act(r))
		print_message("%s: closed early\n", what);
	wait_downs(s->victim, downs);
	if (last_cause(s->victim) != cause)
		fail_msg("%s: %s", what, wimm_status_name(last_cause(s->victim)));
	scene_is_calm(s);
	raw_wait_closed(r->ctl);
	raw_wait_closed(r->path[0]);
	raw_end(r);
	free(r);
}

/* Goal: a wrong message costs its sender the session, and disturbs nobody. */
static void hostile_messages_cost_their_sender_alone(void **state)
{
	static const struct {
		bool (*act)(struct raw *r);
		wimm_status cause;
		const char *what;
	} acts[] = {
#define X(name, cause) { name, WIMM_##cause, #name }
		X(second_hello, E_PROTOCOL),
		X(ack_to_the_acceptor, E_PROTOCOL),
		X(foreign_paths, E_PROTOCOL),
		X(foreign_marks, E_PROTOCOL),
		X(random_message, E_PROTOCOL),
		X(empty_message, E_PROTOCOL),
		X(truncated_message, E_PROTOCOL),
		X(oversized_message, E_PROTOCOL),
		X(higher_version, E_VERSION),
		X(endless_questions, E_LIMIT),
		X(path_of_no_session, E_PROTOCOL),
		X(path_of_an_old_life, E_PROTOCOL),
		X(path_answer_to_the_acceptor, E_PROTOCOL),
#undef X
	};
	struct scene s;

	(void)state;
	scene_open(&s);
	scene_is_calm(&s);
	for (uint32_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
		message_costs_its_session(acts[i].act, acts[i].cause, acts[i].what, &s, i + 1);
}

/* Goal: before a session has been agreed on, nothing but its agreement is listened to. */
static void hostile_messages_before_the_session_stands_are_refused(void **state)
{
	static const enum wire_type early[] = {
		WIRE_MSG,        WIRE_MSG_READY,  WIRE_MR_CHECK,  WIRE_REVOKE,
		WIRE_REVOKE_ACK, WIRE_CONFIRM,    WIRE_RETIRE,    WIRE_ABANDON,
		WIRE_MSG_ACK,    WIRE_MR_STATE,   WIRE_FENCE,     WIRE_FENCE_ACK,
		WIRE_PATH_OPEN,  WIRE_PATH_STATE, WIRE_ALIVE_ASK, WIRE_ALIVE,
		WIRE_LAND_ASK,   WIRE_LAND_AREA,  WIRE_LANDED,
	};
	struct raw *r = malloc(sizeof(*r));
	struct scene s;

	(void)state;
	assert_non_null(r);
	scene_open(&s);
	scene_is_calm(&s);
	for (uint32_t i = 0; i < sizeof(early) / sizeof(early[0]); i++) {
		raw_greet(r, &s.victim->addr);
		assert_true(say_type(r, early[i]));
		wait_downs(s.victim, i + 1); /* at once, and not for want of a session */
		assert_status(last_cause(s.victim), WIMM_E_PROTOCOL);
		raw_wait_closed(r->ctl);
		raw_end(r);
	}
	scene_is_calm(&s);
	free(r);
}

/* --- at random --- */

/* Change some bytes of a message that was right. */
static uint32_t spoil(struct rng *rng, uint8_t *bytes, uint32_t len)
{
	for (uint64_t n = 1 + rng_below(rng, 4); n != 0; n--)
		bytes[rng_below(rng, len)] = (uint8_t)rng_below(rng, 256);
	return rng_below(rng, 4) == 0 ? (uint32_t)rng_below(rng, len + 1) : len;
}

/* A conversation of spoilt messages and frames, until the other side has enough. */
static void babble(struct rng *rng, struct raw *r)
{
	for (int i = 0; i < 64; i++) {
		struct wire_msg m;
		uint8_t bytes[WIRE_SAMPLE_MAX_BYTES];
		uint32_t len;

		if (rng_below(rng, 4) == 0) {
			for (len = 0; len < 128; len++)
				bytes[len] = (uint8_t)rng_below(rng, 256);
			bytes[0] = (uint8_t)(1 + rng_below(rng, 3));
			bytes[1] = 0;
			if (!raw_send(r->path[0], bytes, len))
				return;
			continue;
		}
		wire_sample_msg((enum wire_type)(1 + rng_below(rng, WIRE_LANDED)),
		                (uint32_t)rng_below(rng, WIRE_SAMPLE_VARIANTS), &m);
		len = wire_encode(&m, bytes, sizeof(bytes));
		assert_int_not_equal(len, 0);
		len = spoil(rng, bytes, len);
		if (!raw_say_bytes(r->ctl, bytes, len))
			return;
	}
}

/* Goal: whatever spoilt messages and frames come, in whatever order, the others do not notice. */
static void hostile_babble_disturbs_nobody(void **state)
{
	struct rng rng;
	struct raw *r = malloc(sizeof(*r));
	struct scene s;
	unsigned rounds = 40 * test_scale();

	(void)state;
	assert_non_null(r);
	rng_init(&rng, test_seed(0xbabb1e));
	scene_open(&s);
	scene_is_calm(&s);
	for (unsigned i = 0; i < (rounds < 5000 ? rounds : 5000); i++) {
		if (i % 4 == 0)
			raw_greet(r, &s.victim->addr);
		else
			raw_session(r, &s.victim->addr);
		babble(&rng, r);
		raw_end(r);
		if (i % 16 == 0)
			scene_is_calm(&s);
	}
	scene_is_calm(&s);
	free(r);
}

static const struct contract_case cases[] = {
	CASE(garbage_on_the_port_case_107_is_dropped_in_time),
	CASE(half_open_connections_case_107_keep_nobody_out),
	CASE(descriptors_running_out_case_107_leave_the_engine_alive),
	CASE(hostile_frames_cost_their_sender_alone),
	CASE(hostile_messages_cost_their_sender_alone),
	CASE(hostile_messages_before_the_session_stands_are_refused),
	CASE(hostile_babble_disturbs_nobody),
};
GROUP(hostile, cases);
