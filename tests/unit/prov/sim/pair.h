/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PROV_SIM_PAIR_H
#define TESTS_UNIT_PROV_SIM_PAIR_H

/* Two simulated NICs, 1 and 2, of two engines, in virtual time, driven through the ops table alone.
 * Everything a NIC reports is kept, so that a test may ask for it in any order. */

#include "lib/test.h"

#include "prov/sim/sim.h"

#define PAIR_EVENTS 4096
#define PAIR_TEXT   256

struct side {
	struct prov_dev *dev;
	struct prov_caps caps;
	struct prov_addr addr;
	uint8_t instance[16];
	struct prov_cqe event[PAIR_EVENTS];
	char text[PAIR_TEXT];       /* of the last error told */
	uint8_t message[PAIR_TEXT]; /* the last one received */
	uint32_t events;
};

struct pair {
	struct sim_world *world;
	const struct prov_ops *ops;
	struct side side[2];
	struct prov_path *path[2];
	char context[2];   /* their addresses are the paths' contexts */
	uint8_t src[4096]; /* registered on side 0 as key 0x100000001 */
	uint8_t dst[4096]; /* registered on side 1 as key 0x200000002 */
	uint64_t src_key, dst_key;
};

#define PAIR_US UINT64_C(1000)

/* Both NICs and their regions, src filled with a pattern and dst with 0xee; no path yet. */
void pair_open(struct pair *p, const struct sim_cfg *cfg);
/* Also a path that is up on both sides. */
void pair_open_path(struct pair *p, const struct sim_cfg *cfg);
/* Frees all; the library has no memory left and the world saw nothing against prov.h. */
void pair_close(struct pair *p);
/* Offers are exchanged and both sides connected. */
void pair_connect(struct pair *p);
/* One NIC more, of a given engine. */
wimm_status pair_dev(struct pair *p, const char *nic, const uint8_t *instance,
                     struct prov_dev **out, struct prov_error *error);
/* Poll one side once at the present time. */
void pair_poll(struct pair *p, int side);
/* Go on until nothing is under way, polling both sides after each event. */
void pair_run(struct pair *p);
/* The same, but no further than a point in time. */
void pair_run_until(struct pair *p, uint64_t now_ns);
/* Post one write of src to dst at the same offset. Returns what post() took. */
uint32_t pair_write(struct pair *p, uint64_t token, uint64_t offset_bytes, uint64_t len_bytes,
                    uint32_t flags, uint32_t imm);
/* Sum of counts of one kind of event on a side. */
uint32_t pair_count(const struct pair *p, int side, enum prov_cqe_kind kind);
/* The first event of a kind, NULL if there is none. */
const struct prov_cqe *pair_find(const struct pair *p, int side, enum prov_cqe_kind kind);
/* The DONE of a token; fails the test unless there is exactly one. */
const struct prov_cqe *pair_done(const struct pair *p, uint64_t token);

#endif
