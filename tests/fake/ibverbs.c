/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/ibverbs.h"

#include <infiniband/verbs.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT    __attribute__((visibility("default")))
#define DEVICES   2u
#define QPS       256u
#define MRS       256u
#define CQ_SLOTS  32768u
#define RECVS     32768u
#define SENDS     1024u
#define GRH_BYTES 40u
#define FIRST_QPN 0x100u

static void raise_event(uint32_t device, enum fake_event what);
static uint32_t count_objects(void);

EXPORT struct fake_knobs fake_knobs = {
	.room = UINT32_MAX,
	.max_inline = 256,
	.max_qps = QPS,
	.max_mrs = MRS,
	.max_qp_wr = SENDS,
	.max_cqe = CQ_SLOTS,
	.max_srq_wr = RECVS,
	.max_mr_size = UINT64_MAX,
	.lock_bytes = UINT64_MAX,
	.event = raise_event,
	.objects = count_objects,
};

struct context {
	struct ibv_context ctx;
	uint32_t device;
	int async_in;
};

struct channel {
	struct ibv_comp_channel channel;
	int in;
};

struct cq {
	struct ibv_cq cq;
	struct ibv_wc *ring;
	uint32_t head, tail, depth;
	bool armed;
};

/* Receive requests, of a queue pair or shared. */
struct recvs {
	struct {
		uint64_t wr_id, addr;
		uint32_t len;
	} * ring;
	uint32_t head, tail, depth;
};

struct srq {
	struct ibv_srq srq;
	struct recvs recvs;
};

/* A region, and where the bytes are that its addresses stand for. */
struct mr {
	struct ibv_mr mr;
	uint64_t iova;
	uint8_t *view;
};

struct send {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint8_t inlined[256];
};

struct qp {
	struct ibv_qp qp;
	struct recvs own;
	struct send *ring;
	uint32_t head, tail, depth;
	uint32_t dest, qkey;
	bool sq_sig_all;
};

static struct ibv_device devices[DEVICES];
static uint8_t gid_last[DEVICES] = { 1, 2 };
static struct context *contexts[16];
static struct qp *qps[QPS];
static struct mr *mrs[MRS];
static uint32_t next_qpn, next_key = 1, alive;

static uint32_t count_objects(void)
{
	return alive;
}

static void *make(size_t bytes)
{
	alive++;
	return calloc(1, bytes);
}

static int unmake(void *ptr)
{
	alive--;
	free(ptr);
	return 0;
}

static void pipe_pair(int *out, int *in)
{
	int fds[2] = { -1, -1 };

	(void)pipe2(fds, O_CLOEXEC | O_NONBLOCK);
	*out = fds[0];
	*in = fds[1];
}

/* --- completions and the work itself --- */

static void complete(struct ibv_cq *cq_, const struct ibv_wc *wc)
{
	struct cq *cq = (struct cq *)cq_;

	if (cq->tail - cq->head == cq->depth)
		abort(); /* the provider's accounting is wrong */
	cq->ring[cq->tail++ % cq->depth] = *wc;
	if (!cq->armed)
		return;
	cq->armed = false;
	(void)!write(((struct channel *)cq_->channel)->in, &cq_, sizeof(cq_));
}

static struct qp *find_qp(uint32_t qpn)
{
	return qpn >= FIRST_QPN ? qps[(qpn - FIRST_QPN) % QPS] : NULL;
}

static struct recvs *recvs_of(struct qp *q)
{
	return q->qp.srq ? &((struct srq *)q->qp.srq)->recvs : &q->own;
}

static void send_done(struct qp *q, const struct send *s, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .wr_id = s->wr.wr_id, .status = status, .qp_num = q->qp.qp_num };

	if (status != IBV_WC_SUCCESS || (s->wr.send_flags & IBV_SEND_SIGNALED) != 0)
		complete(q->qp.send_cq, &wc);
	q->head++;
}

