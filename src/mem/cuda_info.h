/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_CUDA_INFO_H
#define MEM_CUDA_INFO_H

/* What a card is, and what a receiver has to do before bytes that a NIC wrote into its memory are
 * counted (contract C6). */

#include "mem/cuda_lib.h"

#include <stdbool.h>

enum mem_flush_rule {
	MEM_FLUSH_NONE = 0, /* the card orders such writes before what reads them */
	MEM_FLUSH_CALL,     /* cuFlushGPUDirectRDMAWrites() */
	MEM_FLUSH_READ,     /* a loopback READ of that memory through the NIC */
};

struct mem_cuda_card {
	char name[96];
	uint64_t pci; /* domain << 32 | bus << 16 | device */
	uint32_t sms;
	int writes_ordering; /* of GPU_DIRECT_RDMA_WRITES_ORDERING: 0, 100 (owner), 200 (all) */
	int flush_options;
	bool gpu_direct; /* NICs may write into it at all */
	bool dma_buf;
};

/* Below one switch the NIC's writes and its immediate take the same way, and nothing is needed. */
enum mem_flush_rule mem_flush_rule(bool one_switch, int writes_ordering, int flush_options,
                                   bool has_call);
const char *mem_flush_text(enum mem_flush_rule rule);

/* How many cards there are, with the driver loaded for it; -1: none, `why` says so. */
int mem_cuda_count(char *why, size_t why_bytes);
/* Needs no context. False: the driver refuses. */
bool mem_cuda_card(int device, struct mem_cuda_card *out);
/* MEM_FLUSH_CALL: what NICs have written into a card's memory is there for all work that the card
 * begins later. Returns OK, E_SYSTEM. Blocks: shortly. */
WIMM_MUST_CHECK wimm_status mem_cuda_flush(int device);
/* The rule of a card for NICs behind another switch. */
enum mem_flush_rule mem_cuda_far_rule(const struct mem_cuda_card *card);

#endif
