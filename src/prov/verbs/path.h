/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_PATH_H
#define PROV_VERBS_PATH_H

/* A path: one RC queue pair for WRITE and WRITE_WITH_IMM. path.c has its life, path_tx.c the
 * sending half, rx.c the receiving half.
 *
 * The active side joins first; the passive side then joins and sends a READY marker. The active
 * side is up when it has that, the passive side when it was acknowledged: neither sends into a
 * queue pair that would drop it. */

#include "prov/verbs/rx.h"

#include "prov/verbs/qp.h"

#define VERBS_CHAIN_MAX 32u

/* wr_id of READY; the ring's positions would need as many requests in flight to reach it. */
#define VERBS_READY_ID UINT32_MAX
/* Requests of a queue pair beyond those of its ring: READY, and one that mends a cut chain. */
#define VERBS_WQE_SPARE 2u

/* The device took a chain without its last request; see path_tx.c. */
enum verbs_cut {
	VERBS_CUT_NONE,
	VERBS_CUT_SIGNAL,
	VERBS_CUT_PART,
};

struct verbs_req {
	uint64_t token;
	uint32_t wqe_end; /* count of the queue pair's requests up to this one's last */
};

/* Positions run freely; told <= acked <= lost <= tail. */
struct verbs_tx {
	struct verbs_req *ring;
	uint32_t told;
	uint32_t acked;
	uint32_t lost; /* [acked, lost) came back with an error */
	uint32_t tail;
	uint32_t wqe_done; /* requests of the queue pair, counted the same way */
	uint32_t wqe_tail;
	enum verbs_cut cut;
	struct prov_wr cut_req;
	struct ibv_send_wr wr[VERBS_CHAIN_MAX]; /* templates: linked, one piece each */
	struct ibv_sge sge[VERBS_CHAIN_MAX];
	/* Markers when the device cannot take them inline: one a ring entry, and READY's. */
	uint8_t *marks;
	struct ibv_mr *marks_mr;
};

struct verbs_path {
	struct verbs_obj obj;
	void *context;
	struct ibv_qp *qp; /* NULL: closed */
	struct verbs_cq *cq;
	uint32_t depth;
	uint32_t wqe_depth;
	uint32_t inline_bytes;
	struct verbs_end own;
	struct verbs_end peer;
	struct verbs_way *way; /* for the notice that it is closed; NULL: none is sent */
	uint64_t wr_id; /* its id, in the upper half */
	bool open; /* up, and neither failed, closing nor cut: posts may go */
	bool active;
	bool connect_called;
	bool joined;
	bool ready_acked; /* passive: the active side has READY */
	bool up;          /* PROV_PATH_UP is out */
	bool failed;      /* `fail` says how; the queue pair is stopped */
	bool lost_sent;   /* what comes back from now on may have been received */
	bool peer_knows;  /* that it has ended */
	bool down_reported;
	bool closing;
	uint32_t rx_mark; /* what came before the failure lies before this position of the ring */
	struct verbs_fail fail;
	struct verbs_tx tx;
};

/* One of the four has changed. */
static inline void verbs_path_reopen(struct verbs_path *path)
{
	path->open = path->up && !path->failed && !path->closing && path->tx.cut == VERBS_CUT_NONE;
}
/* A send has completed. */
void verbs_path_completed(struct verbs_path *path, const struct ibv_wc *wc);
/* A receive request came back with an error. */
void verbs_path_recv_failed(struct verbs_path *path, const struct ibv_wc *wc);
/* Something came from the peer: report that the path is up. False: that is not new. */
bool verbs_path_heard(struct verbs_path *path, struct verbs_emit *emit);
void verbs_path_fail(struct verbs_path *path, wimm_status status, uint32_t vendor_code,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* The peer says that it has closed its end. */
void verbs_path_noticed(struct verbs_dev *dev, uint32_t qpn, uint64_t token);
bool verbs_path_step(struct verbs_obj *obj, struct verbs_emit *emit);
void verbs_path_drop(struct verbs_obj *obj);
void verbs_path_free(struct verbs_obj *obj);

/* --- path_tx.c --- */
bool verbs_tx_open(struct verbs_path *path);
void verbs_tx_close(struct verbs_path *path);
/* Send the READY marker. False: refused by the device. */
bool verbs_tx_ready(struct verbs_path *path);
/* Report what has ended. False: the caller's array is full. */
bool verbs_tx_report(struct verbs_path *path, struct verbs_emit *emit);
/* Make up for a chain that was cut; true: try again later. */
bool verbs_tx_mend(struct verbs_path *path);
/* Everything not acknowledged is lost. */
void verbs_tx_abandon(struct verbs_path *path);

/* The ops' entries. */
struct prov_path *verbs_op_path_open(struct prov_dev *dev, const struct prov_addr *remote,
                                     bool active, void *context, struct prov_offer *out,
                                     struct prov_error *error);
void verbs_op_path_connect(struct prov_path *path, const struct prov_offer *remote);
void verbs_op_path_close(struct prov_path *path);
uint32_t verbs_op_post(struct prov_path *path, const struct prov_wr *wr, uint32_t n);

#endif
