/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_IBVERBS_H
#define TESTS_FAKE_IBVERBS_H

/* A libibverbs of ours with two devices inside the process, for what real and soft devices cannot
 * be made to do on demand. The setting verbs_library names it; a test finds `fake_knobs` by
 * dlsym(). Requests run when any completion queue is polled. */

#include <stdbool.h>
#include <stdint.h>

enum fake_event {
	FAKE_PORT_DOWN,
	FAKE_PORT_UP,
	FAKE_DEVICE_FATAL,
	FAKE_GID_CHANGE, /* the GID really changes */
};

struct fake_knobs {
	bool hold;           /* nothing runs */
	uint32_t fail_after; /* so many RC requests later one fails with fail_status; 0: none */
	int fail_status;     /* enum ibv_wc_status */
	uint32_t room;       /* requests that post_send takes before it is full; UINT32_MAX: all */
	uint32_t drop_ud;    /* datagrams to lose */
	bool no_ud;          /* create_qp has none */
	uint32_t double_ud;  /* datagrams to deliver twice */
	uint32_t max_inline; /* more is refused by create_qp */
	uint32_t max_qps;    /* more are refused */
	uint32_t max_mrs;
	/* What query_device tells, and create_* and reg_mr keep to; at most the library's own. */
	uint32_t max_qp_wr, max_cqe, max_srq_wr;
	uint64_t max_mr_size;
	uint64_t lock_bytes; /* that regions may pin together: ENOMEM beyond */
	uint32_t max_path_mtu; /* enum ibv_mtu that modify_qp takes; 0: any */
	/* Memory of a GPU, which the host cannot read: where the device finds its bytes, whether
	 * its driver takes dma-bufs, and whether module peermem is loaded. */
	void *(*gpu_view)(uint64_t addr);
	bool no_dmabuf;
	bool peermem;
	uint32_t dmabufs, peermems; /* registered so */
	struct {                    /* what was asked for last */
		int fd;
		uint64_t inode; /* of what stands behind it */
		uint64_t offset, len_bytes, iova;
		int access;
	} dmabuf;
	int access;       /* of the last region, however registered */
	bool port_down;   /* at open */
	bool saw_relaxed; /* relaxed ordering was asked for */
	uint32_t posts;   /* calls of post_send on RC queue pairs */
	uint32_t wqes;    /* requests in them, and those of them signalled */
	uint32_t signalled;
	uint64_t writes; /* posted: other requests are messages and datagrams */
	/* Called when posting or polling begins and ends, for who counts what lies outside. */
	void (*enter)(void);
	void (*leave)(void);
	void (*event)(uint32_t device, enum fake_event what);
	uint32_t (*objects)(void); /* queue pairs, regions, ... that are alive */
};

extern struct fake_knobs fake_knobs;

#endif
