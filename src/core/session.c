/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: hello, paths, heartbeats, goodbye. One session stands between two instances; when both
 * start one at once, that of the smaller instance wins. */
#include "core/engine.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "plat/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define OUTBOX_MAX 8192

/* A message that waits for room on the ctl. */
struct outgoing {
	struct list link;
	uint32_t len_bytes;
	uint8_t bytes[];
};

/* "6f1c..": enough of an instance to tell two apart. */
static const char *instance_text(const uint8_t *instance, char out[17])
{
	for (int i = 0; i < 8; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", instance[i]);
	return out;
}

static const char *addr_text(const struct wire_addr *addr, char *out, size_t out_bytes)
{
	if (wire_addr_format(addr, out, out_bytes) != WIMM_OK)
		(void)snprintf(out, out_bytes, "(unknown address)");
	return out;
}

/* --- sending --- */

static bool may_be_dropped(enum wire_type type)
{
	return type == WIRE_HEARTBEAT || type == WIRE_MSG;
}

wimm_status session_send(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct outgoing *o;
	uint32_t len;
	wimm_status st = WIMM_AGAIN;

	if (p->ctl == NULL)
		return WIMM_E_PEER_LOST;
	len = wire_encode(m, w->scratch, w->scratch_bytes);
	ASSERT(len != 0);
	p->last_tx_ns = w->now_ns;
	if (list_empty(&p->outbox))
		st = w->prov->ctl_send(p->ctl->prov, w->scratch, len);
	if (st != WIMM_AGAIN || (may_be_dropped(m->type) && m->type != WIRE_HEARTBEAT))
		return st;
	if (m->type == WIRE_HEARTBEAT && m->u.marks.id == 0)
		return WIMM_OK; /* the channel is full of what says as much */
	o = p->outbox_count < OUTBOX_MAX ? mem_alloc(sizeof(*o) + len) : NULL;
	if (o == NULL)
		return WIMM_E_NOMEM;
	o->len_bytes = len;
	memcpy(o->bytes, w->scratch, len);
	list_push_back(&p->outbox, &o->link);
	p->outbox_count++;
	if (!list_linked(&p->talk_link))
		list_push_back(&w->talkers, &p->talk_link);
	return WIMM_OK;
}

void session_say(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	wimm_status st;

	if (p->state == PEER_DOWN)
		return;
	st = session_send(w, p, m);
	if (st != WIMM_OK && st != WIMM_AGAIN)
		peer_down(w, p, st == WIMM_E_NOMEM ? WIMM_E_NOMEM : WIMM_E_PEER_LOST, 0,
		          "cannot send it session messages: %s", wimm_status_text(st));
}

void session_talk(struct worker *w)
{
	LIST_FOR_EACH(it, &w->talkers) {
		struct peer *p = LIST_ENTRY(it, struct peer, talk_link);

		while (!list_empty(&p->outbox) && p->ctl != NULL) {
			struct outgoing *o = LIST_ENTRY(p->outbox.next, struct outgoing, link);

			if (w->prov->ctl_send(p->ctl->prov, o->bytes, o->len_bytes) == WIMM_AGAIN)
				break;
			list_remove(&o->link);
			mem_free(o);
			p->outbox_count--;
		}
		if (list_empty(&p->outbox))
			list_remove(&p->talk_link);
	}
}

/* --- ctl channels --- */

static struct ctl *ctl_new(struct worker *w, uint32_t nic)
{
	struct ctl *c = mem_calloc(1, sizeof(*c));

	if (c == NULL)
		return NULL;
	c->context.kind = CONTEXT_CTL;
	c->nic = nic;
	c->opened_ns = w->now_ns;
	list_init(&c->link);
	return c;
}

static void ctl_drop(struct worker *w, struct ctl *c, bool flush)
{
	w->prov->ctl_close(c->prov, flush);
	list_remove(&c->link);
	c->dead = true; /* events of it may stand in the batch that is being handled */
	list_push_back(&w->dead_ctls, &c->link);
}

void session_drop_stranger(struct worker *w, struct list *link)
{
	ctl_drop(w, LIST_ENTRY(link, struct ctl, link), false);
}

void session_bury(struct worker *w)
{
	while (!list_empty(&w->dead_ctls))
		mem_free(LIST_ENTRY(list_pop_front(&w->dead_ctls), struct ctl, link));
}

void session_drop_ctl(struct worker *w, struct peer *p)
{
	while (!list_empty(&p->outbox))
		mem_free(LIST_ENTRY(list_pop_front(&p->outbox), struct outgoing, link));
	p->outbox_count = 0;
	if (list_linked(&p->talk_link))
		list_remove(&p->talk_link);
	if (p->ctl != NULL)
		ctl_drop(w, p->ctl,
		         p->cause == WIMM_E_CLOSED || p->cause == WIMM_E_VERSION ||
		                 p->cause == WIMM_E_PROTOCOL);
	p->ctl = NULL;
}

/* --- hello --- */

static void fill_hello(struct worker *w, struct wire_msg *m, enum wire_type type, uint64_t nonce)
{
	memset(m, 0, sizeof(*m));
	m->type = type;
	m->u.hello.major = WIRE_MAJOR;
	m->u.hello.minor = WIRE_MINOR;
	m->u.hello.progress_mode = (uint8_t)w->engine->opts.progress;
	m->u.hello.nonce = nonce;
	m->u.hello.heartbeat_ms = (uint32_t)(w->heartbeat_ns / CLOCK_NS_PER_MS);
	m->u.hello.peer_timeout_ms = (uint32_t)(w->peer_timeout_ns / CLOCK_NS_PER_MS);
	m->u.hello.max_msg_bytes = w->max_msg_bytes;
	m->u.hello.self = w->engine->self;
}

/* Open a ctl to the next NIC of the peer that was not tried yet. */
static bool dial(struct worker *w, struct peer *p)
{
	for (; p->dial_nic < p->addr.nic_count; p->dial_nic++) {
		uint32_t nic = p->dial_nic % w->nic_count;
		struct ctl *c = ctl_new(w, nic);
		struct wire_msg m;

		if (c == NULL)
			return false;
		c->prov = w->prov->ctl_open(w->nic[nic].dev, &p->addr.nic[p->dial_nic], c);
		if (c->prov == NULL) {
			mem_free(c);
			continue;
		}
		c->peer = p;
		p->ctl = c;
		p->nonce = worker_random(w) | 1;
		fill_hello(w, &m, WIRE_HELLO, p->nonce);
		if (p->instance_known)
			memcpy(m.u.hello.target, p->addr.instance, WIMM_INSTANCE_BYTES);
		session_say(w, p, &m);
		return true;
	}
	return false;
}

void session_connect(struct worker *w, struct peer *p)
{
	char text[256];

	p->initiator = true;
	p->connect_deadline_ns = clock_deadline_ns(w->now_ns, w->hello_timeout_ns);
	if (!dial(w, p))
		peer_down(w, p, WIMM_E_PEER_LOST, 0, "no channel to %s could be started",
		          addr_text(&p->addr, text, sizeof(text)));
}

static void learn_hello(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	uint64_t theirs = (uint64_t)m->u.hello.heartbeat_ms * 3 * CLOCK_NS_PER_MS;

	p->addr = m->u.hello.self;
	p->instance_known = true;
	p->progress_mode = m->u.hello.progress_mode;
	p->max_msg_bytes = m->u.hello.max_msg_bytes;
	p->timeout_ns = w->peer_timeout_ns > theirs ? w->peer_timeout_ns : theirs;
	if (p->progress_mode == WIMM_PROGRESS_CALLER)
		p->timeout_ns *= 4; /* it answers only when its program calls */
}

/* A new instance at an address where another one was: that one is gone. */
static void supersede(struct worker *w, struct peer *p)
{
	char was[17], is[17];

	LIST_FOR_EACH(it, &w->peers) {
		struct peer *q = LIST_ENTRY(it, struct peer, link);

		if (q == p || q->state == PEER_DOWN || q->alias != NULL || !q->instance_known ||
		    q->addr.nic[0].len_bytes != p->addr.nic[0].len_bytes ||
		    memcmp(q->addr.nic[0].bytes, p->addr.nic[0].bytes, p->addr.nic[0].len_bytes) !=
		            0 ||
		    memcmp(q->addr.instance, p->addr.instance, WIMM_INSTANCE_BYTES) == 0)
			continue;
		peer_down(w, q, WIMM_E_PEER_RESTARTED, 0,
		          "instance %s is gone: instance %s answers at its address",
		          instance_text(q->addr.instance, was),
		          instance_text(p->addr.instance, is));
		peer_event(w, p, WIMM_PEER_RESTARTED, WIMM_OK, 0, "a new instance of a lost peer");
		return;
	}
}

static void peer_up(struct worker *w, struct peer *p)
{
	char text[256];

	peer_set_state(p, PEER_UP);
	STAT_ADD(w, peers_up, 1);
	p->last_rx_ns = w->now_ns;
	LOG_INFO("peer %" PRIx64 " up: %s, %" PRIu32 " paths", peer_id(p),
	         addr_text(&p->addr, text, sizeof(text)), p->paths_up);
	supersede(w, p);
	peer_event(w, p, WIMM_PEER_UP, WIMM_OK, 0, "");
	remote_peer_up(w, p);
	message_pump(w, p);
}

/* All paths have come up or failed: the session stands, or does not. */
static void maybe_up(struct worker *w, struct peer *p, bool at_deadline)
{
	uint32_t opening = 0;

	if (p->state != PEER_CONNECTING || p->path_count == 0)
		return;
	for (uint32_t i = 0; i < p->path_count; i++)
		opening += p->path[i].state == PATH_OPENING;
	if (opening != 0 && !(at_deadline && p->paths_up != 0))
		return;
	if (p->paths_up != 0)
		peer_up(w, p);
}

static bool open_path(struct worker *w, struct peer *p, uint32_t k, struct prov_offer *out)
{
	struct path *path = &p->path[k];
	uint32_t own = k % w->nic_count;
	uint32_t theirs = k % p->addr.nic_count;

	path->nic = own;
	path->remote_nic = theirs;
	if (w->nic[own].dead)
		return false;
	path->prov = w->prov->path_open(w->nic[own].dev, &p->addr.nic[theirs], p->initiator,
	                                &path->context, out);
	if (path->prov == NULL)
		return false;
	path->state = PATH_OPENING;
	path->seq++;
	p->paths_open++;
	return true;
}

static uint32_t count_paths(const struct worker *w, const struct peer *p)
{
	uint32_t n = w->nic_count > p->addr.nic_count ? w->nic_count : p->addr.nic_count;

	return n < WIRE_MAX_PATHS ? n : WIRE_MAX_PATHS;
}

/* Answer a hello with a refusal on a channel that has no peer. */
static void refuse(struct worker *w, struct ctl *c, const struct wire_msg *hello, wimm_status why)
{
	struct wire_msg m;
	uint32_t len;

	fill_hello(w, &m, WIRE_HELLO_ACK, hello->u.hello.nonce);
	m.u.hello.status = why;
	m.u.hello.path_count = 0;
	len = wire_encode(&m, w->scratch, w->scratch_bytes);
	if (len != 0)
		(void)w->prov->ctl_send(c->prov, w->scratch, len);
	ctl_drop(w, c, true);
}

static void accept_paths(struct worker *w, struct peer *p)
{
	struct wire_msg m;
	bool any = false;

	p->path_count = count_paths(w, p);
	fill_hello(w, &m, WIRE_HELLO_ACK, p->nonce);
	m.u.hello.status = WIMM_OK;
	m.u.hello.path_count = p->path_count;
	for (uint32_t k = 0; k < p->path_count; k++)
		any = open_path(w, p, k, &m.u.hello.offer[k]) || any;
	if (!any) {
		peer_down(w, p, WIMM_E_NOMEM, 0, "no path could be prepared for it");
		return;
	}
	session_say(w, p, &m);
}

static void adopt_ctl(struct peer *p, struct ctl *c)
{
	list_remove(&c->link);
	c->peer = p;
	p->ctl = c;
}

/* Returns the peer that a hello is for, or NULL when it was refused. */
static struct peer *hello_peer(struct worker *w, struct ctl *c, const struct wire_msg *m)
{
	const uint8_t *own = w->engine->self.instance;
	const struct wire_addr *from = &m->u.hello.self;
	bool self = memcmp(from->instance, own, WIMM_INSTANCE_BYTES) == 0;
	struct peer *p = self ? NULL : peer_by_instance(w, from->instance);
	bool targeted = false;

	for (size_t i = 0; i < WIMM_INSTANCE_BYTES; i++)
		targeted = targeted || m->u.hello.target[i] != 0;
	if (targeted && memcmp(m->u.hello.target, own, WIMM_INSTANCE_BYTES) != 0) {
		refuse(w, c, m, WIMM_E_PEER_RESTARTED);
		return NULL;
	}
	if (strcmp(from->provider, w->prov->name) != 0 || w->closing) {
		refuse(w, c, m, w->closing ? WIMM_E_CLOSED : WIMM_E_PEER_REFUSED);
		return NULL;
	}
	if (p != NULL && p->state == PEER_CONNECTING && p->initiator) {
		if (p->path_count != 0 ||
		    (!p->awaiting_hello && memcmp(own, from->instance, WIMM_INSTANCE_BYTES) < 0)) {
			refuse(w, c, m, WIMM_AGAIN); /* ours wins */
			return NULL;
		}
		if (p->ctl != NULL)
			ctl_drop(w, p->ctl, false);
		p->ctl = NULL;
		p->initiator = false;
		return p;
	}
	if (p != NULL && !targeted) {
		refuse(w, c, m, WIMM_AGAIN); /* a session stands already */
		return NULL;
	}
	if (p != NULL)
		peer_down(w, p, WIMM_E_PEER_LOST, 0, "it lost its end of the session");
	p = peer_new(w, from);
	if (p != NULL && !self && peer_index(w, p) != WIMM_OK) {
		peer_free(w, p);
		p = NULL;
	}
	if (p == NULL)
		refuse(w, c, m, WIMM_E_LIMIT);
	return p;
}

static void on_hello(struct worker *w, struct ctl *c, const struct wire_msg *m)
{
	struct peer *p = hello_peer(w, c, m);

	if (p == NULL)
		return;
	adopt_ctl(p, c);
	learn_hello(w, p, m);
	p->nonce = m->u.hello.nonce;
	p->awaiting_hello = false;
	p->last_rx_ns = w->now_ns;
	p->connect_deadline_ns = clock_deadline_ns(w->now_ns, w->hello_timeout_ns);
	accept_paths(w, p);
}

/* The peer known by address only is the one known by instance: one session serves both. */
static void merge(struct worker *w, struct peer *p, struct peer *real)
{
	if (p->ctl != NULL)
		ctl_drop(w, p->ctl, false);
	p->ctl = NULL;
	p->alias = real;
	list_splice_back(&real->sends, &p->sends);
	LIST_FOR_EACH(it, &real->sends) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);

		if (op->send.peer == p) {
			op->send.peer = real;
			p->refs--;
			real->refs++;
		}
	}
	if (real->state == PEER_UP) {
		peer_set_state(p, PEER_UP);
		message_pump(w, real);
	}
}

