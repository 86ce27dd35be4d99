/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: what a NIC has to tell its worker. Entries lie inside what they are about, so
 * that telling never allocates. */

#include "prov/sim/sim_int.h"

void sim_node_init(struct sim_node *n, enum prov_cqe_kind kind, void *obj)
{
	*n = (struct sim_node){ .kind = kind, .obj = obj };
	list_init(&n->link);
}

void sim_dev_wake(struct sim_dev *d)
{
	if (d->world->cfg.virtual_time)
		d->nudged = true;
	else
		wake_signal(&d->wake);
}

void sim_cq_push(struct sim_dev *d, struct sim_node *n, wimm_status status, uint32_t flags)
{
	n->status = status;
	n->flags = flags;
	list_push_back(&d->cq, &n->link);
	sim_dev_wake(d);
}

static void fill_wr(struct sim_world *w, struct sim_node *n, struct prov_cqe *out)
{
	struct sim_wr *r = n->obj;

	out->count = 1;
	if (n->kind == PROV_DONE) {
		out->context = r->path->context;
		out->token = r->wr.token;
		out->op_seq = (r->wr.flags & PROV_WR_PART) != 0 ? r->wr.op_seq : 0;
		if (n->status != WIMM_OK)
			out->text = r->path->text[0] ? r->path->text : "write lost on the way";
		r->path->in_flight--;
	} else {
		out->context = r->target->context;
		out->imm = r->wr.imm;
		out->parts = r->wr.parts;
		out->op_seq = r->wr.op_seq;
	}
	sim_wr_unref(w, r);
}

static void fill_path(struct sim_node *n, struct prov_cqe *out)
{
	struct sim_path *p = n->obj;

	out->context = p->context;
	if (n->kind == PROV_PATH_DOWN)
		out->text = p->text[0] ? p->text : "the other end of the path is gone";
	if (n->kind == PROV_PATH_CLOSED) {
		list_remove(&p->link);
		list_push_back(&p->dev->closed, &p->link); /* entries of this batch name its text */
	}
}

static void fill_ctl(struct sim_dev *d, struct sim_node *n, struct prov_cqe *out)
{
	struct sim_msg *m = n->kind == PROV_CTL_MSG ? n->obj : NULL;
	struct sim_ctl *c = m ? m->end : n->obj;

	out->ctl = (struct prov_ctl *)c;
	out->context = c->context;
	if (n->kind == PROV_CTL_DOWN)
		out->text = n->status == WIMM_E_CLOSED ? "closed by the peer"
		                                       : "the peer's NIC does not answer";
	if (m) {
		out->data = m->data;
		out->len_bytes = m->len_bytes;
		list_push_back(&d->returned, &m->returned);
		sim_msg_polled(d->world, m);
	}
}

static void node_fill(struct sim_dev *d, struct sim_node *n, struct prov_cqe *out)
{
	*out = (struct prov_cqe){ .kind = n->kind, .status = n->status, .flags = n->flags };
	switch (n->kind) {
	case PROV_DONE:
	case PROV_IMM:
	case PROV_PART:
		fill_wr(d->world, n, out);
		break;
	case PROV_PATH_UP:
	case PROV_PATH_DOWN:
	case PROV_PATH_CLOSED:
		fill_path(n, out);
		break;
	case PROV_CTL_NEW:
	case PROV_CTL_MSG:
	case PROV_CTL_DOWN:
		fill_ctl(d, n, out);
		break;
	case PROV_NIC_DOWN:
		out->text = "the NIC died";
		break;
	case PROV_NIC_UP:
		break;
	}
}

/* Neighbours that differ in nothing travel as one, which users must expect. */
static bool merges(const struct prov_cqe *a, const struct prov_cqe *b)
{
	if (a->kind != b->kind || a->context != b->context || a->status != b->status)
		return false;
	if (a->kind == PROV_DONE)
		return a->token == b->token && a->flags == b->flags && a->op_seq == b->op_seq;
	return a->kind == PROV_IMM && a->imm == b->imm;
}

void sim_cq_free_returned(struct sim_dev *d)
{
	struct list *it;

	while ((it = list_pop_front(&d->returned)) != NULL)
		sim_msg_free(d->world, LIST_ENTRY(it, struct sim_msg, returned));
	while ((it = list_pop_front(&d->closed)) != NULL)
		sim_path_free(LIST_ENTRY(it, struct sim_path, link));
}

uint32_t sim_cq_poll(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_world *w = d->world;
	uint32_t n = 0;

	mutex_lock(&w->lock);
	sim_world_run(w, now_ns);
	sim_cq_free_returned(d);
	d->nudged = false;
	if (d->armed) {
		wake_cancel(&d->wake);
		wake_drain(&d->wake);
		d->armed = false;
	}
	while (!list_empty(&d->cq)) {
		struct sim_node *node = LIST_ENTRY(d->cq.next, struct sim_node, link);
		struct prov_cqe cqe;

		if (n == max) /* not even for merging: max bounds the work, too */
			break;
		list_remove(&node->link);
		node_fill(d, node, &cqe);
		if (n > 0 && merges(&out[n - 1], &cqe))
			out[n - 1].count++;
		else
			out[n++] = cqe;
		if (cqe.kind == PROV_CTL_NEW)
			break; /* what follows on it wants the context that the core sets now */
	}
	mutex_unlock(&w->lock);
	return n;
}

uint64_t sim_cq_next_ns(const struct prov_dev *dev)
{
	const struct sim_dev *d = (const struct sim_dev *)dev;
	struct sim_world *w = d->world;
	struct sim_event *top;
	uint64_t next_ns = UINT64_MAX;

	mutex_lock(&w->lock);
	top = sim_heap_top(&w->heap);
	if (!list_empty(&d->cq) || d->nudged)
		next_ns = w->now_ns;
	else if (top && !w->cfg.virtual_time) /* virtual: whoever moves time runs what is due */
		next_ns = top->at_ns;
	mutex_unlock(&w->lock);
	return next_ns;
}

int sim_cq_fd(const struct prov_dev *dev)
{
	const struct sim_dev *d = (const struct sim_dev *)dev;

	return d->world->cfg.virtual_time ? -1 : wake_fd(&d->wake);
}

bool sim_cq_arm(struct prov_dev *dev)
{
	struct sim_dev *d = (struct sim_dev *)dev;
	struct sim_world *w = d->world;
	struct sim_event *top;
	bool idle;

	if (w->cfg.virtual_time)
		return false;
	mutex_lock(&w->lock);
	top = sim_heap_top(&w->heap);
	idle = list_empty(&d->cq) && (!top || top->at_ns > w->now_ns);
	if (idle) {
		wake_announce(&d->wake);
		d->armed = true;
	}
	mutex_unlock(&w->lock);
	return idle;
}
