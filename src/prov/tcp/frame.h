/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_TCP_FRAME_H
#define PROV_TCP_FRAME_H

#include <wimm/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What travels over one TCP connection, little endian.
 *
 * First the dialler's preface, answered by the acceptor:
 *   preface  u32 magic, u8 version, u8 kind, u16 zero, 16 bytes token (zero for a ctl), u64 zero
 *   answer   u32 magic, u8 version, u8 refusal (0: welcome), u16 zero
 * Then on a ctl u32 length and a message, again and again; on a path frames:
 *   header   u8 type, u8 zero, u16 count, u32 zero, u64 value
 *   DATA     count descriptors, then their payloads back to back; value: payload bytes in all
 *   ACK      value: work requests placed so far on this connection
 *   ERROR    value: a status (as u32); count bytes of text follow; the sender's last frame */
#define TCP_VERSION        1
#define TCP_TOKEN_BYTES    16
#define TCP_PREFACE_BYTES  32
#define TCP_ANSWER_BYTES   8
#define TCP_HDR_BYTES      16
#define TCP_DESC_BYTES     40
#define TCP_BATCH_MAX      64
#define TCP_ERROR_TEXT_MAX 255
#define TCP_BLOCK_MAX      (TCP_HDR_BYTES + TCP_BATCH_MAX * TCP_DESC_BYTES)

enum tcp_kind {
	TCP_KIND_CTL = 1,
	TCP_KIND_PATH = 2,
};

enum tcp_refusal {
	TCP_WELCOME = 0,
	TCP_REFUSE_VERSION = 1,
	TCP_REFUSE_TOKEN = 2, /* no path waits for it */
	TCP_REFUSE_RESOURCES = 3,
};

enum tcp_frame {
	TCP_FRAME_DATA = 1,
	TCP_FRAME_ACK = 2,
	TCP_FRAME_ERROR = 3,
};

/* Flags of a descriptor. */
#define TCP_DESC_IMM  1u
#define TCP_DESC_PART 2u
#define TCP_DESC_LAST 4u /* ends a work request; IMM and PART come with it only */

struct tcp_preface {
	uint8_t version;
	uint8_t kind;
	uint8_t token[TCP_TOKEN_BYTES];
};

struct tcp_hdr {
	uint8_t type;
	uint16_t count;
	uint64_t value;
};

struct tcp_desc {
	uint64_t addr;
	uint64_t key;
	uint64_t op_seq;
	uint32_t len_bytes;
	uint32_t imm;
	uint32_t parts;
	uint32_t flags;
};

void tcp_preface_encode(enum tcp_kind kind, const uint8_t *token, uint8_t *out);
/* Returns OK, E_PARSE (not ours), E_VERSION (ours, of another version: *out has it). */
WIMM_MUST_CHECK wimm_status tcp_preface_decode(const uint8_t *in, struct tcp_preface *out);
void tcp_answer_encode(enum tcp_refusal refusal, uint8_t *out);
/* Returns OK (*out: an enum tcp_refusal, or a number this version does not know), E_PARSE,
 * E_VERSION. */
WIMM_MUST_CHECK wimm_status tcp_answer_decode(const uint8_t *in, uint8_t *out);

void tcp_hdr_encode(const struct tcp_hdr *hdr, uint8_t *out);
/* Checks all that can be known of a header without its descriptors. Returns OK, E_PROTOCOL. */
WIMM_MUST_CHECK wimm_status tcp_hdr_decode(const uint8_t *in, struct tcp_hdr *out);
void tcp_desc_encode(const struct tcp_desc *desc, uint8_t *out);
/* Decode hdr->count descriptors; flags are checked, and that the lengths make hdr->value. Keys and
 * ranges are not. Returns OK, E_PROTOCOL. */
WIMM_MUST_CHECK wimm_status tcp_descs_decode(const struct tcp_hdr *hdr, const uint8_t *in,
                                             struct tcp_desc *out);

#endif