static void ack_refused(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	wimm_status why = m->u.hello.status;
	struct peer *real = peer_by_instance(w, m->u.hello.self.instance);
	char want[17], have[17];

	if (why == WIMM_AGAIN && real != NULL && real != p) {
		merge(w, p, real);
		return;
	}
	if (why == WIMM_AGAIN && p->instance_known) {
		if (p->ctl != NULL)
			ctl_drop(w, p->ctl, false);
		p->ctl = NULL;
		p->awaiting_hello = true; /* its own hello is under way */
		return;
	}
	if (why ==
	    WIMM_AGAIN) { /* it still has a session that we lost: say which instance we mean */
		memcpy(p->addr.instance, m->u.hello.self.instance, WIMM_INSTANCE_BYTES);
		p->instance_known = true;
		if (peer_index(w, p) == WIMM_OK) {
			ctl_drop(w, p->ctl, false);
			p->ctl = NULL;
			if (dial(w, p))
				return;
		}
	}
	if (why == WIMM_E_PEER_RESTARTED)
		peer_down(
			w, p, why, 0,
			"instance %s was asked for, instance %s answers at its address: get a new "
			"address and descriptors from it",
			instance_text(p->addr.instance, want),
			instance_text(m->u.hello.self.instance, have));
	else
		peer_down(w, p, why == WIMM_OK || why == WIMM_AGAIN ? WIMM_E_PROTOCOL : why, 0,
		          "it refused the session: %s", wimm_status_text(why));
}

