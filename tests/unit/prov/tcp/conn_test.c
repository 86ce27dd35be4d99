/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/config.h"
#include "plat/clock.h"
#include "plat/rand.h"

#include <string.h>
#include <unistd.h>

static bool write_works(struct pair *p)
{
	struct prov_wr wr = pair_wr(p, 1, 0, 0, 1000);
	uint64_t done = p->a.done_ok + 1;
	uint64_t imms = p->b.imms + 1;

	wr.flags = PROV_WR_IMM;
	assert_int_equal(p->ops->post(p->a.path, &wr, 1), 1);
	pair_drain(p, done, imms);
	return true;
}

static void conn_garbage_on_the_port_costs_that_connection_only(void **state)
{
	/* Goal: random bytes, HTTP, a huge length and a wrong magic end with that connection, and a
	 * path that stands carries on meanwhile. */
	static const char http[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n";
	struct pair p;
	struct rng r;
	uint8_t junk[256];

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	rng_init(&r, test_seed(3));
	for (uint32_t i = 0; i < 50; i++) {
		int fd = raw_dial(&p.b);

		for (size_t k = 0; k < sizeof(junk); k++)
			junk[k] = (uint8_t)rng_u64(&r);
		if (i % 3 == 0)
			raw_send(fd, http, sizeof(http));
		else if (i % 3 == 1)
			raw_send(fd, junk, sizeof(junk));
		else
			raw_send(fd,
			         "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
			         "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
			         32);
		raw_await_end(&p.b, fd);
		(void)close(fd);
		assert_true(write_works(&p));
	}
	assert_int_equal(p.b.ctl_new, 0);
	pair_close(&p);
}

static void conn_that_says_nothing_is_dropped_at_the_hello_timeout(void **state)
{
	/* Goal: silence and half a preface both end, not before the time-out, and next_ns says when
	 * to look. */
	struct pair p;
	uint8_t preface[TCP_PREFACE_BYTES];
	uint64_t start;
	int fds[2];

	(void)state;
	assert_ok(config_set("hello_timeout_ms", "100"));
	pair_open(&p, "127.0.0.1:0");
	start = clock_now_ns();
	fds[0] = raw_dial(&p.b);
	fds[1] = raw_dial(&p.b);
	tcp_preface_encode(TCP_KIND_CTL, NULL, preface);
	raw_send(fds[1], preface, sizeof(preface) - 1);
	while (p.ops->next_ns(p.b.dev) <= start || p.ops->next_ns(p.b.dev) == UINT64_MAX)
		(void)side_poll(&p.b);
	assert_true(p.ops->next_ns(p.b.dev) <= clock_now_ns() + 100 * CLOCK_NS_PER_MS);
	raw_await_end(&p.b, fds[0]);
	raw_await_end(&p.b, fds[1]);
	assert_true(clock_now_ns() - start >= 100 * CLOCK_NS_PER_MS);
	assert_int_equal(p.b.ctl_new, 0);
	assert_true(write_works(&p));
	(void)close(fds[0]);
	(void)close(fds[1]);
	pair_close(&p);
	config_reload();
}

static void conn_that_closes_in_mid_hello_leaves_nothing(void **state)
{
	/* Goal: every cut of the preface, then the end of the stream. */
	struct pair p;
	uint8_t preface[TCP_PREFACE_BYTES];

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	tcp_preface_encode(TCP_KIND_CTL, NULL, preface);
	for (size_t cut = 0; cut < sizeof(preface); cut++) {
		int fd = raw_dial(&p.b);

		raw_send(fd, preface, cut);
		(void)side_poll(&p.b);
		(void)close(fd);
		side_turns(&p.b, 3);
	}
	assert_true(write_works(&p));
	while (((struct tcp_dev *)p.b.dev)->hello_count > 0)
		(void)side_poll(&p.b);
	assert_int_equal(p.b.ctl_new, 0);
	pair_close(&p);
}

static void conn_with_an_unknown_token_is_refused(void **state)
{
	/* Goal: a guessed token, and one used twice, join no path; the dialler learns why. */
	struct pair p;
	struct prov_offer b;
	struct prov_offer ignored;
	uint8_t preface[TCP_PREFACE_BYTES];
	uint8_t answer[TCP_ANSWER_BYTES];
	uint8_t refusal = 99;
	int fds[2];

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	p.b.path = p.ops->path_open(p.b.dev, &p.a.addr, false, &p.b, &b, &(struct prov_error){ 0 });
	tcp_preface_encode(TCP_KIND_PATH, b.bytes + 2, preface);
	fds[0] = raw_dial(&p.b);
	raw_send(fds[0], preface, sizeof(preface));
	assert_true(raw_read(&p.b, fds[0], answer, sizeof(answer)));
	fds[1] = raw_dial(&p.b);
	raw_send(fds[1], preface, sizeof(preface));
	assert_true(raw_read(&p.b, fds[1], answer, sizeof(answer)));
	assert_ok(tcp_answer_decode(answer, &refusal));
	assert_int_equal(refusal, TCP_REFUSE_TOKEN);
	raw_await_end(&p.b, fds[1]);
	p.a.path = p.ops->path_open(p.a.dev, &p.b.addr, true, &p.a, &ignored,
	                            &(struct prov_error){ 0 });
	b.bytes[5] ^= 1;
	p.ops->path_connect(p.a.path, &b);
	pair_await(&p, &p.a.down);
	assert_int_equal(p.a.down_status, WIMM_E_PEER_REFUSED);
	(void)close(fds[0]);
	(void)close(fds[1]);
	pair_close(&p);
}

static void conn_of_another_version_is_told_so(void **state)
{
	/* Goal: the acceptor answers with its version, so that the other side can say both. */
	struct pair p;
	uint8_t preface[TCP_PREFACE_BYTES];
	uint8_t answer[TCP_ANSWER_BYTES];
	uint8_t refusal = 99;
	int fd;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	tcp_preface_encode(TCP_KIND_CTL, NULL, preface);
	preface[4] = TCP_VERSION + 1;
	fd = raw_dial(&p.b);
	raw_send(fd, preface, sizeof(preface));
	assert_true(raw_read(&p.b, fd, answer, sizeof(answer)));
	assert_ok(tcp_answer_decode(answer, &refusal));
	assert_int_equal(refusal, TCP_REFUSE_VERSION);
	raw_await_end(&p.b, fd);
	(void)close(fd);
	pair_close(&p);
}

/* What a dialler meets at a port that is not ours. */
static void dial_stranger(const void *says, size_t bytes, wimm_status want)
{
	struct pair p;
	struct sockaddr_in sa = { .sin_family = AF_INET,
		                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	union tcp_sockaddr any;
	struct prov_addr addr;
	socklen_t len = sizeof(sa);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd;

	assert_ok(bind(listener, (struct sockaddr *)&sa, len));
	assert_ok(listen(listener, 1));
	assert_ok(getsockname(listener, (struct sockaddr *)&sa, &len));
	memset(&any, 0, sizeof(any));
	any.v4 = sa;
	tcp_addr_encode(&any, &addr);
	pair_open_devs(&p, "127.0.0.1:0");
	p.a.ctl = p.ops->ctl_open(p.a.dev, &addr, &p.a);
	fd = accept(listener, NULL, NULL);
	assert_true(fd >= 0);
	if (bytes > 0)
		raw_send(fd, says, bytes);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.ctl_down_status, want);
	p.ops->ctl_close(p.a.ctl, true);
	(void)close(fd);
	(void)close(listener);
	pair_close(&p);
}

static void conn_to_a_stranger_fails_in_words(void **state)
{
	/* Goal: another program behind the port: garbage, other version, silence, a mirror. */
	uint8_t answer[TCP_ANSWER_BYTES];
	uint8_t preface[TCP_PREFACE_BYTES];

	(void)state;
	assert_ok(config_set("hello_timeout_ms", "100"));
	dial_stranger("SSH-2.0-OpenSSH", 15, WIMM_E_PROTOCOL);
	tcp_answer_encode(TCP_WELCOME, answer);
	answer[4]++;
	dial_stranger(answer, sizeof(answer), WIMM_E_VERSION);
	dial_stranger(answer, sizeof(answer) - 1, WIMM_E_TIMEOUT);
	dial_stranger(NULL, 0, WIMM_E_TIMEOUT);
	tcp_preface_encode(TCP_KIND_CTL, NULL, preface);
	dial_stranger(preface, sizeof(preface), WIMM_E_PROTOCOL);
	tcp_answer_encode((enum tcp_refusal)200, answer);
	dial_stranger(answer, sizeof(answer), WIMM_E_PEER_REFUSED);
	config_reload();
}

static void conn_between_ip_versions_fails_in_words(void **state)
{
	/* Goal: an IPv4 device does not pretend to reach an IPv6 address. */
	struct pair p;
	struct prov_addr six;

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	assert_ok(p.ops->addr_parse("[::1]:5", &six));
	p.a.ctl = p.ops->ctl_open(p.a.dev, &six, &p.a);
	assert_non_null(p.a.ctl);
	pair_await(&p, &p.a.ctl_down);
	assert_int_equal(p.a.ctl_down_status, WIMM_E_UNSUPPORTED);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conn_garbage_on_the_port_costs_that_connection_only),
		cmocka_unit_test(conn_that_says_nothing_is_dropped_at_the_hello_timeout),
		cmocka_unit_test(conn_that_closes_in_mid_hello_leaves_nothing),
		cmocka_unit_test(conn_with_an_unknown_token_is_refused),
		cmocka_unit_test(conn_of_another_version_is_told_so),
		cmocka_unit_test(conn_to_a_stranger_fails_in_words),
		cmocka_unit_test(conn_between_ip_versions_fails_in_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
