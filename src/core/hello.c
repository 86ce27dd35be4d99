/* SPDX-License-Identifier: Apache-2.0 */
/* How a session starts: hello, answer, ends of the paths. One session stands between two instances;
 * when both start one at once, that of the smaller instance wins. Whoever is known by address only
 * is first asked for its instance. docs/WIRE.md has the rules. */
#include "core/engine.h"
#include "core/same_host.h"
#include "core/session.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "plat/clock.h"
#include "plat/rand.h"

#include <inttypes.h>
#include <string.h>

/* Before a peer that was busy is asked again. */
#define BUSY_PAUSE_NS (2 * CLOCK_NS_PER_MS)
/* So much of the time for a hello (1 / ANSWER_PART) whoever is at a peer's address has to answer
 * ours before somebody else who says to be that peer is believed. */
#define ANSWER_PART 8

/* Whoever knows it has taken part in the session. */
static uint64_t nonce_new(struct worker *w) ON_WORKER
{
	uint64_t nonce;

	/* In a simulated world everything comes from its seed. */
	if (w->engine->env.rng_seed != 0 || rand_bytes(&nonce, sizeof(nonce)) != WIMM_OK)
		nonce = worker_random(w);
	return nonce | 1;
}

static void fill_hello(struct worker *w, struct wire_msg *m, enum wire_type type, uint64_t nonce)
	ON_WORKER
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
	m->u.hello.attempt = w->hello_attempt;
	m->u.hello.self = w->engine->self;
}

/* Open a ctl to the next NIC of the peer that was not tried yet. */
static bool dial(struct worker *w, struct peer *p) ON_WORKER
{
	for (; p->dial_nic < p->addr.nic_count; p->dial_nic++) {
		uint32_t nic = p->dial_nic % w->nic_count;
		struct ctl *c = session_ctl_new(w, nic);
		struct wire_msg m;

		if (c == NULL)
			return false;
		c->prov = ctl_ops(w, c)->ctl_open(w->nic[nic].dev, &p->addr.nic[p->dial_nic], c);
		if (c->prov == NULL) {
			mem_free(c);
			continue;
		}
		c->peer = p;
		p->ctl = c;
		p->nonce = nonce_new(w);
		p->dialled_ns = w->now_ns;
		w->hello_attempt++;
		fill_hello(w, &m, WIRE_HELLO, p->nonce);
		m.u.hello.former = p->former;
		if (p->instance_known)
			memcpy(m.u.hello.target, p->addr.instance, WIMM_INSTANCE_BYTES);
		same_host_say(w, &m);
		auth_begin(w, p, &m);
		session_say(w, p, &m);
		return true;
	}
	return false;
}

bool hello_dial_next(struct worker *w, struct peer *p)
{
	p->dial_nic++;
	return dial(w, p);
}

void session_connect(struct worker *w, struct peer *p)
{
	char text[256];

	p->initiator = true;
	p->connect_deadline_ns = clock_deadline_ns(w->now_ns, w->hello_timeout_ns);
	if (!dial(w, p))
		peer_down(w, p, WIMM_E_PEER_LOST, 0, "no channel to %s could be started",
		          session_addr_text(&p->addr, text, sizeof(text)));
}

static void learn_hello(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	p->addr = m->u.hello.self;
	p->instance_known = true;
	p->progress_mode = m->u.hello.progress_mode;
	p->minor = m->u.hello.minor;
	p->max_msg_bytes = m->u.hello.max_msg_bytes;
	p->attempt = m->u.hello.attempt;
	p->min_timeout_ns = (uint64_t)m->u.hello.heartbeat_ms * 3 * CLOCK_NS_PER_MS;
	peer_set_timeout(w, p, p->own_timeout_ns);
}

/* Answer a hello with a refusal on a channel that has no peer. */
static void refuse(struct worker *w, struct ctl *c, const struct wire_msg *hello, wimm_status why)
	ON_WORKER
{
	struct wire_msg m;
	uint32_t len;

	fill_hello(w, &m, WIRE_HELLO_ACK, hello->u.hello.nonce);
	m.u.hello.status = why;
	m.u.hello.path_count = 0;
	len = wire_encode(&m, w->scratch, w->scratch_bytes);
	if (len != 0)
		(void)ctl_ops(w, c)->ctl_send(c->prov, w->scratch, len);
	session_ctl_drop(w, c, true);
}

