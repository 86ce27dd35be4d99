/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/verbs/path.h"

#include "base/alloc.h"
#include "base/log.h"
#include "plat/clock.h"
#include "prov/verbs/ud.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void release(struct verbs_path *path)
{
	if (path->qp)
		verbs_qp_destroy(path->obj.dev, path->qp);
	verbs_way_put(path->obj.dev, path->way);
	if (path->cq)
		verbs_cq_give(path->cq, path->wqe_depth);
	verbs_tx_close(path);
	mem_free(path);
}

void verbs_path_free(struct verbs_obj *obj)
{
	release(LIST_ENTRY(obj, struct verbs_path, obj));
}

static bool open_qp(struct verbs_path *path, struct verbs_fail *fail)
{
	struct verbs_dev *dev = path->obj.dev;
	struct verbs_qp_args args = {
		.recv_cq = dev->rx.cq,
		.srq = dev->rx.srq,
		.send_depth = path->wqe_depth,
		.inline_bytes = dev->limits.inline_bytes,
		.access = IBV_ACCESS_REMOTE_WRITE,
		.context = &path->obj,
	};

	path->cq = verbs_cq_take(dev, path->wqe_depth, fail);
	if (!path->cq)
		return false;
	args.cq = path->cq;
	path->qp = verbs_qp_create(dev, &args, &path->inline_bytes, fail);
	if (!path->qp)
		return false;
	if (!verbs_tx_open(path) || !verbs_qp_describe(dev, path->qp, &path->own) ||
	    hash_insert_ptr(&dev->path_by_qpn, path->qp->qp_num, path) != WIMM_OK) {
		verbs_fail_set(fail, WIMM_E_NOMEM, 0, "out of memory");
		return false;
	}
	return true;
}

struct prov_path *verbs_op_path_open(struct prov_dev *dev_, const struct prov_addr *remote,
                                     bool active, void *context, struct prov_offer *out,
                                     struct prov_error *error)
{
	struct verbs_dev *dev = (struct verbs_dev *)dev_;
	struct verbs_fail fail = { 0 };
	struct verbs_path *path;

	(void)remote; /* the offer says where the other end is */
	if (dev->dead) {
		(void)snprintf(error->text, sizeof(error->text), "%s", dev->dead_text);
		return NULL;
	}
	path = mem_alloc_aligned(_Alignof(struct verbs_path), sizeof(*path));
	if (!path)
		return NULL;
	if (!verbs_obj_init(&path->obj, dev, VERBS_OBJ_PATH, &dev->paths)) {
		mem_free(path);
		return NULL;
	}
	path->wr_id = (uint64_t)path->obj.id << 32;
	path->context = context;
	path->active = active;
	path->depth = dev->limits.depth;
	path->wqe_depth = 2 * path->depth + VERBS_WQE_SPARE;
	path->lost_sent = true;
	if (!open_qp(path, &fail)) {
		LOG_ERROR("verbs: a path cannot be opened: %s", fail.text);
		error->vendor_code = fail.vendor_code;
		memcpy(error->text, fail.text, sizeof(error->text));
		verbs_obj_kill(&path->obj);
		return NULL;
	}
	verbs_end_encode(&path->own, out);
	return (struct prov_path *)path;
}

void verbs_path_fail(struct verbs_path *path, wimm_status status, uint32_t vendor_code,
                     const char *fmt, ...)
{
	va_list args;

	if (path->failed)
		return;
	path->failed = true;
	verbs_path_reopen(path);
	path->fail.status = status;
	path->fail.vendor_code = vendor_code;
	va_start(args, fmt);
	(void)vsnprintf(path->fail.text, sizeof(path->fail.text), fmt, args);
	va_end(args);
	if (path->qp)
		verbs_qp_stop(path->obj.dev, path->qp);
	verbs_rx_fill_all(path->obj.dev);
	path->rx_mark = path->obj.dev->rx.tail;
	verbs_obj_timer_off(&path->obj);
	verbs_obj_ready(&path->obj);
}

void verbs_path_recv_failed(struct verbs_path *path, const struct ibv_wc *wc)
{
	const struct verbs_dev *dev = path->obj.dev;

	verbs_path_fail(path, WIMM_E_PROTOCOL,
	                wc->vendor_err != 0 ? wc->vendor_err : (uint32_t)wc->status,
	                "%s: a write of the peer's was refused: wrong key, or outside the region "
	                "(%s)",
	                dev->nic.name, dev->nic.lib->wc_status_str(wc->status));
}

bool verbs_path_heard(struct verbs_path *path, struct verbs_emit *emit)
{
	if (path->up || path->failed || path->closing)
		return false;
	path->up = true;
	verbs_path_reopen(path);
	verbs_obj_timer_off(&path->obj);
	(void)verbs_emit_next(emit, PROV_PATH_UP, path->context);
	return true;
}

/* For the notice, later: by then the way may be long to find. */
static void keep_route(struct verbs_path *path)
{
	struct verbs_fail ignored;

	if (path->obj.dev->ud.qp && path->peer.ud_qpn != 0)
		path->way = verbs_way_open(path->obj.dev, path->peer.ethernet, path->peer.gid,
		                           path->peer.lid, &ignored);
}

