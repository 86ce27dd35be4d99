/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/path.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "plat/clock.h"
#include "plat/rand.h"
#include "prov/host/fetch.h"
#include "prov/host/gpu.h"

#include <endian.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	OFFER_VERSION = 1,
	OFFER_ACTIVE = 1,
	OFFER_PASSIVE = 2,
	PACKETS_A_TURN = 32,
	ERROR_TEXT_MAX = 255,
	ERROR_HEAD_BYTES = 5, /* kind, i32 status */
	AWAIT_NS = 2000000,   /* a copy of the peer's that takes longer is worth a sleep */
	CLOSE_LOOK_MS = 1,    /* at a peer that may still be writing or reading */
	CLOSE_LEAVE_MS = 20,  /* for one that reads: it goes on by itself when it runs */
};

void host_path_free(struct prov_obj *obj)
{
	struct host_path *path = LIST_ENTRY(obj, struct host_path, obj);

	host_maps_fini(&path->maps);
	host_gpu_fini(path);
	host_fetch_fini(path);
	host_join_fini(path);
	mem_free(path->tx.ring);
	mem_free(path);
}

void host_path_drop(struct prov_obj *obj)
{
	host_path_lost(LIST_ENTRY(obj, struct host_path, obj));
	prov_obj_kill(obj);
}

/* u8 version, u8 role, 16 bytes token (zero from the active side). */
static void offer_encode(const struct host_path *path, struct prov_offer *out)
{
	static const uint8_t none[HOST_TOKEN_BYTES];
	struct bw w;

	memset(out, 0, sizeof(*out));
	bw_init(&w, out->bytes, sizeof(out->bytes));
	bw_u8(&w, OFFER_VERSION);
	bw_u8(&w, path->active ? OFFER_ACTIVE : OFFER_PASSIVE);
	bw_bytes(&w, path->active ? none : path->token, HOST_TOKEN_BYTES);
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
	br_bytes(&r, token, HOST_TOKEN_BYTES);
	return br_done(&r) && version == OFFER_VERSION && role == want_role;
}

/* Beside NICs most peers are of other machines: those are told at once, so that no side waits. */
static bool somebody_there(const struct prov_dev *dev, const struct prov_addr *remote)
{
	struct host_name name;

	return host_name_decode(remote, &name) == WIMM_OK &&
	       host_conn_welcome((const struct host_dev *)dev, &name);
}

struct prov_path *host_op_path_open(struct prov_dev *dev, const struct prov_addr *remote,
                                    bool active, void *context, struct prov_offer *out,
                                    struct prov_error *error)
{
	struct host_path *path;

	(void)error; /* memory, or nobody there */
	if (active && ((struct host_dev *)dev)->beside && !somebody_there(dev, remote))
		return NULL;
	path = mem_calloc(1, sizeof(*path));
	if (!path)
		return NULL;
	path->pidfd = -1;
	path->tx.ring = mem_calloc(HOST_POST_DEPTH, sizeof(*path->tx.ring));
	if (!path->tx.ring || host_maps_init(&path->maps) != WIMM_OK ||
	    (!active && rand_bytes(path->token, sizeof(path->token)) != WIMM_OK)) {
		mem_free(path->tx.ring);
		mem_free(path);
		return NULL;
	}
	prov_obj_init(&path->obj, &((struct host_dev *)dev)->loop, HOST_OBJ_PATH,
	              &((struct host_dev *)dev)->paths);
	list_init(&path->hot);
	path->context = context;
	path->active = active;
	path->pull_cards = ((struct host_dev *)dev)->gpu_pull;
	path->remote_bad = host_name_decode(remote, &path->remote) != WIMM_OK;
	offer_encode(path, out);
	return (struct prov_path *)path;
}

static void path_fail(struct host_path *path, wimm_status status, const char *text)
{
	prov_fail_set(&path->fail, status, 0, "%s", text);
	host_path_lost(path);
}

void host_op_path_connect(struct prov_path *path_, const struct prov_offer *remote)
{
	struct host_path *path = (struct host_path *)path_;
	uint8_t token[HOST_TOKEN_BYTES];

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
	if (path->join != HOST_JOIN_DONE)
		prov_obj_timer(&path->obj, host_dev_of(&path->obj)->hello_timeout_ms);
	if (!path->active)
		return; /* its dialler comes, or has come */
	if (path->remote_bad) {
		path_fail(path, WIMM_E_PEER_LOST, "malformed host address");
		return;
	}
	memcpy(path->token, token, sizeof(token));
	path->join = HOST_JOIN_DIALLING;
}