static void to_error(struct qp *q)
{
	struct recvs *r = &q->own;

	q->qp.state = IBV_QPS_ERR;
	while (q->head != q->tail)
		send_done(q, &q->ring[q->head % q->depth], IBV_WC_WR_FLUSH_ERR);
	while (!q->qp.srq && r->head != r->tail) {
		struct ibv_wc wc = { .wr_id = r->ring[r->head++ % r->depth].wr_id,
			             .status = IBV_WC_WR_FLUSH_ERR,
			             .qp_num = q->qp.qp_num };

		complete(q->qp.recv_cq, &wc);
	}
}

/* Where the bytes of a region are; NULL: outside. */
static uint8_t *view_of(uint32_t key, uint64_t addr, uint64_t len)
{
	for (uint32_t i = 0; i < MRS; i++) {
		const struct mr *m = mrs[i];

		if (!m || m->mr.rkey != key)
			continue;
		if (addr < m->iova || len > m->mr.length || addr - m->iova > m->mr.length - len)
			return NULL;
		return m->view + (addr - m->iova);
	}
	return NULL;
}

static const void *bytes_of(const struct send *s)
{
	if ((s->wr.send_flags & IBV_SEND_INLINE) != 0)
		return s->inlined;
	return view_of(s->sge.lkey, s->sge.addr, s->sge.length);
}

static void async(struct ibv_context *ctx, const struct ibv_async_event *ev)
{
	(void)!write(((struct context *)ctx)->async_in, ev, sizeof(*ev));
}

/* A receive request of the peer's takes it. False: none is there. */
static bool deliver(struct qp *to, const struct send *s, struct ibv_wc *wc, uint32_t head_bytes)
{
	struct recvs *r = recvs_of(to);
	uint8_t *at;

	if (r->head == r->tail)
		return false;
	at = (uint8_t *)(uintptr_t)r->ring[r->head % r->depth].addr;
	if (s->wr.opcode == IBV_WR_SEND && s->sge.length > 0)
		memcpy(at + head_bytes, bytes_of(s), s->sge.length);
	wc->wr_id = r->ring[r->head++ % r->depth].wr_id;
	wc->byte_len = s->sge.length + head_bytes;
	wc->qp_num = to->qp.qp_num;
	complete(to->qp.recv_cq, wc);
	return true;
}

/* Status of one RC request; WAIT when it has to be tried again. */
enum { WAIT = -1 };

static int run_rc(struct qp *q, const struct send *s)
{
	struct qp *to = find_qp(q->dest);
	bool write = s->wr.opcode != IBV_WR_SEND;
	struct ibv_wc wc = { .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
		             .imm_data = s->wr.imm_data };
	uint8_t *at = NULL;

	if (fake_knobs.fail_after > 0 && --fake_knobs.fail_after == 0)
		return fake_knobs.fail_status;
	if (!to || to->qp.qp_num != q->dest || to->qp.state == IBV_QPS_ERR)
		return IBV_WC_RETRY_EXC_ERR;
	if (to->qp.state < IBV_QPS_RTR)
		return WAIT;
	if (s->sge.length > 0 && !bytes_of(s))
		return IBV_WC_LOC_PROT_ERR;
	if (write && s->sge.length > 0)
		at = view_of(s->wr.wr.rdma.rkey, s->wr.wr.rdma.remote_addr, s->sge.length);
	if (write && s->sge.length > 0 && !at) {
		struct ibv_async_event ev = { .event_type = IBV_EVENT_QP_ACCESS_ERR };

		ev.element.qp = &to->qp;
		to_error(to);
		async(to->qp.context, &ev);
		return IBV_WC_REM_ACCESS_ERR;
	}
	if (s->wr.opcode != IBV_WR_RDMA_WRITE && recvs_of(to)->head == recvs_of(to)->tail)
		return WAIT;
	if (write && s->sge.length > 0)
		memcpy(at, bytes_of(s), s->sge.length);
	if (s->wr.opcode != IBV_WR_RDMA_WRITE)
		(void)deliver(to, s, &wc, 0);
	return IBV_WC_SUCCESS;
}

