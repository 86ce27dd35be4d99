/* SPDX-License-Identifier: Apache-2.0 */
/* Starting, addresses, forks (contract C9, C12). */
#include "faults/puppet.h"

#include "prov/sim/sim.h"

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* --- 33 --- */

/* What the child of a fork finds; 0 when all is as it should be. */
static int child_of_fork(struct node *a, const struct wimm_remote_mr *to, wimm_op op)
{
	struct wimm_engine_stats s = WIMM_ENGINE_STATS_INIT;
	struct wimm_write w = single(a, to, 0, 0, 8);
	struct wimm_engine *e = a->engine;
	struct wimm_net_addr addr;
	struct wimm_mr *mr;
	uint64_t count;
	wimm_peer peer;
	void *heap = malloc(100000);

	if (heap == NULL)
		return 2;
	memset(heap, 1, 100000);
	free(heap);
	if (wimm_engine_get_stats(e, &s) != WIMM_E_FORKED ||
	    wimm_main_address(e, &addr) != WIMM_E_FORKED ||
	    wimm_submit_single_write(e, &w, NULL, NULL) != WIMM_E_FORKED ||
	    wimm_expect_imm_count(e, 1, 1, NULL, NULL, NULL) != WIMM_E_FORKED ||
	    wimm_poll_imm(e, 1, &count) != WIMM_E_FORKED ||
	    wimm_cancel(e, op) != WIMM_E_FORKED ||
	    wimm_reg_mr(e, a->mem, 8, NULL, &mr) != WIMM_E_FORKED ||
	    wimm_dereg_mr(e, a->mr, NULL) != WIMM_E_FORKED ||
	    wimm_add_peer(e, &a->addr, NULL, &peer) != WIMM_E_FORKED ||
	    wimm_remove_peer(e, 1) != WIMM_E_FORKED || wimm_engine_close(&e) != WIMM_E_FORKED)
		return 3;
	return e == a->engine ? 0 : 4;
}

/* A child may have an engine of its own. */
static int own_engine_of_child(void)
{
	struct wimm_engine_opts o = node_opts_nics(1);
	struct wimm_engine *e = NULL;

	if (wimm_engine_open(&o, &e) != WIMM_OK)
		return 5;
	return wimm_engine_close(&e) == WIMM_OK ? 0 : 6;
}

