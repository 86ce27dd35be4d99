/* SPDX-License-Identifier: Apache-2.0 */
/* Posting writes and reporting their ends. A chain is one call of the device: up to `chain` of its
 * requests, of which only the last is signalled; its completion acknowledges all before it, since a
 * reliable queue pair completes in order. */
#include "prov/verbs/path.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#define WR_ID(path, low) ((path)->wr_id | (low))

/* Nothing is saved by a doorbell that it shares with others, and its end is news: a path that goes
 * on is not given up. */
#define LONG_BYTES (256u << 10)

bool verbs_tx_open(struct verbs_path *path)
{
	struct verbs_tx *tx = &path->tx;
	struct verbs_dev *dev = path->obj.dev;
	size_t marks_bytes = (size_t)(path->depth + 1) * VERBS_MARK_BYTES;

	tx->ring = mem_calloc(path->depth, sizeof(*tx->ring));
	if (!tx->ring)
		return false;
	for (uint32_t i = 0; i < VERBS_CHAIN_MAX; i++) {
		tx->wr[i].sg_list = &tx->sge[i];
		tx->wr[i].next = i + 1 < VERBS_CHAIN_MAX ? &tx->wr[i + 1] : NULL;
	}
	if (path->inline_bytes >= VERBS_MARK_BYTES)
		return true;
	tx->marks = mem_alloc_aligned(64, marks_bytes);
	if (tx->marks)
		tx->marks_mr = dev->nic.lib->reg_mr(dev->pd, tx->marks, marks_bytes,
		                                    IBV_ACCESS_LOCAL_WRITE);
	return tx->marks_mr != NULL;
}

void verbs_tx_close(struct verbs_path *path)
{
	if (path->tx.marks_mr)
		(void)path->obj.dev->nic.lib->dereg_mr(path->tx.marks_mr);
	mem_free(path->tx.marks);
	mem_free(path->tx.ring);
}

/* --- posting --- */

/* A SEND of one marker, written at entry `at` of the marks, or anywhere when it goes inline. */
static void fill_mark(struct verbs_path *path, struct ibv_send_wr *wr, uint32_t at,
                      uint8_t *inline_bytes, const struct prov_wr *of)
{
	struct verbs_tx *tx = &path->tx;
	uint8_t *bytes = tx->marks ? tx->marks + (size_t)at * VERBS_MARK_BYTES : inline_bytes;
	struct bw w;

	bw_init(&w, bytes, VERBS_MARK_BYTES);
	bw_u8(&w, of ? VERBS_MARK_PART : VERBS_MARK_READY);
	bw_zeros(&w, 3);
	bw_u32(&w, of ? of->parts : 0);
	bw_u32(&w, of ? of->imm : 0);
	bw_u32(&w, 0);
	bw_u64(&w, of ? of->op_seq : 0);
	DASSERT(!w.bad && bw_len(&w) == VERBS_MARK_BYTES);
	wr->opcode = IBV_WR_SEND;
	wr->send_flags = tx->marks ? 0 : IBV_SEND_INLINE;
	wr->num_sge = 1;
	*wr->sg_list = (struct ibv_sge){ (uint64_t)(uintptr_t)bytes, VERBS_MARK_BYTES,
		                         tx->marks ? tx->marks_mr->lkey : 0 };
}

/* Template k. In line: every write comes through here. */
__attribute__((always_inline)) static inline void fill_write(struct verbs_path *path, uint32_t k,
                                                             const struct prov_wr *req)
{
	struct ibv_send_wr *wr = &path->tx.wr[k];
	bool imm = (req->flags & PROV_WR_IMM) != 0;

	wr->opcode = imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	wr->imm_data = htobe32(req->imm);
	wr->send_flags = 0;
	if (req->len_bytes <= path->inline_bytes && (req->flags & PROV_WR_GPU) == 0)
		wr->send_flags = IBV_SEND_INLINE;
	wr->wr.rdma.remote_addr = req->remote_addr;
	wr->wr.rdma.rkey = (uint32_t)req->remote_key;
	wr->num_sge = req->len_bytes != 0;
	path->tx.sge[k] = (struct ibv_sge){ (uint64_t)(uintptr_t)req->src, (uint32_t)req->len_bytes,
		                            (uint32_t)(req->local_key >> 32) };
}