/* To somebody who has not proved the job key: not even who we are. */
static void refuse_stranger(struct worker *w, struct ctl *c, const struct wire_msg *hello) ON_WORKER
{
	struct wire_msg m;
	uint32_t len;

	memset(&m, 0, sizeof(m));
	m.type = WIRE_HELLO_ACK;
	m.u.hello.status = WIMM_E_PEER_REFUSED;
	m.u.hello.nonce = hello->u.hello.nonce;
	m.u.hello.heartbeat_ms = 1;
	m.u.hello.peer_timeout_ms = 1;
	m.u.hello.self = hello->u.hello.self; /* its own */
	len = wire_encode(&m, w->scratch, w->scratch_bytes);
	if (len != 0)
		(void)ctl_ops(w, c)->ctl_send(c->prov, w->scratch, len);
	session_ctl_drop(w, c, true);
}

/* Without a path that is coming up the session never will, and nothing else would end it soon. */
static bool paths_are_coming(const struct peer *p)
{
	for (uint32_t k = 0; k < p->path_count; k++)
		if (p->path[k].state == PATH_OPENING || p->path[k].state == PATH_UP)
			return true;
	return false;
}

/* None of them could be; the error is of the last one that gave a reason. */
static void no_path(struct worker *w, struct peer *p, const char *towards,
                    const struct prov_error *error) ON_WORKER
{
	peer_down(w, p, error->vendor_code != 0 ? WIMM_E_LIMIT : WIMM_E_NOMEM, error->vendor_code,
	          "no path could be prepared %s it%s%.200s", towards,
	          error->text[0] != '\0' ? ": " : "", error->text);
}

static void accept_paths(struct worker *w, struct peer *p, const struct wire_msg *hello) ON_WORKER
{
	struct prov_error error = { 0 };
	struct wire_msg m;
	bool any = false;

	path_plan(w, p, same_host_asked(w, p, hello));
	fill_hello(w, &m, WIRE_HELLO_ACK, p->nonce);
	m.u.hello.status = WIMM_OK;
	m.u.hello.path_count = p->path_count;
	auth_begin(w, p, &m);
	for (uint32_t k = 0; k < p->path_count; k++) {
		any = path_prepare(w, p, k, 1, &m.u.hello.offer[k], &error) || any;
		if (k == p->host_path)
			same_host_wrap(w, &m.u.hello.offer[k]);
		auth_mask_offer(w, p, true, k, 1, &m.u.hello.offer[k]);
	}
	if (!any) {
		no_path(w, p, "for", &error);
		return;
	}
	session_say(w, p, &m);
}

static void adopt_ctl(struct worker *w, struct peer *p, struct ctl *c) ON_WORKER
{
	list_remove(&c->link);
	w->stranger_count--;
	c->peer = p;
	p->ctl = c;
}

/* The hello comes from the peer of this session, and not from somebody who knows its instance. */
static bool hello_proven(const struct worker *w, const struct peer *p, const struct wire_msg *m)
{
	return w->engine->job_key.set || (m->u.hello.former != 0 && m->u.hello.former == p->nonce);
}

/* A hello while our own is under way to that peer. */
static bool hello_crossing(struct worker *w, struct ctl *c, const struct wire_msg *m,
                           struct peer *p) ON_WORKER
{
	const uint8_t *own = w->engine->self.instance;

	if (!p->awaiting_hello && memcmp(own, m->u.hello.self.instance, WIMM_INSTANCE_BYTES) < 0) {
		refuse(w, c, m, WIMM_AGAIN);
		return false;
	}
	/* Whoever is at its address says first whether this is its own. */
	if (!p->awaiting_hello && !w->engine->job_key.set &&
	    w->now_ns - p->dialled_ns < w->hello_timeout_ns / ANSWER_PART) {
		refuse(w, c, m, WIMM_E_BUSY);
		return false;
	}
	/* Its hello wins: the peer carries on with that channel. */
	if (p->ctl != NULL)
		session_ctl_drop(w, p->ctl, false);
	p->ctl = NULL;
	p->initiator = false;
	return true;
}

