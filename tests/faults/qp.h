/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULTS_QP_H
#define TESTS_FAULTS_QP_H

#include "contract/fixture.h"

/* All queue pairs of a node's paths go into error behind the back of its engine, as by a fault of
 * its NIC. Only with provider verbs. */
void qps_to_error(struct node *n);

#endif