/* Requests of the queue pair that one of ours takes. */
static uint32_t wqes_of(const struct prov_wr *req)
{
	return (req->flags & PROV_WR_PART) != 0 ? 2 : 1;
}

/* Fills the templates with as much as fits into one chain. Returns how many of ours; *out_wqes how
 * many of the device's. */
static uint32_t build_chain(struct verbs_path *path, const struct prov_wr *reqs, uint32_t n,
                            uint8_t (*marks)[VERBS_MARK_BYTES], uint32_t *out_wqes)
{
	struct verbs_tx *tx = &path->tx;
	uint32_t used = tx->wqe_tail - tx->wqe_done;
	uint32_t room = used < 2 * path->depth ? 2 * path->depth - used : 0;
	uint32_t slots = path->depth - (tx->tail - tx->told);
	uint32_t max = path->obj.dev->limits.chain;
	uint32_t count = 0;
	uint32_t k = 0;

	if (max < 2)
		max = n > 0 ? wqes_of(&reqs[0]) : 1; /* a marker goes with its write */
	if (room > max)
		room = max;
	for (bool ends = false; !ends && count < n && count < slots; count++) {
		const struct prov_wr *req = &reqs[count];
		uint32_t pos = tx->tail + count;
		struct verbs_req *entry = &tx->ring[pos & (path->depth - 1)];

		if (k + wqes_of(req) > room)
			break;
		ends = req->len_bytes >= LONG_BYTES;
		fill_write(path, k, req);
		tx->wr[k++].wr_id = WR_ID(path, pos);
		if ((req->flags & PROV_WR_PART) != 0) {
			fill_mark(path, &tx->wr[k], pos & (path->depth - 1), marks[k], req);
			tx->wr[k++].wr_id = WR_ID(path, pos);
		}
		entry->token = req->token;
		entry->wqe_end = tx->wqe_tail + k;
	}
	if (k > 0)
		tx->wr[k - 1].send_flags |= IBV_SEND_SIGNALED;
	*out_wqes = k;
	return count;
}

/* Posts the first `wqes` templates. Returns how many the device took; 0 <= that <= wqes. */
__attribute__((always_inline)) static inline uint32_t post_chain(struct verbs_path *path,
                                                                 uint32_t wqes, int *out_code)
{
	struct verbs_tx *tx = &path->tx;
	struct ibv_send_wr *last = &tx->wr[wqes - 1];
	struct ibv_send_wr *next = last->next;
	struct ibv_send_wr *bad = NULL;

	last->next = NULL;
	*out_code = ibv_post_send(path->qp, tx->wr, &bad);
	last->next = next;
	if (*out_code == 0)
		return wqes;
	return bad >= tx->wr && bad <= last ? (uint32_t)(bad - tx->wr) : 0;
}

/* The device took `posted` of a chain's requests, without the signalled one. What is posted has no
 * completion of its own then, so one is sent behind it as soon as there is room: the rest of a part
 * that was cut in two, or else an empty write. Returns how many of ours count as taken. */
static uint32_t cut_chain(struct verbs_path *path, const struct prov_wr *reqs, uint32_t count,
                          uint32_t posted)
{
	struct verbs_tx *tx = &path->tx;
	uint32_t taken = 0;
	uint32_t end = 0;

	for (; taken < count; taken++) {
		uint32_t pos = tx->tail + taken;
		uint32_t start = end;

		end = tx->ring[pos & (path->depth - 1)].wqe_end - tx->wqe_tail;
		if (end <= posted)
			continue;
		if (start == posted)
			break;
		tx->cut = VERBS_CUT_PART; /* its write is posted, its marker is not */
		tx->cut_req = reqs[taken];
		return taken + 1;
	}
	if (posted > 0)
		tx->cut = VERBS_CUT_SIGNAL;
	return taken;
}

