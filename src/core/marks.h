/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_MARKS_H
#define CORE_MARKS_H

/* confirm.c and retire.c: watermarks and the questions that they answer. All on the worker. */

#include "core/worker.h"

/* The heartbeat that tells what was counted on each path; id: of the CONFIRM it answers, or 0. */
void count_fill_marks(const struct peer *p, struct wire_msg *m, uint64_t id);
/* A message of what was posted on each path. */
void count_fill_posted(const struct peer *p, struct wire_msg *m, enum wire_type type, uint64_t id);
/* Whether as much was counted, on the paths that still stand. */
bool count_reached(const struct peer *p, const struct wire_marks *marks);
/* Put a completely acked leg on its peer's list for the next CONFIRM. */
void count_confirm(struct worker *w, struct leg *leg) ON_WORKER;
/* Before a goodbye: what was posted, so that the peer waits for the last of it. */
void confirm_last(struct worker *w, struct peer *p) ON_WORKER;
/* Ask about all that waits to be confirmed, unless a question is under way. */
void confirm_send(struct worker *w, struct peer *p) ON_WORKER;
void confirm_heard(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void confirm_asked(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void confirm_answer(struct worker *w, struct peer *p) ON_WORKER;
void confirm_path_lost(struct worker *w, struct peer *p) ON_WORKER;
/* Requests that were told as posted came back unsent: tell the peer again what to wait for. */
void marks_lowered(struct worker *w, struct peer *p) ON_WORKER;
void confirm_peer_down(struct peer *p);
void retire_start(struct worker *w, struct op *op) ON_WORKER;
void retire_cancel(struct worker *w, struct op *op, wimm_status status, const char *text) ON_WORKER;
void retire_arrived(struct worker *w, struct peer *p) ON_WORKER;
void retire_heard(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
/* What the peer says that it has counted: answers that it has reached need no repeating. */
void retire_marks_heard(struct peer *p, const struct wire_msg *m);
/* Answer the questions for which all that was posted is counted now. */
void retire_confirmed(struct worker *w, struct peer *p) ON_WORKER;
/* Tell anew what was posted when the peer's questions were answered: it is less now. */
void retire_tell_again(struct worker *w, struct peer *p) ON_WORKER;
void retire_asked(struct worker *w, struct peer *p, const struct wire_msg *m) ON_WORKER;
void retire_answer(struct worker *w) ON_WORKER;
/* How many writes are under way with this value, or one that shares its place. */
static inline uint32_t *retire_imm_ops(struct worker *w, uint32_t imm) ON_WORKER
{
	return &w->imm_ops[imm % (sizeof(w->imm_ops) / sizeof(w->imm_ops[0]))];
}
/* Questions wait for the end of this one. */
void retire_op_done(struct worker *w, struct op *op) ON_WORKER;
/* The callback of a message has run. */
void retire_handed_back(struct worker *w) ON_WORKER;
void retire_peer_down(struct worker *w, struct peer *p) ON_WORKER;

#endif