static void on_hello_ack(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct wire_msg paths = { .type = WIRE_PATHS };
	struct peer *real;
	bool known = p->instance_known;

	if (!p->initiator || p->state != PEER_CONNECTING || p->path_count != 0 ||
	    m->u.hello.nonce != p->nonce) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "an answer to a hello that was not sent");
		return;
	}
	if (m->u.hello.status != WIMM_OK) {
		ack_refused(w, p, m);
		return;
	}
	real = peer_by_instance(w, m->u.hello.self.instance);
	if (!known && real != NULL && real != p) {
		/* It accepts this session and so gave up its own: ours becomes the real one. */
		if (real->state == PEER_CONNECTING && real->initiator) {
			merge(w, p, real); /* both were ours; keep the older */
			return;
		}
		peer_down(w, real, WIMM_E_PEER_LOST, 0, "it opened a new session");
	}
	if (known && memcmp(m->u.hello.self.instance, p->addr.instance, WIMM_INSTANCE_BYTES) != 0) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "it answered for another instance");
		return;
	}
	learn_hello(w, p, m);
	if (!known &&
	    memcmp(p->addr.instance, w->engine->self.instance, WIMM_INSTANCE_BYTES) != 0 &&
	    peer_index(w, p) != WIMM_OK) {
		peer_down(w, p, WIMM_E_NOMEM, 0, "no memory for its table entry");
		return;
	}
	p->path_count = count_paths(w, p);
	if (m->u.hello.path_count != p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0,
		          "it offers %" PRIu32 " paths, expected %" PRIu32, m->u.hello.path_count,
		          p->path_count);
		return;
	}
	paths.u.paths.nonce = p->nonce;
	paths.u.paths.path_count = p->path_count;
	for (uint32_t k = 0; k < p->path_count; k++)
		if (m->u.hello.offer[k].len_bytes == 0 ||
		    !open_path(w, p, k, &paths.u.paths.offer[k]))
			paths.u.paths.offer[k].len_bytes = 0;
	session_say(w, p, &paths);
	for (uint32_t k = 0; k < p->path_count && p->state == PEER_CONNECTING; k++)
		if (p->path[k].state == PATH_OPENING)
			w->prov->path_connect(p->path[k].prov, &m->u.hello.offer[k]);
}

