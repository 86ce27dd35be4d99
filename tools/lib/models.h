/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_MODELS_H
#define TOOLS_LIB_MODELS_H

#include <stddef.h>
#include <stdint.h>

/* What a token keeps in one layer: K and V of every head, or one latent vector for both (MLA). */
struct model {
	const char *name;
	uint32_t layers;
	uint32_t kv_heads; /* 1 with MLA */
	uint32_t head_dim;
	uint32_t segments; /* of a page: 2, K and V; 1 with MLA */
	uint32_t page_tokens;
};

/* NULL: unknown. */
const struct model *model_find(const char *name);
const struct model *model_default(void);
/* The i-th, NULL behind the last. */
const struct model *model_at(size_t i);

#endif