static void run_ud(const struct send *s)
{
	struct qp *to = find_qp(s->wr.wr.ud.remote_qpn);
	struct ibv_wc wc = { .opcode = IBV_WC_RECV, .wc_flags = IBV_WC_GRH };
	uint32_t times = 1;

	if (fake_knobs.drop_ud > 0) {
		fake_knobs.drop_ud--;
		return;
	}
	if (fake_knobs.double_ud > 0) {
		fake_knobs.double_ud--;
		times = 2;
	}
	if (!to || to->qp.qp_num != s->wr.wr.ud.remote_qpn || to->qkey != s->wr.wr.ud.remote_qkey)
		return;
	while (times-- > 0)
		(void)deliver(to, s, &wc, GRH_BYTES);
}

static void run_all(void)
{
	for (uint32_t i = 0; i < QPS && !fake_knobs.hold; i++) {
		struct qp *q = qps[i];

		while (q && q->qp.state == IBV_QPS_RTS && q->head != q->tail) {
			struct send *s = &q->ring[q->head % q->depth];
			int st = IBV_WC_SUCCESS;

			if (q->qp.qp_type == IBV_QPT_UD)
				run_ud(s);
			else
				st = run_rc(q, s);
			if (st == WAIT)
				break;
			send_done(q, s, (enum ibv_wc_status)st);
			if (st != IBV_WC_SUCCESS)
				to_error(q);
		}
	}
}

/* --- the data path --- */

static int op_poll(struct ibv_cq *cq_, int max, struct ibv_wc *out)
{
	struct cq *cq = (struct cq *)cq_;
	int n = 0;

	if (fake_knobs.enter)
		fake_knobs.enter();
	run_all();
	while (n < max && cq->head != cq->tail)
		out[n++] = cq->ring[cq->head++ % cq->depth];
	if (fake_knobs.leave)
		fake_knobs.leave();
	return n;
}

static int op_notify(struct ibv_cq *cq, int solicited)
{
	(void)solicited;
	((struct cq *)cq)->armed = true;
	return 0;
}

static int put_recvs(struct recvs *r, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		*bad = wr;
		if (r->tail - r->head == r->depth)
			return ENOMEM;
		r->ring[r->tail % r->depth].wr_id = wr->wr_id;
		r->ring[r->tail % r->depth].addr = wr->num_sge ? wr->sg_list->addr : 0;
		r->ring[r->tail++ % r->depth].len = wr->num_sge ? wr->sg_list->length : 0;
	}
	return 0;
}

static int op_post_srq(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return put_recvs(&((struct srq *)srq)->recvs, wr, bad);
}

static int op_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return put_recvs(&((struct qp *)qp)->own, wr, bad);
}

static int take(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)qp;
	bool rc = qp->qp_type == IBV_QPT_RC;

	fake_knobs.posts += rc;
	for (; wr; wr = wr->next) {
		struct send *s = &q->ring[q->tail % q->depth];

		*bad = wr;
		if (q->tail - q->head == q->depth || (rc && fake_knobs.room == 0))
			return ENOMEM;
		if (rc && fake_knobs.room != UINT32_MAX)
			fake_knobs.room--;
		s->wr = *wr;
		s->sge = wr->num_sge ? *wr->sg_list : (struct ibv_sge){ 0 };
		if ((wr->send_flags & IBV_SEND_INLINE) != 0 && s->sge.length > 0)
			memcpy(s->inlined, (void *)(uintptr_t)s->sge.addr, s->sge.length);
		q->tail++;
		fake_knobs.wqes += rc;
		fake_knobs.signalled += rc && (wr->send_flags & IBV_SEND_SIGNALED) != 0;
		if (qp->state == IBV_QPS_ERR)
			send_done(q, s, IBV_WC_WR_FLUSH_ERR);
	}
	return 0;
}