struct host_path *host_path_waiting(struct host_dev *dev, const uint8_t *token)
{
	LIST_FOR_EACH(it, &dev->paths) {
		struct host_path *path = LIST_ENTRY(it, struct host_path, obj.all);

		if (!path->active && !path->conn && !path->failed && !path->closing &&
		    memcmp(path->token, token, sizeof(path->token)) == 0)
			return path;
	}
	return NULL;
}

void host_path_joined(struct host_path *path, struct host_conn *conn)
{
	path->conn = conn;
	conn->owner = &path->obj;
	path->join = HOST_JOIN_WAIT;
	prov_obj_ready(&path->obj);
}

void host_path_turned_away(struct host_path *path, const struct host_conn *conn)
{
	prov_fail_set(&path->fail, WIMM_E_PEER_REFUSED, 0,
	              "process %d belongs to user %u; setting host_any_uid lets it in",
	              (int)conn->pid, (unsigned int)conn->uid);
	host_path_lost(path);
}

void host_path_lost(struct host_path *path)
{
	if (!path->failed) {
		host_tx_abandon(path);
		host_share_close(path);
		host_maps_flush(&path->maps);
	}
	path->failed = true;
	if (path->conn)
		host_conn_close(path->conn);
	path->conn = NULL;
	list_remove(&path->hot);
	prov_obj_timer_off(&path->obj);
	prov_obj_ready(&path->obj);
}

void host_path_reject(struct host_path *path)
{
	uint32_t status = htole32((uint32_t)path->fail.status);
	struct iovec iov[2] = {
		{ &status, sizeof(status) },
		{ path->fail.text, strnlen(path->fail.text, ERROR_TEXT_MAX) },
	};

	LOG_WARN("host: path closed: %s", path->fail.text);
	if (path->conn)
		(void)host_conn_send(path->conn, HOST_PACKET_ERROR, iov, 2, -1);
	host_path_lost(path);
}

bool host_path_hint(const struct host_path *path)
{
	/* Relaxed: host_tx_acks() looks again with the order it needs. */
	return host_slot_hint(path->rx.lane, path->rx.pos + path->rx.count) ||
	       (uint32_t)atomic_load_explicit(&path->tx.lane->acked, memory_order_relaxed) !=
	               path->tx.acked;
}

bool host_path_awaits(struct host_path *path)
{
	/* Relaxed: nothing is concluded from it but that sleeping is not worth it yet. */
	uint64_t writing = atomic_load_explicit(&path->rx.lane->writing, memory_order_relaxed);

	if ((writing & 1) == 0)
		return false;
	if (writing != path->awaits) {
		path->awaits = writing;
		path->awaits_ns = path->obj.loop->now_ns;
	}
	return path->obj.loop->now_ns - path->awaits_ns < AWAIT_NS;
}

void host_path_announce(struct host_path *path)
{
	struct host_bell *own = &path->area->bell[host_path_side(path)];

	/* [D] with [E] in host_path_ring(): both are read-modify-writes, so one comes first in the
	 * order of this word. If [E] did, [D] reads from it and acquires what was published. */
	(void)atomic_exchange_explicit(&own->sleeping, 1, memory_order_acq_rel);
}

void host_path_awake(struct host_path *path)
{
	struct host_bell *own = &path->area->bell[host_path_side(path)];

	/* Relaxed: a peer that misses it rings once in vain; the rings are looked at after this
	 * anyway. */
	atomic_store_explicit(&own->sleeping, 0, memory_order_relaxed);
}

void host_path_ring(struct host_path *path)
{
	struct host_bell *other = &path->area->bell[1 - host_path_side(path)];

	path->bell_due = false;
	path->ack_bell_due = false;
	/* [E] with [D]. A packet that finds the queue full is not needed: others wait there. */
	if (atomic_exchange_explicit(&other->sleeping, 0, memory_order_acq_rel) != 0)
		(void)host_conn_send(path->conn, HOST_PACKET_BELL, NULL, 0, -1);
}

void host_path_ring_later(struct host_path *path)
{
	struct host_bell *other = &path->area->bell[1 - host_path_side(path)];

	/* Relaxed, so it may miss a peer that goes to sleep right now; the exchange in
	 * host_path_ring() would not, but waits until the peer has seen the acknowledgement leave
	 * its cache, and what has just arrived would wait with it. */
	if (atomic_load_explicit(&other->sleeping, memory_order_relaxed) != 0)
		host_path_ring(path);
}

