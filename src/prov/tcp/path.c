/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/tcp/path.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "plat/rand.h"

#include <string.h>

enum {
	OFFER_VERSION = 1,
	OFFER_ACTIVE = 1,
	OFFER_PASSIVE = 2,
};

static void path_release(struct tcp_path *path)
{
	mem_free(path->tx.ring);
	mem_free(path->rx.buf);
	mem_free(path);
}

void tcp_path_free(struct prov_obj *obj)
{
	path_release(LIST_ENTRY(obj, struct tcp_path, obj));
}

void tcp_path_drop(struct prov_obj *obj)
{
	struct tcp_path *path = LIST_ENTRY(obj, struct tcp_path, obj);

	tcp_path_lost(path);
	prov_obj_kill(obj);
}

/* u8 version, u8 role, 16 bytes token (zero from the active side). */
static void offer_encode(const struct tcp_path *path, struct prov_offer *out)
{
	struct bw w;

	memset(out, 0, sizeof(*out));
	bw_init(&w, out->bytes, sizeof(out->bytes));
	bw_u8(&w, OFFER_VERSION);
	bw_u8(&w, path->active ? OFFER_ACTIVE : OFFER_PASSIVE);
	bw_bytes(&w, path->token, sizeof(path->token));
	out->len_bytes = (uint32_t)bw_len(&w);
}

static bool offer_decode(const struct prov_offer *offer, uint8_t want_role, uint8_t *token)
{
	struct br r;
	uint8_t version;
	uint8_t role;

	if (offer->len_bytes > sizeof(offer->bytes))
		return false;
	br_init(&r, offer->bytes, offer->len_bytes);
	version = br_u8(&r);
	role = br_u8(&r);
	br_bytes(&r, token, TCP_TOKEN_BYTES);
	return br_done(&r) && version == OFFER_VERSION && role == want_role;
}

struct prov_path *tcp_op_path_open(struct prov_dev *dev, const struct prov_addr *remote,
                                   bool active, void *context, struct prov_offer *out,
                                   struct prov_error *error)
{
	struct tcp_path *path = mem_alloc_aligned(_Alignof(struct tcp_path), sizeof(*path));

	(void)error; /* memory alone */
	if (!path)
		return NULL;
	path->tx.ring = mem_calloc(TCP_POST_DEPTH, sizeof(*path->tx.ring));
	path->rx.buf = mem_alloc(TCP_RX_BYTES);
	if (!path->tx.ring || !path->rx.buf ||
	    (!active && rand_bytes(path->token, sizeof(path->token)) != WIMM_OK)) {
		path_release(path);
		return NULL;
	}
	prov_obj_init(&path->obj, &((struct tcp_dev *)dev)->loop, TCP_OBJ_PATH,
	             &((struct tcp_dev *)dev)->paths);
	path->context = context;
	path->active = active;
	path->remote_bad = tcp_addr_decode(remote, &path->remote) != WIMM_OK;
	path->rx.prefetch = TCP_RX_BYTES;
	offer_encode(path, out);
	return (struct prov_path *)path;
}

static void path_fail(struct tcp_path *path, wimm_status status, const char *text)
{
	prov_fail_set(&path->fail, status, 0, "%s", text);
	tcp_path_lost(path);
}

void tcp_op_path_connect(struct prov_path *path_, const struct prov_offer *remote)
{
	struct tcp_path *path = (struct tcp_path *)path_;
	struct tcp_dev *dev = tcp_dev_of(&path->obj);
	uint8_t token[TCP_TOKEN_BYTES];
	int code = 0;

	if (path->connect_called || path->closing)
		return;
	path->connect_called = true;
	prov_obj_ready(&path->obj);
	if (path->failed)
		return;
	if (!offer_decode(remote, path->active ? OFFER_PASSIVE : OFFER_ACTIVE, token)) {
		path_fail(path, WIMM_E_PROTOCOL, "the peer's offer of a path is malformed");
		return;
	}
	if (!path->conn)
		prov_obj_timer(&path->obj, dev->limits.hello_timeout_ms);
	if (!path->active)
		return; /* its dialler comes, or has come */
	if (path->remote_bad) {
		path_fail(path, WIMM_E_PEER_LOST, "malformed tcp address");
		return;
	}
	path->conn = tcp_conn_dial(dev, &path->remote, TCP_KIND_PATH, token, &path->obj, &code);
	if (!path->conn) {
		prov_fail_set(&path->fail, WIMM_E_SYSTEM, code, "cannot make a socket: %s",
		             strerror(code));
		tcp_path_lost(path);
	}
}

struct tcp_path *tcp_path_waiting(struct tcp_dev *dev, const uint8_t *token)
{
	LIST_FOR_EACH(it, &dev->paths) {
		struct tcp_path *path = LIST_ENTRY(it, struct tcp_path, obj.all);

		if (!path->active && !path->conn && !path->failed && !path->closing &&
		    memcmp(path->token, token, sizeof(path->token)) == 0)
			return path;
	}
	return NULL;
}