static int op_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int code;

	if (fake_knobs.enter)
		fake_knobs.enter();
	for (const struct ibv_send_wr *it = wr; it; it = it->next)
		fake_knobs.writes += it->opcode == IBV_WR_RDMA_WRITE ||
		                     it->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	code = take(qp, wr, bad);
	if (fake_knobs.leave)
		fake_knobs.leave();
	return code;
}

/* --- devices --- */

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(DEVICES + 1, sizeof(*list));

	for (uint32_t i = 0; i < DEVICES; i++) {
		strcpy(devices[i].name, i == 0 ? "fake0" : "fake1");
		list[i] = &devices[i];
	}
	*count = DEVICES;
	return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct context *c = make(sizeof(*c));
	uint32_t i = 0;

	c->device = (uint32_t)(device - devices);
	c->ctx.device = device;
	c->ctx.ops.poll_cq = op_poll;
	c->ctx.ops.req_notify_cq = op_notify;
	c->ctx.ops.post_srq_recv = op_post_srq;
	c->ctx.ops.post_recv = op_post_recv;
	c->ctx.ops.post_send = op_post_send;
	pipe_pair(&c->ctx.async_fd, &c->async_in);
	while (contexts[i])
		i++;
	contexts[i] = c;
	return &c->ctx;
}

EXPORT int ibv_close_device(struct ibv_context *ctx)
{
	struct context *c = (struct context *)ctx;

	for (uint32_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++)
		if (contexts[i] == c)
			contexts[i] = NULL;
	close(ctx->async_fd);
	close(c->async_in);
	return unmake(c);
}

EXPORT int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *out)
{
	(void)ctx;
	*out = (struct ibv_device_attr){ .max_qp = QPS,
		                         .max_qp_wr = (int)fake_knobs.max_qp_wr,
		                         .max_cqe = (int)fake_knobs.max_cqe,
		                         .max_srq_wr = (int)fake_knobs.max_srq_wr,
		                         .max_mr = MRS,
		                         .max_mr_size = fake_knobs.max_mr_size,
		                         .phys_port_cnt = 1 };
	return 0;
}

#undef ibv_query_port
EXPORT int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *out_)
{
	struct ibv_port_attr *out = (struct ibv_port_attr *)(void *)out_;

	(void)ctx;
	if (port != 1)
		return EINVAL;
	out->state = fake_knobs.port_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	out->active_mtu = out->max_mtu = IBV_MTU_1024;
	out->max_msg_sz = 1u << 30;
	out->gid_tbl_len = 2;
	out->link_layer = IBV_LINK_LAYER_ETHERNET;
	out->active_speed = 32;
	out->active_width = 2;
	return 0;
}

EXPORT int ibv_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *out)
{
	(void)port;
	memset(out, 0, sizeof(*out));
	if (index == 1) {
		out->raw[10] = out->raw[11] = 0xff;
		out->raw[12] = 127;
		out->raw[15] = gid_last[((struct context *)ctx)->device];
	}
	return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *out, size_t max,
                                    uint32_t flags, size_t entry_bytes)
{
	(void)flags;
	if (max < 1 || entry_bytes != sizeof(*out))
		return -EINVAL;
	*out = (struct ibv_gid_entry){ .gid_index = 1,
		                       .port_num = 1,
		                       .gid_type = IBV_GID_TYPE_ROCE_V2 };
	(void)ibv_query_gid(ctx, 1, 1, &out->gid);
	return 1;
}