static void on_paths(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (p->initiator || m->u.paths.nonce != p->nonce ||
	    m->u.paths.path_count != p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "ends of paths that do not match its hello");
		return;
	}
	for (uint32_t k = 0; k < p->path_count; k++) {
		struct path *path = &p->path[k];

		if (path->state != PATH_OPENING)
			continue;
		if (m->u.paths.offer[k].len_bytes != 0) {
			w->prov->path_connect(path->prov, &m->u.paths.offer[k]);
			continue;
		}
		path->state = PATH_CLOSING;
		w->prov->path_close(path->prov);
	}
	maybe_up(w, p, false);
}

/* --- paths --- */

void path_lost(struct worker *w, struct path *path, wimm_status cause, uint32_t vendor_code,
               const char *text)
{
	struct peer *p = path->peer;
	bool was_up = path->state == PATH_UP;

	if (path->state != PATH_UP && path->state != PATH_OPENING)
		return;
	path->state = PATH_CLOSING;
	w->prov->path_close(path->prov);
	if (was_up)
		p->paths_up--;
	if (text == NULL)
		text = wimm_status_text(cause);
	if (p->paths_up == 0 && (p->state == PEER_UP || was_up)) {
		peer_down(w, p, cause == WIMM_E_PATH_LOST ? WIMM_E_PEER_LOST : cause, vendor_code,
		          "its last path (local NIC %" PRIu32 ") failed: %s", path->nic, text);
		return;
	}
	LOG_WARN("peer %" PRIx64 ": path %" PRIu32 " (local NIC %" PRIu32 ") lost: %s", peer_id(p),
	         path->index, path->nic, text);
	if (p->state == PEER_UP) {
		peer_event(w, p, WIMM_PEER_NIC_LOST, cause, path->nic, text);
		confirm_path_lost(w, p);
		post_peer_room(w, p); /* its legs look for another path */
	}
	maybe_up(w, p, false);
	if (p->state == PEER_CONNECTING && p->paths_up == 0) {
		for (uint32_t k = 0; k < p->path_count; k++)
			if (p->path[k].state == PATH_OPENING)
				return;
		peer_down(w, p, WIMM_E_PEER_LOST, vendor_code, "no path came up: %s", text);
	}
}

