/* SPDX-License-Identifier: Apache-2.0 */

/* The two ways in which a write that is split over two NICs can end, each at its least:
 *
 *   verbs_split marker A0 A1 B0 B1 --size 64K   behind each half a SEND of 24 bytes on its queue
 *                                               pair; the receiver counts when both are there
 *   verbs_split read A0 A1 B0 B1 --size 64K     behind each half a READ of a word of the peer's, in
 *                                               a region of its own; when both have come back, an
 *                                               empty write with the immediate
 *
 * What tells them apart is how often the wire is crossed before the receiver knows, so it is run
 * with links of a known delay. There and back between two processes, pinned to a CPU each, A0 to B0
 * and A1 to B1. GID index 1. */

#include "../util.h"

#include <infiniband/verbs.h>

#include <sched.h>
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
	RAILS = 2,
	DEPTH = 64,
	MARK_BYTES = 24,
	PSN = 1,
	WARM = 5,
};

struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey, word_rkey;
	uint64_t addr, word_addr;
};

static struct shared {
	struct end end[2][RAILS];
	_Atomic uint32_t ready;
} * shared;

static struct rail {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_qp *qp;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr, *word_mr, *slots_mr;
	uint8_t *memory, *slots;
	uint64_t word, got; /* got: what a READ brings */
	struct ibv_mr *got_mr;
} rail[RAILS];

static int self;
static uint64_t size = 64 << 10, rounds = 1000;
static bool by_read;
static uint32_t marks, imms, reads; /* that came, and that came back */

static void open_device(struct rail *r, const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int i = 0; list != NULL && i < count; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			r->ctx = ibv_open_device(list[i]);
	if (r->ctx == NULL)
		bench_die(name);
}

static void post_recv(struct rail *r, uint64_t slot)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)r->slots + slot * MARK_BYTES, MARK_BYTES,
		               r->slots_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(r->qp, &wr, &bad) != 0)
		bench_die("post_recv");
}

static void make(uint32_t k)
{
	struct rail *r = &rail[k];
	struct end *e = &shared->end[self][k];
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		                         .cap = { .max_send_wr = DEPTH,
		                                  .max_recv_wr = DEPTH,
		                                  .max_send_sge = 1,
		                                  .max_recv_sge = 1,
		                                  .max_inline_data = 64 } };
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
		                    .port_num = 1,
		                    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
		                                       (by_read ? IBV_ACCESS_REMOTE_READ : 0u) };

	r->pd = ibv_alloc_pd(r->ctx);
	if (r->pd == NULL || posix_memalign((void **)&r->memory, 4096, size) != 0 ||
	    posix_memalign((void **)&r->slots, 4096, DEPTH * MARK_BYTES) != 0)
		bench_die("memory");
	memset(r->memory, 0x5a, size);
	r->mr = ibv_reg_mr(r->pd, r->memory, size,
	                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	r->word_mr = ibv_reg_mr(r->pd, &r->word, sizeof(r->word), IBV_ACCESS_REMOTE_READ);
	r->got_mr = ibv_reg_mr(r->pd, &r->got, sizeof(r->got), IBV_ACCESS_LOCAL_WRITE);
	r->slots_mr = ibv_reg_mr(r->pd, r->slots, DEPTH * MARK_BYTES, IBV_ACCESS_LOCAL_WRITE);
	attr.send_cq = r->send_cq = ibv_create_cq(r->ctx, DEPTH, NULL, NULL, 0);
	attr.recv_cq = r->recv_cq = ibv_create_cq(r->ctx, DEPTH, NULL, NULL, 0);
	if (!r->mr || !r->word_mr || !r->got_mr || !r->slots_mr || !r->send_cq || !r->recv_cq)
		bench_die("registration");
	r->qp = ibv_create_qp(r->pd, &attr);
	if (r->qp == NULL || ibv_modify_qp(r->qp, &init,
	                                   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
	                                           IBV_QP_ACCESS_FLAGS) != 0 ||
	    ibv_query_gid(r->ctx, 1, GID_INDEX, &e->gid) != 0)
		bench_die("queue pair");
	for (uint64_t slot = 0; slot < DEPTH; slot++)
		post_recv(r, slot);
	e->qpn = r->qp->qp_num;
	e->rkey = r->mr->rkey;
	e->addr = (uint64_t)(uintptr_t)r->memory;
	e->word_rkey = r->word_mr->rkey;
	e->word_addr = (uint64_t)(uintptr_t)&r->word;
}

static void meet(uint32_t count)
{
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < count)
		continue;
}

