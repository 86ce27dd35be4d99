/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_PROV_H
#define PROV_PROV_H

/* The seam between the core and what moves bytes. One `struct prov_dev` is one NIC of one engine.
 *
 * Words: a *ctl* is a small-message channel to one remote NIC, used by the core for its sessions; a
 * *path* is where writes to one remote NIC go. Both carry a `context` of the core's, handed back in
 * every completion.
 *
 * Threads. Control plane (open, close, reg, dereg, addr_*): any thread, may block; the core never
 * runs two of them on one dev at the same time, but reg/dereg run while the worker polls. Data
 * plane (everything else): the owning worker only; no block, no lock, no call upwards, no
 * allocation per operation (setting up a ctl or path may allocate).
 *
 * Promises of every provider:
 *  P1 The bytes of a write are readable by the host before its PROV_IMM or PROV_PART is returned by
 *     poll() of the receiving dev. Nothing else is ordered, unless caps.ordered.
 *  P2 PROV_DONE with WIMM_OK is returned once the remote NIC or peer has accepted all bytes for
 *     placement; never for "handed to a queue". Once any PROV_DONE for a work request is returned,
 *     nothing reads its source any more, unless PROV_CQE_READING says so.
 *  P3 Each work request taken by post() yields exactly one PROV_DONE unit (several consecutive ones
 *     of one token and status may come as one with count > 1), also after path_close().
 *  P4 A wrong key, a range outside the region or a broken peer costs that path (PROV_PATH_DOWN at
 *     either side), never memory and never another path.
 *  P5 post() takes 0..n and never fails; a full queue takes fewer. Failures come by poll(). */

#include <wimm/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROV_ABI 3
#define PROV_ADDR_MAX_BYTES 48   /* one NIC's address */
#define PROV_OFFER_BYTES 64      /* what one side tells the other about its end of a path */
#define PROV_TEXT_BYTES 256
#define PROV_KEY_SLOT(key) ((uint32_t)(key))
#define PROV_KEY_GENERATION(key) ((uint32_t)((key) >> 32))

struct prov_dev;                 /* stands for each provider's own struct; it casts the pointer */
struct prov_ctl;
struct prov_path;

struct prov_addr {
	uint32_t len_bytes;
	uint8_t bytes[PROV_ADDR_MAX_BYTES];
};

struct prov_offer {
	uint32_t len_bytes;
	uint8_t bytes[PROV_OFFER_BYTES];
};

/* Capabilities, filled by open(). */
struct prov_caps {
	bool ordered;                /* writes of one path land, and are reported, in post order */
	bool identifies_source;      /* an immediate's path is known */
	bool needs_empty_target;     /* zero-length writes need a valid target key too */
	bool gpu_direct;             /* regions may be memory of a GPU, and writes between two such
				      * go straight; has post_pages() and forget() */
	bool gpu_regions;            /* regions may be memory of a GPU, each if reg() takes it, and
				      * requests go from and to such like any other */
	bool leaves_machine;         /* peers may be on any machine: those of this one may be
				      * reached by prov_same_host(), too */
	bool can_cancel;             /* cancel() works on single requests */
	bool wait_fd;                /* fd() and arm() work; else the worker polls with pauses */
	uint32_t max_ctl_bytes;      /* longest ctl message */
	uint32_t post_depth;         /* work requests in flight on one path */
	uint64_t max_write_bytes;    /* longest single work request; the core cuts longer writes */
	uint64_t link_bytes_per_s;   /* 0: unknown */
	int numa_node;               /* -1: unknown */
	char device[32];             /* what the system calls it; "": unknown */
	char note[192];              /* for people: what to expect of it; "": nothing */
};

/* A failure in words, filled by control-plane calls that fail. */
struct prov_error {
	uint32_t vendor_code;        /* errno or the device's own; 0: none */
	char text[PROV_TEXT_BYTES];
};

struct prov_args {
	const char *nic;             /* one item of the engine's NIC list; "" = any */
	uint32_t nic_index;
	const uint8_t *instance;     /* 16 bytes */
	void *world;                 /* sim only: the world to join; NULL = the process's own */
	uint32_t peer_timeout_ms;    /* for time-outs of the hardware's own */
	uint32_t max_regions;
	bool beside;                 /* beside NICs of another provider, for peers of this
				      * machine: path_open() with `active` looks whether
				      * anybody is there, and is NULL if not */
};

/* Flags of a registration. */
#define PROV_REG_REMOTE 1u       /* peers may write */
#define PROV_REG_STRICT_ORDER 2u /* the bytes of a write become visible in their order: no relaxed
				  * ordering of the bus. For those who poll content */
#define PROV_REG_GPU 4u          /* memory of a GPU. E_UNSUPPORTED: this one does not get there */