static void path_cqe(struct worker *w, struct path *path, const struct prov_cqe *c)
{
	struct peer *p = path->peer;

	switch (c->kind) {
	case PROV_DONE:
		p->last_rx_ns = w->now_ns;
		post_done(w, path, c);
		return;
	case PROV_IMM:
	case PROV_PART:
		p->last_rx_ns = w->now_ns;
		if (path->state != PATH_CLOSING && p->state != PEER_DOWN)
			count_arrived(w, path, c);
		return;
	case PROV_PATH_UP:
		if (path->state != PATH_OPENING)
			return;
		path->state = PATH_UP;
		p->paths_up++;
		maybe_up(w, p, false);
		return;
	case PROV_PATH_DOWN:
		path_lost(w, path, c->status, c->vendor_code, c->text);
		return;
	case PROV_PATH_CLOSED:
		path->state = PATH_NONE;
		path->prov = NULL;
		p->paths_open--;
		peer_maybe_free(w, p);
		return;
	default:
		ASSERT(!"a path event of the provider's");
	}
}

/* --- events --- */

static void ctl_down(struct worker *w, struct ctl *c, const struct prov_cqe *e)
{
	struct peer *p = c->peer;
	char text[256];

	if (p == NULL) {
		ctl_drop(w, c, false);
		return;
	}
	if (p->state == PEER_CONNECTING && p->initiator && p->path_count == 0 &&
	    !p->awaiting_hello) {
		ctl_drop(w, c, false);
		p->ctl = NULL;
		p->dial_nic++;
		if (dial(w, p))
			return;
	}
	peer_down(w, p, WIMM_E_PEER_LOST, e->vendor_code, "%s at %s",
	          e->text != NULL ? e->text : "the connection ended",
	          addr_text(&p->addr, text, sizeof(text)));
}