/* The peer's last word. */
static void told_error(struct host_path *path, const uint8_t *packet, size_t bytes)
{
	char text[ERROR_TEXT_MAX + 1];
	size_t len = bytes - ERROR_HEAD_BYTES;
	wimm_status status;
	uint32_t code;

	if (len > ERROR_TEXT_MAX)
		len = ERROR_TEXT_MAX;
	memcpy(&code, packet + 1, sizeof(code));
	status = (wimm_status)(int32_t)le32toh(code);
	for (size_t i = 0; i < len; i++) {
		uint8_t c = packet[ERROR_HEAD_BYTES + i];

		text[i] = c >= ' ' && c < 0x7f ? (char)c : '?';
	}
	text[len] = '\0';
	if (status != WIMM_E_REVOKED && status != WIMM_E_RANGE && status != WIMM_E_PATH_LOST)
		status = WIMM_E_PROTOCOL;
	prov_fail_set(&path->fail, status, 0, "refused by the peer: %s", text);
	host_path_lost(path);
}

/* The peer asks for a region: to write into, or a source. */
static void answer(struct host_path *path, const uint8_t *packet)
{
	bool source = packet[0] == HOST_PACKET_ASK_SOURCE;
	uint8_t bytes[HOST_GIVEN_BYTES];
	struct iovec iov = { bytes, sizeof(bytes) };
	struct host_given given;
	uint64_t key;
	int fd;

	memcpy(&key, packet + 1, sizeof(key));
	if (source)
		host_share_give_source(path, le64toh(key), &given, &fd);
	else
		host_share_give(path, le64toh(key), &given, &fd);
	host_given_encode(&given, bytes);
	/* An answer that does not get out leaves the peer with the other ways. */
	(void)host_conn_send(path->conn, source ? HOST_PACKET_GIVE_SOURCE : HOST_PACKET_GIVE, &iov,
	                     1, fd);
	if (fd >= 0)
		(void)close(fd);
}

/* One packet on a path that is up. False: malformed. */
static bool packet_in(struct host_path *path, const uint8_t *packet, size_t bytes, int fd)
{
	struct host_given given;

	switch (packet[0]) {
	case HOST_PACKET_BELL:
		return true;
	case HOST_PACKET_ERROR:
		if (bytes < ERROR_HEAD_BYTES)
			return false;
		told_error(path, packet, bytes);
		return true;
	case HOST_PACKET_ASK:
	case HOST_PACKET_ASK_SOURCE:
		if (bytes != 1 + HOST_ASK_BYTES)
			return false;
		answer(path, packet);
		return true;
	case HOST_PACKET_GIVE:
		return host_given_decode(packet + 1, bytes - 1, &given) &&
		       host_maps_given(path, &given, fd);
	case HOST_PACKET_GIVE_SOURCE:
		return host_given_decode(packet + 1, bytes - 1, &given) &&
		       host_maps_given_source(path, &given, fd);
	default:
		return false;
	}
}

static void packets_step(struct host_path *path)
{
	uint8_t packet[ERROR_HEAD_BYTES + ERROR_TEXT_MAX];

	for (int i = 0; i < PACKETS_A_TURN && !path->failed && path->conn->can_read; i++) {
		int fd;
		ssize_t got = host_conn_recv(path->conn, packet, sizeof(packet), &fd);

		if (got == 0)
			return;
		if (got < 0) {
			host_conn_fail_text(path->conn, &path->fail, WIMM_E_PATH_LOST, "path lost");
			path->ended = true;
			path->end_pos = path->rx.pos + path->rx.count + HOST_RING_ENTRIES;
			return;
		}
		if (!packet_in(path, packet, (size_t)got, fd)) {
			prov_fail_set(&path->fail, WIMM_E_PROTOCOL, 0,
			              "peer sent a malformed packet of kind %u", packet[0]);
			host_path_reject(path);
		}
		if (fd >= 0)
			(void)close(fd);
	}
}