/* Flags of a work request. */
#define PROV_WR_IMM 1u           /* count `imm` at the receiver when this request has landed */
#define PROV_WR_PART 2u          /* this is the last request of one of `parts` parts of operation
				  * `op_seq`; the core over there counts `imm` when all parts are
				  * in. Never together with PROV_WR_IMM */
#define PROV_WR_COUNTED (PROV_WR_IMM | PROV_WR_PART)
#define PROV_WR_GPU 4u           /* src is memory of a GPU: the host does not read it */

/* One write. src lies inside a region registered as local_key on this dev: memory of the host, or
 * of a GPU: with caps.gpu_direct and a destination of the same kind, or with caps.gpu_regions. */
struct prov_wr {
	uint64_t token;              /* handed back in PROV_DONE */
	const void *src;
	uint64_t len_bytes;          /* 0..max_write_bytes */
	uint64_t local_key;
	uint64_t remote_addr;        /* virtual address at the receiver */
	uint64_t remote_key;         /* the remote dev's key of that region */
	uint64_t op_seq;             /* with PROV_WR_PART */
	uint32_t parts;              /* with PROV_WR_PART: 2.. */
	uint32_t imm;
	uint32_t flags;
	uint32_t reserved;
};

/* A list of pages as one request, all between memory of GPUs. wr.src and wr.remote_addr are where
 * index 0 lies, wr.len_bytes is a page's length. The index arrays lie in memory that the GPU reads,
 * and stay until PROV_DONE. It comes back as PROV_DONE with count `units`, and counts as many
 * immediates if it carries one. */
struct prov_pages {
	struct prov_wr wr;
	uint32_t units;              /* 1.. */
	const uint32_t *src_index;
	const uint32_t *dst_index;
	uint64_t count;              /* 1.. */
	uint64_t src_stride;
	uint64_t dst_stride;
	uint64_t dst_bytes; /* from wr.remote_addr to the end of the page that lies last */
};

enum prov_cqe_kind {
	PROV_DONE = 1,     /* sender: `count` work requests of `token` ended with `status` */
	PROV_IMM,          /* receiver: `count` immediates of value `imm` came on the path */
	PROV_PART,         /* receiver: one part of `op_seq` of `parts`, `imm` */
	PROV_CTL_NEW,    /* a peer opened a ctl: the core sets its context with ctl_set_context() */
	PROV_CTL_MSG,  /* a message of len_bytes at data, valid until the next poll() of this dev */
	PROV_CTL_DOWN,    /* the ctl failed or was closed by the peer; the core calls ctl_close() */
	PROV_PATH_UP,      /* path_connect() succeeded; writes may be posted. text: how the bytes
			    * travel, NULL if there is but one way */
	PROV_PATH_DOWN,   /* the path failed; the core calls path_close(). Nothing lands after it */
	PROV_PATH_CLOSED, /* last event of a path after path_close(): all requests are returned */
	PROV_NIC_DOWN,     /* the device is dead; its paths and ctls report themselves */
	PROV_NIC_UP,       /* it works again; what was registered there still stands */
};

#define PROV_CQE_SENT 1u         /* on PROV_DONE with an error: the peer may have received (and
				  * counted) it. Without: it has not and never will */

#define PROV_CQE_READING 2u      /* on PROV_DONE with an error: the peer, alive and stopped, may
				  * still read the source */

struct prov_cqe {
	enum prov_cqe_kind kind;
	wimm_status status;
	void *context;               /* of the path or ctl; NULL for PROV_CTL_NEW, PROV_NIC_* */
	struct prov_ctl *ctl;        /* PROV_CTL_* */
	uint64_t token;
	uint64_t op_seq;             /* PROV_PART; PROV_DONE of one, unless all paths that a
				      * session may have are ordered */
	const uint8_t *data;
	uint32_t len_bytes;
	uint32_t count;
	uint32_t imm;
	uint32_t parts;
	uint32_t flags;
	uint32_t vendor_code;        /* with an error; 0: none */
	const char *text;           /* with an error: for people; static or valid until next poll */
};

struct prov_ops {
	uint32_t abi;                /* PROV_ABI; the registry refuses any other */
	const char *name;

	/* --- control plane --- */
	wimm_status (*open)(const struct prov_args *args, struct prov_caps *caps,
			    struct prov_dev **out, struct prov_error *error);
	/* No peer uses it any more; paths and ctls still open are dropped. Cannot fail. */
	void (*close)(struct prov_dev *dev);
	/* This NIC's own address, as bound. */
	void (*addr)(const struct prov_dev *dev, struct prov_addr *out);
	/* Split the NIC list's default: fill up to max items of PROV_TEXT_BYTES; how many. */
	uint32_t (*list_nics)(char (*out)[PROV_TEXT_BYTES], uint32_t max);
	/* Text of an address and back; "HOST:PORT" for tcp. Blocks on name resolution. */
	wimm_status (*addr_format)(const struct prov_addr *addr, char *text, size_t text_bytes);
	wimm_status (*addr_parse)(const char *text, struct prov_addr *out);
	/* Register. The core hands in a key of its own (slot in the low, random non-zero generation
	 * in the high 32 bits) that software providers use as it is. flags: PROV_REG_*. */
	wimm_status (*reg)(struct prov_dev *dev, void *addr, uint64_t len_bytes, uint32_t flags,
			   uint64_t core_key, uint64_t *out_key, struct prov_error *error);
	/* Release: called after all peers have acknowledged. After it returns nothing of a peer's
	 * lands in the range by this key. */
	void (*dereg)(struct prov_dev *dev, uint64_t key);

