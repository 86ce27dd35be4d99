/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_PATTERN_H
#define TOOLS_LIB_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that differ from block to block and from round to round. */
uint64_t pattern_key(uint64_t seed, uint64_t round, uint64_t block);
void pattern_fill(uint8_t *at, size_t len, uint64_t key);
/* Offset of the first byte that differs; len: none does. */
size_t pattern_check(const uint8_t *at, size_t len, uint64_t key);
/* The same of one repeated byte. */
size_t poison_check(const uint8_t *at, size_t len, uint8_t poison);

#endif