/* A full queue is no failure. Out of line, as it is rare. */
__attribute__((noinline, cold)) static void refused(struct verbs_path *path, int code)
{
	if (code != ENOMEM)
		verbs_path_fail(path, WIMM_E_PATH_LOST, (uint32_t)code,
		                "%s: the device refuses writes: %s", path->obj.dev->nic.name,
		                strerror(code));
}

bool verbs_tx_mend(struct verbs_path *path)
{
	struct verbs_tx *tx = &path->tx;
	uint8_t bytes[VERBS_MARK_BYTES];
	uint32_t pos = tx->tail - 1;
	struct verbs_req *entry = &tx->ring[pos & (path->depth - 1)];
	int code;

	if (tx->cut == VERBS_CUT_PART) {
		fill_mark(path, &tx->wr[0], pos & (path->depth - 1), bytes, &tx->cut_req);
	} else {
		const struct prov_wr nothing = { 0 };

		fill_write(path, 0, &nothing);
	}
	tx->wr[0].wr_id = WR_ID(path, pos);
	tx->wr[0].send_flags |= IBV_SEND_SIGNALED;
	if (post_chain(path, 1, &code) == 0) {
		refused(path, code);
		return !path->failed;
	}
	tx->wqe_tail++;
	entry->wqe_end = tx->wqe_tail;
	tx->cut = VERBS_CUT_NONE;
	verbs_path_reopen(path);
	return false;
}

/* The last template has no successor. An entry of the ring has two requests of the queue pair, so
 * there is room for one where an entry is free; should mended chains have taken it, the device says
 * so. */
__attribute__((noinline)) static uint32_t post_one(struct verbs_path *path,
                                                   const struct prov_wr *req)
{
	struct verbs_tx *tx = &path->tx;
	struct ibv_send_wr *wr = &tx->wr[VERBS_CHAIN_MAX - 1];
	uint32_t pos = tx->tail;
	struct verbs_req *entry = &tx->ring[pos & (path->depth - 1)];
	struct ibv_send_wr *bad;
	int code;

	if (pos - tx->told >= path->depth)
		return 0;
	fill_write(path, VERBS_CHAIN_MAX - 1, req);
	wr->send_flags |= IBV_SEND_SIGNALED;
	wr->wr_id = WR_ID(path, pos);
	entry->token = req->token;
	entry->wqe_end = tx->wqe_tail + 1;
	code = ibv_post_send(path->qp, wr, &bad);
	if (__builtin_expect(code != 0, 0)) {
		refused(path, code);
		return 0;
	}
	tx->tail++;
	tx->wqe_tail++;
	return 1;
}

__attribute__((noinline)) static uint32_t post_chains(struct verbs_path *path,
                                                      const struct prov_wr *wr, uint32_t n)
{
	struct verbs_tx *tx = &path->tx;
	uint8_t marks[VERBS_CHAIN_MAX][VERBS_MARK_BYTES];
	uint32_t taken = 0;
	int code = 0;

	while (taken < n && code == 0) {
		uint32_t wqes;
		uint32_t count = build_chain(path, wr + taken, n - taken, marks, &wqes);
		uint32_t posted;

		if (count == 0)
			break;
		posted = post_chain(path, wqes, &code);
		if (posted < wqes)
			count = cut_chain(path, wr + taken, count, posted);
		tx->tail += count;
		tx->wqe_tail += posted;
		taken += count;
	}
	if (code != 0)
		refused(path, code);
	if (tx->cut != VERBS_CUT_NONE) {
		verbs_path_reopen(path);
		verbs_obj_ready(&path->obj);
	}
	return taken;
}

uint32_t verbs_op_post(struct prov_path *path_, const struct prov_wr *wr, uint32_t n)
{
	struct verbs_path *path = (struct verbs_path *)path_;

	if (!path->open)
		return 0;
	if (n == 1 && (wr->flags & PROV_WR_PART) == 0)
		return post_one(path, wr);
	return post_chains(path, wr, n);
}

