/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/config.h"
#include "base/log.h"
#include "plat/clock.h"
#include "prov/tcp/conn.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static wimm_status try_open(const char *nic, struct prov_error *error)
{
	struct prov_args args = { .nic = nic, .peer_timeout_ms = 1000, .max_regions = 4 };
	struct prov_caps caps;
	struct prov_dev *dev = NULL;
	wimm_status st = prov_tcp_ops.open(&args, &caps, &dev, error);

	if (st == WIMM_OK)
		prov_tcp_ops.close(dev);
	else
		assert_null(dev);
	return st;
}

static void listen_refuses_what_cannot_be_bound(void **state)
{
	/* Goal: each kind of wrong NIC has its status and a text that names it. */
	static const struct {
		const char *nic;
		wimm_status status;
	} wrong[] = {
		{ "127.0.0.1:99999", WIMM_E_PARSE },
		{ "[::1", WIMM_E_PARSE },
		{ "no-such-host.invalid:0", WIMM_E_NOT_FOUND },
		{ "203.0.113.77:0", WIMM_E_NOT_FOUND }, /* somebody else's address */
		{ "0.0.0.0:0", WIMM_E_INVAL },
		{ "[::]:0", WIMM_E_INVAL },
	};
	struct prov_error error;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		wimm_status st = try_open(wrong[i].nic, &error);

		if (st != wrong[i].status || !strstr(error.text, wrong[i].nic))
			fail_msg("%s: %d, \"%s\"", wrong[i].nic, (int)st, error.text);
	}
}

static void listen_on_any_of_the_usual_names_works(void **state)
{
	/* Goal: "" finds a NIC; a name, an interface, a mapped IPv4 address are addresses too. */
	static const char *const good[] = { "",        "localhost:0",
		                            "lo:0",    "[::ffff:127.0.0.1]:0",
		                            "[::1]:0", "127.0.0.2:0" };
	struct prov_error error;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		if (try_open(good[i], &error) != WIMM_OK)
			fail_msg("%s: %s", good[i], error.text);
	}
}

static void listen_on_a_port_in_use_says_so(void **state)
{
	/* Goal: two living devices do not share a port. */
	struct side s = { .dev = NULL };
	struct prov_error error;
	char nic[64];

	(void)state;
	side_open(&s, "127.0.0.1:0");
	(void)snprintf(nic, sizeof(nic), "127.0.0.1:%u", side_port(&s));
	assert_int_equal(try_open(nic, &error), WIMM_E_ADDR_IN_USE);
	side_close(&s);
}

static void listen_again_on_the_same_port_works_at_once(void **state)
{
	/* Goal: connections left behind in TIME_WAIT do not keep a successor from its port. */
	struct pair p;
	char nic[64];

	(void)state;
	pair_open(&p, "127.0.0.1:0");
	(void)snprintf(nic, sizeof(nic), "127.0.0.1:%u", side_port(&p.b));
	for (int i = 0; i < 20; i++) {
		p.ops->path_close(p.b.path); /* the listener's side ends first: it has TIME_WAIT */
		side_await(&p.b, &p.b.closed);
		side_close(&p.b);
		side_await(&p.a, &p.a.down);
		p.ops->path_close(p.a.path);
		side_await(&p.a, &p.a.closed);
		side_open(&p.b, nic);
		pair_join(&p);
	}
	pair_close(&p);
}

static void listen_ipv6_carries_writes(void **state)
{
	/* Goal: the whole way over ::1, text form and back. */
	struct pair p;
	struct prov_wr wr;
	struct prov_addr again;
	char text[TCP_ADDR_TEXT_BYTES];

	(void)state;
	pair_open(&p, "[::1]:0");
	wr = pair_wr(&p, 1, 5, 9, 3 << 20);
	wr.flags = PROV_WR_IMM;
	assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
	pair_drain(&p, 1, 1);
	assert_memory_equal(p.a.mem + 5, p.b.mem + 9, 3 << 20);
	assert_ok(p.ops->addr_format(&p.b.addr, text, sizeof(text)));
	assert_ok(p.ops->addr_parse(text, &again));
	assert_memory_equal(&again, &p.b.addr, sizeof(again));
	pair_close(&p);
}