static void ctl_message(struct worker *w, struct ctl *c, const struct prov_cqe *e)
{
	struct wire_msg m;
	wimm_status st = wire_decode(e->data, e->len_bytes, &m);
	struct peer *p = c->peer;

	if (p == NULL) {
		if (st == WIMM_OK && m.type == WIRE_HELLO) {
			on_hello(w, c, &m);
		} else {
			LOG_WARN("NIC %" PRIu32 ": a stranger was dropped: %s", c->nic,
			         st == WIMM_OK ? "it did not begin with a hello"
			                       : wimm_status_text(st));
			ctl_drop(w, c, false);
		}
		return;
	}
	p->last_rx_ns = w->now_ns;
	if (st != WIMM_OK) {
		peer_down(w, p, st == WIMM_E_VERSION ? st : WIMM_E_PROTOCOL, 0,
		          "a malformed message of %" PRIu32 " bytes, version %u", e->len_bytes,
		          e->len_bytes != 0 ? e->data[0] : 0u);
		return;
	}
	session_message(w, p, &m);
}

void session_message(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	switch (m->type) {
	case WIRE_HELLO:
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "a second hello in one session");
		return;
	case WIRE_HELLO_ACK:
		on_hello_ack(w, p, m);
		return;
	case WIRE_PATHS:
		on_paths(w, p, m);
		return;
	case WIRE_GOODBYE:
		if (p->goodbye_step == 0) {
			p->goodbye_step = w->step;
			w->goodbyes++;
		}
		return;
	case WIRE_HEARTBEAT:
	case WIRE_CONFIRM:
	case WIRE_RETIRE:
	case WIRE_RETIRE_ACK:
	case WIRE_ABANDON:
		count_message(w, p, m);
		return;
	case WIRE_MR_CHECK:
	case WIRE_REVOKE_ACK:
		mr_message(w, p, m);
		return;
	case WIRE_MR_STATE:
	case WIRE_REVOKE:
		remote_message(w, p, m);
		return;
	case WIRE_MSG:
		message_arrived(w, p, m);
		return;
	case WIRE_MSG_ACK:
		message_acked(w, p, m);
		return;
	case WIRE_MSG_READY:
		message_ready(w, p);
		return;
	}
}

