/* SPDX-License-Identifier: Apache-2.0 */

/* The least that a program over libibverbs can do, to hold provider verbs against.
 *
 *   verbs_floor imm NIC NIC --size 64K    lists of four WRITE_WITH_IMM, the last one signalled;
 *                                         receive requests come from a shared queue and go back
 *   verbs_floor lat NIC NIC               8 bytes and an immediate, there and back, both polling
 *
 * Two processes, pinned to a CPU each where there are two. Time of a stream is the sender's, until
 * all is acknowledged. No check, no accounts, no session, one value. GID index 1. */

#include "../util.h"

#include <infiniband/verbs.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	GID_INDEX = 1,
	WALK_BYTES = 4 << 20,
	LIST = 4,
	DEPTH = 256,
	RECVS = 1024,
	PSN = 1,
	LAT_ROUNDS = 2000,
	LAT_WARM = 200,
};

static struct shared {
	struct {
		union ibv_gid gid;
		uint32_t qpn, rkey;
		uint64_t addr;
	} end[2];
	_Atomic uint32_t ready, over;
} * shared;

static struct ibv_context *ctx;
static struct ibv_qp *qp;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static uint8_t *memory;
static uint64_t size = 64 << 10, total = 64 << 20;
static uint32_t posted, acked; /* writes */

static void open_device(const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int i = 0; list != NULL && i < count; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			ctx = ibv_open_device(list[i]);
	if (ctx == NULL)
		bench_die(name);
}

static void post_recvs(uint32_t n)
{
	struct ibv_recv_wr wr = { 0 }, *bad;

	while (n-- > 0)
		if (ibv_post_srq_recv(srq, &wr, &bad) != 0)
			bench_die("post_srq_recv");
}

static void make(int self)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = RECVS, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		                         .cap = { .max_send_wr = DEPTH,
		                                  .max_send_sge = 1,
		                                  .max_inline_data = 64 } };
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
		                    .port_num = 1,
		                    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (pd == NULL || posix_memalign((void **)&memory, 4096, WALK_BYTES) != 0)
		bench_die("memory");
	memset(memory, 0x5a, WALK_BYTES);
	mr = ibv_reg_mr(pd, memory, WALK_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	send_cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	recv_cq = ibv_create_cq(ctx, RECVS, NULL, NULL, 0);
	srq = ibv_create_srq(pd, &srq_attr);
	attr.send_cq = send_cq;
	attr.recv_cq = recv_cq;
	attr.srq = srq;
	qp = mr && send_cq && recv_cq && srq ? ibv_create_qp(pd, &attr) : NULL;
	if (qp == NULL || ibv_modify_qp(qp, &init,
	                                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
	                                        IBV_QP_ACCESS_FLAGS) != 0)
		bench_die("queue pair");
	post_recvs(RECVS);
	if (ibv_query_gid(ctx, 1, GID_INDEX, &shared->end[self].gid) != 0)
		bench_die("GID");
	shared->end[self].qpn = qp->qp_num;
	shared->end[self].rkey = mr->rkey;
	shared->end[self].addr = (uint64_t)(uintptr_t)memory;
}

static void join(int self)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .rq_psn = PSN, .min_rnr_timer = 1 };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS,
		                   .sq_psn = PSN,
		                   .timeout = 16,
		                   .retry_cnt = 6,
		                   .rnr_retry = 7 };

	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < 2)
		bench_look_again();
	if (ibv_query_port(ctx, 1, &port) != 0)
		bench_die("port");
	rtr.path_mtu = port.active_mtu;
	rtr.dest_qp_num = shared->end[!self].qpn;
	rtr.ah_attr = (struct ibv_ah_attr){ .is_global = 1,
		                            .port_num = 1,
		                            .grh = { .dgid = shared->end[!self].gid,
		                                     .sgid_index = GID_INDEX,
		                                     .hop_limit = 64 } };
	if (ibv_modify_qp(qp, &rtr,
	                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
	                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	                          IBV_QP_MIN_RNR_TIMER) != 0 ||
	    ibv_modify_qp(qp, &rts,
	                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
		bench_die("join");
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < 4)
		bench_look_again();
}