static void raise_event(uint32_t device, enum fake_event what)
{
	static const enum ibv_event_type types[] = { IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE,
		                                     IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE };
	struct ibv_async_event ev = { .event_type = types[what] };

	if (what == FAKE_GID_CHANGE)
		gid_last[device] = (uint8_t)(gid_last[device] + 10);
	if (what != FAKE_DEVICE_FATAL)
		ev.element.port_num = 1;
	for (uint32_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++)
		if (contexts[i] && contexts[i]->device == device)
			async(&contexts[i]->ctx, &ev);
}

EXPORT int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *out)
{
	return read(ctx->async_fd, out, sizeof(*out)) == sizeof(*out) ? 0 : -1;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *ev)
{
	(void)ev;
}

EXPORT const char *ibv_event_type_str(enum ibv_event_type type)
{
	return type == IBV_EVENT_DEVICE_FATAL ? "device fatal" : "an event";
}

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR ? "retry exceeded" : "an error";
}

/* --- objects --- */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = make(sizeof(*pd));

	pd->context = ctx;
	return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return unmake(pd);
}

static uint64_t pinned(void)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < MRS; i++)
		sum += mrs[i] ? mrs[i]->mr.length : 0;
	return sum;
}

static struct mr *new_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	uint32_t live = 0;
	uint32_t at = MRS;

	for (uint32_t i = 0; i < MRS; i++) {
		live += mrs[i] != NULL;
		at = mrs[i] == NULL && at == MRS ? i : at;
	}
	if (at == MRS || live >= fake_knobs.max_mrs || length > fake_knobs.max_mr_size) {
		errno = ENOMEM;
		return NULL;
	}
	fake_knobs.access = access;
	mrs[at] = make(sizeof(**mrs));
	mrs[at]->iova = (uint64_t)(uintptr_t)addr;
	mrs[at]->view = addr;
	mrs[at]->mr = (struct ibv_mr){ .context = pd->context,
		                       .pd = pd,
		                       .addr = addr,
		                       .length = length,
		                       .lkey = next_key << 8,
		                       .rkey = next_key << 8 };
	next_key++;
	return mrs[at];
}

/* As the kernel finds out, which reads it for the process. */
static bool host_reads(const void *addr)
{
	int in, out;
	bool ok;

	pipe_pair(&out, &in);
	ok = write(in, addr, 1) == 1;
	close(in);
	close(out);
	return ok;
}