/* A hello of an instance that has a session here, or will have. True: it may go on as a new one. */
static bool hello_known(struct worker *w, struct ctl *c, const struct wire_msg *m, struct peer *p)
	ON_WORKER
{
	if (p->state == PEER_CONNECTING && p->initiator && p->path_count == 0)
		return hello_crossing(w, c, m, p);
	if (m->u.hello.attempt <= p->attempt) {
		/* From before the session that stands, held up on the way: nobody waits for it. */
		refuse(w, c, m, WIMM_AGAIN);
		return false;
	}
	/* All that it sent before is read first, so it has to ask again. Without a proof only the
	 * session's own channel says whether it is over. */
	if (hello_proven(w, p, m))
		peer_ending(w, p, true, WIMM_E_PEER_LOST, 0, "it lost its end of the session");
	else
		session_knock(w, p);
	LOG_INFO("peer %" PRIx64 ": another channel says that its session is over%s", peer_id(p),
	         hello_proven(w, p, m) ? "" : ", without proof");
	refuse(w, c, m, WIMM_E_BUSY);
	return false;
}

/* Returns the peer that a hello is for, or NULL when it was refused. */
static struct peer *hello_peer(struct worker *w, struct ctl *c, const struct wire_msg *m) ON_WORKER
{
	static const uint8_t nobody[WIMM_INSTANCE_BYTES];
	const uint8_t *own = w->engine->self.instance;
	const struct wire_addr *from = &m->u.hello.self;
	bool self = memcmp(from->instance, own, WIMM_INSTANCE_BYTES) == 0;
	struct peer *p = self ? NULL : peer_by_instance(w, from->instance);

	if (!auth_hello_ok(w, m)) {
		LOG_WARN("NIC %" PRIu32 ": a hello without our job key was refused", c->nic);
		refuse_stranger(w, c, m);
		return NULL;
	}
	if (strcmp(from->provider, w->prov->name) != 0 || w->closing) {
		refuse(w, c, m, w->closing ? WIMM_E_CLOSED : WIMM_E_PEER_REFUSED);
		return NULL;
	}
	if (memcmp(m->u.hello.target, own, WIMM_INSTANCE_BYTES) != 0) {
		bool asks = memcmp(m->u.hello.target, nobody, WIMM_INSTANCE_BYTES) == 0;

		refuse(w, c, m, asks ? WIMM_AGAIN : WIMM_E_PEER_RESTARTED);
		return NULL;
	}
	if (p != NULL && !hello_known(w, c, m, p))
		return NULL;
	if (p != NULL)
		return p;
	p = peer_new(w, from);
	if (p != NULL && !self && peer_index(w, p) != WIMM_OK) {
		peer_free(w, p);
		p = NULL;
	}
	if (p == NULL)
		refuse(w, c, m, w->peer_free_count == 0 ? WIMM_E_LIMIT : WIMM_E_NOMEM);
	return p;
}

void hello_arrived(struct worker *w, struct ctl *c, const struct wire_msg *m)
{
	struct peer *p = hello_peer(w, c, m);

	if (p == NULL)
		return;
	adopt_ctl(w, p, c);
	learn_hello(w, p, m);
	auth_heard_hello(w, p, m);
	p->nonce = m->u.hello.nonce;
	p->awaiting_hello = false;
	p->redial_ns = 0;
	p->last_rx_ns = w->now_ns;
	p->connect_deadline_ns = clock_deadline_ns(w->now_ns, w->hello_timeout_ns);
	accept_paths(w, p, m);
}

/* The peer known by address only is the one known by instance: one session serves both. */
static void merge(struct worker *w, struct peer *p, struct peer *real) ON_WORKER
{
	if (imm_peer_renamed(w->imms, p->slot, real->slot) != WIMM_OK) {
		peer_down(w, p, WIMM_E_NOMEM, 0, "no memory for what it owes");
		return;
	}
	p->alias = real;
	if (p->own_timeout_ns != 0)
		peer_set_timeout(w, real, p->own_timeout_ns);
	memcpy(p->addr.instance, real->addr.instance, WIMM_INSTANCE_BYTES);
	LIST_FOR_EACH(it, &p->sends) {
		struct op *op = LIST_ENTRY(it, struct op, wait_link);

		op->send.peer = real;
		op->send.seq = ++real->send_seq; /* its answer is found by it */
		p->refs--;
		real->refs++;
	}
	list_splice_back(&real->sends, &p->sends);
	if (real->state == PEER_UP) {
		peer_alias_up(w, p);
		message_pump(w, real);
	}
}