/* Goal: a child's calls fail with FORKED and its end disturbs nobody; the parent goes on. */
static void fork_while_writes_run_case_33_leaves_the_parent_alone(void **state)
{
	struct node *a = node_open(1 << 20), *b = node_open(1 << 20);
	struct wimm_remote_mr *to = remote_of(a, b);
	struct result *r[64];
	uint32_t sent = 0;

	(void)state;
	fill(a->mem, a->bytes, 33);
	connect_nodes(a, b);
	for (int round = 0; round < 4; round++) {
		int status = -1;
		pid_t child;

		for (int i = 0; i < 16; i++)
			r[sent++] = write_imm(a, to, 0, 0, 1 << 20, 33);
		child = fork();
		if (child == 0) {
			int code = child_of_fork(a, to, r[0]->id);

			if (code == 0 && !SANITIZED && strcmp(cfg.provider, "sim") != 0)
				code = own_engine_of_child();
			if (SANITIZED)
				_exit(code); /* a sanitizer's own exit handlers need its threads */
			exit(code);
		}
		assert_true(child > 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	for (uint32_t i = 0; i < sent; i++)
		result_ok(r[i]);
	imm_reaches(b, 33, sent);
	assert_true(holds(b->mem, b->bytes, 33));
	assert_int_equal(node_events(a, WIMM_PEER_DOWN) + node_events(b, WIMM_PEER_DOWN), 0);
}

/* Goal: no descriptor of an engine is there in a program that the process starts. */
static void fork_and_exec_case_33_hands_down_no_descriptor(void **state)
{
	const struct puppet_opts po = { 0 };
	struct puppet *before = puppet_start(&po), *after; /* it may be born with some */
	struct node *a = node_open(64), *b = node_open(64);

	(void)state;
	connect_nodes(a, b);
	after = puppet_start(&po);
	assert_int_equal(after->extra_fds, before->extra_fds);
	puppet_end(before);
	puppet_end(after);
}

/* --- 35 --- */

/* A socket that listens on a free port. */
static int occupy(uint16_t *out_port)
{
	struct sockaddr_in sa = { .sin_family = AF_INET };
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_ok(bind(fd, (struct sockaddr *)&sa, sizeof(sa)));
	assert_ok(listen(fd, 1));
	assert_ok(getsockname(fd, (struct sockaddr *)&sa, &len));
	*out_port = ntohs(sa.sin_port);
	return fd;
}

/* Goal: a port in use is refused by name, keeps nothing, and another port works. */
static void port_in_use_case_35_is_named_and_another_works(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *e = NULL;
	char nics[128], want[32];
	uint16_t port;
	int fd = occupy(&port);

	(void)state;
	snprintf(want, sizeof(want), "127.0.0.1:%u", port);
	snprintf(nics, sizeof(nics), "127.0.0.1:0,%s", want); /* the first is given back */
	o.nics = nics;
	assert_refused(engine_open_here(&o, &e), WIMM_E_ADDR_IN_USE, want);
	assert_null(e);
	o.nics = "127.0.0.1:0";
	assert_ok(engine_open_here(&o, &e));
	assert_ok(wimm_engine_close(&e));
	close(fd);
}

/* Goal: a simulated NIC in use is refused alike. */
static void nic_in_use_case_35_is_named_and_another_works(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *first = NULL, *second = NULL;

	(void)state;
	o.nics = "7";
	assert_ok(engine_open_here(&o, &first));
	assert_refused(engine_open_here(&o, &second), WIMM_E_ADDR_IN_USE, "7");
	assert_null(second);
	o.nics = "8";
	assert_ok(engine_open_here(&o, &second));
	assert_ok(wimm_engine_close(&first));
	assert_ok(wimm_engine_close(&second));
}

#define MANY 64

/* Goal: 64 engines on port 0 have 64 addresses. */
static void many_engines_case_35_have_addresses_of_their_own(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *e[MANY];
	char text[MANY][WIMM_NET_ADDR_MAX_TEXT];

	(void)state;
	for (size_t i = 0; i < MANY; i++) {
		struct wimm_net_addr addr;

		assert_ok(engine_open_here(&o, &e[i]));
		assert_ok(wimm_main_address(e[i], &addr));
		assert_ok(wimm_net_addr_to_string(&addr, text[i], sizeof(text[i])));
		*strchr(text[i], '#') = '\0'; /* not the instance: the NICs */
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(text[k], text[i]);
	}
	for (int i = 0; i < MANY; i++)
		assert_ok(wimm_engine_close(&e[i]));
}

/* --- 36 --- */

static char failed_mark; /* what a thread that failed returns */

static void *open_and_close(void *arg)
{
	struct wimm_engine_opts o = WIMM_ENGINE_OPTS_INIT;

	o.provider = cfg.provider;
	o.nics = "127.0.0.1:0";
	o.max_ops = 64;
	for (int i = 0; i < 50; i++) {
		struct wimm_engine *e = NULL;

		if (wimm_engine_open(&o, &e) != WIMM_OK || wimm_engine_close(&e) != WIMM_OK)
			return arg;
	}
	return NULL;
}

/* Goal: engines come and go on 16 threads at once. */
static void start_from_16_threads_case_36_works_every_time(void **state)
{
	pthread_t thread[16];

	(void)state;
	for (int i = 0; i < 16; i++)
		assert_ok(pthread_create(&thread[i], NULL, open_and_close, &failed_mark));
	for (int i = 0; i < 16; i++) {
		void *failed = NULL;

		assert_ok(pthread_join(thread[i], &failed));
		assert_null(failed);
	}
}

/* Goal: 50 restarts on one port with a peer connected: none is refused, none gets another's
 * bytes. */
static void restart_on_one_port_case_36_is_never_refused(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct node *client = node_open(64);
	char text[WIMM_NET_ADDR_MAX_TEXT];

	(void)state;
	for (uint32_t i = 0; i < 50; i++) {
		struct node *server;
		struct wimm_remote_mr *to;

		server = node_open_with(&o, 64);
		assert_ok(wimm_net_addr_to_string(&server->addr, text, sizeof(text)));
		*strchr(text, '#') = '\0';
		o.nics = strchr(text, ':') + 1; /* where the first one was */
		to = remote_of(client, server);
		client->mem[0] = (uint8_t)i;
		result_ok(write_imm(client, to, 0, 0, 1, i));
		imm_reaches(server, i, 1);
		assert_int_equal(server->mem[0], i);
		if (i != 0)
			assert_int_equal(imm_now(server, i - 1), 0);
		assert_ok(wimm_close_remote_mr(client->engine, to));
		node_close(server);
	}
}

/* --- 37 --- */

/* Goal: a transfer over IPv6; the printed address reads back to the same bytes. */
static void transfer_over_ipv6_case_37_arrives(void **state)
{
	struct wimm_engine_opts o = node_opts();
	struct wimm_engine *probe = NULL;
	struct wimm_net_addr back;
	char text[WIMM_NET_ADDR_MAX_TEXT];
	struct node *a, *b;

	(void)state;
	o.nics = "[::1]:0";
	if (engine_open_here(&o, &probe) == WIMM_E_NOT_FOUND)
		test_skip("no IPv6 on this machine");
	assert_ok(wimm_engine_close(&probe));
	a = node_open_with(&o, 4096);
	b = node_open_with(&o, 4096);
	fill(a->mem, 4096, 37);
	result_ok(write_imm(a, remote_of(a, b), 0, 0, 4096, 37));
	imm_reaches(b, 37, 1);
	assert_true(holds(b->mem, 4096, 37));
	assert_ok(wimm_net_addr_to_string(&b->addr, text, sizeof(text)));
	assert_non_null(strstr(text, "[::1]:"));
	assert_ok(wimm_net_addr_from_string(text, &back));
	assert_int_equal(back.len_bytes, b->addr.len_bytes);
	assert_memory_equal(back.bytes, b->addr.bytes, back.len_bytes);
}

static cJSON *address_rows(char **out_text)
{
	FILE *file = fopen(TEST_DATA_DIR "/addr_strings.json", "re");
	char *text = calloc(1, 65536);
	cJSON *json;

	assert_non_null(file);
	assert_non_null(text);
	assert_true(fread(text, 1, 65535, file) > 0);
	fclose(file);
	json = cJSON_Parse(text);
	assert_non_null(json);
	*out_text = text;
	return json;
}

/* Goal: every row of address texts is read as listed or refused, and what is read prints and reads
 * back to the same bytes. */
static void address_texts_case_37_read_as_listed(void **state)
{
	char *text = NULL;
	cJSON *json = address_rows(&text);
	const cJSON *row;
	int rows = 0;

	(void)state;
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "cases"))
	{
		const char *input = cJSON_GetObjectItem(row, "input")->valuestring;
		const cJSON *want = cJSON_GetObjectItem(row, "expect");
		struct wimm_net_addr addr, back;
		char printed[WIMM_NET_ADDR_MAX_TEXT];
		wimm_status st = wimm_net_addr_from_string(input, &addr);
		bool listen_only = cJSON_IsArray(want) && /* port 0 is no peer's */
		                   cJSON_IsNumber(cJSON_GetArrayItem(want, 1)) &&
		                   cJSON_GetArrayItem(want, 1)->valueint == 0;

		rows++;
		if (!cJSON_IsArray(want) || listen_only) {
			if (st == WIMM_OK)
				fail_msg("\"%s\" was accepted", input);
			continue;
		}
		if (st == WIMM_E_NOT_FOUND)
			continue; /* a name that needs a resolver */
		if (st != WIMM_OK)
			fail_msg("\"%s\": %s", input, wimm_last_error_text());
		assert_ok(wimm_net_addr_to_string(&addr, printed, sizeof(printed)));
		assert_ok(wimm_net_addr_from_string(printed, &back));
		assert_int_equal(back.len_bytes, addr.len_bytes);
		assert_memory_equal(back.bytes, addr.bytes, addr.len_bytes);
	}
	assert_true(rows > 10);
	cJSON_Delete(json);
	free(text);
}