void verbs_op_path_connect(struct prov_path *path_, const struct prov_offer *remote)
{
	struct verbs_path *path = (struct verbs_path *)path_;
	struct verbs_dev *dev = path->obj.dev;
	struct verbs_fail fail;

	if (path->connect_called || path->closing)
		return;
	path->connect_called = true;
	verbs_obj_ready(&path->obj);
	if (path->failed)
		return;
	if (verbs_end_decode(remote, &path->peer) != WIMM_OK) {
		verbs_path_fail(path, WIMM_E_PROTOCOL, 0,
		                "the peer's offer of a path is malformed");
		return;
	}
	verbs_obj_timer(&path->obj, dev->limits.hello_timeout_ms * CLOCK_NS_PER_MS);
	if (!verbs_qp_join(dev, path->qp, &path->own, &path->peer, &fail)) {
		verbs_path_fail(path, fail.status, fail.vendor_code, "%s", fail.text);
		return;
	}
	path->joined = true;
	keep_route(path);
	if (!path->active && !verbs_tx_ready(path))
		verbs_path_fail(path, WIMM_E_PATH_LOST, 0, "%s: the device refuses sends",
		                dev->nic.name);
}

void verbs_path_noticed(struct verbs_dev *dev, uint32_t qpn, uint64_t token)
{
	struct verbs_path *path = hash_find_ptr(&dev->path_by_qpn, qpn);

	if (!path || path->own.token != token || path->closing)
		return;
	path->peer_knows = true;
	verbs_path_fail(path, WIMM_E_PATH_LOST, 0, "the peer has closed the path");
}

static void tell_peer(struct verbs_path *path)
{
	if (!path->joined || path->peer_knows || !path->way)
		return;
	verbs_ud_notify(path->obj.dev, path->way, &path->peer);
	path->way = NULL; /* the notice's now */
	path->peer_knows = true;
}

/* Nothing of the queue pair is left in the device afterwards. */
static void shut(struct verbs_path *path)
{
	struct verbs_dev *dev = path->obj.dev;

	verbs_obj_timer_off(&path->obj);
	if (path->qp) {
		/* Destroying waits for the device, so nothing lands once this returns. What has
		 * been acknowledged is told as such, so completions are read in between. */
		if (!path->failed)
			verbs_qp_stop(dev, path->qp);
		path->failed = true;
		verbs_path_reopen(path);
		verbs_cq_poll(dev, path->cq);
		verbs_rx_fill_all(dev);
		verbs_rx_forget(dev, path->qp->qp_num);
		(void)hash_remove(&dev->path_by_qpn, path->qp->qp_num);
		verbs_qp_destroy(dev, path->qp);
		path->qp = NULL;
	}
	verbs_tx_abandon(path);
}

void verbs_op_path_close(struct prov_path *path_)
{
	struct verbs_path *path = (struct verbs_path *)path_;

	path->closing = true;
	verbs_path_reopen(path);
	if (!path->failed)
		verbs_fail_set(&path->fail, WIMM_E_PATH_LOST, 0, "the path was closed");
	shut(path);
	tell_peer(path);
	verbs_obj_ready(&path->obj);
}

void verbs_path_drop(struct verbs_obj *obj)
{
	struct verbs_path *path = LIST_ENTRY(obj, struct verbs_path, obj);

	shut(path);
	verbs_obj_kill(obj);
}

static bool report_down(struct verbs_path *path, struct verbs_emit *emit)
{
	struct prov_cqe *cqe;

	/* Before path_connect() the core does not expect a word of it. */
	if (path->down_reported || !path->connect_called)
		return false;
	if ((int32_t)(path->rx_mark - path->obj.dev->rx.head) > 0 || verbs_emit_full(emit))
		return true;
	cqe = verbs_emit_next(emit, PROV_PATH_DOWN, path->context);
	cqe->status = path->fail.status;
	cqe->vendor_code = path->fail.vendor_code;
	cqe->text = path->fail.text;
	path->down_reported = true;
	return false;
}

bool verbs_path_step(struct verbs_obj *obj, struct verbs_emit *emit)
{
	struct verbs_path *path = LIST_ENTRY(obj, struct verbs_path, obj);

	if (path->closing) {
		if (!verbs_tx_report(path, emit) || verbs_emit_full(emit))
			return true;
		(void)verbs_emit_next(emit, PROV_PATH_CLOSED, path->context);
		verbs_obj_kill(obj);
		return false;
	}
	if (!path->up && !path->failed) {
		if (path->ready_acked && verbs_emit_full(emit))
			return true;
		if (path->ready_acked)
			(void)verbs_path_heard(path, emit);
		else if (obj->expired)
			verbs_path_fail(path, WIMM_E_TIMEOUT, 0,
			                "the peer's end has not answered within %u ms (setting "
			                "hello_timeout_ms)",
			                obj->dev->limits.hello_timeout_ms);
	}
	if (!path->failed && path->tx.cut != VERBS_CUT_NONE && verbs_tx_mend(path))
		return true;
	if (!verbs_tx_report(path, emit))
		return true;
	return path->failed && report_down(path, emit);
}