void hello_redial(struct worker *w, struct peer *p)
{
	char text[256];

	p->redial_ns = 0;
	if (!dial(w, p))
		peer_down(w, p, WIMM_E_PEER_LOST, 0, "no channel to %s could be started",
		          session_addr_text(&p->addr, text, sizeof(text)));
}

/* Whoever answers at the address of a peer has said which instance it is. */
static void learn_instance(struct worker *w, struct peer *p, const uint8_t *instance) ON_WORKER
{
	bool self = memcmp(instance, w->engine->self.instance, WIMM_INSTANCE_BYTES) == 0;
	struct peer *real = self ? w->self_peer : peer_by_instance(w, instance);

	if (real != NULL && real->state != PEER_DOWN) {
		merge(w, p, real);
		return;
	}
	memcpy(p->addr.instance, instance, WIMM_INSTANCE_BYTES);
	p->instance_known = true;
	if (self)
		w->self_peer = p;
	else if (peer_index(w, p) != WIMM_OK) {
		peer_down(w, p, WIMM_E_NOMEM, 0, "no memory for its table entry");
		return;
	}
	hello_redial(w, p);
}

/* Of the last session with this instance that stood. */
static uint64_t former_nonce(struct worker *w, const struct peer *p) ON_WORKER
{
	uint64_t nonce = 0;

	LIST_FOR_EACH(it, &w->peers) {
		const struct peer *q = LIST_ENTRY(it, struct peer, link);

		if (q->state == PEER_DOWN && q->agreed && q->alias == NULL &&
		    memcmp(q->addr.instance, p->addr.instance, WIMM_INSTANCE_BYTES) == 0)
			nonce = q->nonce;
	}
	return nonce;
}

