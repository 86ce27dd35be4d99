/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_HOST_SHARE_H
#define PROV_HOST_SHARE_H

/* The owner's side of memory that peers write into themselves: who has been given what, and how
 * it is taken back.
 *
 * The protocol, over two words of the lane that the writer writes. All four accesses are
 * sequentially consistent.
 *   writer: `writing` odd; look at `gate`; copy; `writing` even; look at `gate` again; publish the
 *           entry only if it was the gate it was given under both times.
 *   owner:  change `gate`; look at `writing`.
 *
 * Either the writer sees the new gate, and then counts its copy as not made and asks anew; or its
 * `writing` became even before the owner looked, and then the copy is in the memory for good. So
 * an owner that sees `writing` even, or change, or the process gone, knows that nothing of what was
 * given before is written any more, with one exception: a writer that does not keep to this. Memory
 * of wimm's own is then fenced off (mem/shared.h); of other memory PROV_PATH_CLOSED waits. */

#include "prov/host/conn.h"
#include "prov/host/ring.h"

struct host_path;
struct mem_shared;

/* A gate that no writer is ever given. */
#define HOST_GATE_CLOSED UINT64_MAX

/* How a region may be written by a peer itself. */
enum host_give {
	HOST_GIVE_NOTHING,
	HOST_GIVE_MEMFD,   /* map the descriptor that comes along */
	HOST_GIVE_FOREIGN, /* by the kernel, as ordinary memory of this process */
	HOST_GIVE_CUDA,    /* by a GPU: map the handle, or (vmm) the descriptor that comes along */
	HOST_GIVE_OFFERS,  /* of a GPU: not at all, the owner fetches what it is offered */
};

/* HOST_PACKET_GIVE; HOST_PACKET_ASK is the key alone. */
struct host_given {
	uint64_t key;
	uint64_t addr; /* of the region, in its owner */
	uint64_t len_bytes;
	uint64_t offset;     /* of the region in the memfd */
	uint64_t file_bytes; /* length of the memfd */
	uint64_t gate;
	uint8_t kind; /* enum host_give */
	uint8_t vmm;  /* CUDA, and so are: */
	uint64_t pci; /* which GPU; numbers of devices are each process's own */
	uint8_t handle[64];
};
#define HOST_GIVEN_BYTES 122u
#define HOST_ASK_BYTES   8u

void host_given_encode(const struct host_given *given, uint8_t *out);
WIMM_MUST_CHECK bool host_given_decode(const uint8_t *in, size_t len, struct host_given *out);

/* A peer asks for a region by its key. *out_fd: a descriptor of the caller's to close, or -1.
 * Thread: the path's worker. */
void host_share_give(struct host_path *path, uint64_t key, struct host_given *out, int *out_fd);
/* The same for a region of a GPU that is the source of something offered. It is not taken back:
 * what is offered holds it, and peers forget it before its end. */
void host_share_give_source(struct host_path *path, uint64_t key, struct host_given *out,
                            int *out_fd);
/* A key that is dead already is taken back from everybody. Thread: any. */
void host_share_revoke(struct host_dev *dev, uint64_t key, struct mem_shared *shared);
/* Everything this path's peer has been given is taken back. Thread: the path's worker. */
void host_share_close(struct host_path *path);
/* Whether the peer's process has ended, as far as can be told. */
bool host_share_peer_gone(const struct host_path *path);
/* Whether the peer may still be writing: only where foreign memory was given. */
bool host_share_writing(const struct host_path *path);

#endif
