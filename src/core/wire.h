/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_WIRE_H
#define CORE_WIRE_H

/* Bytes that leave the process: addresses, descriptors and the sessions' messages, version 1,
 * little endian. Every message starts with u8 major, u8 type, u16 zero, u32 length of what follows,
 * and may have unknown bytes at its end, which are skipped; a higher major is refused with
 * E_VERSION. Decoders check every field against its range, allocate nothing, and never read past
 * the given length. docs/WIRE.md describes the layout. */

#include "prov/prov.h"

#include <wimm/region.h>

#define WIRE_MAJOR 1
#define WIRE_MINOR 6      /* of messages, said in the hello; 3: has same_host's offers */
#define WIRE_MINOR_AUTH 2 /* has the fields of a job key */
#define WIRE_AUTH_BYTES 32
#define WIRE_AUTH_BLAKE2B 1
#define WIRE_ADDR_MINOR 0 /* of addresses and descriptors */
#define WIRE_MEMORY_HOST 0
#define WIRE_MEMORY_CUDA 1
#define WIRE_CARD_NONE UINT64_MAX /* no other process can map the memory */
#define WIRE_MINOR_FENCE 1 /* knows FENCE and FENCE_ACK */
#define WIRE_MINOR_LAND 6  /* knows LAND_ASK to LANDED, and slots with numbers */
#define WIRE_MINOR_PATH 4  /* knows PATH_OPEN to ALIVE */
#define WIRE_MINOR_FORMER 6 /* a hello may name the session before it */

struct wire_addr {                             /* behind wimm_net_addr */
	uint8_t instance[WIMM_INSTANCE_BYTES]; /* all zero: whoever answers */
	char provider[16];
	uint32_t nic_count; /* 1..WIMM_MAX_NICS */
	struct prov_addr nic[WIMM_MAX_NICS];
};

struct wire_desc {              /* behind wimm_mr_desc */
	struct wire_addr owner; /* instance never zero */
	uint64_t base;
	uint64_t len_bytes; /* >= 1, base + len does not wrap */
	uint32_t region_slot;
	uint32_t generation;         /* never 0 */
	uint64_t key[WIMM_MAX_NICS]; /* one for each NIC of the owner */
	uint8_t kind;                /* WIRE_MEMORY_*; what is not sent is the host's */
	uint64_t card;               /* CUDA: at which place of PCI, or WIRE_CARD_NONE */
};

/* encode: OK, or E_INVAL for a value that may not be sent. decode: OK, E_PARSE, or E_VERSION, and
 * wire_major() then says which version it is. *out only on OK. */
wimm_status wire_addr_encode(const struct wire_addr *a, struct wimm_net_addr *out);
wimm_status wire_addr_decode(const struct wimm_net_addr *in, struct wire_addr *out);
wimm_status wire_desc_encode(const struct wire_desc *d, struct wimm_mr_desc *out);
wimm_status wire_desc_decode(const struct wimm_mr_desc *in, struct wire_desc *out);

/* Text of an address as wimm_net_addr_to_string() has it, through the provider's addr_format; back
 * through its addr_parse. Both leave words with error_text_set() when they fail.
 * format: OK, E_PARSE (the provider does not know such bytes), E_NOT_FOUND (provider not in this
 * build), E_LIMIT (no room). parse: OK, E_PARSE, E_NOT_FOUND (a name does not resolve); may block
 * on name resolution. */
wimm_status wire_addr_format(const struct wire_addr *a, char *text, size_t text_bytes);
wimm_status wire_addr_parse(const char *text, struct wire_addr *out);

enum wire_type {
	WIRE_HELLO = 1, /* initiator: who I am, whom I want */
	WIRE_HELLO_ACK, /* acceptor: who I am, my ends of the paths; or why not */
	WIRE_PATHS,     /* initiator: my ends of the paths */
	WIRE_HEARTBEAT, /* watermarks: immediates counted on each path */
	WIRE_GOODBYE,   /* orderly end, with a reason */
	WIRE_MR_CHECK,  /* does this region still stand? */
	WIRE_MR_STATE,  /* answer: status */
	WIRE_REVOKE,    /* this region ends: stop and drain */
	WIRE_REVOKE_ACK,
	WIRE_MSG,        /* a user's message */
	WIRE_MSG_ACK,    /* its fate: OK, AGAIN (no buffer now), E_TOO_LONG */
	WIRE_MSG_READY,  /* buffers are back: send again */
	WIRE_CONFIRM,    /* answer with a heartbeat when these marks are reached */
	WIRE_RETIRE,     /* tell me when nothing with this immediate is under way to me */
	WIRE_RETIRE_ACK, /* immediates posted on each path when that was so */
	WIRE_ABANDON,    /* a split operation ended early: so many of its parts were sent */
	WIRE_FENCE,      /* stop writing to me, drain, and say so */
	WIRE_FENCE_ACK,  /* immediates posted on each path when that was so */
	WIRE_PATH_OPEN,  /* initiator: its end of a new life of a path that was lost */
	WIRE_PATH_STATE, /* acceptor: its own end, or none now */
	WIRE_ALIVE_ASK,  /* a path is lost: is it the path alone? */
	WIRE_ALIVE,      /* it is */
	WIRE_LAND_ASK,  /* lend me slots: memory of GPUs will come */
	WIRE_LAND_AREA, /* where they are */
	WIRE_LANDED,    /* what became of the content of one */
};