	/* --- sessions' messages, worker only --- */
	/* Start a channel to a remote NIC. Messages may be sent at once and wait for it. Never
	 * blocks; failure arrives as PROV_CTL_DOWN. NULL: out of memory or descriptors. */
	struct prov_ctl *(*ctl_open)(struct prov_dev *dev, const struct prov_addr *to,
	                             void *context);
	void (*ctl_set_context)(struct prov_ctl *ctl, void *context);
	/* Send; the bytes are copied. OK, AGAIN (its buffer of at least 4 messages is full), or
	 * E_PEER_LOST. In order and reliable as long as the ctl lives. */
	wimm_status (*ctl_send)(struct prov_ctl *ctl, const void *data, uint32_t len_bytes);
	/* What was sent before is still delivered if flush and the peer reads within a second or
	 * so; no event comes after it. */
	void (*ctl_close)(struct prov_ctl *ctl, bool flush);

	/* --- paths, worker only --- */
	/* Prepare this side's end and describe it. active: this side dials. NULL: out of memory, or
	 * of what the error's text names; "" there: nothing to tell. */
	struct prov_path *(*path_open)(struct prov_dev *dev, const struct prov_addr *remote,
				       bool active, void *context, struct prov_offer *out,
				       struct prov_error *error);
	/* Join it to the peer's end. Ends in PROV_PATH_UP or PROV_PATH_DOWN. */
	void (*path_connect)(struct prov_path *path, const struct prov_offer *remote);
	/* Stop: nothing of the peer's lands through it from now on (fence), every outstanding
	 * request comes back as PROV_DONE with E_PATH_LOST, then PROV_PATH_CLOSED; the path is dead
	 * then. */
	void (*path_close)(struct prov_path *path);
	/* Queue writes; takes 0..n, in order. */
	uint32_t (*post)(struct prov_path *path, const struct prov_wr *wr, uint32_t n);
	/* With caps.gpu_direct: queue a list of pages; takes 0 or 1. */
	uint32_t (*post_pages)(struct prov_path *path, const struct prov_pages *pages);
	/* With caps.gpu_direct: the remote region has ended; keep nothing of it. */
	void (*forget)(struct prov_path *path, uint64_t remote_key);
	/* Take back what has this token: requests not yet started are dropped; of one half sent the
	 * rest is sent from a private copy. Each comes back as PROV_DONE with E_CANCELLED soon,
	 * without waiting for the peer. That rest is acknowledged before any later request of the
	 * path (caps.ordered); without that order nothing of it lands once its region at the
	 * receiver is released, and nobody's path suffers for it. */
	void (*cancel)(struct prov_path *path, uint64_t token);

	/* --- progress, worker only --- */
	/* Do what is due at now_ns (monotonic or virtual) and return up to max events. */
	uint32_t (*poll)(struct prov_dev *dev, uint64_t now_ns, struct prov_cqe *out, uint32_t max);
	/* When poll() must run again at the latest though nothing arrives; UINT64_MAX: never. */
	uint64_t (*next_ns)(const struct prov_dev *dev);
	/* Descriptor that polls readable when poll() would find something, once arm() said true. */
	int (*fd)(const struct prov_dev *dev);
	bool (*arm)(struct prov_dev *dev); /* false: there is something to do already */
	/* Something is to be posted soon where something was posted lately: what that takes can be
	 * brought into the caches. Called a few times before it; nothing comes of it. */
	void (*warm)(struct prov_dev *dev);
};

/* regions.c: what providers without caps.gpu_direct have in the two entries. */
uint32_t prov_post_pages_none(struct prov_path *path, const struct prov_pages *pages);
void prov_forget_none(struct prov_path *path, uint64_t remote_key);
/* Of providers that have nothing to warm. */
void prov_warm_none(struct prov_dev *dev);

/* registry.c: the providers of this build, by name. NULL: none of that name. */
const struct prov_ops *prov_find(const char *name);
/* The one that reaches peers of this machine. */
const struct prov_ops *prov_same_host(void);
/* The i-th provider, NULL after the last. */
const struct prov_ops *prov_at(uint32_t index);

#endif
