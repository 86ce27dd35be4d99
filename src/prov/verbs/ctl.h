/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_CTL_H
#define PROV_VERBS_CTL_H

/* A ctl: messages over an RC queue pair of its own, whose ends find each other by hello (dial.c).
 * The messages, each behind its length, are one stream of bytes that travels in frames, one SEND
 * each. Each side owns VERBS_CTL_RECVS buffers at the other and gets them back as credits, so a
 * frame always finds one.
 *
 * frame: u8 type, u8 0, u16 credits given back, u32 bytes that follow */

#include "prov/verbs/hello.h"
#include "prov/verbs/qp.h"

#define VERBS_CTL_MAX_BYTES (1u << 20)
#define VERBS_FRAME_BYTES   4096u
#define VERBS_FRAME_HEAD    8u
#define VERBS_CTL_RECVS     16u /* data frames under way to one side */
#define VERBS_CTL_SPARE     4u  /* more buffers, for frames that need no credit */
#define VERBS_CTL_SENDS     16u
#define VERBS_CTL_BUFFERS   (VERBS_CTL_RECVS + VERBS_CTL_SPARE)

enum verbs_frame_type {
	VERBS_FRAME_DATA = 1,
	VERBS_FRAME_CREDIT, /* also the dialler's first, which shows that it is there */
	VERBS_FRAME_BYE,    /* the last one */
};

enum verbs_ctl_state {
	VERBS_CTL_DIALLING, /* DIAL goes out until an answer comes */
	VERBS_CTL_HALF,     /* accepted; its dialler has not been heard */
	VERBS_CTL_OPEN,
};

struct verbs_ctl {
	struct verbs_obj obj;
	void *context;
	enum verbs_ctl_state state;
	bool accepted; /* dialled by the peer */
	bool announce; /* PROV_CTL_NEW is due */
	bool failed;   /* `fail` says how */
	bool bye;      /* the peer has said its last word */
	bool down_reported;
	bool draining; /* closed by the core: no more events */
	bool bye_sent;
	struct verbs_fail fail;
	/* The queue pair; see ctl_wire.c. */
	struct ibv_qp *qp;
	struct verbs_cq *cq;
	struct ibv_mr *mr;
	uint8_t *frames;    /* VERBS_CTL_BUFFERS to receive, then VERBS_CTL_SENDS to send */
	uint32_t send_tail; /* frames posted and acknowledged; free-running */
	uint32_t send_head;
	uint32_t credits; /* data frames that may still be sent */
	uint32_t owed;    /* credits to give back */
	uint32_t in_head; /* frames received and not looked at; free-running */
	uint32_t in_tail;
	struct {
		uint16_t buffer;
		uint16_t len_bytes;
	} in[VERBS_CTL_BUFFERS];
	/* Finding each other; see dial.c. */
	uint64_t token;
	struct verbs_addr remote;
	struct verbs_end own;
	struct verbs_way *way;
	uint32_t tries;
	bool by_tcp;       /* a hello over TCP is under way, or was */
	uint64_t limit_ns; /* of dialling, of waiting for the dialler, of draining */
	/* Received and not handed out: rx[rx_start..rx_end). Untouched pages cost nothing. */
	uint8_t *rx;
	uint32_t rx_start;
	uint32_t rx_end;
	/* To be sent: a ring, free-running positions. */
	uint8_t *tx;
	uint64_t tx_head;
	uint64_t tx_tail;
};

bool verbs_ctl_step(struct verbs_obj *obj, struct verbs_emit *emit);
void verbs_ctl_drop(struct verbs_obj *obj);
void verbs_ctl_free(struct verbs_obj *obj);
bool verbs_ctl_draining(const struct verbs_obj *obj);
void verbs_ctl_fail(struct verbs_ctl *ctl, wimm_status status, uint32_t vendor_code,
                    const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* The next bytes of what is to be sent, up to `max`; returns how many. */
uint32_t verbs_ctl_take(struct verbs_ctl *ctl, uint8_t *out, uint32_t max);
/* Bytes that came. False: no room before the core has taken some. */
bool verbs_ctl_put(struct verbs_ctl *ctl, const uint8_t *data, uint32_t len_bytes);

/* A ctl that is closed has some time from now on to send the rest. */
void verbs_ctl_extend(struct verbs_ctl *ctl);

/* --- ctl_wire.c: frames --- */
bool verbs_wire_open(struct verbs_ctl *ctl, struct verbs_fail *fail);
void verbs_wire_close(struct verbs_ctl *ctl);
bool verbs_wire_join(struct verbs_ctl *ctl, const struct verbs_end *peer, struct verbs_fail *fail);
/* Frames into rx, as far as there is room. False: the ctl has failed. */
bool verbs_wire_receive(struct verbs_ctl *ctl);
/* What tx and the credits allow. */
void verbs_wire_send(struct verbs_ctl *ctl);
/* A frame without bytes. False: try again later, or failed. */
bool verbs_wire_say(struct verbs_ctl *ctl, enum verbs_frame_type type);
void verbs_ctl_completed(struct verbs_obj *obj, const struct ibv_wc *wc);

/* --- dial.c: finding each other --- */
/* Start; the ctl fails at its next step if that is not possible. */
void verbs_dial_start(struct verbs_ctl *ctl, const struct prov_addr *to);
/* Send again, or give up. */
void verbs_dial_step(struct verbs_ctl *ctl);
/* It is going: nothing finds it by its token any more. */
void verbs_dial_forget(struct verbs_ctl *ctl);
void verbs_ctl_dialled(struct verbs_dev *dev, const struct verbs_hello *h,
                       const struct verbs_addr *from);
/* The same, for who has another way to answer: *out is the answer. False: none. */
bool verbs_dial_answer(struct verbs_dev *dev, const struct verbs_hello *h,
                       const struct verbs_addr *from, struct verbs_hello *out);
/* A hello over TCP for this token has ended; was there no answer, this is why. */
void verbs_dial_tcp_failed(struct verbs_dev *dev, uint64_t token, int code);
void verbs_ctl_answered(struct verbs_dev *dev, const struct verbs_hello *h,
                        const struct verbs_addr *from);
/* A ctl for a dial from elsewhere. NULL: out of memory. */
struct verbs_ctl *verbs_ctl_new(struct verbs_dev *dev);

/* The ops' entries. */
struct prov_ctl *verbs_op_ctl_open(struct prov_dev *dev, const struct prov_addr *to, void *context);
void verbs_op_ctl_set_context(struct prov_ctl *ctl, void *context);
wimm_status verbs_op_ctl_send(struct prov_ctl *ctl, const void *data, uint32_t len_bytes);
void verbs_op_ctl_close(struct prov_ctl *ctl, bool flush);

#endif
