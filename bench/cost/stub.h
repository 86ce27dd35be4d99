/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_COST_STUB_H
#define BENCH_COST_STUB_H

#include <stdbool.h>
#include <stdint.h>

/* What stands in for a NIC where instructions are counted. stub.c: a provider, sim's with posts
 * that are accepted and done at once and reach nobody, in sim's place in this program's list of
 * providers. stub_verbs.c: the library below provider verbs, tests/fake's. */

/* Provider and NIC of the i-th engine. */
extern const char *const stub_provider;
const char *stub_nic(uint32_t i);
/* `reached` is called at the entry of the post that brings the requests since stub_arm() to
 * `count`, `aside` whenever what must not be counted begins or ends. */
void stub_arm(uint64_t count, void (*reached)(void), void (*aside)(void));
/* While held, nothing that was posted is reported as done. */
void stub_hold(bool held);
uint64_t stub_posted(void);

#endif