/* False: not up (yet, or any more). */
static bool join_step(struct host_path *path, struct prov_emit *emit)
{
	wimm_status st = WIMM_OK;

	if (path->up)
		return true;
	if (path->join == HOST_JOIN_NONE) {
		st = WIMM_AGAIN;
		if (path->obj.expired)
			prov_fail_set(&path->fail, WIMM_E_TIMEOUT, 0,
			              "the peer has not dialled within %u ms",
			              host_dev_of(&path->obj)->hello_timeout_ms);
	} else if (path->join != HOST_JOIN_DONE) {
		st = host_join_step(path);
		if (st == WIMM_AGAIN && path->obj.expired)
			prov_fail_set(&path->fail, WIMM_E_TIMEOUT, 0, "no answer within %u ms",
			              host_dev_of(&path->obj)->hello_timeout_ms);
	}
	if (st == WIMM_AGAIN && path->obj.expired)
		st = WIMM_E_TIMEOUT;
	if (st != WIMM_OK && st != WIMM_AGAIN)
		host_path_lost(path);
	/* Nothing is reported before the core has seen both ends: it may not know the path yet. */
	if (st != WIMM_OK || !path->connect_called || prov_emit_full(emit))
		return false;
	prov_obj_timer_off(&path->obj);
	prov_emit_next(emit, PROV_PATH_UP, path->context)->text = host_join_text(path);
	path->up = true;
	list_push_back(&host_dev_of(&path->obj)->hot, &path->hot);
	return true;
}

/* Whether the peer may be reading a source and is worth waiting for. */
static bool still_read(struct host_path *path)
{
	if (!host_tx_reading(path))
		return false;
	if (path->ended || host_share_peer_gone(path)) {
		host_tx_peer_gone(path);
		return false;
	}
	return clock_now_ns() < path->leave_ns;
}

static bool close_step(struct host_path *path, struct prov_emit *emit)
{
	if (host_share_writing(path) || still_read(path)) {
		prov_obj_timer(&path->obj, CLOSE_LOOK_MS);
		return false;
	}
	/* What had landed before the fence is still told, so that both sides agree on it. */
	if (!host_rx_report(path, emit) || !host_tx_report(path, emit) ||
	    !host_tx_report_lost(path, emit) || prov_emit_full(emit))
		return true;
	(void)prov_emit_next(emit, PROV_PATH_CLOSED, path->context);
	prov_obj_kill(&path->obj);
	return false;
}

static bool report_down(struct host_path *path, struct prov_emit *emit)
{
	struct prov_cqe *cqe;

	/* Before path_connect() the core does not expect a word of it. */
	if (path->down_reported || !path->connect_called)
		return false;
	if (!host_rx_report(path, emit) || !host_tx_report(path, emit) || prov_emit_full(emit))
		return true;
	cqe = prov_emit_next(emit, PROV_PATH_DOWN, path->context);
	cqe->status = path->fail.status;
	cqe->vendor_code = path->fail.vendor_code;
	cqe->text = path->fail.text;
	path->down_reported = true;
	return false;
}

/* A path that is up. True: there is more to do. */
static bool up_step(struct host_path *path, struct prov_emit *emit)
{
	bool more;

	if (!path->ended)
		packets_step(path);
	if (path->failed)
		return true;
	more = host_rx_step(path, emit);
	if (path->failed)
		return true;
	if (!host_tx_acks(path)) {
		prov_fail_set(&path->fail, WIMM_E_PROTOCOL, 0,
		              "peer broke the protocol: it acknowledges what was not sent");
		host_path_reject(path);
		return true;
	}
	if (path->ended && (!more || (int32_t)(path->rx.pos - path->end_pos) >= 0)) {
		host_path_lost(path); /* all it had sent is here */
		return true;
	}
	if (path->tx.cancels_waiting > 0 && path->obj.expired)
		host_tx_give_up(path);
	if (!path->ended)
		host_tx_step(path);
	if (path->failed) /* and its connection is gone */
		return true;
	more = !host_tx_report(path, emit) || more;
	if (path->bell_due && !path->ended)
		host_path_ring(path);
	else if (path->ack_bell_due && !path->ended)
		host_path_ring_later(path);
	return more || (path->conn->can_read && !path->ended);
}

bool host_path_step(struct prov_obj *obj, struct prov_emit *emit)
{
	struct host_path *path = LIST_ENTRY(obj, struct host_path, obj);
	bool more = false;

	if (path->closing)
		return close_step(path, emit);
	if (!path->failed && join_step(path, emit))
		more = up_step(path, emit);
	if (path->failed)
		return report_down(path, emit) || !host_tx_report(path, emit);
	return more || (path->join == HOST_JOIN_DONE && path->connect_called && !path->up);
}

void host_op_path_close(struct prov_path *path_)
{
	struct host_path *path = (struct host_path *)path_;

	path->closing = true;
	path->leave_ns = clock_now_ns() + CLOSE_LEAVE_MS * CLOCK_NS_PER_MS;
	host_path_lost(path);
}