static void listen_with_many_half_open_connections_serves_real_peers(void **state)
{
	/* Goal: more silent connections than are kept; a path still comes up, memory is bounded. */
	enum { SILENT = 400 };
	struct pair p;
	int fds[SILENT];

	(void)state;
	pair_open_devs(&p, "127.0.0.1:0");
	for (int i = 0; i < SILENT; i++) {
		fds[i] = raw_dial(&p.b);
		side_turns(&p.b, 2);
		assert_true(((struct tcp_dev *)p.b.dev)->hello_count <= 256);
	}
	pair_join(&p);
	for (int i = 0; i < SILENT; i++)
		(void)close(fds[i]);
	pair_close(&p);
}

static bool b_paused(const struct pair *p)
{
	return ((struct tcp_dev *)p->b.dev)->accept_paused;
}

static bool b_has_ctl(const struct pair *p)
{
	return p->b.ctl_msgs == 1;
}

static void listen_without_descriptors_waits_and_does_not_spin(void **state)
{
	/* Goal: at the limit a standing path carries on, nothing spins, and the waiting peer is
	 * served once descriptors are back. */
	struct pair p;
	struct rlimit old;
	struct rlimit low;
	struct prov_wr wr;
	uint32_t busy = 0;
	int top = open("/dev/null", O_RDONLY | O_CLOEXEC);

	(void)state;
	log_set_level(LOG_LEVEL_ERROR);
	pair_open(&p, "127.0.0.1:0");
	p.a.ctl = p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a);
	assert_ok(p.ops->ctl_send(p.a.ctl, "hi", 3));
	assert_ok(getrlimit(RLIMIT_NOFILE, &old));
	(void)close(top);
	low = old;
	low.rlim_cur = (rlim_t)(dup(0)); /* the lowest free descriptor: none below is free */
	(void)close((int)low.rlim_cur);
	assert_ok(setrlimit(RLIMIT_NOFILE, &low));
	assert_true(pair_until(&p, b_paused));
	assert_null(p.ops->ctl_open(p.a.dev, &p.b.addr, &p.a));
	for (int i = 0; i < 100; i++) {
		(void)side_poll(&p.b);
		busy += !p.ops->arm(p.b.dev);
	}
	assert_true(busy <= 2);
	assert_true(p.ops->next_ns(p.b.dev) != UINT64_MAX);
	wr = pair_wr(&p, 1, 0, 0, 100000);
	wr.flags = PROV_WR_IMM;
	assert_int_equal(p.ops->post(p.a.path, &wr, 1), 1);
	pair_drain(&p, 1, 1);
	assert_ok(setrlimit(RLIMIT_NOFILE, &old));
	assert_true(pair_until(&p, b_has_ctl));
	pair_close(&p);
}

static uint64_t pacing_with(const char *setting)
{
	struct prov_args args = { .nic = "127.0.0.1:0", .peer_timeout_ms = 1000, .max_regions = 4 };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct prov_dev *dev = NULL;
	struct prov_error error;
	struct prov_caps caps;
	uint64_t rate = 0;
	socklen_t len = sizeof(rate);

	assert_true(fd >= 0);
	if (setting != NULL)
		assert_ok(config_set("tcp_pacing_bytes_s", setting));
	assert_ok(prov_tcp_ops.open(&args, &caps, &dev, &error));
	tcp_socket_options((struct tcp_dev *)dev, fd);
	assert_ok(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len));
	prov_tcp_ops.close(dev);
	close(fd);
	config_reload();
	return rate;
}

static void listen_with_a_pacing_rate_hands_it_to_the_kernel(void **state)
{
	/* Goal: the setting reaches the sockets, and without it the kernel has no limit. */
	(void)state;
	assert_int_equal(pacing_with("20000000"), 20000000);
	assert_true(pacing_with(NULL) >= UINT32_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(listen_refuses_what_cannot_be_bound),
		cmocka_unit_test(listen_on_any_of_the_usual_names_works),
		cmocka_unit_test(listen_on_a_port_in_use_says_so),
		cmocka_unit_test(listen_again_on_the_same_port_works_at_once),
		cmocka_unit_test(listen_ipv6_carries_writes),
		cmocka_unit_test(listen_with_many_half_open_connections_serves_real_peers),
		cmocka_unit_test(listen_with_a_pacing_rate_hands_it_to_the_kernel),
		cmocka_unit_test(listen_without_descriptors_waits_and_does_not_spin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