#undef ibv_reg_mr
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	uint8_t *view = addr;
	struct mr *m;

	if (length > fake_knobs.lock_bytes || pinned() > fake_knobs.lock_bytes - length) {
		errno = ENOMEM;
		return NULL;
	}
	if (!host_reads(addr)) {
		if (!fake_knobs.peermem || !fake_knobs.gpu_view) {
			errno = EFAULT;
			return NULL;
		}
		view = fake_knobs.gpu_view((uint64_t)(uintptr_t)addr);
		fake_knobs.peermems++;
	}
	m = new_mr(pd, addr, length, access);
	if (!m)
		return NULL;
	m->view = view;
	return &m->mr;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access)
{
	(void)iova;
	fake_knobs.saw_relaxed =
		fake_knobs.saw_relaxed || (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
	return ibv_reg_mr(pd, addr, length, (int)access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct stat st = { 0 };
	struct mr *m;

	(void)fstat(fd, &st);
	fake_knobs.dmabuf.fd = fd;
	fake_knobs.dmabuf.inode = st.st_ino;
	fake_knobs.dmabuf.offset = offset;
	fake_knobs.dmabuf.len_bytes = length;
	fake_knobs.dmabuf.iova = iova;
	fake_knobs.dmabuf.access = access;
	if (fake_knobs.no_dmabuf || offset % page != iova % page || st.st_ino == 0) {
		errno = fake_knobs.no_dmabuf ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	m = new_mr(pd, (void *)(uintptr_t)iova, length, access);
	if (!m)
		return NULL;
	m->view = fake_knobs.gpu_view(iova);
	fake_knobs.dmabufs++;
	return &m->mr;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct mr *m = (struct mr *)mr;

	for (uint32_t i = 0; i < MRS; i++)
		if (mrs[i] == m)
			mrs[i] = NULL;
	return unmake(m);
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct channel *c = make(sizeof(*c));

	c->channel.context = ctx;
	pipe_pair(&c->channel.fd, &c->in);
	return &c->channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close(((struct channel *)channel)->in);
	return unmake(channel);
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	*context = NULL;
	return read(channel->fd, cq, sizeof(*cq)) == sizeof(*cq) ? 0 : -1;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void)cq;
	(void)count;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *context,
                                    struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq;

	(void)vector;
	if ((uint32_t)cqe > fake_knobs.max_cqe) {
		errno = EINVAL;
		return NULL;
	}
	cq = make(sizeof(*cq));
	cq->cq.context = ctx;
	cq->cq.cq_context = context;
	cq->cq.channel = channel;
	cq->depth = (uint32_t)cqe;
	cq->ring = calloc((size_t)cqe, sizeof(*cq->ring));
	return &cq->cq;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(((struct cq *)cq)->ring);
	return unmake(cq);
}

static void recvs_open(struct recvs *r, uint32_t depth)
{
	r->depth = depth;
	r->ring = calloc(depth + 1, sizeof(*r->ring));
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct srq *s;

	if (attr->attr.max_wr > fake_knobs.max_srq_wr) {
		errno = EINVAL;
		return NULL;
	}
	s = make(sizeof(*s));
	s->srq.context = pd->context;
	recvs_open(&s->recvs, attr->attr.max_wr);
	return &s->srq;
}

EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(((struct srq *)srq)->recvs.ring);
	return unmake(srq);
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	uint32_t live = 0;
	struct qp *q;

	for (uint32_t i = 0; i < QPS; i++)
		live += qps[i] != NULL;
	if (attr->cap.max_inline_data > fake_knobs.max_inline ||
	    attr->cap.max_send_wr > fake_knobs.max_qp_wr ||
	    attr->cap.max_recv_wr > fake_knobs.max_qp_wr || live >= fake_knobs.max_qps) {
		errno = live >= fake_knobs.max_qps ? ENOMEM : EINVAL;
		return NULL;
	}
	if (attr->qp_type == IBV_QPT_UD && fake_knobs.no_ud) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	while (qps[next_qpn % QPS])
		next_qpn++;
	q = make(sizeof(*q));
	q->qp.context = pd->context;
	q->qp.qp_context = attr->qp_context;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->qp.srq = attr->srq;
	q->qp.qp_type = attr->qp_type;
	q->qp.qp_num = FIRST_QPN + next_qpn;
	q->depth = attr->cap.max_send_wr;
	q->ring = calloc(q->depth, sizeof(*q->ring));
	recvs_open(&q->own, attr->cap.max_recv_wr);
	qps[next_qpn++ % QPS] = q;
	return &q->qp;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct qp *q = (struct qp *)qp;

	if ((mask & IBV_QP_PATH_MTU) != 0 && fake_knobs.max_path_mtu != 0 &&
	    (uint32_t)attr->path_mtu > fake_knobs.max_path_mtu)
		return EINVAL;
	if ((mask & IBV_QP_DEST_QPN) != 0)
		q->dest = attr->dest_qp_num;
	if ((mask & IBV_QP_QKEY) != 0)
		q->qkey = attr->qkey;
	if ((mask & IBV_QP_STATE) == 0)
		return 0;
	if (attr->qp_state == IBV_QPS_ERR)
		to_error(q);
	qp->state = attr->qp_state;
	return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct qp *q = (struct qp *)qp;

	qps[(qp->qp_num - FIRST_QPN) % QPS] = NULL;
	free(q->ring);
	free(q->own.ring);
	return unmake(q);
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = make(sizeof(*ah));

	(void)attr;
	ah->context = pd->context;
	return ah;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	return unmake(ah);
}
