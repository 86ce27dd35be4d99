/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_COST_STUB_H
#define BENCH_COST_STUB_H

#include <stdbool.h>
#include <stdint.h>

/* A provider for counting the core's own instructions: sim's, with posts that are accepted and done
 * at once and reach nobody. It takes sim's place in this program's list of providers. */

/* Called at the entry of the post that brings the requests since stub_arm() to `count`. */
void stub_arm(uint64_t count, void (*reached)(void));
/* While held, nothing that was posted is reported as done. */
void stub_hold(bool held);
uint64_t stub_posted(void);

#endif
