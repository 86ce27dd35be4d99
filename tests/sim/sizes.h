/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_SIZES_H
#define TESTS_SIM_SIZES_H

/* How much of everything a run has, and what bytes mean. */

#define NODES_MAX   6u
#define NICS_MAX    4u
#define RECS_MAX    12288u
#define SLOTS_MAX   24576u
#define GROUPS_MAX  1024u
#define ACTIONS_MAX 16384u
#define POOLS_MAX   4u
#define NONE        UINT32_MAX

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
/* Of a cancelled write, where NICs cannot take one back. */
#define LINGER_NS (200 * MS)

/* Region bytes: untouched, given away after being counted, of a region that is gone, and sources
 * whose operation has settled. */
#define BYTE_POISON    0xa5
#define BYTE_GIVEN     0x44
#define BYTE_DEAD      0x33
#define BYTE_SETTLED   0xdd
#define BYTE_RECLAIMED 0x66 /* taken back by a fence, and in use anew */

/* Each node has two target regions: one that stays, and one that is deregistered now and then. */
enum { MR_KEEP, MR_CHURN, MR_COUNT };
#define MR_BYTES     (384u << 10)
#define SOURCE_BYTES (1u << 20)
#define MSG_BYTES    256u

#endif