static void ack_refused(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER
{
	wimm_status why = m->u.hello.status;
	char want[17], have[17];

	switch (why) {
	case WIMM_AGAIN:
		session_ctl_drop(w, p->ctl, false);
		p->ctl = NULL;
		if (p->instance_known)
			p->awaiting_hello = true; /* its own hello is under way */
		else
			learn_instance(w, p, m->u.hello.self.instance);
		return;
	case WIMM_E_BUSY:
		session_ctl_drop(w, p->ctl, false);
		p->ctl = NULL;
		p->former = former_nonce(w, p);
		/* It is ending the session that we have lost. */
		session_chore(w, &p->redial_ns, clock_deadline_ns(w->now_ns, BUSY_PAUSE_NS));
		return;
	case WIMM_E_PEER_RESTARTED:
		peer_down(w, p, why, 0,
		          "instance %s was asked for, instance %s answers at its address: get a "
		          "new address and descriptors from it",
		          session_instance_text(p->addr.instance, want),
		          session_instance_text(m->u.hello.self.instance, have));
		return;
	case WIMM_E_PEER_REFUSED:
		peer_down(w, p, why, 0,
		          "it refused the session: it uses another provider or another job key "
		          "(setting job_key_file)");
		return;
	default:
		peer_down(w, p, why, 0, "it refused the session: %s", wimm_status_text(why));
	}
}

/* OK, or what the answer breaks; the caller ends the session then. */
static const char *ack_wrong(const struct peer *p, const struct wire_msg *m)
{
	if (!p->initiator || p->state != PEER_CONNECTING || p->path_count != 0 ||
	    m->u.hello.nonce != p->nonce)
		return "an answer to a hello that was not sent";
	if (m->u.hello.status == WIMM_OK &&
	    (!p->instance_known ||
	     memcmp(m->u.hello.self.instance, p->addr.instance, WIMM_INSTANCE_BYTES) != 0))
		return "it answered for another instance";
	return NULL;
}

static void connect_path(struct worker *w, struct peer *p, uint32_t k, struct prov_offer offer)
{
	auth_mask_offer(w, p, false, k, 1, &offer);
	path_ops(w, &p->path[k])->path_connect(p->path[k].prov, &offer);
}

static bool address_found(const struct wire_addr *dialled, const struct prov_addr *nic)
{
	for (uint32_t i = 0; i < dialled->nic_count; i++)
		if (dialled->nic[i].len_bytes == nic->len_bytes &&
		    memcmp(dialled->nic[i].bytes, nic->bytes, nic->len_bytes) == 0)
			return true;
	return false;
}

void hello_acked(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	struct prov_error error = { 0 };
	struct wire_msg paths = { .type = WIRE_PATHS };
	struct prov_offer offer[WIRE_MAX_PATHS];
	const char *wrong = ack_wrong(p, m);

	if (wrong != NULL) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "%s", wrong);
		return;
	}
	if (m->u.hello.status != WIMM_OK) {
		ack_refused(w, p, m);
		return;
	}
	if (!auth_ack_ok(w, p, m)) {
		peer_down(w, p, WIMM_E_PEER_REFUSED, 0,
		          "it does not prove that it has our job key (setting job_key_file)");
		return;
	}
	p->at_home = address_found(&p->addr, &m->u.hello.self.nic[0]);
	learn_hello(w, p, m);
	/* One more than the NICs make is the answer to our own place on this machine. */
	path_plan(w, p, same_host_there(w));
	if (same_host_there(w) && m->u.hello.path_count != p->path_count)
		path_plan(w, p, false);
	if (m->u.hello.path_count != p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0,
		          "it offers %" PRIu32 " paths, expected %" PRIu32, m->u.hello.path_count,
		          p->path_count);
		return;
	}
	p->agreed = true;
	paths.u.paths.nonce = p->nonce;
	paths.u.paths.path_count = p->path_count;
	paths.u.paths.has_mac = w->engine->job_key.set;
	for (uint32_t k = 0; k < p->path_count; k++) {
		offer[k] = m->u.hello.offer[k];
		auth_mask_offer(w, p, true, k, 1, &offer[k]);
		if (offer[k].len_bytes == 0 ||
		    (k == p->host_path && !same_host_unwrap(p, &offer[k])) ||
		    !path_prepare(w, p, k, 1, &paths.u.paths.offer[k], &error))
			paths.u.paths.offer[k].len_bytes = 0;
		auth_mask_offer(w, p, false, k, 1, &paths.u.paths.offer[k]);
	}
	if (!paths_are_coming(p)) {
		no_path(w, p, "to", &error);
		return;
	}
	session_say(w, p, &paths);
	for (uint32_t k = 0; k < p->path_count && p->state == PEER_CONNECTING; k++)
		if (p->path[k].state == PATH_OPENING)
			path_ops(w, &p->path[k])->path_connect(p->path[k].prov, &offer[k]);
}

void hello_paths(struct worker *w, struct peer *p, const struct wire_msg *m)
{
	if (p->initiator || m->u.paths.nonce != p->nonce ||
	    m->u.paths.path_count != p->path_count) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "ends of paths that do not match its hello");
		return;
	}
	if (p->agreed) {
		peer_down(w, p, WIMM_E_PROTOCOL, 0, "the ends of its paths a second time");
		return;
	}
	if (!auth_paths_ok(w, p, m)) {
		peer_down(w, p, WIMM_E_PEER_REFUSED, 0,
		          "it said hello for somebody else: the proof of this session is wrong");
		return;
	}
	p->agreed = true;
	for (uint32_t k = 0; k < p->path_count; k++) {
		struct path *path = &p->path[k];

		if (path->state != PATH_OPENING)
			continue;
		if (m->u.paths.offer[k].len_bytes != 0) {
			connect_path(w, p, k, m->u.paths.offer[k]);
			continue;
		}
		path_set_state(path, PATH_CLOSING);
		path_ops(w, path)->path_close(path->prov);
		if (k == p->host_path)
			same_host_way(p, "NICs: it does not find this process on its machine");
	}
	if (!paths_are_coming(p)) {
		peer_down(w, p, WIMM_E_PEER_LOST, 0, "it could prepare none of the paths");
		return;
	}
	path_maybe_up(w, p, false);
}