#define WIRE_MAX_PATHS WIMM_MAX_NICS

/* Slots for memory of GPUs: where they are; no keys: there are none. */
struct wire_land {
	uint64_t base;
	uint32_t region_slot;
	uint32_t generation;
	uint32_t key_count;
	uint64_t key[WIMM_MAX_NICS];
};

struct wire_marks {
	uint64_t id;
	uint32_t path_count;
	uint32_t path_seq[WIRE_MAX_PATHS]; /* which life of the path */
	uint64_t mark[WIRE_MAX_PATHS];
};

struct wire_msg {
	enum wire_type type;
	const uint8_t *raw; /* decoded: the whole message */
	uint32_t mac_at;    /* decoded, if it has one: where in raw the MAC stands */
	union {
		struct {                      /* HELLO and HELLO_ACK */
			uint8_t major, minor; /* as received; wire_encode() writes its own */
			uint8_t progress_mode;
			wimm_status status; /* HELLO: OK. ACK: OK; AGAIN, E_BUSY: see
					     * docs/WIRE.md; else why not */
			uint8_t target[WIMM_INSTANCE_BYTES]; /* HELLO: zero = whoever answers */
			uint64_t nonce; /* of this attempt; the ACK echoes it */
			uint32_t heartbeat_ms;
			uint32_t peer_timeout_ms;
			uint32_t max_msg_bytes;
			uint64_t attempt; /* HELLO: grows with each that an instance sends;
					   * ACK: of the last that its sender sent */
			uint32_t path_count;   /* ACK that says OK: 1..WIRE_MAX_PATHS; else 0.. */
			struct wire_addr self; /* instance never zero */
			struct prov_offer offer[WIRE_MAX_PATHS]; /* ACK */
			uint64_t former; /* HELLO without a job key: nonce of the session that its
					  * sender has lost; 0: of none */
			uint8_t auth; /* 0, or WIRE_AUTH_BLAKE2B and then: */
			uint8_t auth_nonce[WIRE_AUTH_BYTES];
			uint8_t mac[WIRE_AUTH_BYTES]; /* of all before it */
		} hello;
		struct {
			uint64_t nonce;
			uint32_t path_count;
			struct prov_offer offer[WIRE_MAX_PATHS];
			bool has_mac;
			uint8_t mac[WIRE_AUTH_BYTES];
		} paths;
		/* HEARTBEAT (counted), CONFIRM, RETIRE_ACK, FENCE_ACK (posted); FENCE, ALIVE_ASK,
		 * ALIVE (id alone). A CONFIRM's id is echoed by the HEARTBEAT that answers it. */
		struct wire_marks marks;
		struct { /* PATH_OPEN, PATH_STATE */
			uint32_t index;
			uint32_t seq; /* not 0 */
			struct prov_offer offer; /* PATH_STATE: empty when there is none */
		} path;
		struct {
			wimm_status reason;
			const char *text; /* decoded: not terminated, text_len_bytes long, <= 255 */
			uint32_t text_len_bytes;
		} goodbye;
		struct { /* MR_CHECK, MR_STATE, REVOKE, REVOKE_ACK */
			uint32_t region_slot;
			uint32_t generation;
			wimm_status status; /* MR_STATE */
		} mr;
		struct { /* MSG, MSG_ACK, MSG_READY (no fields) */
			uint64_t seq;
			wimm_status status;  /* MSG_ACK */
			const uint8_t *data; /* MSG */
			uint32_t len_bytes;
		} msg;
		struct wire_land land;
		struct {
			uint32_t slot;
			wimm_status status;
		} landed;
		struct {
			uint64_t id;
			uint32_t imm;
		} retire;
		struct {
			uint64_t op_seq;
			uint32_t parts_sent;
		} abandon;
	} u;
};

#define WIRE_HEADER_BYTES       8  /* u8 major, u8 type, u16 zero, u32 body length */
#define WIRE_MAX_OVERHEAD_BYTES 64 /* of a MSG beside its data */

/* Returns the encoded length; 0 when it does not fit or a field may not be sent. */
uint32_t wire_encode(const struct wire_msg *m, uint8_t *out, uint32_t out_bytes);
/* OK, E_PARSE, E_VERSION; *out is unspecified unless OK. Pointers in *out point into `in`; what
 * lies behind the length of an address or offer is zero. */
wimm_status wire_decode(const uint8_t *in, uint32_t len_bytes, struct wire_msg *out);
/* The major version that the first byte of a message, address or descriptor names, for error texts;
 * 0 when there is none. */
uint32_t wire_major(const uint8_t *in, uint32_t len_bytes);

#endif
