/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Each file has one target: any bytes are refused, or become a value that stays the same when it
 * is written and read again. The sanitizers watch the rest. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops the fuzzer at this input. */
#define FUZZ_CHECK(cond) ((cond) ? (void)0 : __builtin_trap())

#endif