bool verbs_tx_ready(struct verbs_path *path)
{
	struct verbs_tx *tx = &path->tx;
	uint8_t bytes[VERBS_MARK_BYTES];
	int code;

	fill_mark(path, &tx->wr[0], path->depth, bytes, NULL);
	tx->wr[0].wr_id = WR_ID(path, VERBS_READY_ID);
	tx->wr[0].send_flags |= IBV_SEND_SIGNALED;
	return post_chain(path, 1, &code) == 1;
}

/* --- ends --- */

/* Reports [told, end) as `status`. False: the caller's array is full. */
static bool report(struct verbs_path *path, struct verbs_emit *emit, uint32_t end,
                   wimm_status status)
{
	struct verbs_tx *tx = &path->tx;

	while ((int32_t)(end - tx->told) > 0) {
		uint64_t token = tx->ring[tx->told & (path->depth - 1)].token;
		struct prov_cqe *cqe;

		if (verbs_emit_full(emit))
			return false;
		cqe = verbs_emit_next(emit, PROV_DONE, path->context);
		cqe->status = status;
		cqe->token = token;
		do {
			tx->told++;
			cqe->count++;
		} while ((int32_t)(end - tx->told) > 0 &&
		         tx->ring[tx->told & (path->depth - 1)].token == token);
		if (status == WIMM_OK)
			continue;
		cqe->flags = path->lost_sent ? PROV_CQE_SENT : 0;
		cqe->vendor_code = path->fail.vendor_code;
		cqe->text = path->fail.text;
	}
	return true;
}

bool verbs_tx_report(struct verbs_path *path, struct verbs_emit *emit)
{
	return report(path, emit, path->tx.acked, WIMM_OK) &&
	       report(path, emit, path->tx.lost, WIMM_E_PATH_LOST);
}

void verbs_tx_abandon(struct verbs_path *path)
{
	path->tx.lost = path->tx.tail;
}

/* The first error says what became of the request it names; those behind it are flushed. */
static void send_failed(struct verbs_path *path, const struct ibv_wc *wc)
{
	const char *what = path->obj.dev->nic.lib->wc_status_str(wc->status);
	const char *device = path->obj.dev->nic.name;
	uint32_t code = wc->vendor_err != 0 ? wc->vendor_err : wc->status;

	switch (wc->status) {
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		verbs_path_fail(path, WIMM_E_PATH_LOST, code,
		                "%s: the peer's NIC refused a write: wrong key, or outside the "
		                "region (%s)",
		                device, what);
		path->lost_sent = false;
		break;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
		verbs_path_fail(path, WIMM_E_PATH_LOST, code, "%s: a write failed: %s", device,
		                what);
		path->lost_sent = false;
		break;
	case IBV_WC_RETRY_EXC_ERR:
		verbs_path_fail(path, WIMM_E_PATH_LOST, code,
		                "%s: the peer's NIC does not answer (%s): peer or network gone",
		                device, what);
		break;
	default:
		verbs_path_fail(path, WIMM_E_PATH_LOST, code, "%s: a write failed: %s", device,
		                what);
		break;
	}
}

void verbs_path_completed(struct verbs_path *path, const struct ibv_wc *wc)
{
	struct verbs_tx *tx = &path->tx;
	uint32_t pos = (uint32_t)wc->wr_id;

	if (wc->status != IBV_WC_SUCCESS && !path->failed)
		send_failed(path, wc);
	verbs_obj_ready(&path->obj);
	if (pos == VERBS_READY_ID && !path->active && !path->up) {
		path->ready_acked = wc->status == IBV_WC_SUCCESS;
		return;
	}
	if (pos - tx->acked >= tx->tail - tx->acked) /* of READY; or the device's mistake */
		return;
	if (wc->status == IBV_WC_SUCCESS) {
		tx->acked = pos + 1;
		tx->wqe_done = tx->ring[pos & (path->depth - 1)].wqe_end;
		if ((int32_t)(tx->lost - tx->acked) < 0)
			tx->lost = tx->acked;
		return;
	}
	/* Those in front of the first that failed have arrived, signalled or not. */
	if (tx->lost == tx->acked)
		tx->acked = pos;
	if ((int32_t)(pos + 1 - tx->lost) > 0)
		tx->lost = pos + 1;
}