void session_cqe(struct worker *w, uint32_t nic, const struct prov_cqe *c)
{
	struct context *context = c->context;
	struct ctl *ctl;

	if (c->kind == PROV_NIC_DOWN) {
		LOG_ERROR("NIC %" PRIu32 " is lost: %s", nic,
		          c->text != NULL ? c->text : wimm_status_text(c->status));
		w->nic[nic].dead = true;
		return;
	}
	if (c->kind == PROV_CTL_NEW) {
		ctl = ctl_new(w, nic);
		if (ctl == NULL) {
			w->prov->ctl_close(c->ctl, false);
			return;
		}
		ctl->prov = c->ctl;
		w->prov->ctl_set_context(c->ctl, ctl);
		list_push_back(&w->strangers, &ctl->link);
		return;
	}
	if (context->kind == CONTEXT_PATH) {
		path_cqe(w, LIST_ENTRY(context, struct path, context), c);
		return;
	}
	ctl = LIST_ENTRY(context, struct ctl, context);
	if (ctl->dead)
		return;
	if (c->kind == PROV_CTL_MSG)
		ctl_message(w, ctl, c);
	else
		ctl_down(w, ctl, c);
}

/* --- time --- */

static void send_heartbeat(struct worker *w, struct peer *p)
{
	struct wire_msg m;

	count_fill_marks(p, &m, 0);
	session_say(w, p, &m);
}

static void scan_peer(struct worker *w, struct peer *p)
{
	uint64_t silent = w->now_ns > p->last_rx_ns ? w->now_ns - p->last_rx_ns : 0;
	char text[256];

	if (p->alias != NULL)
		return;
	if (p->state == PEER_CONNECTING && w->now_ns >= p->connect_deadline_ns) {
		maybe_up(w, p, true);
		if (p->state == PEER_CONNECTING)
			peer_down(w, p, WIMM_E_PEER_LOST, 0,
			          "no session with %s within %" PRIu64
			          " ms (setting hello_timeout_ms)",
			          addr_text(&p->addr, text, sizeof(text)),
			          w->hello_timeout_ns / CLOCK_NS_PER_MS);
	}
	if (p->state != PEER_UP)
		return;
	if (silent >= p->timeout_ns) {
		peer_down(w, p, WIMM_E_PEER_LOST, 0,
		          "silent for %" PRIu64 " ms, allowed are %" PRIu64
		          " (setting peer_timeout_ms)",
		          silent / CLOCK_NS_PER_MS, p->timeout_ns / CLOCK_NS_PER_MS);
		return;
	}
	if (w->now_ns - p->last_tx_ns >= w->heartbeat_ns)
		send_heartbeat(w, p);
}

void session_scan(struct worker *w)
{
	/* peer_down() frees nothing here: a peer goes only after its event has run. */
	LIST_FOR_EACH(it, &w->peers)
		scan_peer(w, LIST_ENTRY(it, struct peer, link));
	LIST_FOR_EACH(it, &w->strangers) {
		struct ctl *c = LIST_ENTRY(it, struct ctl, link);

		if (w->now_ns - c->opened_ns >= w->hello_timeout_ns)
			ctl_drop(w, c, false);
	}
}

void session_goodbyes(struct worker *w)
{
	LIST_FOR_EACH(it, &w->peers) {
		struct peer *p = LIST_ENTRY(it, struct peer, link);

		/* What it wrote before is counted: every NIC was polled empty since. */
		if (p->goodbye_step != 0 && p->goodbye_step < w->step && p->state != PEER_DOWN)
			peer_down(w, p, WIMM_E_PEER_LOST, 0, "it said goodbye");
	}
}

void session_goodbye(struct worker *w, struct peer *p, wimm_status reason, const char *text)
{
	struct wire_msg m = { .type = WIRE_GOODBYE };

	if (p->state != PEER_UP || p->ctl == NULL || p->alias != NULL)
		return;
	m.u.goodbye.reason = reason;
	m.u.goodbye.text = text;
	m.u.goodbye.text_len_bytes = (uint32_t)strlen(text);
	p->leaving = true;
	session_say(w, p, &m);
}