static void join(uint32_t k)
{
	const struct end *to = &shared->end[!self][k];
	struct ibv_port_attr port;
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
		                   .rq_psn = PSN,
		                   .max_dest_rd_atomic = 1,
		                   .min_rnr_timer = 1 };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS,
		                   .sq_psn = PSN,
		                   .timeout = 16,
		                   .retry_cnt = 6,
		                   .rnr_retry = 7,
		                   .max_rd_atomic = 1 };

	if (ibv_query_port(rail[k].ctx, 1, &port) != 0)
		bench_die("port");
	rtr.path_mtu = port.active_mtu;
	rtr.dest_qp_num = to->qpn;
	rtr.ah_attr = (struct ibv_ah_attr){ .is_global = 1,
		                            .port_num = 1,
		                            .grh = { .dgid = to->gid,
		                                     .sgid_index = GID_INDEX,
		                                     .hop_limit = 64 } };
	if (ibv_modify_qp(rail[k].qp, &rtr,
	                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
	                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	                          IBV_QP_MIN_RNR_TIMER) != 0 ||
	    ibv_modify_qp(rail[k].qp, &rts,
	                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
		bench_die("join");
}

static void poll_all(void)
{
	struct ibv_wc wc[8];

	for (uint32_t k = 0; k < RAILS; k++) {
		int n = ibv_poll_cq(rail[k].send_cq, 8, wc);

		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				bench_die(ibv_wc_status_str(wc[i].status));
			reads += wc[i].opcode == IBV_WC_RDMA_READ;
		}
		n = ibv_poll_cq(rail[k].recv_cq, 8, wc);
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				bench_die(ibv_wc_status_str(wc[i].status));
			marks += wc[i].opcode == IBV_WC_RECV;
			imms += wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM;
			post_recv(&rail[k], wc[i].wr_id);
		}
	}
	sched_yield(); /* the devices are software, too */
}

static void post(uint32_t k, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(rail[k].qp, wr, &bad) != 0)
		bench_die("post_send");
}

/* A half and what shows its end. */
static void post_half(uint32_t k, const uint8_t *mark)
{
	const struct end *to = &shared->end[!self][k];
	struct rail *r = &rail[k];
	struct ibv_sge sge = { (uint64_t)(uintptr_t)r->memory, (uint32_t)(size / RAILS),
		               r->mr->lkey };
	struct ibv_sge end_sge = { (uint64_t)(uintptr_t)mark, MARK_BYTES, 0 };
	struct ibv_send_wr end = { .opcode = IBV_WR_SEND,
		                   .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		                   .sg_list = &end_sge,
		                   .num_sge = 1 };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .next = &end
	};

	wr.wr.rdma.remote_addr = to->addr;
	wr.wr.rdma.rkey = to->rkey;
	if (by_read) {
		end_sge = (struct ibv_sge){ (uint64_t)(uintptr_t)&r->got, sizeof(r->got),
			                    r->got_mr->lkey };
		end.opcode = IBV_WR_RDMA_READ;
		end.send_flags = IBV_SEND_SIGNALED;
		end.wr.rdma.remote_addr = to->word_addr;
		end.wr.rdma.rkey = to->word_rkey;
	}
	post(k, &wr);
}

static void send_one(uint32_t number)
{
	struct ibv_send_wr imm = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		                   .send_flags = IBV_SEND_SIGNALED,
		                   .imm_data = number };
	uint8_t mark[MARK_BYTES] = { 0 };

	memcpy(mark, &number, sizeof(number));
	reads = 0;
	for (uint32_t k = 0; k < RAILS; k++)
		post_half(k, mark);
	if (!by_read)
		return;
	while (reads < RAILS)
		poll_all();
	imm.wr.rdma.remote_addr = shared->end[!self][0].addr;
	imm.wr.rdma.rkey = shared->end[!self][0].rkey;
	post(0, &imm);
}

static void receive_one(void)
{
	while (by_read ? imms == 0 : marks < RAILS)
		poll_all();
	if (by_read)
		imms--;
	else
		marks -= RAILS;
}

static void run(char **nics)
{
	double start = 0;

	bench_pin(self);
	for (uint32_t k = 0; k < RAILS; k++) {
		open_device(&rail[k], nics[k]);
		make(k);
	}
	meet(2);
	for (uint32_t k = 0; k < RAILS; k++)
		join(k);
	meet(4);
	for (uint32_t i = 0; i < WARM + rounds; i++) {
		if (i == WARM)
			start = bench_now_s();
		if (self == 1)
			receive_one();
		send_one(i);
		if (self == 0)
			receive_one();
	}
	if (self == 0)
		printf("{\"name\": \"%s\", \"bytes\": %llu, \"one_way_us\": %.3f}\n",
		       by_read ? "read" : "marker", (unsigned long long)size,
		       (bench_now_s() - start) / (double)rounds / 2 * 1e6);
}

int main(int argc, char **argv)
{
	int status;
	pid_t child;

	for (int i = 6; i + 1 < argc; i += 2)
		*(strcmp(argv[i], "--size") == 0 ? &size : &rounds) = bench_size(argv[i + 1]);
	if (argc < 6 || size < RAILS || rounds == 0) {
		(void)fprintf(stderr, "usage: verbs_split marker|read A0 A1 B0 B1 [--size N] "
		                      "[--rounds N]\n");
		return 2;
	}
	by_read = strcmp(argv[1], "read") == 0;
	shared = bench_shared(sizeof(*shared));
	memset(shared, 0, sizeof(*shared));
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it polls */
	self = child == 0;
	run(argv + (child == 0 ? 4 : 2));
	if (child == 0) {
		meet(6);
		_exit(0);
	}
	meet(6);
	if (waitpid(child, &status, 0) != child || status != 0)
		bench_die("receiver");
	return 0;
}
