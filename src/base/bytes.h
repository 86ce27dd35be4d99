/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bounded little-endian reader and writer. Running over the end sets `bad` for good: reads then
 * give zeros, writes do nothing, and the caller asks once at the end. */
struct br {
	const uint8_t *buf;
	size_t len_bytes;
	size_t pos_bytes;
	bool bad;
};

struct bw {
	uint8_t *buf;
	size_t cap_bytes;
	size_t pos_bytes;
	bool bad;
};

void br_init(struct br *r, const void *buf, size_t len_bytes);
uint8_t br_u8(struct br *r);
uint16_t br_u16(struct br *r);
uint32_t br_u32(struct br *r);
uint64_t br_u64(struct br *r);
/* Copies; zeros on overrun. */
void br_bytes(struct br *r, void *out, size_t len_bytes);
/* A pointer into the buffer; NULL on overrun. */
const void *br_view(struct br *r, size_t len_bytes);
void br_skip(struct br *r, size_t len_bytes);
size_t br_left(const struct br *r);
/* Nothing overran and nothing is left: the whole input was understood. */
bool br_done(const struct br *r);

void bw_init(struct bw *w, void *buf, size_t cap_bytes);
void bw_u8(struct bw *w, uint8_t v);
void bw_u16(struct bw *w, uint16_t v);
void bw_u32(struct bw *w, uint32_t v);
void bw_u64(struct bw *w, uint64_t v);
void bw_bytes(struct bw *w, const void *src, size_t len_bytes);
void bw_zeros(struct bw *w, size_t len_bytes);
/* Bytes written so far; meaningless when bad. */
size_t bw_len(const struct bw *w);

/* The largest of them, several at a time; 0 of none. */
uint32_t max_u32(const uint32_t *values, uint64_t count);

#endif
