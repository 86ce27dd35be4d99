/* SPDX-License-Identifier: Apache-2.0 */
/* A path that is lost while others stand, and its way back within the session. */
#include "faults/puppet.h"

#include "prov/sim/sim.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { FDS_MAX = 4096, BYTES = 1 << 20 };

/* The provider's number of a node's second NIC: its port, or what the simulator calls it. */
static uint32_t second_nic(const struct node *n)
{
	char text[512];
	const char *at;

	assert_ok(wimm_net_addr_to_string(&n->addr, text, sizeof(text)));
	at = strchr(text, ',');
	assert_non_null(at);
	return (uint32_t)strtoul(cfg.provider[0] == 's' ? at + 1 : strrchr(text, ':') + 1, NULL,
	                         10);
}

static uint16_t port_of(const struct sockaddr_storage *addr)
{
	return ntohs(addr->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)addr)->sin6_port
	                                         : ((const struct sockaddr_in *)addr)->sin_port);
}

/* Both ends of every connection to this port are in this process: end them as a router would. */
static uint32_t sever(uint32_t port)
{
	uint32_t count = 0;

	for (int fd = 3; fd < FDS_MAX; fd++) {
		struct sockaddr_storage addr;
		socklen_t len = sizeof(addr);

		if (getpeername(fd, (struct sockaddr *)&addr, &len) == 0 && port_of(&addr) == port)
			count += shutdown(fd, SHUT_RDWR) == 0;
	}
	return count;
}

/* In the guest of tests/vm: the cable of its second NIC is pulled, or put in again. */
static void cable(const char *how)
{
	char line[64];

	(void)snprintf(line, sizeof(line), "ip link set sw1 %s", how);
	assert_ok(system(line));
}

static uint32_t rounds_back;

static bool both_lost(void *arg)
{
	struct node **n = arg;

	return node_events(n[0], WIMM_PEER_NIC_LOST) >= rounds_back &&
	       node_events(n[1], WIMM_PEER_NIC_LOST) >= rounds_back;
}

static bool both_back(void *arg)
{
	struct node **n = arg;

	return node_events(n[0], WIMM_PEER_NIC_BACK) >= rounds_back &&
	       node_events(n[1], WIMM_PEER_NIC_BACK) >= rounds_back;
}

/* As sever(), every connection to the host device of this name. */
static uint32_t sever_host(const char *name)
{
	uint32_t count = 0;

	for (int fd = 3; fd < FDS_MAX; fd++) {
		struct sockaddr_un addr;
		socklen_t len = sizeof(addr);
		size_t chars;

		if (getpeername(fd, (struct sockaddr *)&addr, &len) != 0 ||
		    addr.sun_family != AF_UNIX || len <= offsetof(struct sockaddr_un, sun_path))
			continue;
		chars = len - offsetof(struct sockaddr_un, sun_path);
		if (chars > strlen(name) &&
		    memcmp(addr.sun_path + chars - strlen(name), name, strlen(name)) == 0)
			count += shutdown(fd, SHUT_RDWR) == 0;
	}
	return count;
}

/* The provider's name of a node's second NIC. */
static uint32_t sever_second_host(const struct node *n)
{
	char text[512];
	char *name;

	assert_ok(wimm_net_addr_to_string(&n->addr, text, sizeof(text)));
	name = strchr(text, ',');
	assert_non_null(name);
	name++;
	name[strspn(name, "0123456789abcdefghijklmnopqrstuvwxyz_-.")] = '\0';
	return sever_host(name);
}

/* Lose the path to the second NIC of n[1], and wait until it stands again. */
static void lose_and_wait(struct node **n, uint32_t round)
{
	rounds_back = round;
	if (cfg.provider[0] == 's') {
		uint32_t number = second_nic(n[1]);

		sim_kill_nic(case_world(), number, false);
		assert_wait(both_lost, n);
		sim_revive_nic(case_world(), number);
	} else if (cfg.provider[0] == 'v') {
		cable("down");
		assert_wait(both_lost, n);
		cable("up");
	} else if (cfg.provider[0] == 'h') {
		assert_true(sever_second_host(n[1]) > 0);
	} else {
		assert_true(sever(second_nic(n[1])) > 0);
	}
	assert_wait(both_back, n);
}

static void no_session_ended(struct node **n)
{
	assert_int_equal(node_events(n[0], WIMM_PEER_DOWN), 0);
	assert_int_equal(node_events(n[1], WIMM_PEER_DOWN), 0);
}

/* Goal: a path comes back by itself; then pinned, split, confirmed and retired go as before. */
static void lost_path_comes_back_within_its_session(void **state)
{
	struct node *n[2] = { node_open(BYTES), node_open(BYTES) };
	struct wimm_remote_mr *to = remote_of(n[0], n[1]);
	struct result *retired = result_new();
	struct wimm_on_done done = to_result(retired);
	struct wimm_write w;

	(void)state;
	connect_nodes(n[0], n[1]);
	fill(n[0]->mem, BYTES, 1);
	result_ok(write_imm(n[0], to, 0, 0, BYTES, 1));
	lose_and_wait(n, 1);
	w = single(n[0], to, 0, 0, 100);
	w.flags |= WIMM_PIN_NIC | WIMM_IMM | WIMM_CONFIRMED;
	w.nic_index = 1;
	w.imm = 2;
	result_ok(submit_write(n[0], &w));
	fill(n[0]->mem, BYTES, 2);
	w = single(n[0], to, 0, 0, BYTES);
	w.flags |= WIMM_IMM | WIMM_CONFIRMED;
	w.imm = 3;
	result_ok(submit_write(n[0], &w));
	imm_reaches(n[1], 2, 1);
	imm_reaches(n[1], 3, 1);
	assert_true(holds(n[1]->mem, BYTES, 2));
	assert_ok(wimm_retire_imm(n[1]->engine, 3, &done, &retired->id));
	retired->accepted = true;
	result_ok(retired);
	no_session_ended(n);
}

/* Goal: again and again, in the midst of writes: each settles once, what is done is counted. */
static void path_lost_again_and_again_loses_no_count(void **state)
{
	struct node *n[2] = { node_open(BYTES), node_open(BYTES) };
	struct wimm_remote_mr *to = remote_of(n[0], n[1]);
	unsigned rounds = 4 * test_scale();
	uint32_t done = 0, all = 0;

	(void)state;
	connect_nodes(n[0], n[1]);
	for (unsigned i = 0; i < (rounds < 100 ? rounds : 100); i++) {
		struct result *r[32];
		uint64_t there;

		for (uint32_t k = 0; k < 32; k++)
			r[k] = write_imm(n[0], to, 0, 0, k % 4 == 0 ? 200000 : 64, 7);
		lose_and_wait(n, i + 1);
		for (uint32_t k = 0; k < 32; k++) {
			result_wait(r[k]);
			done += r[k]->status == WIMM_OK;
			if (r[k]->status != WIMM_OK)
				assert_true(r[k]->status == WIMM_E_PATH_LOST ||
				            r[k]->status == WIMM_E_NIC_LOST);
		}
		all += 32;
		drive_until(imm_now(n[1], 7) >= done);
		there = imm_now(n[1], 7);
		assert_true(there >= done && there <= all);
	}
	no_session_ended(n);
}

static const struct contract_case cases[] = {
	CASE_ONLY(lost_path_comes_back_within_its_session, ONLY_MANY_NICS),
	CASE_ONLY(path_lost_again_and_again_loses_no_count, ONLY_MANY_NICS),
};
GROUP(path, cases);
