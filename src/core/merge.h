/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_MERGE_H
#define CORE_MERGE_H

#include "core/op.h"

/* Make one entry of pages that follow each other on both sides, where that saves a third of the
 * entries or more. No entry gets longer than longest_bytes, but for a page that is. Without memory
 * nothing is merged, which is right as well. For lists whose pages carry no immediate each. */
void merge_pages(struct op_paged *pages, uint64_t longest_bytes);

#endif
