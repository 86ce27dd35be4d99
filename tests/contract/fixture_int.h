/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CONTRACT_FIXTURE_INT_H
#define TESTS_CONTRACT_FIXTURE_INT_H

/* Between the fixture's own files. */

#include "contract/fixture.h"

#define NODES_MAX 64

extern struct node *case_nodes[NODES_MAX]; /* open and closed ones of this case */

bool gate_init(void); /* once a process; false: no memory */
void results_reset(void);
/* Whether each accepted operation was reported once and each refused one never; says which not. */
bool results_are_right(void);

#endif