/* --- 38 --- */

/* Goal: the same address in another process of this host is another region. */
static void same_address_in_another_process_case_38_is_not_ours(void **state)
{
	const struct puppet_opts po = { .bytes = 65536, .at = (void *)0x7ea000000000 };
	struct puppet *b = puppet_start(&po);
	struct node *a = node_open(0);
	struct wimm_remote_mr *to = NULL;
	struct wimm_write w = WIMM_WRITE_INIT;
	struct wimm_mr *mr = NULL;
	uint8_t *mem = mmap(po.at, 65536, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	(void)state;
	assert_ptr_equal(mem, po.at);
	fill(mem, 65536, 38);
	fill(b->mem, 65536, 83);
	assert_ok(wimm_reg_mr(a->engine, mem, 65536, NULL, &mr));
	assert_ok(wimm_open_remote_mr(a->engine, &b->desc, &to));
	w.flags = WIMM_IMM;
	w.imm = 38;
	w.src = mr;
	w.dst = to;
	w.dst_offset_bytes = 4096;
	w.len_bytes = 4096;
	result_ok(submit_write(a, &w));
	puppet_imm_reaches(b, 38, 1);
	assert_true(holds(b->mem, 4096, 83));
	assert_true(holds(b->mem + 4096, 4096, 38));
	assert_true(holds(mem, 65536, 38));
	node_close(a);
	munmap(mem, 65536);
	puppet_end(b);
}

static const struct contract_case cases[] = {
	CASE_ONLY(fork_while_writes_run_case_33_leaves_the_parent_alone, ONLY_THREADS),
	CASE_ONLY(fork_and_exec_case_33_hands_down_no_descriptor, ONLY_PROCESSES),
	CASE_ONLY(port_in_use_case_35_is_named_and_another_works, ONLY_TCP),
	CASE_ONLY(nic_in_use_case_35_is_named_and_another_works, ONLY_SIM),
	CASE(many_engines_case_35_have_addresses_of_their_own),
	CASE_ONLY(start_from_16_threads_case_36_works_every_time, ONLY_TCP),
	CASE_ONLY(restart_on_one_port_case_36_is_never_refused, ONLY_LASTING),
	CASE_ONLY(transfer_over_ipv6_case_37_arrives, ONLY_TCP),
	CASE_ONLY(address_texts_case_37_read_as_listed, ONLY_TCP),
	CASE_ONLY(same_address_in_another_process_case_38_is_not_ours, ONLY_PROCESSES),
};
GROUP(start, cases);