void tcp_path_joined(struct tcp_path *path, struct tcp_conn *conn)
{
	path->conn = conn;
	conn->owner = &path->obj;
	prov_obj_timer_off(&path->obj);
	prov_obj_ready(&path->obj);
}

void tcp_path_lost(struct tcp_path *path)
{
	path->failed = true;
	if (path->conn)
		tcp_conn_close(path->conn);
	path->conn = NULL;
	tcp_tx_abandon(path);
	prov_obj_timer_off(&path->obj);
	prov_obj_ready(&path->obj);
}

void tcp_path_reject(struct tcp_path *path)
{
	uint8_t frame[TCP_HDR_BYTES + TCP_ERROR_TEXT_MAX];
	size_t text_bytes = strnlen(path->fail.text, TCP_ERROR_TEXT_MAX);
	struct tcp_hdr hdr = {
		.type = TCP_FRAME_ERROR,
		.count = (uint16_t)text_bytes,
		.value = (uint32_t)path->fail.status,
	};
	struct tcp_conn *conn = path->conn;
	uint8_t *rest;
	size_t rest_bytes;

	LOG_WARN("tcp: path closed: %s", path->fail.text);
	tcp_hdr_encode(&hdr, frame);
	memcpy(frame + TCP_HDR_BYTES, path->fail.text, text_bytes);
	rest = tcp_tx_take_rest(path, frame, TCP_HDR_BYTES + text_bytes, &rest_bytes);
	if (rest) {
		path->conn = NULL;
		tcp_conn_linger(conn, rest, rest_bytes);
	}
	tcp_path_lost(path);
}

/* False: not open (yet, or any more). */
static bool join_step(struct tcp_path *path)
{
	wimm_status st;

	if (!path->conn || path->conn->state != TCP_CONN_OPEN) {
		st = path->conn ? tcp_conn_dial_step(path->conn, &path->fail) : WIMM_AGAIN;
		if (st == WIMM_AGAIN && path->obj.expired) {
			prov_fail_set(&path->fail, WIMM_E_TIMEOUT, 0,
			             path->active ? "no answer within %u ms"
			                          : "the peer has not dialled within %u ms",
			             tcp_dev_of(&path->obj)->limits.hello_timeout_ms);
			st = WIMM_E_TIMEOUT;
		}
		if (st != WIMM_OK && st != WIMM_AGAIN)
			tcp_path_lost(path);
		if (st != WIMM_OK)
			return false;
		prov_obj_timer_off(&path->obj);
	}
	/* Nothing is read before the core has seen both ends: it may not know the path yet. */
	return path->connect_called;
}

static bool close_step(struct tcp_path *path, struct prov_emit *emit)
{
	/* What had landed before the fence is still told, so that both sides agree on it. */
	if (!tcp_rx_report(path, emit) || !tcp_tx_report(path, emit) ||
	    !tcp_tx_report_lost(path, emit) || prov_emit_full(emit))
		return true;
	(void)prov_emit_next(emit, PROV_PATH_CLOSED, path->context);
	prov_obj_kill(&path->obj);
	return false;
}

static bool report_down(struct tcp_path *path, struct prov_emit *emit)
{
	struct prov_cqe *cqe;

	/* Before path_connect() the core does not expect a word of it. */
	if (path->down_reported || !path->connect_called)
		return false;
	if (!tcp_rx_report(path, emit) || !tcp_tx_report(path, emit) || prov_emit_full(emit))
		return true;
	cqe = prov_emit_next(emit, PROV_PATH_DOWN, path->context);
	cqe->status = path->fail.status;
	cqe->vendor_code = path->fail.vendor_code;
	cqe->text = path->fail.text;
	path->down_reported = true;
	return false;
}

bool tcp_path_step(struct prov_obj *obj, struct prov_emit *emit)
{
	struct tcp_path *path = LIST_ENTRY(obj, struct tcp_path, obj);
	bool more;

	if (path->closing)
		return close_step(path, emit);
	if (!path->failed && join_step(path)) {
		if (!path->up) {
			if (prov_emit_full(emit))
				return true;
			(void)prov_emit_next(emit, PROV_PATH_UP, path->context);
			path->up = true;
		}
		if (tcp_rx_step(path, emit))
			tcp_tx_step(path);
	}
	if (path->failed) {
		more = report_down(path, emit);
		return more || !tcp_tx_report(path, emit);
	}
	if (!tcp_tx_report(path, emit))
		return true;
	if (!path->conn || !path->connect_called)
		return false;
	return path->conn->can_read || path->rx.more ||
	       (path->conn->can_write &&
	        (path->tx.frame.started || path->tx.send != path->tx.tail || tcp_rx_ack_due(path)));
}

void tcp_op_path_close(struct prov_path *path_)
{
	struct tcp_path *path = (struct tcp_path *)path_;

	path->closing = true;
	tcp_path_lost(path);
}