/* How many lists. */
static uint32_t poll_sends(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(send_cq, 16, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			bench_die(ibv_wc_status_str(wc[i].status));
		acked += (uint32_t)wc[i].wr_id;
	}
	return n > 0 ? (uint32_t)n : 0;
}

static void wait_sends(void)
{
	if (poll_sends() == 0)
		bench_look_again();
}

/* How many came; their requests are posted again. */
static uint32_t poll_recvs(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(recv_cq, 16, wc);

	if (n > 0)
		post_recvs((uint32_t)n);
	return n > 0 ? (uint32_t)n : 0;
}

static void post_list(int peer, uint64_t at, uint64_t len, uint32_t n)
{
	struct ibv_send_wr wr[LIST], *bad;
	struct ibv_sge sge[LIST];

	for (uint32_t i = 0; i < n; i++) {
		uint64_t offset = (at + i * len) % WALK_BYTES;

		sge[i] = (struct ibv_sge){ (uint64_t)(uintptr_t)memory + offset, (uint32_t)len,
			                   mr->lkey };
		wr[i] = (struct ibv_send_wr){ .wr_id = n,
			                      .next = i + 1 < n ? &wr[i + 1] : NULL,
			                      .sg_list = &sge[i],
			                      .num_sge = 1,
			                      .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
			                      .send_flags = len <= 64 ? IBV_SEND_INLINE : 0 };
		wr[i].wr.rdma.remote_addr = shared->end[peer].addr + offset;
		wr[i].wr.rdma.rkey = shared->end[peer].rkey;
	}
	wr[n - 1].send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, wr, &bad) != 0)
		bench_die("post_send");
	posted += n;
}

static void stream(uint64_t bytes)
{
	for (uint64_t sent = 0; sent < bytes; sent += LIST * size) {
		while (posted - acked > DEPTH - LIST)
			wait_sends();
		post_list(1, sent, size, LIST);
	}
	while (acked != posted)
		wait_sends();
}

static void be_sender(void)
{
	struct bench_result r = { .name = "imm", .block_bytes = size, .batch = LIST };
	double start;

	stream(LIST * size);
	start = bench_now_s();
	stream(total);
	r.seconds = bench_now_s() - start;
	r.blocks = total / size;
	bench_print(&r, true);
}

static void latency(int self)
{
	double start = 0;

	for (int i = 0; i < LAT_WARM + LAT_ROUNDS; i++) {
		if (i == LAT_WARM)
			start = bench_now_s();
		if (self == 0)
			post_list(1, 0, 8, 1);
		while (poll_recvs() == 0)
			wait_sends();
		if (self == 1)
			post_list(0, 0, 8, 1);
	}
	if (self == 0)
		printf("{\"name\": \"lat\", \"one_way_us\": %.3f}\n",
		       (bench_now_s() - start) / LAT_ROUNDS / 2 * 1e6);
}

static void run(int self, const char *mode, const char *nic)
{
	bench_pin(self);
	open_device(nic);
	make(self);
	join(self);
	if (strcmp(mode, "lat") == 0)
		latency(self);
	else if (self == 0)
		be_sender();
	if (self == 0)
		atomic_store(&shared->over, 1);
	while (!atomic_load(&shared->over)) {
		if (poll_recvs() == 0)
			wait_sends();
	}
}

int main(int argc, char **argv)
{
	int status;
	pid_t child;

	for (int i = 4; i + 1 < argc; i += 2)
		*(strcmp(argv[i], "--size") == 0 ? &size : &total) = bench_size(argv[i + 1]);
	if (argc < 4 || size == 0 || size > WALK_BYTES) {
		(void)fprintf(stderr,
		              "usage: verbs_floor imm|lat NIC NIC [--size N] [--total N]\n");
		return 2;
	}
	shared = bench_shared(sizeof(*shared));
	memset(shared, 0, sizeof(*shared));
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it polls */
	run(child == 0, argv[1], argv[child == 0 ? 3 : 2]);
	if (child == 0)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("receiver");
	return 0;
}
